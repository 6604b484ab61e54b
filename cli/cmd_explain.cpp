// attune explain: why this config, from the trials in the cache. Needs no GPU.
#include <fmt/ranges.h>

#include <algorithm>
#include <map>
#include <set>

#include "base/error.h"
#include "cli/command.h"
#include "cli/problem_flags.h"
#include "cli/ranking.h"
#include "cli/store_lookup.h"
#include "cli/table.h"
#include "cli/wording.h"
#include "codegen/space.h"
#include "runtime/keys.h"
#include "runtime/plan_state.h"
#include "tuner/explain.h"

namespace attune::cli {
namespace {

struct Flags {
  ProblemFlags problem;
  CacheFlag cache;
  std::string identity;
  std::string limit = "10";
};

struct Question {
  Problem problem;
  std::string identity;
};

// The plan that the flags mean, if they fit exactly one; else the problem that they spell out.
Question question_of(const Flags& flags, const std::vector<KnownPlan>& plans) {
  std::vector<KnownPlan> fitting;
  for (const KnownPlan& plan : plans)
    if (plan.current && flags.problem.admits(*plan.problem)) fitting.push_back(plan);
  // A peaked twin is tuned beside its problem: it is not meant unless that is said, or nothing else fits.
  const auto is_peaked = [](const KnownPlan& plan) { return plan.problem->scores == ScoreKind::peaked; };
  if (!flags.problem.says_scores() && (flags.problem.spells_all() || !std::ranges::all_of(fitting, is_peaked)))
    std::erase_if(fitting, is_peaked);
  std::set<std::string> problems;
  for (const KnownPlan& plan : fitting) problems.insert(plan.row.problem);
  if (problems.size() == 1) return {*fitting.front().problem, choose_identity(fitting, flags.identity)};
  if (problems.size() > 1 && !problems.contains(to_string(flags.problem.problem()))) {
    fail(ErrorCode::invalid_argument, "problem: the flags fit {} problems in the cache (allowed: one of\n  {})",
         problems.size(), fmt::join(problems, "\n  "));
  }
  return {flags.problem.problem(), choose_identity(plans, flags.identity)};
}

Json contender_json(const tuner::Contender& c) {
  return {{"config", c.timing.config},
          {"build_key", c.timing.build_key},
          {"median", c.timing.median},
          {"low", c.timing.low},
          {"high", c.timing.high},
          {"samples", c.timing.samples},
          {"tflops", c.tflops},
          {"slower", c.slower},
          {"tied", c.tied},
          {"regime", c.regime},
          {"estimate", estimate_json(c.estimate)},
          {"differences", c.differences}};
}

std::string interval_text(const tuner::Timing& t) {
  return fmt::format("{} [{}, {}]", seconds_text(t.median), seconds_text(t.low), seconds_text(t.high));
}

// How long each unit is busy by the cost model, beside the measured time; the same for the runner-up.
void print_split(const tuner::Explanation& x, Output& output) {
  std::vector<const tuner::Contender*> shown{&*x.winner};
  if (x.runner_up) shown.push_back(&*x.runner_up);
  std::vector<Column> columns{{"cost model", Align::left}, {"winner"}, {"of measured"}};
  if (x.runner_up) columns.insert(columns.end(), {{"runner-up"}, {"of measured"}});
  Table table(columns);
  const auto row = [&](const char* name, const auto& seconds_of) {
    std::vector<std::string> cells{fmt::format("  {}", name)};
    for (const tuner::Contender* c : shown) {
      const double seconds = seconds_of(*c);
      cells.push_back(seconds_text(seconds));
      cells.push_back(c->timing.median > 0 ? fmt::format("{:.0f}%", 100 * seconds / c->timing.median) : "");
    }
    table.row(std::move(cells));
  };
  using Estimate = codegen::CostEstimate;
  for (const auto& [name, term] : {std::pair{"tensor cores", &Estimate::tensor},
                                   {"exponentials", &Estimate::exponential},
                                   {"shared memory", &Estimate::shared_memory},
                                   {"L2", &Estimate::l2},
                                   {"HBM", &Estimate::hbm},
                                   {"launch", &Estimate::launch},
                                   {"all, with what overlaps", &Estimate::total}})
    row(name, [&](const tuner::Contender& c) { return c.estimate.*term; });
  row("measured", [](const tuner::Contender& c) { return c.timing.median; });
  table.print(output);
  output.line("  the winner is limited by: {}", x.winner->estimate.limit);
}

// What speaks for the order of the first two.
std::string verdict_text(const tuner::Explanation& x) {
  if (x.runner_up->tied) return ": a tie";
  return x.runner_up->timing.low > x.winner->timing.high ? ": the intervals do not overlap" : "";
}

void print_axes(const std::vector<tuner::AxisValue>& axes, Output& output) {
  Table table(
      {{"axis", Align::left}, {"winner", Align::left}, {"other", Align::left}, {"slower"}, {"raced"}, {"lost"}});
  const std::string* last = nullptr;
  for (const tuner::AxisValue& v : axes) {
    const bool again = last != nullptr && *last == v.axis;
    last = &v.axis;
    table.row({again ? "" : v.axis, again ? "" : v.winner, v.value,
               v.slower ? fmt::format("{:+.1f}%{}", *v.slower * 100, v.alone ? " *" : "  ") : "",
               std::to_string(v.raced), std::to_string(v.lost)});
  }
  table.print(output);
  output.line("(slower: the fastest raced config with that value; * it differs from the winner in nothing else)");
}

// How many configs lost for each cause.
std::map<std::string, int> causes_of(const std::vector<tuner::Loser>& losers) {
  std::map<std::string, int> causes;
  for (const tuner::Loser& l : losers) ++causes[l.cause];
  return causes;
}

std::string causes_text(const std::vector<tuner::Loser>& losers) {
  std::vector<std::string> texts;
  for (const auto& [cause, count] : causes_of(losers)) texts.push_back(fmt::format("{} {}", count, cause));
  return fmt::format("{}", fmt::join(texts, ", "));
}

void print_losers(const std::vector<tuner::Loser>& all, std::size_t limit, Output& output) {
  Table losers({{"cause", Align::left},
                {"config", Align::left},
                {"reason", Align::left},
                {"differs from the winner in", Align::left}});
  for (std::size_t i = 0; i < std::min(limit, all.size()); ++i)
    losers.row({all[i].cause, config_text(codegen::parse_config(all[i].config)), all[i].reason,
                fmt::format("{}", fmt::join(all[i].differences, ", "))});
  losers.print(output);
  if (all.size() > limit) output.line("... and {} more (--limit)", all.size() - limit);
}

Json losers_json(const std::vector<tuner::Loser>& all) {
  Json losers = Json::array();
  for (const tuner::Loser& l : all)
    losers.push_back({{"config", l.config},
                      {"status", l.status},
                      {"reason", l.reason},
                      {"cause", l.cause},
                      {"differences", l.differences}});
  return losers;
}

Json axes_json(const std::vector<tuner::AxisValue>& all) {
  Json axes = Json::array();
  for (const tuner::AxisValue& v : all)
    axes.push_back({{"axis", v.axis},
                    {"value", v.value},
                    {"winner", v.winner},
                    {"slower", v.slower ? Json(*v.slower) : Json(nullptr)},
                    {"alone", v.alone},
                    {"raced", v.raced},
                    {"lost", v.lost}});
  return axes;
}

void print(const tuner::Explanation& x, std::size_t limit, Output& output) {
  output.line("problem     {}", to_string(x.problem));
  output.line("device      {}", x.device);
  output.line("measured    {}, session {}{}", x.regime, x.session, x.finished ? "" : ", which was not finished");
  output.line("environment {}", x.environment);
  output.line("winner      {}", x.winner->timing.config);
  output.line("            {}, {:.0f} TFLOP/s, {:.0f}% of the limit, {} samples", interval_text(x.winner->timing),
              x.winner->tflops, x.share_of_limit * 100, x.winner->timing.samples);
  if (!x.errors.empty()) output.line("            errors {}", errors_text(x.errors));
  if (x.runner_up) {
    output.line("runner-up   {}, {:+.1f}%{}", interval_text(x.runner_up->timing), x.runner_up->slower * 100,
                verdict_text(x));
    output.line("            {}", fmt::join(x.runner_up->differences, ", "));
  }
  output.line();
  print_split(x, output);
  output.line();
  if (!x.axes.empty()) {
    print_axes(x.axes, output);
    output.line();
  }

  Table table({{"slower"},
               {"median [interval]", Align::left},
               {"TFLOP/s"},
               {"regime", Align::left},
               {"limit", Align::left},
               {"differs from the winner in", Align::left}});
  std::size_t shown = 0;
  for (const tuner::Contender& c : x.others) {
    if (shown++ == limit) break;
    table.row({fmt::format("{:+.1f}%", c.slower * 100), interval_text(c.timing), fmt::format("{:.0f}", c.tflops),
               c.regime, c.estimate.limit, fmt::format("{}", fmt::join(c.differences, ", "))});
  }
  if (!table.empty()) table.print(output);
  if (x.others.size() > limit) output.line("... and {} more (--limit)", x.others.size() - limit);
  if (x.losers.empty()) return;
  output.line();
  output.line("did not race to the end: {} ({})", x.losers.size(), causes_text(x.losers));
  print_losers(x.losers, limit, output);
}

ExitCode explain_nothing(cache::Store& store, const tuner::Explanation& x, std::size_t limit, Output& output) {
  output.line("problem     {}", to_string(x.problem));
  output.line("device      {}", x.device);
  std::vector<tuner::Loser> losers;
  for (const cache::Trial& trial : store.trials(x.plan_key))
    losers.push_back(
        {trial.config, cache::to_string(trial.status), trial.reason, tuner::cause_of(trial.status, trial.reason), {}});
  Json list = Json::array();
  if (!losers.empty()) {
    output.line("tried, but none of {} configs passed: {}\n", losers.size(), causes_text(losers));
    print_losers(losers, limit, output);
  } else {
    output.line("nobody has tuned this problem for this device");
    for (const tuner::NearMiss& near : tuner::explain_miss(store, x.problem, x.device)) {
      output.line("tuned is    {}", near.plan.problem);
      for (const std::string& difference : near.differences) output.line("            {}", difference);
      if (near.differences.empty()) output.line("            for another version of attune");
      list.push_back({{"problem", near.plan.problem}, {"device", near.plan.device}, {"differences", near.differences}});
    }
  }
  output.document()["near"] = std::move(list);
  output.document()["losers"] = losers_json(losers);
  output.document()["winner"] = nullptr;
  output.error(fmt::format("explain: the cache {} has no winner for this problem{}", store.directory(),
                           losers.empty() ? " (attune tune makes one)" : ""));
  return ExitCode::failure;
}

// The second kernel of a plan whose winner speculates: what launches take while the scores are peaked.
Json explain_twin(cache::Store& store, const tuner::Explanation& x, Output& output) {
  const std::optional<Problem> peaked = peaked_twin(x.problem);
  if (!peaked || !runtime::speculates(codegen::parse_config(x.winner->timing.config))) return nullptr;
  const auto winner = store.winner(runtime::plan_key(*peaked, x.device, codegen::emitter_digest()));
  output.line();
  if (winner) {
    output.line("on peaked scores launches take {}", winner->config);
  } else {
    output.line("on peaked scores launches take this kernel, too: nobody has tuned the problem for them");
  }
  return {{"problem", to_string(*peaked)}, {"config", winner ? Json(winner->config) : Json(nullptr)}};
}

ExitCode run(const Flags& flags, Output& output) {
  const std::size_t limit = static_cast<std::size_t>(parse_count("limit", flags.limit, 0));
  cache::Store store = flags.cache.require(output, true);
  const auto [problem, identity] = question_of(flags, plans_of(store));
  if (identity.empty())
    fail(ErrorCode::not_found, "explain: the cache {} has no plans (attune tune makes some)", store.directory());
  const tuner::Explanation x = tuner::explain(store, problem, arch_of_identity(identity), identity);
  Json& document = output.document();
  document["problem"] = to_string(problem);
  document["device"] = identity;
  document["plan_key"] = x.plan_key;
  if (!x.winner) return explain_nothing(store, x, limit, output);
  print(x, limit, output);
  document["peaked"] = explain_twin(store, x, output);
  document["session"] = x.session;
  document["regime"] = x.regime;
  document["finished"] = x.finished;
  document["environment"] = x.environment;
  document["errors"] = errors_json(x.errors);
  document["share_of_limit"] = x.share_of_limit;
  document["winner"] = contender_json(*x.winner);
  document["runner_up"] = x.runner_up ? contender_json(*x.runner_up) : Json(nullptr);
  Json others = Json::array();
  for (const tuner::Contender& c : x.others) others.push_back(contender_json(c));
  document["others"] = std::move(others);
  document["axes"] = axes_json(x.axes);
  document["losers"] = losers_json(x.losers);
  document["causes"] = causes_of(x.losers);
  return ExitCode::ok;
}

}  // namespace

void add_explain(CLI::App& app, Invocation& invocation) {
  auto flags = std::make_shared<Flags>();
  CLI::App& command = invocation.add(app, "explain", "Say why a problem's winner won; needs no GPU",
                                     [flags](Output& output) { return run(*flags, output); });
  flags->problem.add(command);
  flags->cache.add(command);
  command
      .add_option("--device-identity", flags->identity,
                  "name or full identity of the device (default: the only one in the cache)")
      ->type_name("TEXT");
  command.add_option("--limit", flags->limit, "configs of each list (default: 10)")->type_name("N");
}

}  // namespace attune::cli
