// ProblemTuner's race: rounds, finals, and what follows from them.
#include <algorithm>
#include <cmath>
#include <tuple>

#include <fmt/format.h>

#include "base/error.h"
#include "tuner/problem_tuner.h"

namespace attune::tuner {
namespace {

using cache::TrialStatus;

// A race of many entrants is cut into parts of about this length, between which the clock is looked at.
constexpr double kPartSeconds = 2;
constexpr std::size_t kVariantsPerKernel = 3;
constexpr std::size_t kFewestFinalists = 3;
// Under load the energy a product takes decides, which relatives have in common: of each kind the best few stay.
constexpr std::size_t kOfOneTile = 2;
constexpr double kHandicap = 1.25;

std::vector<double> all_samples(const RaceResult& result) {
  std::vector<double> samples;
  for (const std::vector<double>& turn : result.turns) samples.insert(samples.end(), turn.begin(), turn.end());
  return samples;
}

double median_of(const RaceResult& result) { return quantile(all_samples(result), 0.5); }

Conditions conditions_of(const RaceReadings& readings, const std::vector<RaceResult>& results) {
  Conditions conditions;
  conditions.sm_mhz = quantile(readings.sm_mhz, 0.5);
  conditions.sm_mhz_low = quantile(readings.sm_mhz, 0);
  conditions.watts = readings.watts;
  conditions.celsius = readings.celsius;
  conditions.throttle = runtime::throttle_reasons(readings.throttle);
  std::vector<double> spreads;
  for (const RaceResult& result : results) {
    const std::vector<double> samples = all_samples(result);
    const double median = quantile(samples, 0.5);
    if (median > 0) spreads.push_back((quantile(samples, 0.75) - quantile(samples, 0.25)) / median);
  }
  conditions.spread = quantile(spreads, 0.5);
  return conditions;
}

}  // namespace

std::vector<ProblemTuner::Candidate*> ProblemTuner::timed() {
  std::vector<Candidate*> all;
  for (Candidate& c : candidates_)
    if (c.in && c.seconds > 0) all.push_back(&c);
  return all;
}

bool ProblemTuner::goes_through(const Candidate& c) const {
  return c.text == heuristic_ || is_incumbent(kBurst, c.text) || is_incumbent(kSustained, c.text);
}

double ProblemTuner::launch_seconds(const std::vector<Candidate*>& entrants) const {
  std::vector<double> seconds;
  for (const Candidate* c : entrants) seconds.push_back(c->seconds > 0 ? c->seconds : c->estimate);
  return quantile(seconds, 0.5);
}

std::vector<ProblemTuner::Candidate*> ProblemTuner::keep(const std::vector<Candidate*>& from, std::size_t count) const {
  std::vector<Candidate*> in_order = from;
  std::stable_sort(in_order.begin(), in_order.end(),
                   [](const Candidate* a, const Candidate* b) { return a->seconds < b->seconds; });
  std::vector<Placing> placings;
  std::set<int> always;
  std::map<std::string, std::size_t> of_tile;
  for (const Candidate* c : in_order) {
    const bool behind = run_.request.sustained && of_tile[codegen::tile_text(c->config)]++ >= kOfOneTile;
    placings.push_back({c->id, c->seconds * (behind ? kHandicap : 1)});
    if (goes_through(*c)) always.insert(c->id);
  }
  std::vector<Candidate*> kept;
  for (const int id : survivors(placings, count, always))
    kept.push_back(*std::find_if(from.begin(), from.end(), [&](const Candidate* c) { return c->id == id; }));
  return kept;
}

RaceReadings ProblemTuner::run_round(Measurer& measurer, const std::vector<Candidate*>& entrants,
                                     const RaceOptions& options, Phase phase,
                                     const std::function<void(Candidate&, const RaceResult&)>& done) {
  std::vector<Entrant> list;
  for (const Candidate* c : entrants) list.push_back(entrant_of(*c));
  int finished = 0;
  show(phase, 0, static_cast<int>(list.size()));
  return measurer.race(problem_, list, options, [&](const Entrant& entrant, const RaceResult& result) {
    Candidate& c =
        **std::find_if(entrants.begin(), entrants.end(), [&](const Candidate* e) { return e->id == entrant.id; });
    if (result.status == TrialStatus::ok) {
      c.seconds = median_of(result);
      done(c, result);
    } else {
      refuse(c, result.status, result.reason, c.errors);
    }
    show(phase, ++finished, static_cast<int>(list.size()));
  });
}

void ProblemTuner::brief_round(Measurer& measurer, const std::vector<Candidate*>& entrants,
                               const RaceOptions& options) {
  run_round(measurer, entrants, options, Phase::racing, [this](Candidate& c, const RaceResult& result) {
    const std::vector<double> samples = all_samples(result);
    log_.measured(c.text, c.kernel->build_key, kBrief, samples, median_interval(samples), c.errors);
  });
}

void ProblemTuner::first_round(Measurer& measurer, const StopCondition& stop) {
  std::vector<Candidate*> entrants;
  for (Candidate& c : candidates_)
    if (c.in && !c.resumed) entrants.push_back(&c);
  // The best by the model come first: if time runs out, they have been timed.
  std::stable_sort(entrants.begin(), entrants.end(),
                   [](const Candidate* a, const Candidate* b) { return a->estimate < b->estimate; });
  const double launch = launch_seconds(entrants);
  const RaceOptions options = options_for(Round::first, launch);
  const double each = expected_seconds(options, 1, launch);
  const auto part = static_cast<std::size_t>(std::max(8.0, std::floor(kPartSeconds / std::max(each, 1e-6))));
  for (std::size_t i = 0; i < entrants.size(); i += part) {
    if (i > 0 && stop.expired()) return;
    const auto end = std::min(i + part, entrants.size());
    brief_round(
        measurer,
        {entrants.begin() + static_cast<std::ptrdiff_t>(i), entrants.begin() + static_cast<std::ptrdiff_t>(end)},
        options);
  }
}

std::vector<ProblemTuner::Candidate*> ProblemTuner::with_variants(const std::vector<Candidate*>& best) {
  std::vector<Candidate*> all = best;
  std::set<const KernelPool::Kernel*> varied;
  for (const Candidate* c : best) {
    if (varied.size() == kVariedKernels) break;
    if (!varied.insert(c->kernel).second) continue;
    for (const codegen::Config& config : codegen::launch_variants(run_.arch, problem_, c->config)) {
      Candidate* const variant = add(config);
      // Its kernel has been checked; what differs is how its tiles are handed out.
      if (variant->settled) continue;
      variant->settled = variant->in = variant->variant = true;
      variant->errors = c->errors;
      variant->seconds = c->seconds;
      all.push_back(variant);
    }
  }
  return all;
}

std::vector<ProblemTuner::Candidate*> ProblemTuner::finalists(const std::vector<Candidate*>& from) const {
  std::vector<Candidate*> chosen;
  std::map<const KernelPool::Kernel*, std::size_t> of_kernel;
  for (Candidate* c : keep(from, from.size())) {
    if (!goes_through(*c) && (chosen.size() >= kMostFinalists || of_kernel[c->kernel] >= kVariantsPerKernel)) continue;
    ++of_kernel[c->kernel];
    chosen.push_back(c);
  }
  return chosen;
}

void ProblemTuner::race(Measurer& measurer, const StopCondition& stop) {
  first_round(measurer, stop);
  std::vector<Candidate*> field = timed();
  report_.counts.raced = static_cast<int>(std::ranges::count(field, false, &Candidate::variant));
  if (field.empty()) {
    report_.message = "no config passed the compiler, the gate and the clock";
    return;
  }
  // A round that there is time for, be it without rests.
  const auto fitting = [&](Round round, std::size_t entrants) -> std::optional<RaceOptions> {
    const double each = launch_seconds(field);
    // The finals come after it in any case.
    const double finals = expected_seconds(options_for(Round::finals, each), kMostFinalists, each);
    RaceOptions options = options_for(round, each);
    const auto fits = [&] { return expected_seconds(options, entrants, each) + finals < stop.seconds_left(); };
    if (!fits()) options.rest_seconds = 0;
    return fits() ? std::optional(options) : std::nullopt;
  };
  const auto still_in = [](std::vector<Candidate*> list) {
    std::erase_if(list, [](const Candidate* c) { return !c->in; });
    return list;
  };
  field = keep(field, kept_after(Round::first, field.size()));
  if (const auto options = fitting(Round::second, field.size()); options && field.size() > 1) {
    brief_round(measurer, field, *options);
    field = still_in(field);
  }
  const std::vector<Candidate*> survivors_of_bursts = field;
  field = keep(field, kept_after(Round::second, field.size()));
  if (const auto options = fitting(Round::variants, 4 * field.size());
      options && run_.request.configs.empty() && !field.empty()) {
    field = with_variants(field);
    if (field.size() > 1) brief_round(measurer, field, *options);
    field = still_in(field);
  }
  field = finalists(field);
  const auto ended_before = [&](const char* what) {
    cut_short_ = !still_in(field).empty();
    if (cut_short_) report_.outcome = Outcome::partial;
    report_.message = cut_short_ ? fmt::format("the budget ended before {}", what) : "no config survived the race";
  };
  if (field.empty() || !finals(measurer, field, stop)) return ended_before("the finals");
  if (run_.request.sustained) {
    for (Candidate* c : survivors_of_bursts)
      if (std::ranges::find(field, c) == field.end()) field.push_back(c);
    field = still_in(field);
    if (!sustained_finals(measurer, best_under_load(measurer, field, stop), stop))
      return ended_before("the sustained race");
  }
  log_.finish();
  report_.outcome = Outcome::tuned;
}

bool ProblemTuner::finals(Measurer& measurer, std::vector<Candidate*> entrants, const StopCondition& stop) {
  const double each = launch_seconds(entrants);
  RaceOptions options = options_for(Round::finals, each);
  const auto fits = [&] { return expected_seconds(options, entrants.size(), each) < stop.seconds_left(); };
  if (!fits()) options.turns = static_cast<int>(kFewestFinalTurns);
  if (!fits()) options.rest_seconds = 0;
  for (std::size_t i = entrants.size(); i-- > kFewestFinalists && !fits();)
    if (!goes_through(*entrants[i])) entrants.erase(entrants.begin() + static_cast<std::ptrdiff_t>(i));
  if (!fits()) return false;
  report_.counts.finalists = static_cast<int>(entrants.size());
  std::map<int, RaceResult> results;
  const RaceReadings readings = run_round(measurer, entrants, options, Phase::finals,
                                          [&](Candidate& c, const RaceResult& result) { results[c.id] = result; });
  std::erase_if(entrants, [](const Candidate* c) { return !c->in; });
  std::vector<RaceResult> ordered;
  for (const Candidate* c : entrants) ordered.push_back(results[c->id]);
  if (ordered.empty()) return false;

  report_.conditions = conditions_of(readings, ordered);
  commit(entrants, ordered, kBurst, report_.conditions);
  return true;
}

std::vector<ProblemTuner::Candidate*> ProblemTuner::best_under_load(Measurer& measurer,
                                                                    const std::vector<Candidate*>& field,
                                                                    const StopCondition& stop) {
  const std::vector<Candidate*> entrants = keep(field, kept_after(Round::finals, field.size()));
  const std::size_t count = kept_after(Round::loaded, entrants.size());
  const double each = launch_seconds(entrants);
  const RaceOptions options = options_for(Round::loaded, each);
  const double finals = expected_seconds(options_for(Round::sustained, each), count, each);
  if (expected_seconds(options, entrants.size(), each) + finals > stop.seconds_left()) return keep(field, count);
  // Times under load stand beside those of bursts nowhere but here.
  std::map<int, double> bursts;
  for (const Candidate* c : entrants) bursts[c->id] = c->seconds;
  std::vector<Placing> placings;
  std::set<int> always;
  run_round(measurer, entrants, options, Phase::sustained, [&](Candidate& c, const RaceResult&) {
    placings.push_back({c.id, c.seconds});
    if (goes_through(c)) always.insert(c.id);
    c.seconds = bursts[c.id];
  });
  std::vector<Candidate*> best;
  for (const int id : survivors(placings, count, always))
    best.push_back(*std::ranges::find(entrants, id, &Candidate::id));
  return best;
}

bool ProblemTuner::sustained_finals(Measurer& measurer, const std::vector<Candidate*>& entrants,
                                    const StopCondition& stop) {
  const double each = launch_seconds(entrants);
  const RaceOptions options = options_for(Round::sustained, each);
  if (expected_seconds(options, entrants.size(), each) > stop.seconds_left()) return false;
  std::map<int, RaceResult> results;
  const RaceReadings readings = run_round(measurer, entrants, options, Phase::sustained,
                                          [&](Candidate& c, const RaceResult& result) { results[c.id] = result; });
  std::vector<Candidate*> ended;
  std::vector<RaceResult> ordered;
  for (Candidate* c : entrants) {
    if (!c->in) continue;
    ended.push_back(c);
    ordered.push_back(results[c->id]);
  }
  if (ended.empty()) return false;
  report_.conditions = conditions_of(readings, ordered);
  commit(ended, ordered, kSustained, report_.conditions);
  return true;
}

void ProblemTuner::commit(const std::vector<Candidate*>& entrants, const std::vector<RaceResult>& results,
                          const char* regime, const Conditions& conditions) {
  std::vector<std::vector<std::vector<double>>> turns;
  for (const RaceResult& result : results) turns.push_back(result.turns);
  const std::vector<std::vector<double>> level = without_drift(turns);
  std::vector<Interval> intervals;
  for (const std::vector<double>& samples : level) intervals.push_back(median_interval(samples));

  std::size_t best = 0, incumbent = entrants.size();
  for (std::size_t i = 0; i < entrants.size(); ++i) {
    if (intervals[i].median < intervals[best].median) best = i;
    // Each regime has its own: who won in bursts has no privilege under load.
    if (is_incumbent(regime, entrants[i]->text)) incumbent = i;
    entrants[i]->seconds = intervals[i].median;
  }
  // The cache takes the lowest median. While the incumbent ties with the best, who would come before it is therefore
  // left among the brief trials: noise alone must not change what is served.
  const bool kept = incumbent < entrants.size() && intervals[incumbent].low <= intervals[best].high;
  const Json seen{{"sm_mhz", conditions.sm_mhz},
                  {"watts", conditions.watts ? Json(*conditions.watts) : Json()},
                  {"throttle", conditions.throttle},
                  {"spread", conditions.spread}};
  const auto steps_back = [&](std::size_t i) {
    return kept && i != incumbent &&
           std::tie(intervals[i].median, entrants[i]->text) <
               std::tie(intervals[incumbent].median, entrants[incumbent]->text);
  };
  for (std::size_t i = 0; i < entrants.size(); ++i) {
    Candidate& c = *entrants[i];
    Json errors = c.errors;
    errors["conditions"] = seen;
    log_.measured(c.text, c.kernel->build_key, steps_back(i) ? kBrief : regime, all_samples(results[i]), intervals[i],
                  errors);
  }
}

}  // namespace attune::tuner
