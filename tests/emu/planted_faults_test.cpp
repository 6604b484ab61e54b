// Faults that are planted on purpose must be found and named, and the kernels without them must be clean.
// ATTUNE_FAULT_TABLE=<file> writes the tables of docs/emulator-faults.md: what was found, and what a GPU made of the
// faults by faults/h200.json. That file comes of faults/on_device.py, which takes what ATTUNE_FAULT_DUMP=<folder>
// writes.
#include <doctest/doctest.h>
#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <limits>
#include <map>
#include <memory>
#include <regex>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "tests/emu/faults/attention_faults.h"
#include "tests/emu/faults/device_cases.h"
#include "tests/emu/faults/device_results.h"
#include "tests/emu/faults/small_faults.h"
#include "tests/nvrtc.h"

namespace attune::emulator {
namespace {

constexpr std::uint64_t kSeeds[] = {0, 1, 2, 3};
/// Of bf16 attention and its LSE; an element that went wrong is off by some tenths.
constexpr double kTolerance = 0.03;

std::string read_file(const std::filesystem::path& path) {
  std::ifstream in(path);
  REQUIRE(in.good());
  return {std::istreambuf_iterator<char>(in), {}};
}

std::filesystem::path faults_folder() {
  return std::filesystem::path(ATTUNE_TEST_DATA).parent_path() / "emu" / "faults";
}

std::string small_source(const std::string& file) { return read_file(faults_folder() / (file + ".cu")); }

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

const DeviceResults& device_results() {
  static const DeviceResults results(faults_folder() / "h200.json");
  return results;
}

/// Kernel and name of each, in the order of the table.
std::vector<std::pair<std::string, std::string>> all_faults() {
  std::vector<std::pair<std::string, std::string>> faults;
  for (const AttentionFault& fault : attention_faults()) faults.emplace_back(fault.base, fault.name);
  for (const SmallFault& fault : small_faults()) faults.emplace_back(fault.file, fault.name);
  return faults;
}

/// A message as a cell of a table: without what depends on the machine, and not longer than a glance.
std::string cell(std::string message) {
  message = std::regex_replace(message, std::regex("address 0x[0-9a-f]{9,}"), "address");
  message = std::regex_replace(message, std::regex(R"( \[[^\]]*\.(cu|cuh|ptx):\d+[^\]]*\])"), "");
  constexpr std::size_t kLength = 160;
  if (message.size() > kLength) message = message.substr(0, message.rfind(' ', kLength)) + " ...";
  for (std::size_t at = 0; (at = message.find('|', at)) != std::string::npos; at += 2) message.insert(at, "\\");
  return message;
}

/// The cells of a fault's row that a GPU has filled.
std::string device_cells(const std::string& kernel, const std::string& fault) {
  return fmt::format("| {} | {} |", device_results().device(kernel, fault), device_results().sanitizer(kernel, fault));
}

/// All cells of a fault's row but what the report says.
std::string row_of(const std::string& kernel, const std::string& fault, const Outcome& outcome, std::size_t seeds) {
  return fmt::format("| {} | {} | `{}` | {} of {} {}", kernel, fault, outcome.text, seeds, std::size(kSeeds),
                     device_cells(kernel, fault));
}

const std::string& documentation() {
  static const std::string text = read_file(faults_folder() / "../../../docs/emulator-faults.md");
  return text;
}

/// Rows of the table that ATTUNE_FAULT_TABLE asks for.
void record(const std::string& kernel, const std::string& fault, const Outcome& outcome, std::size_t seeds) {
  const char* file = std::getenv("ATTUNE_FAULT_TABLE");
  if (!file) return;
  static std::ofstream out(file);
  if (out.tellp() == 0) {
    out << device_results().summary(all_faults()) << "\n"
        << "| kernel | planted fault | found as | with seeds | on an H200 | compute-sanitizer | what the report says "
           "|\n"
        << "|---|---|---|---|---|---|---|\n";
  }
  out << row_of(kernel, fault, outcome, seeds) << " " << cell(outcome.message) << " |\n" << std::flush;
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
  CHECK_MESSAGE(documentation().find("\n" + row_of(kernel, fault, found, seeds)) != std::string::npos,
                "the documentation says something else: " << row_of(kernel, fault, found, seeds));
}

std::string name_of(const Expectation& expected) {
  return expected.kind ? finding_kind_name(*expected.kind) : "wrong output";
}

struct AttentionKernel {
  const AttentionBase* base;
  Problem problem;
  int cluster;
  codegen::EmittedKernel emitted;
};

const AttentionKernel& attention_kernel(const std::string& name) {
  static const auto kernels = [] {
    std::map<std::string, AttentionKernel> all;
    for (const AttentionBase& base : attention_bases()) {
      const Problem problem = parse_problem(base.problem);
      const codegen::KernelSpec spec =
          codegen::specialise(parse_arch("sm_90a"), problem, codegen::parse_config(base.config));
      all.emplace(base.name, AttentionKernel{&base, problem, spec.config.cluster, codegen::emit(spec)});
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
  return run_attention(program, kernel.emitted.shape, kernel.problem, kernel.base->workers, kernel.cluster,
                       options_of(seed), edits);
}

/// What a launch of a small kernel takes; `out` is unwritten, and NaN.
struct SmallLaunch {
  static constexpr std::size_t kFloats = 1024, kFlags = 16;
  float* in = nullptr;
  float* out = nullptr;
  unsigned* flags = nullptr;
  LaunchOptions options;
};

SmallLaunch prepare_small(Machine* machine, const SmallKernel& kernel, std::uint64_t seed) {
  SmallLaunch launch;
  launch.in = static_cast<float*>(machine->allocate(SmallLaunch::kFloats * sizeof(float)));
  for (std::size_t i = 0; i < SmallLaunch::kFloats; ++i) launch.in[i] = static_cast<float>(i % 7);
  machine->mark_written(launch.in, SmallLaunch::kFloats * sizeof(float));
  launch.out = static_cast<float*>(machine->allocate(SmallLaunch::kFloats * sizeof(float)));
  std::fill_n(launch.out, SmallLaunch::kFloats, std::numeric_limits<float>::quiet_NaN());
  launch.flags = static_cast<unsigned*>(machine->allocate(SmallLaunch::kFlags * sizeof(unsigned)));
  std::fill_n(launch.flags, SmallLaunch::kFlags, 0u);
  machine->mark_written(launch.flags, SmallLaunch::kFlags * sizeof(unsigned));
  launch.options = options_of(seed);
  launch.options.grid.x = kernel.grid;
  launch.options.block.x = kernel.block;
  launch.options.cluster.x = kernel.cluster;
  return launch;
}

Report run_small(Machine* machine, const Program& program, SmallLaunch launch) {
  void* arguments[] = {&launch.in, &launch.out, &launch.flags};
  return machine->launch(program, "kernel", launch.options, arguments);
}

Report run_small(const SmallKernel& kernel, const Program& program, std::uint64_t seed) {
  const std::unique_ptr<Machine> machine = Machine::create();
  return run_small(machine.get(), program, prepare_small(machine.get(), kernel, seed));
}

const SmallKernel& small_kernel(const std::string& file) {
  return *std::ranges::find(small_kernels(), file, &SmallKernel::file);
}

void add_attention_cases(DeviceCases* cases) {
  const auto add = [&](const AttentionKernel& kernel, const LaunchEdits& edits, const std::string& fault,
                       const std::string& emulator, const std::string& source) {
    const std::unique_ptr<Machine> machine = Machine::create();
    const codegen::LaunchShape& shape = kernel.emitted.shape;
    const AttentionLaunch launch =
        prepare_attention(machine.get(), shape, kernel.problem, kernel.base->workers, kernel.cluster, edits);
    const std::string& name = kernel.base->name;
    cases->add(
        name, fault, emulator, source, {},
        device_launch(cases->folder(), name, shape.entry, launch, expected_output(kernel.problem, launch), kTolerance));
  };
  for (const AttentionBase& base : attention_bases())
    add(attention_kernel(base.name), {}, "", "nothing", attention_kernel(base.name).emitted.source);
  for (const AttentionFault& fault : attention_faults()) {
    const AttentionKernel& kernel = attention_kernel(fault.base);
    add(kernel, fault.launch, fault.name, name_of(fault.expected),
        replaced(kernel.emitted.source, fault.find, fault.times, fault.replace));
  }
}

/// What a small kernel without its faults writes is what the emulator says that it writes.
void add_small_cases(DeviceCases* cases) {
  std::map<std::string, std::vector<float>> outputs;
  const auto add = [&](const SmallKernel& kernel, int fault, const std::string& name, const std::string& emulator,
                       std::size_t compared) {
    const std::unique_ptr<Machine> machine = Machine::create();
    const SmallLaunch launch = prepare_small(machine.get(), kernel, 0);
    std::vector<float> expected = outputs.at(kernel.file);
    std::fill(expected.begin() + static_cast<std::ptrdiff_t>(compared), expected.end(),
              std::numeric_limits<float>::quiet_NaN());
    DeviceLaunch device(cases->folder(), fmt::format("{}-{}", kernel.file, fault), "kernel", launch.options);
    device.input("in", launch.in, SmallLaunch::kFloats * sizeof(float));
    device.output("out", launch.out, "f32", expected, 0);
    device.input("flags", launch.flags, SmallLaunch::kFlags * sizeof(unsigned));
    for (const void* pointer : {static_cast<const void*>(launch.in), static_cast<const void*>(launch.out),
                                static_cast<const void*>(launch.flags)})
      device.pointer(pointer);
    cases->add(kernel.file, name, emulator, small_source(kernel.file), {fmt::format("FAULT={}", fault)}, device);
  };
  for (const SmallKernel& kernel : small_kernels()) {
    const std::unique_ptr<Machine> machine = Machine::create();
    const SmallLaunch launch = prepare_small(machine.get(), kernel, 0);
    CHECK(run_small(machine.get(), *Program::load(ptx_of(small_source(kernel.file), {"FAULT=0"})), launch).clean());
    outputs[kernel.file].assign(launch.out, launch.out + SmallLaunch::kFloats);
    add(kernel, 0, "", "nothing", SmallLaunch::kFloats);
  }
  for (const SmallFault& fault : small_faults())
    add(small_kernel(fault.file), fault.number, fault.name, name_of(fault.expected), fault.compared);
}

}  // namespace

TEST_CASE("planted faults are written for a device" * doctest::skip(std::getenv("ATTUNE_FAULT_DUMP") == nullptr)) {
  REQUIRE(attune::tests::nvrtc() != nullptr);
  DeviceCases cases(std::getenv("ATTUNE_FAULT_DUMP"));
  add_attention_cases(&cases);
  add_small_cases(&cases);
  cases.finish();
}

TEST_CASE("the documentation has a row for each planted fault") {
  const std::string& text = documentation();
  CHECK(text.find(device_results().summary(all_faults())) != std::string::npos);
  std::istringstream lines(text.substr(text.find("| kernel | planted fault |")));
  std::string line;
  REQUIRE(std::getline(lines, line));
  REQUIRE(std::getline(lines, line));
  for (const auto& [kernel, fault] : all_faults()) {
    REQUIRE(std::getline(lines, line));
    CAPTURE(line);
    CHECK(line.starts_with(fmt::format("| {} | {} |", kernel, fault)));
    CHECK(line.find(" " + device_cells(kernel, fault) + " ") != std::string::npos);
  }
  CHECK_FALSE(std::getline(lines, line));
}

TEST_CASE("attention kernels as emitted are clean and right") {
  if (!attune::tests::nvrtc()) return;
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
  if (!attune::tests::nvrtc()) return;
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
  if (!attune::tests::nvrtc()) return;
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
  if (!attune::tests::nvrtc()) return;
  for (const SmallFault& fault : small_faults()) {
    const SmallKernel& kernel = small_kernel(fault.file);
    const auto program = Program::load(ptx_of(small_source(fault.file), {"FAULT=" + std::to_string(fault.number)}));
    expect(fault.file, fault.name, fault.expected,
           [&](std::uint64_t seed) { return judge(run_small(kernel, *program, seed), false, fault.expected); });
  }
}

}  // namespace attune::emulator
