// attune bench: times plans on the device, alone or beside other libraries.
#include <fmt/ranges.h>

#include <algorithm>

#include <attune/attune.h>

#include "base/error.h"
#include "cli/bench_run.h"
#include "cli/best_guess.h"
#include "cli/command.h"
#include "cli/interrupt.h"
#include "cli/peer_bench.h"
#include "cli/problem_set.h"
#include "cli/table.h"
#include "cli/wording.h"
#include "codegen/space.h"
#include "runtime/pack.h"

namespace attune::cli {
namespace {

constexpr const char* kWinner = "winner";

struct Flags {
  ProblemSetFlags problems;
  DeviceFlag device;
  CacheFlag cache;
  std::vector<std::string> configs, packs;
  std::string regime = "both";
  std::optional<std::string> turns, launches, seconds, out, budget, commit, fa3;
  bool allow_unsigned = false, no_compiler = false, no_cache = false, csv = false, peers = false;

  // A turn's values where they are given.
  std::optional<std::int64_t> turn_count() const {
    return turns ? std::optional(parse_count("turns", *turns, 1, 10000)) : std::nullopt;
  }
  std::optional<double> turn_seconds() const {
    return seconds ? std::optional(parse_duration("seconds", *seconds)) : std::nullopt;
  }
  bool burst() const { return regime != "sustained"; }
  bool sustained() const { return regime != "burst"; }
};

void check(const Flags& flags) {
  if (flags.regime != "both" && flags.regime != "burst" && flags.regime != "sustained")
    fail(ErrorCode::invalid_argument, "regime: '{}' is unknown (allowed: burst, sustained, both)", flags.regime);
  const auto refuse = [](bool given, const char* name, const char* why) {
    if (given) fail(ErrorCode::invalid_argument, "{}: {}", name, why);
  };
  if (flags.peers) {
    const char* const kAlone = "excludes --peers";
    refuse(flags.launches.has_value(), "launches", kAlone);
    refuse(flags.csv, "csv", "excludes --peers, which writes files");
    refuse(flags.no_compiler, "no_compiler", kAlone);
    refuse(std::ranges::count(flags.configs, kDefaultConfig) > 0, "config",
           "'default' excludes --peers (allowed: winner, or a config's text)");
  } else {
    const char* const kBeside = "needs --peers";
    refuse(flags.out.has_value(), "out", kBeside);
    refuse(flags.budget.has_value(), "budget", kBeside);
    refuse(flags.commit.has_value(), "commit", kBeside);
    refuse(flags.fa3.has_value(), "fa3", kBeside);
  }
}

RuntimeOptions runtime_options(const Flags& flags, Output& output) {
  RuntimeOptions options;
  options.use_cache = !flags.no_cache;
  options.cache_directory = flags.cache.directory();
  options.packs = flags.packs;
  options.allow_unsigned_packs = flags.allow_unsigned;
  options.allow_compiler = !flags.no_compiler;
  options.on_warning = [&output](const std::string& text) { output.warn(text); };
  return options;
}

BenchOptions bench_options(const Flags& flags) {
  BenchOptions options;
  options.burst = flags.burst();
  options.sustained = flags.sustained();
  options.turns = static_cast<int>(flags.turn_count().value_or(options.turns));
  if (flags.launches) options.launches = static_cast<int>(parse_count("launches", *flags.launches, 1, 1000));
  options.seconds = flags.turn_seconds().value_or(options.seconds);
  return options;
}

PeerBench peer_bench(const Flags& flags, const std::vector<Problem>& problems) {
  PeerBench bench;
  bench.op = problems.front().op;
  if (flags.problems.grid().empty()) {
    bench.problems = problems;
  } else {
    bench.grid_dtype = problems.front().dtype;
    bench.grid_deterministic = problems.front().deterministic;
  }
  bench.configs = flags.configs;
  bench.burst = flags.burst();
  bench.sustained = flags.sustained();
  bench.turns = flags.turn_count();
  bench.seconds = flags.turn_seconds();
  if (flags.budget) bench.budget = parse_duration("budget", *flags.budget);
  bench.out = flags.out.value_or(to_string(bench.op));
  bench.commit = flags.commit.value_or("");
  if (flags.fa3 && bench.op != Op::forward)
    fail(ErrorCode::invalid_argument, "fa3: '{}' with op = {} (allowed: with forward)", *flags.fa3,
         to_string(bench.op));
  bench.fa3 = flags.fa3.value_or("");
  bench.device = flags.device.ordinal();
  if (flags.cache.given()) bench.cache_directory = flags.cache.directory();
  bench.use_cache = !flags.no_cache;
  bench.packs = flags.packs;
  bench.allow_unsigned = flags.allow_unsigned;
  return bench;
}

Json timing_json(const Problem& problem, const BenchTiming& t) {
  Json json{{"median", t.median},
            {"quartile_low", t.quartile_low},
            {"quartile_high", t.quartile_high},
            {"tflops", tflops(problem, t.median)},
            {"samples", t.samples}};
  if (t.sm_mhz) json["sm_mhz"] = *t.sm_mhz;
  if (t.watts) json["watts"] = *t.watts;
  json["throttle"] = runtime::throttle_reasons(t.throttle);
  return json;
}

class Report {
 public:
  explicit Report(bool csv) : csv_(csv) {}

  void add(const Problem& problem, const BenchResult& result) {
    Json json{{"problem", to_string(problem)},      {"label", result.label},
              {"config", result.plan.config},       {"origin", to_string(result.plan.origin)},
              {"build_key", result.plan.build_key}, {"host_seconds", result.host_seconds}};
    if (result.burst) add(problem, result, "burst", *result.burst, json);
    if (result.sustained) add(problem, result, "sustained", *result.sustained, json);
    results_.push_back(std::move(json));
  }

  void print(Output& output) {
    if (csv_) {
      output.line("problem;config;origin;regime;median_s;quartile_low_s;quartile_high_s;tflops;sm_mhz;watts;host_s");
      for (const std::string& line : lines_) output.line(std::string_view(line));
    } else {
      table_.print(output);
    }
    output.document()["results"] = std::move(results_);
  }

 private:
  void add(const Problem& problem, const BenchResult& result, const char* regime, const BenchTiming& t, Json& json) {
    json[regime] = timing_json(problem, t);
    const std::string clock = t.sm_mhz ? std::to_string(*t.sm_mhz) : "";
    const std::string watts = t.watts ? fmt::format("{:.0f}", *t.watts) : "";
    table_.row({problem_text(problem), config_text(codegen::parse_config(result.plan.config)),
                to_string(result.plan.origin), regime, seconds_text(t.median), fmt::format("{:.1f}%", t.spread() * 100),
                tflops_text(problem, t.median), clock, watts, fmt::format("{:.0f} ns", result.host_seconds * 1e9),
                fmt::format("{}", fmt::join(runtime::throttle_reasons(t.throttle), ", "))});
    lines_.push_back(fmt::format("{};{};{};{};{:.9f};{:.9f};{:.9f};{:.1f};{};{};{:.9f}", to_string(problem),
                                 result.plan.config, to_string(result.plan.origin), regime, t.median, t.quartile_low,
                                 t.quartile_high, tflops(problem, t.median), clock, watts, result.host_seconds));
  }

  bool csv_;
  std::vector<std::string> lines_;
  Json results_ = Json::array();
  Table table_{{{"problem", Align::left},
                {"config", Align::left},
                {"from", Align::left},
                {"regime", Align::left},
                {"median"},
                {"spread"},
                {"TFLOP/s"},
                {"MHz"},
                {"W"},
                {"launch()"},
                {"throttled by", Align::left}}};
};

ExitCode run(const Flags& flags, Output& output) {
  check(flags);
  const std::vector<Problem> problems = flags.problems.problems(output);
  const BenchOptions options = bench_options(flags);
  for (const std::string& config : flags.configs)
    for (const Problem& problem : problems)
      if (config != kWinner && config != kDefaultConfig) checked_config(flags.problems.arch(), problem, config);

  // A pack that is no good comes to light before a GPU is looked for.
  for (const std::string& pack : flags.packs) read_pack(pack, {.allow_unsigned = flags.allow_unsigned});
  if (flags.peers) return run_peer_bench(peer_bench(flags, problems), output);

  const std::shared_ptr<runtime::Device> device = flags.device.open();
  const Interrupt interrupt;
  Runtime runtime(runtime_options(flags, output), device);
  std::string no_nvml;
  const std::unique_ptr<runtime::Nvml> nvml = runtime::Nvml::open(device->properties(), &no_nvml);
  if (!nvml) output.note("clocks and power are not known: {}", no_nvml);

  runtime::Builder builder(flags.no_cache ? cache::Store::memory_only() : flags.cache.open(output));
  Report report(flags.csv);
  const Arch arch = runtime::arch_of(device->properties());
  for (const Problem& problem : problems) {
    const auto loading = [&](const std::string& what) {
      output.progress(fmt::format("{}  loading {}", short_problem_text(problem), what), true);
    };
    Bench bench(device, problem, nvml.get(), [&](const Problem& behind) {
      loading(fmt::format("the {} pass", to_string(behind.op)));
      return runtime.plan(behind);
    });
    const auto add = [&](const std::string& label, const std::string& config) {
      loading(label);
      PlanOptions plan;
      plan.config = config;
      bench.add(label, runtime.plan(problem, plan));
    };
    if (flags.configs.empty()) add(kWinner, "");
    for (const std::string& text : flags.configs) {
      if (text == kWinner)
        add(text, "");
      else
        add(text, codegen::to_string(text == kDefaultConfig ? best_guess(builder, arch, problem, output).config
                                                            : checked_config(arch, problem, text)));
    }
    const auto progress = [&](const std::string& text) {
      output.progress(fmt::format("{}  {}", short_problem_text(problem), text));
    };
    for (const BenchResult& result : bench.run(options, interrupt.token(), progress)) report.add(problem, result);
  }
  output.document()["device"] = device->properties().name;
  output.document()["identity"] = runtime::identity_text(device->properties());
  report.print(output);
  return ExitCode::ok;
}

}  // namespace

void add_bench(CLI::App& app, Invocation& invocation) {
  auto flags = std::make_shared<Flags>();
  CLI::App& command = invocation.add(app, "bench", "Time the plan for a problem, or configs side by side, on the GPU",
                                     [flags](Output& output) { return run(*flags, output); });
  flags->problems.add(command);
  flags->device.add(command);
  flags->cache.add(command);
  command
      .add_option("--config", flags->configs,
                  "time this config; `winner`: what plan() gives, `default`: the best guess; may be repeated (default: "
                  "winner)")
      ->type_name("TEXT")
      ->allow_extra_args(false);
  command.add_option("--pack", flags->packs, "look in this pack first; may be repeated")
      ->type_name("DIR")
      ->allow_extra_args(false);
  command.add_flag("--allow-unsigned", flags->allow_unsigned, "accept packs that carry no signature");
  command.add_flag("--no-compiler", flags->no_compiler,
                   "never open NVRTC: kernels come from packs and the cache alone");
  command.add_flag("--no-cache", flags->no_cache, "neither read nor write the cache");
  command.add_option("--regime", flags->regime, "burst, sustained or both (default: both)")->type_name("NAME");
  command
      .add_option("--turns", flags->turns,
                  "turns of each config, all of them in rotation (default: 7, with --peers 3 and 2)")
      ->type_name("N");
  command.add_option("--launches", flags->launches, "timed launches of a turn in the burst regime (default: 5)")
      ->type_name("N");
  command
      .add_option("--seconds", flags->seconds,
                  "length of a turn in the sustained regime (default: 1, with --peers 0.2)")
      ->type_name("TIME");
  command.add_flag("--csv", flags->csv, "print semicolon-separated values instead of a table");
  command
      .add_flag("--peers", flags->peers,
                "race cuDNN, too, beside FlashAttention-3's recorded speed or --fa3, and write tables and pages; needs "
                "Python with PyTorch")
      ->group("Peers");
  const auto of_peers = [&](const char* name, std::optional<std::string>& value, const char* text, const char* type) {
    command.add_option(name, value, text)->group("Peers")->type_name(type);
  };
  of_peers("--out", flags->out, "beginning of the files' names (default: the op)", "PREFIX");
  of_peers("--budget", flags->budget, "time for everything (default: 150)", "TIME");
  of_peers("--commit", flags->commit, "what was measured, for the record", "ID");
  of_peers("--fa3", flags->fa3, "FlashAttention-3 as bench/peers/build_fa3.sh makes it (default: its recorded speed)",
           "LIB");
}

}  // namespace attune::cli
