#include "tuner/trial_log.h"

#include <algorithm>

#include "codegen/kernel_spec.h"
#include "runtime/keys.h"
#include "tuner/tuner.h"

namespace attune::tuner {

using cache::TrialStatus;

TrialLog::TrialLog(TrialOrigin origin, const std::string& new_session, bool afresh)
    : origin_(std::move(origin)),
      plan_key_(runtime::plan_key(origin_.problem, origin_.identity, codegen::emitter_digest())),
      session_(new_session) {
  if (afresh) return;
  const std::optional<std::string> unfinished = origin_.store.unfinished_session(plan_key_);
  if (!unfinished) return;
  std::map<std::string, cache::Trial> last;
  for (cache::Trial& trial : origin_.store.trials(plan_key_)) {
    if (trial.session != *unfinished) continue;
    if (trial.environment != origin_.environment) return;
    std::string config = trial.config;
    last[std::move(config)] = std::move(trial);
  }
  session_ = *unfinished;
  last_ = std::move(last);
}

const cache::Trial* TrialLog::find(const std::string& config) const {
  const auto it = last_.find(config);
  return it == last_.end() ? nullptr : &it->second;
}

bool TrialLog::proven(const std::string& build_key) const {
  return std::any_of(last_.begin(), last_.end(), [&](const auto& entry) {
    return entry.second.build_key == build_key && entry.second.status == TrialStatus::ok;
  });
}

void TrialLog::append(cache::Trial trial) {
  trial.plan_key = plan_key_;
  trial.problem = to_string(origin_.problem);
  trial.device = origin_.identity;
  trial.environment = origin_.environment;
  trial.session = session_;
  origin_.store.append_trial(trial);
  std::string config = trial.config;
  last_[std::move(config)] = std::move(trial);
}

void TrialLog::measured(const std::string& config, const std::string& build_key, const char* regime,
                        const std::vector<double>& samples, const Interval& interval, const Json& errors) {
  cache::Trial trial;
  trial.config = config;
  trial.build_key = build_key;
  trial.regime = regime;
  trial.samples = samples;
  trial.median = interval.median;
  trial.low = interval.low;
  trial.high = interval.high;
  trial.errors = errors.dump();
  append(std::move(trial));
}

void TrialLog::failed(const std::string& config, const std::string& build_key, TrialStatus status,
                      const std::string& reason, const Json& errors) {
  cache::Trial trial;
  trial.config = config;
  trial.build_key = build_key;
  trial.regime = kBrief;
  trial.status = status;
  trial.reason = reason;
  if (!errors.is_null()) trial.errors = errors.dump();
  if ((status == TrialStatus::timeout || status == TrialStatus::crashed) && !build_key.empty())
    origin_.store.quarantine({build_key, origin_.environment, config, reason, 0});
  append(std::move(trial));
}

std::optional<std::string> TrialLog::quarantined(const std::string& build_key) {
  return origin_.store.quarantined(build_key, origin_.environment);
}

void TrialLog::finish() { origin_.store.finish_session(plan_key_, session_); }

}  // namespace attune::tuner
