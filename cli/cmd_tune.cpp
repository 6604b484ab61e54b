// attune tune: measures candidates on the device and keeps the winners in the cache.
#include <fmt/ranges.h>

#include <thread>

#include "base/error.h"
#include "cli/command.h"
#include "cli/interrupt.h"
#include "cli/problem_flags.h"
#include "cli/problem_set.h"
#include "cli/rank_builds.h"
#include "cli/table.h"
#include "cli/wording.h"
#include "runtime/driver_device.h"
#include "tuner/tuner.h"

namespace attune::cli {
namespace {

constexpr double kSecondsPerProblem = 60;
constexpr std::int64_t kBuildsWithoutGpu = 16;

struct Flags {
  ProblemSetFlags problems;
  CacheFlag cache;
  std::string devices = "0", regime = tuner::kBurst, shard;
  std::optional<std::string> budget, max_candidates, emulate;
  std::vector<std::string> configs;
  bool force = false, no_gpu = false;
};

std::vector<std::string> devices_of(const std::string& text) {
  std::vector<std::string> devices;
  if (text == "all") {
    for (const runtime::DeviceProperties& d : runtime::list_devices()) devices.push_back(std::to_string(d.ordinal));
    return devices;
  }
  if (text == "cpu") DeviceFlag::refuse_cpu();
  std::size_t start = 0;
  for (;;) {
    const std::size_t comma = text.find(',', start);
    devices.push_back(text.substr(start, comma - start));
    if (devices.back().empty())
      fail(ErrorCode::invalid_argument, "device: '{}' is not a list of GPUs (allowed: all, 0, 0,1, ..., or UUIDs)",
           text);
    if (comma == std::string::npos) return devices;
    start = comma + 1;
  }
}

tuner::Shard shard_of(const std::string& text) {
  if (text.empty()) return {};
  if (text != "auto") return tuner::parse_shard(text);
  const std::optional<tuner::Shard> shard = tuner::shard_from_environment();
  if (!shard)
    fail(ErrorCode::invalid_argument,
         "shard: 'auto' needs a launcher's environment (SLURM_PROCID, OMPI_COMM_WORLD_RANK or PMI_RANK), which is not "
         "there (allowed: I/N)");
  return *shard;
}

std::string ratio_text(double ratio) { return ratio > 0 ? fmt::format("{:.2f}x", ratio) : ""; }

void print(const tuner::Report& report, Output& output) {
  Table table({{"problem", Align::left},
               {"outcome", Align::left},
               {"config", Align::left},
               {"time"},
               {"TFLOP/s"},
               {"of limit"},
               {"heuristic"},
               {"ties"},
               {"raced"},
               {"rejected"},
               {"wrong"},
               {"crashed"}});
  for (const tuner::ProblemReport& p : report.problems) {
    std::vector<std::string> cells{problem_text(p.problem), to_string(p.outcome)};
    if (p.winner) {
      cells.insert(cells.end(),
                   {config_text(codegen::parse_config(p.winner->config)), seconds_text(p.winner->median),
                    fmt::format("{:.0f}", p.tflops), fmt::format("{:.0f}% {}", p.share_of_limit * 100, p.limit),
                    ratio_text(p.over_heuristic), std::to_string(p.ties.size())});
    } else {
      cells.resize(8);
    }
    cells.insert(cells.end(), {std::to_string(p.counts.raced), std::to_string(p.counts.rejected),
                               std::to_string(p.counts.wrong), std::to_string(p.counts.crashed + p.counts.timeout)});
    table.row(std::move(cells));
  }
  table.print(output);
  for (const tuner::ProblemReport& p : report.problems)
    if (!p.message.empty()) output.note("{}: {}", short_problem_text(p.problem), p.message);
  output.line();
  output.line("{}; {} kernels, {} compiled in {:.0f} s, {} rejected; {:.0f} s in all", report.device, report.kernels,
              report.compiled, report.compile_seconds, report.rejected, report.seconds);
}

ExitCode exit_code_of_report(const tuner::Report& report) {
  if (report.interrupted) return ExitCode::interrupted;
  if (report.complete() == static_cast<int>(report.problems.size())) return ExitCode::ok;
  for (const tuner::ProblemReport& p : report.problems)
    if (p.outcome != tuner::Outcome::failed) return ExitCode::partly_tuned;
  return ExitCode::failure;
}

ExitCode without_gpu(const Flags& flags, const std::vector<Problem>& problems, double seconds, Output& output) {
  const Interrupt interrupt([&output] { output.note("stopping after the compiles that are under way"); });
  RankBuildsRequest request{flags.cache.require(output)};
  request.arch = flags.problems.arch();
  request.problems = problems;
  request.configs = flags.configs;
  request.builds = static_cast<int>(
      flags.max_candidates ? parse_count("max_candidates", *flags.max_candidates, 1, 1 << 20) : kBuildsWithoutGpu);
  request.emulate = flags.emulate ? static_cast<int>(parse_count("emulate", *flags.emulate, 0, 1 << 20)) : 0;
  request.seconds = seconds;
  request.stop = interrupt.token();
  return rank_builds(request, output);
}

// A Store has no default, so neither has a Request; what is not named here keeps its own.
tuner::Request request_for(cache::Store store, const std::vector<Problem>& problems) {
  return {.store = std::move(store), .problems = problems, .shard = {}, .configs = {}, .worker = {}};
}

double ample_seconds(const std::vector<Problem>& problems) {
  double seconds = 0;
  for (const Problem& problem : problems)
    seconds += kSecondsPerProblem / (tuner::is_twin(problems, problem) ? tuner::kTwinShare : 1);
  return seconds;
}

ExitCode run(const Flags& flags, Output& output) {
  // Without a GPU nothing wins, and who names configs wants these.
  const bool search = !flags.no_gpu && flags.configs.empty();
  const std::vector<Problem> problems =
      search ? flags.problems.problems_and_twins(output) : flags.problems.problems(output);
  const double seconds = flags.budget ? parse_duration("budget", *flags.budget) : ample_seconds(problems);
  const std::int64_t candidates =
      flags.max_candidates ? parse_count("max_candidates", *flags.max_candidates, 1, 1 << 20) : 0;
  if (flags.regime != tuner::kBurst && flags.regime != tuner::kSustained)
    fail(ErrorCode::invalid_argument, "regime: '{}' is unknown (allowed: burst, sustained)", flags.regime);
  const tuner::Shard shard = shard_of(flags.shard);
  for (const std::string& config : flags.configs)
    for (const Problem& problem : problems) checked_config(flags.problems.arch(), problem, config);
  if (flags.emulate && !flags.no_gpu)
    fail(ErrorCode::invalid_argument, "emulate: is for --no-gpu; with a GPU every kernel is checked there");
  if (flags.no_gpu) return without_gpu(flags, problems, seconds, output);

  tuner::Request request = request_for(flags.cache.require(output), problems);
  request.devices = devices_of(flags.devices);
  request.shard = shard;
  request.sustained = flags.regime == tuner::kSustained;
  request.seconds = seconds;
  request.configs = flags.configs;
  request.force = flags.force;
  if (candidates > 0) {
    request.max_candidates = static_cast<int>(candidates);
    request.min_raced = 0;  // who says how many to select does not want more
  }
  const Interrupt interrupt([&output] { output.note("stopping; what was measured is kept (again: stop at once)"); });
  tuner::Hooks hooks;
  hooks.progress = [&output](const tuner::Progress& progress) { output.progress(tuner::progress_line(progress)); };
  hooks.warn = [&output](const std::string& text) { output.warn(text); };
  hooks.stop = interrupt.token();
  tuner::Report report;
  try {
    report = tuner::tune(request, hooks);
  } catch (const Error& error) {
    if (interrupt.requested()) fail(ErrorCode::interrupted, "interrupted; what was measured is kept");
    if (error.code() != ErrorCode::no_device) throw;
    fail(ErrorCode::no_device,
         "{}. Checking and racing kernels needs a GPU; `attune tune --no-gpu` emits, compiles and ranks them by the "
         "cost "
         "model",
         error.what());
  }
  print(report, output);
  output.document().update(Json::parse(tuner::to_json(report)));
  const ExitCode code = exit_code_of_report(report);
  if (code == ExitCode::interrupted) output.error("interrupted; what was measured is kept");
  return code;
}

}  // namespace

void add_tune(CLI::App& app, Invocation& invocation) {
  auto flags = std::make_shared<Flags>();
  CLI::App& command = invocation.add(app, "tune", "Race the candidates on the GPU and keep the winners in the cache",
                                     [flags](Output& output) { return run(*flags, output); });
  flags->problems.add(command);
  flags->cache.add(command);
  command.add_option("--device", flags->devices, "GPUs: ordinals or UUIDs, separated by commas, or all (default: 0)")
      ->type_name("LIST");
  command
      .add_option("--budget", flags->budget,
                  "time for everything: 90, 5m, 1h (default: 60 s a problem, 20 s for peaked scores)")
      ->type_name("TIME");
  command
      .add_option("--max-candidates", flags->max_candidates,
                  "kernels to find for a problem, the table's closest on top (default: 120; with --no-gpu 16)")
      ->type_name("N");
  command.add_option("--config", flags->configs, "race this config instead of searching; may be repeated")
      ->type_name("TEXT")
      ->allow_extra_args(false);
  command.add_option("--regime", flags->regime, "burst: cool chip (default); sustained: the finalists under load, too")
      ->type_name("NAME");
  command
      .add_option("--shard", flags->shard,
                  "tune a share of the problems: I/N, or auto from the environment of Slurm or MPI")
      ->type_name("I/N|auto");
  command.add_flag("--force", flags->force, "measure again what was tuned before");
  command.add_flag("--no-gpu", flags->no_gpu, "compile and rank by the cost model only; keeps the kernels");
  command
      .add_option("--emulate", flags->emulate,
                  "with --no-gpu: run the best kernels of each problem on the CPU emulator (default: 0)")
      ->type_name("N");
}

}  // namespace attune::cli
