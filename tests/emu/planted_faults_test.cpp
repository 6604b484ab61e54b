// Faults that are planted on purpose must be found and named, and the kernels without them must be clean.
// ATTUNE_FAULT_TABLE=<file> writes what was found as a Markdown table.
#include <doctest/doctest.h>
#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <memory>
#include <regex>
#include <string>
#include <vector>

#include "runtime/compiler.h"
#include "tests/emu/faults/attention_faults.h"
#include "tests/emu/faults/small_faults.h"

namespace attune::emulator {
namespace {

constexpr std::uint64_t kSeeds[] = {0, 1, 2, 3};
/// Of bf16 attention; an element that went wrong is off by some tenths.
constexpr double kTolerance = 0.03;

std::string read_file(const std::filesystem::path& path) {
  std::ifstream in(path);
  REQUIRE(in.good());
  return {std::istreambuf_iterator<char>(in), {}};
}

bool nvrtc_is_here() {
  try {
    return runtime::Compiler::get() != nullptr;
  } catch (const Error& error) {
    REQUIRE(error.code() == ErrorCode::unsupported);
    MESSAGE("no NVRTC here: " << std::string(error.what()));
    return false;
  }
}

std::string small_source(const std::string& file) {
  return read_file(std::filesystem::path(ATTUNE_TEST_DATA).parent_path() / "emu" / "faults" / (file + ".cu"));
}

std::string replaced(std::string source, const std::string& find, int times, const std::string& replace) {
  int found = 0;
  for (std::size_t at = 0; !find.empty() && (at = source.find(find, at)) != std::string::npos; at += replace.size()) {
    source.replace(at, find.size(), replace);
    ++found;
  }
  REQUIRE(found == times);
  return source;
}

/// Of one launch: whether what is expected was found.
struct Outcome {
  bool as_expected = false;
  bool clean = false;
  std::string text;     ///< the finding, or what was found instead
  std::string message;  ///< of the finding
};

Outcome judge(const Report& report, bool wrong_output, const Expectation& expected) {
  Outcome outcome;
  outcome.clean = report.clean();
  outcome.text = outcome.clean ? "nothing" : report.text();
  if (!expected.kind) {
    outcome.as_expected = outcome.clean && wrong_output;
    if (outcome.as_expected) {
      outcome.text = "wrong output";
      outcome.message = "nothing that a kernel may not do; the comparison fails";
    }
    return outcome;
  }
  for (const Finding& finding : report.findings) {
    if (finding.kind == *expected.kind && finding.message.find(expected.message) != std::string::npos &&
        finding.at.instruction.find(expected.instruction) != std::string::npos) {
      outcome.as_expected = true;
      outcome.text = finding_kind_name(finding.kind);
      outcome.message = finding.message;
      break;
    }
  }
  return outcome;
}

/// Rows of the table that ATTUNE_FAULT_TABLE asks for.
void record(const std::string& kernel, const std::string& fault, const Outcome& outcome, std::size_t seeds) {
  const char* file = std::getenv("ATTUNE_FAULT_TABLE");
  if (!file) return;
  std::ofstream out(file, std::ios::app);
  if (out.tellp() == 0)
    out << "| kernel | planted fault | found as | with seeds | what the report says |\n|---|---|---|---|---|\n";
  // What depends on the machine is left out.
  std::string message = std::regex_replace(outcome.message, std::regex("address 0x[0-9a-f]{9,}"), "address");
  message = std::regex_replace(message, std::regex(R"(\[/[^\]]*/([^/\]]+/[^/\]]+/[^/\]]+)\])"), "[$1]");
  for (std::size_t at = 0; (at = message.find('|', at)) != std::string::npos; at += 2) message.insert(at, "\\");
  out << fmt::format("| {} | {} | `{}` | {} of {} | {} |\n", kernel, fault, outcome.text, seeds, std::size(kSeeds),
                     message);
}

/// Judges the launches of all seeds.
template <typename Run>
void expect(const std::string& kernel, const std::string& fault, const Expectation& expected, const Run& run) {
  CAPTURE(kernel);
  CAPTURE(fault);
  Outcome found;
  std::string missed;
  std::size_t seeds = 0, clean = 0;
  for (const std::uint64_t seed : kSeeds) {
    const Outcome outcome = run(seed);
    clean += outcome.clean;
    if (outcome.as_expected) {
      if (++seeds == 1) found = outcome;
    } else {
      missed += fmt::format("seed {}: {}\n", seed, outcome.text);
    }
  }
  INFO(missed);
  CHECK(seeds > 0);
  if (expected.seeds == Seeds::every) CHECK(seeds == std::size(kSeeds));
  if (expected.seeds == Seeds::others) CHECK(clean == 0);
  record(kernel, fault, found, seeds);
}

struct AttentionKernel {
  const AttentionBase* base;
  Problem problem;
  codegen::EmittedKernel emitted;
};

const AttentionKernel& attention_kernel(const std::string& name) {
  static const auto kernels = [] {
    std::map<std::string, AttentionKernel> all;
    for (const AttentionBase& base : attention_bases()) {
      const Problem problem = parse_problem(base.problem);
      const codegen::KernelSpec spec =
          codegen::specialise(parse_arch("sm_90a"), problem, codegen::parse_config(base.config));
      all.emplace(base.name, AttentionKernel{&base, problem, codegen::emit(spec)});
    }
    return all;
  }();
  return kernels.at(name);
}

LaunchOptions options_of(std::uint64_t seed) {
  LaunchOptions options;
  options.seed = seed;
  options.resident_blocks = 4;
  options.instruction_limit = 20'000'000;
  return options;
}

AttentionRun run(const AttentionKernel& kernel, const Program& program, std::uint64_t seed, const LaunchEdits& edits) {
  return run_attention(program, kernel.emitted.shape, kernel.problem, kernel.base->workers, options_of(seed), edits);
}

Report run_small(const SmallKernel& kernel, const Program& program, std::uint64_t seed) {
  constexpr std::size_t kBytes = 4096, kFlags = 64;
  const std::unique_ptr<Machine> machine = Machine::create();
  auto* in = static_cast<float*>(machine->allocate(kBytes));
  for (std::size_t i = 0; i < kBytes / 4; ++i) in[i] = static_cast<float>(i % 7);
  machine->mark_written(in, kBytes);
  void* out = machine->allocate(kBytes);
  void* flags = machine->allocate(kFlags);
  std::fill_n(static_cast<unsigned*>(flags), kFlags / 4, 0u);
  machine->mark_written(flags, kFlags);
  LaunchOptions options = options_of(seed);
  options.grid.x = kernel.grid;
  options.block.x = kernel.block;
  options.cluster.x = kernel.cluster;
  void* arguments[] = {&in, &out, &flags};
  return machine->launch(program, "kernel", options, arguments);
}

const SmallKernel& small_kernel(const std::string& file) {
  return *std::ranges::find(small_kernels(), file, &SmallKernel::file);
}

}  // namespace

TEST_CASE("attention kernels as emitted are clean and right") {
  if (!nvrtc_is_here()) return;
  for (const AttentionBase& base : attention_bases()) {
    const AttentionKernel& kernel = attention_kernel(base.name);
    const auto program = Program::load(ptx_of(kernel.emitted.source));
    for (const std::uint64_t seed : kSeeds) {
      const AttentionRun result = run(kernel, *program, seed, {});
      CAPTURE(base.name);
      CAPTURE(seed);
      INFO(result.report.text());
      CHECK(result.report.clean());
      CHECK(result.worst < kTolerance);
    }
  }
}

TEST_CASE("faults planted in attention kernels are found") {
  if (!nvrtc_is_here()) return;
  for (const AttentionFault& fault : attention_faults()) {
    const AttentionKernel& kernel = attention_kernel(fault.base);
    CAPTURE(fault.name);
    const auto program = Program::load(ptx_of(replaced(kernel.emitted.source, fault.find, fault.times, fault.replace)));
    expect(fault.base, fault.name, fault.expected, [&](std::uint64_t seed) {
      const AttentionRun result = run(kernel, *program, seed, fault.launch);
      return judge(result.report, !(result.worst < kTolerance), fault.expected);
    });
  }
}

TEST_CASE("small kernels without their faults are clean") {
  if (!nvrtc_is_here()) return;
  for (const SmallKernel& kernel : small_kernels()) {
    const auto program = Program::load(ptx_of(small_source(kernel.file), {"FAULT=0"}));
    for (const std::uint64_t seed : kSeeds) {
      const Report report = run_small(kernel, *program, seed);
      CAPTURE(kernel.file);
      CAPTURE(seed);
      INFO(report.text());
      CHECK(report.clean());
    }
  }
}

TEST_CASE("faults planted in small kernels are found") {
  if (!nvrtc_is_here()) return;
  for (const SmallFault& fault : small_faults()) {
    const SmallKernel& kernel = small_kernel(fault.file);
    const auto program = Program::load(ptx_of(small_source(fault.file), {"FAULT=" + std::to_string(fault.number)}));
    expect(fault.file, fault.name, fault.expected,
           [&](std::uint64_t seed) { return judge(run_small(kernel, *program, seed), false, fault.expected); });
  }
}

}  // namespace attune::emulator
