#include "tuner/explain.h"

#include <fmt/format.h>

#include <algorithm>
#include <tuple>

#include "base/error.h"
#include "base/fields.h"
#include "runtime/compiler.h"
#include "runtime/keys.h"
#include "tuner/limits.h"
#include "tuner/tuner.h"

namespace attune::tuner {
namespace {

using cache::TrialStatus;

// "a=1" here against "a=2" there, in the words of `text`.
std::vector<std::string> differing(
    std::string_view what, const std::string& mine, const std::string& theirs,
    const std::function<std::string(const std::string&, const std::string&, const std::string&)>& text) {
  std::map<std::string, std::string> other;
  for (auto& [key, value] : parse_fields(what, theirs)) other[key] = value;
  std::vector<std::string> found;
  for (const auto& [key, value] : parse_fields(what, mine)) {
    const auto it = other.find(key);
    const std::string there = it == other.end() ? "not stated" : it->second;
    if (there != value) found.push_back(text(key, value, there));
  }
  return found;
}

Contender contender_of(const cache::Trial& trial, const Problem& problem, const Arch& arch) {
  Contender c;
  c.timing = {.config = trial.config,
              .build_key = trial.build_key,
              .median = trial.median,
              .low = trial.low,
              .high = trial.high,
              .samples = static_cast<int>(trial.samples.size())};
  c.tflops = trial.median > 0 ? flops(problem) / trial.median * 1e-12 : 0;
  c.regime = trial.regime;
  c.estimate = codegen::estimate(arch, problem, codegen::parse_config(trial.config));
  return c;
}

std::vector<std::string> config_differences(const std::string& config, const std::string& winner) {
  return differing("config", config, winner, [](const auto& key, const auto& mine, const auto& theirs) {
    return fmt::format("{}={} (winner {})", key, mine, theirs);
  });
}

// What each value of each axis came to that is not the winner's.
std::vector<AxisValue> axis_values(const std::string& winner, const std::vector<Contender>& contenders,
                                   const std::vector<Loser>& losers) {
  std::vector<AxisValue> found;
  const Fields axes = parse_fields("config", winner);
  // Calls `use` for each axis in which a config differs from the winner.
  const auto visit = [&](const std::string& config, const auto& use) {
    const Fields fields = parse_fields("config", config);
    for (const auto& [axis, value] : axes) {
      const auto it =
          std::find_if(fields.begin(), fields.end(), [&](const auto& field) { return field.first == axis; });
      if (it == fields.end() || it->second == value) continue;
      auto entry = std::find_if(found.begin(), found.end(),
                                [&](const AxisValue& v) { return v.axis == axis && v.value == it->second; });
      if (entry == found.end())
        entry = found.insert(found.end(), {.axis = axis, .value = it->second, .winner = value, .slower = {}});
      use(*entry);
    }
  };
  for (const Contender& c : contenders) {
    visit(c.timing.config, [&](AxisValue& v) {
      ++v.raced;
      const bool alone = c.differences.size() == 1;
      if (v.slower && (*v.slower < c.slower || (*v.slower == c.slower && v.alone >= alone))) return;
      v.slower = c.slower;
      v.alone = alone;
    });
  }
  for (const Loser& l : losers) visit(l.config, [](AxisValue& v) { ++v.lost; });
  const auto order = [&](const AxisValue& v) {
    const auto axis = std::find_if(axes.begin(), axes.end(), [&](const auto& field) { return field.first == v.axis; });
    return std::make_tuple(axis - axes.begin(), !v.slower, v.slower.value_or(0), v.value);
  };
  std::sort(found.begin(), found.end(), [&](const AxisValue& a, const AxisValue& b) { return order(a) < order(b); });
  return found;
}

int rank_of(const std::string& regime, const std::string& served) {
  return regime == served ? 0 : regime == kBrief ? 2 : 1;
}

}  // namespace

std::string cause_of(TrialStatus status, std::string_view reason) {
  switch (status) {
    case TrialStatus::ok: return "";
    case TrialStatus::rejected: return runtime::rejection_cause(reason);
    case TrialStatus::wrong: return "numerics";
    case TrialStatus::timeout: return "hung";
    case TrialStatus::crashed: return "crashed";
  }
  return "";
}

Explanation explain(cache::Store store, const Problem& problem, const Arch& arch, const std::string& identity) {
  Explanation e;
  e.problem = problem;
  e.device = identity;
  e.plan_key = runtime::plan_key(problem, identity, codegen::emitter_digest());
  const std::optional<cache::Winner> winner = store.winner(e.plan_key);
  if (!winner) return e;
  e.environment = winner->environment;
  e.session = winner->session;
  e.regime = winner->regime;
  e.finished = winner->session_finished;
  e.errors = winner->errors;

  // What speaks for a config: its last trial in the regime that is served, else the one from the latest round.
  std::map<std::string, cache::Trial> last;
  std::map<std::string, double> winner_medians;  // by regime: times of different regimes do not compare
  for (cache::Trial& trial : store.trials(e.plan_key)) {
    if (trial.session != winner->session) continue;
    if (trial.config == winner->config && trial.status == TrialStatus::ok) winner_medians[trial.regime] = trial.median;
    const auto it = last.find(trial.config);
    const bool better = it == last.end() || trial.status != TrialStatus::ok ||
                        rank_of(trial.regime, e.regime) <= rank_of(it->second.regime, e.regime);
    if (it != last.end() && it->second.status != TrialStatus::ok) continue;
    std::string config = trial.config;
    if (better) last[std::move(config)] = std::move(trial);
  }
  std::vector<Contender> contenders;
  for (const auto& [config, trial] : last) {
    if (trial.status != TrialStatus::ok) {
      e.losers.push_back({config, cache::to_string(trial.status), trial.reason, cause_of(trial.status, trial.reason),
                          config_differences(config, winner->config)});
      continue;
    }
    contenders.push_back(contender_of(trial, problem, arch));
    Contender& c = contenders.back();
    const auto same = winner_medians.find(c.regime);
    const double base = same != winner_medians.end() && c.regime != e.regime ? same->second : winner->median;
    c.slower = base > 0 ? c.timing.median / base - 1 : 0;
    c.tied = std::any_of(winner->tie_set.begin(), winner->tie_set.end(),
                         [&](const cache::Standing& s) { return s.config == config; });
    c.differences = config_differences(config, winner->config);
  }
  std::sort(e.losers.begin(), e.losers.end(),
            [](const Loser& a, const Loser& b) { return std::tie(a.status, a.config) < std::tie(b.status, b.config); });
  std::sort(contenders.begin(), contenders.end(), [&](const Contender& a, const Contender& b) {
    return std::make_tuple(rank_of(a.regime, e.regime), a.timing.median, a.timing.config) <
           std::make_tuple(rank_of(b.regime, e.regime), b.timing.median, b.timing.config);
  });
  e.axes = axis_values(winner->config, contenders, e.losers);
  for (Contender& c : contenders) {
    if (c.timing.config == winner->config && !e.winner) {
      e.share_of_limit = c.timing.median > 0 ? limit_seconds(c.estimate) / c.timing.median : 0;
      e.winner = std::move(c);
    } else if (!e.runner_up && c.regime == e.regime) {
      e.runner_up = std::move(c);
    } else {
      e.others.push_back(std::move(c));
    }
  }
  return e;
}

std::vector<NearMiss> explain_miss(cache::Store store, const Problem& problem, const std::string& identity,
                                   std::size_t limit) {
  const auto text = [](const std::string& key, const std::string& mine, const std::string& theirs) {
    return fmt::format("{}: {} here, {} asked for", key, mine, theirs);
  };
  std::vector<NearMiss> near;
  for (cache::PlanRow& plan : store.list_plans()) {
    NearMiss miss;
    try {
      miss.differences = differing("problem", plan.problem, to_string(problem), text);
      const std::vector<std::string> device = differing("device", plan.device, identity, text);
      miss.differences.insert(miss.differences.end(), device.begin(), device.end());
    } catch (const Error&) {
      continue;  // written by a version with other texts
    }
    miss.plan = std::move(plan);
    near.push_back(std::move(miss));
  }
  std::stable_sort(near.begin(), near.end(), [](const NearMiss& a, const NearMiss& b) {
    return std::make_pair(a.differences.size(), -a.plan.ok) < std::make_pair(b.differences.size(), -b.plan.ok);
  });
  if (near.size() > limit) near.resize(limit);
  return near;
}

}  // namespace attune::tuner
