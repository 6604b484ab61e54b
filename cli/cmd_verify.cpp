// attune verify: kernels against the float64 reference on the device. A worker process runs them, as a kernel that
// hangs or crashes is just what one verifies for.
#include "base/error.h"
#include "cli/best_guess.h"
#include "cli/command.h"
#include "cli/interrupt.h"
#include "cli/problem_set.h"
#include "cli/table.h"
#include "cli/wording.h"
#include "codegen/space.h"
#include "runtime/builder.h"
#include "runtime/keys.h"
#include "runtime/pack.h"
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
};

// A kernel to be verified for one problem.
struct Subject {
  Problem problem;
  codegen::Config config;
  runtime::Build build;
  std::string origin;
};

class Subjects {
 public:
  Subjects(const Flags& flags, const runtime::DeviceProperties& properties, cache::Store store, Output& output)
      : flags_(flags),
        arch_(runtime::arch_of(properties)),
        identity_(runtime::identity_text(properties)),
        store_(store),
        builder_(std::move(store)),
        output_(output) {}

  std::vector<Subject> all() {
    if (!flags_.pack.empty()) return of_pack();
    std::vector<Subject> subjects;
    for (const Problem& problem : flags_.problems.problems(output_)) {
      if (flags_.configs.empty()) subjects.push_back(planned(problem));
      for (const std::string& text : flags_.configs) {
        subjects.push_back(text == kDefaultConfig ? guessed(problem)
                                                  : built(problem, checked_config(arch_, problem, text), "config"));
      }
    }
    return subjects;
  }
  runtime::Builder& builder() { return builder_; }
  const Arch& arch() const { return arch_; }

 private:
  Subject built(const Problem& problem, const codegen::Config& config, const char* origin) {
    output_.progress(fmt::format("{}  compiling", short_problem_text(problem)), true);
    Subject subject{problem, config, builder_.build(codegen::specialise(arch_, problem, config)), origin};
    runtime::require_accepted(subject.build);
    return subject;
  }

  Subject guessed(const Problem& problem) {
    output_.progress(fmt::format("{}  compiling", short_problem_text(problem)), true);
    Guess guess = best_guess(builder_, arch_, problem, output_);
    return {problem, guess.config, std::move(guess.build), "heuristic"};
  }

  // What plan() would give.
  Subject planned(const Problem& problem) {
    const auto winner = store_.winner(runtime::plan_key(problem, identity_, codegen::emitter_digest()));
    if (!winner) return guessed(problem);
    const codegen::Config config = codegen::parse_config(winner->config);
    if (auto build = builder_.find(winner->build_key)) return {problem, config, *std::move(build), "cache"};
    return built(problem, config, "cache");
  }

  std::vector<Subject> of_pack() {
    const Pack pack = read_pack(flags_.pack, {.allow_unsigned = true});
    const auto wanted = flags_.problems.filter(output_);
    std::vector<Subject> subjects;
    for (const PackEntry& entry : pack.entries()) {
      const Problem problem = parse_problem(entry.problem);
      if (entry.arch != arch_.name || !wanted(problem)) continue;
      Subject subject{problem, codegen::parse_config(entry.config), {}, "pack"};
      subject.build.key = entry.build_key;
      subject.build.info.spec = entry.spec;
      subject.build.cubin = pack.cubin(entry);
      subjects.push_back(std::move(subject));
    }
    if (subjects.empty())
      fail(ErrorCode::not_found, "pack: {} has no entry for these problems and {}", flags_.pack, arch_.name);
    return subjects;
  }

  const Flags& flags_;
  Arch arch_;
  std::string identity_;
  cache::Store store_;
  runtime::Builder builder_;
  Output& output_;
};

class Report {
 public:
  void add(const Subject& subject, const char* what, const tuner::Verdict& verdict) {
    const bool good = verdict.status == cache::TrialStatus::ok && !verdict.judgement.wrong;
    all_good_ = all_good_ && good;
    const tuner::Judgement& j = verdict.judgement;
    std::string reason = verdict.reason;
    if (reason.empty() && j.wrong) reason = *j.wrong;
    std::vector<std::string> cells{problem_text(subject.problem), config_text(subject.config), subject.origin, what,
                                   std::to_string(j.cases)};
    if (j.cases > 0) {
      cells.insert(cells.end(), {number(j.accuracy.o_rel_l2), number(j.accuracy.o_row_l2), number(j.accuracy.o_max_abs),
                                 number(j.accuracy.lse_max_abs), fmt::format("{:.0f}%", 100 * j.share_of_bounds)});
    } else {
      cells.resize(10);
    }
    cells.push_back(good ? "ok, worst: " + j.worst_case
                         : fmt::format("{}: {}", cache::to_string(verdict.status), reason));
    table_.row(std::move(cells));
    results_.push_back({{"problem", to_string(subject.problem)},
                        {"config", codegen::to_string(subject.config)},
                        {"spec", subject.build.info.spec},
                        {"build_key", subject.build.key},
                        {"origin", subject.origin},
                        {"what", what},
                        {"ok", good},
                        {"status", cache::to_string(verdict.status)},
                        {"reason", reason},
                        {"cases", j.cases},
                        {"worst_case", j.worst_case},
                        {"share_of_bounds", j.share_of_bounds},
                        {"o_rel_l2", j.accuracy.o_rel_l2},
                        {"o_row_l2", j.accuracy.o_row_l2},
                        {"o_max_abs", j.accuracy.o_max_abs},
                        {"lse_max_abs", j.accuracy.lse_max_abs}});
  }

  ExitCode finish(Output& output) {
    table_.print(output);
    output.document()["ok"] = all_good_;
    output.document()["results"] = std::move(results_);
    if (!all_good_) output.error("verify: not every kernel is within the numerics gate");
    return all_good_ ? ExitCode::ok : ExitCode::failure;
  }

 private:
  static std::string number(double value) { return value >= 1e299 ? "NaN" : fmt::format("{:.2g}", value); }

  bool all_good_ = true;
  Json results_ = Json::array();
  Table table_{{{"problem", Align::left},
                {"config", Align::left},
                {"from", Align::left},
                {"inputs", Align::left},
                {"cases"},
                {"O rel L2"},
                {"O worst row"},
                {"O max abs"},
                {"LSE max abs"},
                {"of bound"},
                {"verdict", Align::left}}};
};

void supply(tuner::Measurer& measurer, runtime::Builder& builder, const Arch& arch, const Problem& problem) {
  const std::string spec = tuner::reference_spec(arch, problem);
  const runtime::Build build = builder.build(codegen::parse_kernel_spec(spec));
  runtime::require_accepted(build);
  measurer.set_reference(spec, std::make_shared<const std::string>(build.cubin));
}

ExitCode run(const Flags& flags, Output& output) {
  if (!flags.pack.empty() && !flags.configs.empty())
    fail(ErrorCode::invalid_argument, "config: excludes --pack, whose entries have configs of their own");
  if (flags.pack.empty()) {
    // Mistakes come to light before a GPU is looked for.
    for (const Problem& problem : flags.problems.problems(output))
      for (const std::string& text : flags.configs)
        if (text != kDefaultConfig) checked_config(flags.problems.arch(), problem, text);
  } else {
    read_pack(flags.pack, {.allow_unsigned = true});
  }
  const Interrupt interrupt;
  tuner::WorkerMeasurer measurer({.path = tuner::find_worker(),
                                  .device = std::to_string(flags.device.ordinal()),
                                  .hang_seconds = kHangSeconds,
                                  .stop = interrupt.token(),
                                  .warn = [&output](const std::string& text) { output.warn(text); }});
  Subjects subjects(flags, measurer.device().properties, flags.cache.open(output), output);
  const Arch& arch = subjects.arch();
  const auto compiler = runtime::Compiler::get();
  measurer.set_helpers(std::make_shared<const std::string>(
      compiler->compile(std::string(tuner::helpers_source()), tuner::helpers_options(arch.name)).cubin));

  Report report;
  int id = 0;
  for (const Subject& subject : subjects.all()) {
    supply(measurer, subjects.builder(), arch, subject.problem);
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
  output.document()["device"] = measurer.device().properties.name;
  return report.finish(output);
}

}  // namespace

void add_verify(CLI::App& app, Invocation& invocation) {
  auto flags = std::make_shared<Flags>();
  CLI::App& command = invocation.add(app, "verify", "Compare kernels with the float64 reference on the GPU",
                                     [flags](Output& output) { return run(*flags, output); });
  flags->problems.add(command);
  flags->device.add(command);
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
