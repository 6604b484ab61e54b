// Kernels written in C++ against the interface that translated code uses, to test exec/ by itself.
#pragma once

#include <doctest/doctest.h>

#include <cstdint>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "runtime/emulator/exec/code.h"
#include "runtime/emulator/exec/grid.h"
#include "runtime/emulator/exec/intrinsics.h"
#include "runtime/emulator/exec/program.h"
#include "runtime/emulator/exec/thread.h"

namespace attune::emulator::tests {

constexpr std::uint64_t kSeeds[] = {0, 1, 2, 3, 4, 5, 6, 7};
constexpr std::uint32_t kShared = kSharedReserved;  ///< the first shared address of a kernel
constexpr std::uint32_t kAll = ~0u;
constexpr int kParameters = 4;

using Entry = void (*)(ThreadContext*);

/// A program of one kernel "kernel" that takes four 64-bit parameters. Site n is line n.
inline std::shared_ptr<ProgramImage> native_image(Entry entry, bool checks = true) {
  auto image = std::make_shared<ProgramImage>();
  KernelCode kernel;
  kernel.info.name = "kernel";
  for (std::size_t i = 0; i < kParameters; ++i) {
    kernel.info.parameter_bytes.push_back(8);
    kernel.info.parameter_offsets.push_back(i * 8);
  }
  kernel.parameter_bytes = kParameters * 8;
  kernel.entry = entry;
  kernel.stack_bytes = 64 << 10;
  kernel.local_bytes = 64;
  image->kernels.push_back(kernel);
  for (int line = 0; line < 100; ++line) {
    image->sites.push_back({.line = line, .column = 1, .location = -1});
    image->lines.push_back("instruction " + std::to_string(line + 1) + ";");
  }
  image->checks = checks;
  return image;
}

struct Launch {
  LaunchOptions options;
  std::uint64_t parameters[kParameters] = {};
  bool checks = true;
};

inline Launch threads(unsigned block, unsigned grid = 1) {
  Launch launch;
  launch.options.block.x = block;
  launch.options.grid.x = grid;
  launch.options.dynamic_shared_bytes = 4096;
  launch.options.instruction_limit = 10'000'000;
  return launch;
}

inline Report run(Machine& machine, Entry entry, Launch launch) {
  const LoadedProgram program(native_image(entry, launch.checks), 0, 0);
  void* arguments[kParameters];
  for (int i = 0; i < kParameters; ++i) arguments[i] = &launch.parameters[i];
  return machine.launch(program, "kernel", launch.options, arguments);
}

inline Report run(Entry entry, const Launch& launch) { return run(*Machine::create(), entry, launch); }

inline bool has(const Report& report, FindingKind kind) {
  for (const Finding& finding : report.findings) {
    if (finding.kind == kind) return true;
  }
  return false;
}

/// The first one of a kind.
inline Finding find(const Report& report, FindingKind kind) {
  for (const Finding& finding : report.findings) {
    if (finding.kind == kind) return finding;
  }
  FAIL_CHECK("no " << finding_kind_name(kind) << " in: " << report.text());
  return {};
}

inline bool contains(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

// -- what kernels do ------------------------------------------------------------------------------------

template <typename T>
T parameter(const ThreadContext* context, int index) {
  T value;
  std::memcpy(&value, context->parameters + index * 8, sizeof value);
  return value;
}

template <typename T>
void store(ThreadContext* context, AddressSpace space, std::uint64_t address, T value, std::uint32_t site,
           Semantics semantics = Semantics::weak) {
  std::uint8_t* memory = att_access(
      context, address, access_word(AccessKind::write, space, semantics, Scope::gpu, sizeof value, sizeof value), site);
  std::memcpy(memory, &value, sizeof value);
}

template <typename T>
T load(ThreadContext* context, AddressSpace space, std::uint64_t address, std::uint32_t site,
       Semantics semantics = Semantics::weak) {
  T value;
  const std::uint8_t* memory = att_access(
      context, address, access_word(AccessKind::read, space, semantics, Scope::gpu, sizeof value, sizeof value), site);
  std::memcpy(&value, memory, sizeof value);
  return value;
}

/// The result of a thread, in an array at the address in parameter 0.
template <typename T>
void result(ThreadContext* context, T value, std::uint32_t site = 99) {
  const std::uint64_t thread = std::uint64_t{context->block->serial} * context->block->thread_count + context->index;
  store(context, AddressSpace::global, parameter<std::uint64_t>(context, 0) + thread * sizeof(T), value, site);
}

/// What a backward branch does after so many instructions.
inline void loop(ThreadContext* context, std::int32_t instructions, std::uint32_t site) {
  context->instructions += static_cast<std::uint64_t>(instructions);
  context->fuel -= instructions;
  if (context->fuel < 0) att_yield(context, site);
}

inline void sync(ThreadContext* context, std::uint32_t id, std::uint32_t count, std::uint32_t site) {
  att_barrier(context, BarrierMode::sync, id, count, 0, 1, site);
}

/// Runs it and gives what the threads stored with result().
template <typename T>
std::vector<T> results(Entry entry, Launch launch, Report* report) {
  const std::unique_ptr<Machine> machine = Machine::create();
  const std::size_t count = std::size_t{launch.options.block.x} * launch.options.block.y * launch.options.block.z *
                            launch.options.grid.x * launch.options.grid.y * launch.options.grid.z;
  auto* memory = static_cast<T*>(machine->allocate(count * sizeof(T)));
  launch.parameters[0] = reinterpret_cast<std::uintptr_t>(memory);
  *report = run(*machine, entry, launch);
  return {memory, memory + count};
}

/// The same, and there must be no findings.
template <typename T>
std::vector<T> clean_results(Entry entry, const Launch& launch) {
  Report report;
  std::vector<T> values = results<T>(entry, launch, &report);
  CHECK_MESSAGE(report.clean(), report.text());
  return values;
}

}  // namespace attune::emulator::tests
