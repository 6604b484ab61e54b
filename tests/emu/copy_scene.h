// What tests of asynchronous copies share: an mbarrier, a box in shared memory, and a machine with something to copy.
#pragma once

#include <doctest/doctest.h>

#include <algorithm>
#include <cstdint>
#include <memory>
#include <numeric>
#include <span>

#include "runtime/emulator/exec/tensor_map.h"
#include "tests/emu/native_kernel.h"

namespace attune::emulator::tests {

constexpr std::uint32_t kBarrier = kShared;     ///< mbarrier
constexpr std::uint32_t kBox = kShared + 1024;  ///< what is copied
constexpr std::uint32_t kSecond = kBox + 8192;

constexpr MbarrierArriveInfo kArrive{AddressSpace::shared, Semantics::release, Scope::cta, false, false, false};
constexpr MbarrierArriveInfo kArriveExpect{AddressSpace::shared, Semantics::release, Scope::cta, false, false, true};
constexpr MbarrierWaitInfo kTryParity{true, true, Semantics::acquire, Scope::cta};

inline void wait(ThreadContext* c, std::uint32_t parity, std::uint32_t site) {
  while (!att_mbarrier_wait(c, &kTryParity, kBarrier, parity, site)) loop(c, 4, site);
}

inline void initialise(ThreadContext* c, std::uint32_t count = 1) {
  if (c->index == 0) {
    att_mbarrier_init(c, kBarrier, count, 1);
    att_fence(c, FenceKind::mbarrier_init, 1);
  }
  sync(c, 0, 0, 2);
}

inline Launch with_memory(unsigned block = 32) {
  Launch launch = threads(block);
  launch.options.dynamic_shared_bytes = 32 << 10;
  return launch;
}

/// A machine with an input of numbered words, an output, and tensor maps of both: 64 columns of 16 rows, boxes of 32
/// x 8.
struct Fixture {
  static constexpr std::uint32_t kColumns = 64, kRows = 16;

  std::unique_ptr<Machine> machine = Machine::create();
  std::span<std::uint32_t> input = words(), output = words();
  TensorMap* input_map = map(input.data());
  TensorMap* output_map = map(output.data());

  Fixture() {
    std::iota(input.begin(), input.end(), 1000u);
    machine->mark_written(input.data(), input.size_bytes());
    std::ranges::fill(output, 7u);
    machine->mark_written(output.data(), output.size_bytes());
  }

  Report run(Entry entry, Launch launch = with_memory()) {
    launch.parameters[0] = reinterpret_cast<std::uintptr_t>(input.data());
    launch.parameters[1] = reinterpret_cast<std::uintptr_t>(output.data());
    launch.parameters[2] = reinterpret_cast<std::uintptr_t>(input_map);
    launch.parameters[3] = reinterpret_cast<std::uintptr_t>(output_map);
    return attune::emulator::tests::run(*machine, entry, launch);
  }

  std::span<std::uint32_t> words() {
    constexpr std::size_t kCount = kColumns * kRows;
    return {static_cast<std::uint32_t*>(machine->allocate(kCount * 4)), kCount};
  }
  TensorMap* map(const std::uint32_t* base, TensorType type = TensorType::u32) {
    TensorMapDescription d;
    d.type = type;
    d.rank = 2;
    d.base = base;
    d.dims = {kColumns, kRows};
    d.strides = {kColumns * 4};
    d.box = {32, 8};
    d.swizzle = Swizzle::bytes128;
    auto* memory = static_cast<TensorMap*>(machine->allocate(sizeof(TensorMap)));
    *memory = encode_tensor_map(d);
    machine->mark_written(memory, sizeof *memory);
    return memory;
  }
};

inline std::uint64_t input_of(ThreadContext* c) { return parameter<std::uint64_t>(c, 0); }
inline std::uint64_t output_of(ThreadContext* c) { return parameter<std::uint64_t>(c, 1); }
inline std::uint64_t input_map_of(ThreadContext* c) { return parameter<std::uint64_t>(c, 2); }
inline std::uint64_t output_map_of(ThreadContext* c) { return parameter<std::uint64_t>(c, 3); }

inline Finding only(const Report& report, FindingKind kind) {
  CHECK_MESSAGE(report.findings.size() == 1, report.text());
  return find(report, kind);
}

}  // namespace attune::emulator::tests
