// attune verify: kernels against the float64 reference on the device. On a GPU a worker process runs them, as a kernel
// that hangs or crashes is just what one verifies for; the CPU emulator survives them.
#include "base/error.h"
#include "cli/command.h"
#include "cli/emulator.h"
#include "cli/interrupt.h"
#include "cli/verify_report.h"
#include "cli/verify_subjects.h"
#include "cli/wording.h"
#include "codegen/space.h"
#include "tuner/measure/helpers.h"
#include "tuner/worker_measurer.h"
#include "tuner/worker_path.h"

namespace attune::cli {
namespace {

constexpr double kHangSeconds = 10;

struct Flags {
  ProblemSetFlags problems;
  DeviceFlag device;
  CacheFlag cache;
  std::vector<std::string> configs;
  std::string pack;
  std::string source;
  std::optional<std::string> seeds, first_seed;
};

void supply(tuner::Measurer& measurer, runtime::Builder& builder, const Arch& arch, const Problem& problem) {
  for (const std::string& spec : tuner::reference_specs(arch, problem)) {
    const runtime::Build build = builder.build(codegen::parse_kernel_spec(spec));
    runtime::require_accepted(build);
    measurer.set_reference(spec, std::make_shared<const std::string>(build.cubin));
  }
}

ExitCode run_on_gpu(const Flags& flags, Output& output) {
  SubjectRequest request{flags.problems, flags.configs, flags.pack};
  request.second_kernels = true;
  check_subjects(request, output);
  const Interrupt interrupt;
  tuner::WorkerMeasurer measurer({.path = tuner::find_worker(),
                                  .device = std::to_string(flags.device.ordinal()),
                                  .hang_seconds = kHangSeconds,
                                  .stop = interrupt.token(),
                                  .warn = [&output](const std::string& text) { output.warn(text); }});
  const runtime::DeviceProperties& properties = measurer.device().properties;
  const Arch arch = runtime::arch_of(properties);
  const cache::Store store = flags.cache.open(output);
  runtime::Builder builder(store);
  Subjects subjects(request, properties, store, builder, output);
  const auto compiler = runtime::Compiler::get();
  measurer.set_helpers(std::make_shared<const std::string>(
      compiler->compile(std::string(tuner::helpers_source()), tuner::helpers_options(arch.name)).cubin));

  VerifyReport report;
  int id = 0;
  for (const Subject& subject : subjects.all()) {
    if (!subject.failure.empty()) {
      report.add_failure(subject);
      continue;
    }
    supply(measurer, builder, arch, subject.problem);
    const tuner::Entrant entrant{.id = ++id,
                                 .config = subject.config,
                                 .spec = codegen::parse_kernel_spec(subject.build.info.spec),
                                 .build_key = subject.build.key,
                                 .cubin = std::make_shared<const std::string>(subject.build.cubin),
                                 .expected_seconds = codegen::estimate(arch, subject.problem, subject.config).total};
    output.progress(fmt::format("{}  {}  small problems", short_problem_text(subject.problem), subject.origin), true);
    const tuner::Verdict small = measurer.gate(entrant);
    report.add(subject, "small", small);
    if (small.status != cache::TrialStatus::ok) continue;
    output.progress(fmt::format("{}  {}  full size", short_problem_text(subject.problem), subject.origin), true);
    report.add(subject, "full size", measurer.check(subject.problem, entrant));
  }
  report.print(output);
  output.document()["device"] = properties.name;
  return report.finish(output, "verify: not every kernel builds and is within the numerics gate");
}

ExitCode run(const Flags& flags, Output& output) {
  if (!flags.device.is_cpu()) {
    flags.device.ordinal();  // a name that is none comes first
    for (const auto& [name, value] : {std::pair("seeds", flags.seeds), std::pair("first_seed", flags.first_seed)})
      if (value) fail(ErrorCode::invalid_argument, "{}: only --device cpu has an order to choose", name);
    if (!flags.source.empty())
      fail(ErrorCode::invalid_argument, "source: only --device cpu runs a file, where a fault in it cannot hang a GPU");
    return run_on_gpu(flags, output);
  }
  if (flags.cache.given())
    fail(ErrorCode::invalid_argument,
         "cache_dir: --device cpu neither reads nor writes a cache (allowed: with the ordinal of a GPU)");
  EmulatedVerifyRequest request{flags.problems, flags.configs, flags.pack, flags.source};
  if (flags.seeds) request.seeds = static_cast<int>(parse_count("seeds", *flags.seeds, 1, 1000));
  if (flags.first_seed)
    request.first_seed = static_cast<std::uint64_t>(parse_count("first_seed", *flags.first_seed, 0, 1ll << 40));
  return verify_on_emulator(request, output);
}

}  // namespace

void add_verify(CLI::App& app, Invocation& invocation) {
  auto flags = std::make_shared<Flags>();
  CLI::App& command =
      invocation.add(app, "verify", "Compare kernels with the float64 reference, on the GPU or the CPU emulator",
                     [flags](Output& output) { return run(*flags, output); });
  flags->problems.add(command);
  flags->device.add(command, /*takes_cpu=*/true);
  command
      .add_option("--seeds", flags->seeds,
                  "with --device cpu: launches of each case, each with another order of the threads (default: 1)")
      ->type_name("N");
  command
      .add_option("--first-seed", flags->first_seed,
                  "with --device cpu: the first of these orders, such as the one that a report names (default: 0)")
      ->type_name("N");
  command
      .add_option(
          "--source", flags->source,
          "with --device cpu: a kernel that `attune emit` wrote, perhaps edited since, instead of the emitted one")
      ->type_name("FILE");
  flags->cache.add(command);
  command
      .add_option(
          "--config", flags->configs,
          "verify this config, or `default`: the best guess; may be repeated (default: the cache's winner, else the "
          "best guess)")
      ->type_name("TEXT")
      ->allow_extra_args(false);
  command.add_option("--pack", flags->pack, "verify the entries of a pack, those that the problem flags admit")
      ->type_name("DIR");
}

}  // namespace attune::cli
