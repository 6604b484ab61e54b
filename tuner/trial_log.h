// The trials of one problem in one session: appends them, and knows those of a run that was cut off.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "cache/store.h"
#include "tuner/protocol.h"
#include "tuner/statistics.h"

namespace attune::tuner {

/// What the trials of one run have in common.
struct TrialOrigin {
  cache::Store store;
  Problem problem;
  std::string identity;
  std::string environment;
};

class TrialLog {
 public:
  /// Goes on with the plan's unfinished session if that was measured in this environment, unless `afresh`; else begins
  /// `new_session`.
  TrialLog(TrialOrigin origin, const std::string& new_session, bool afresh);

  const std::string& plan_key() const { return plan_key_; }
  const std::string& session() const { return session_; }
  cache::Store& store() { return origin_.store; }

  /// The last trial of a config in this session, from an earlier run or this one: ok, or why not. Null: none.
  const cache::Trial* find(const std::string& config) const;
  /// Whether some trial of this session that is ok used this build: it has passed the gate.
  bool proven(const std::string& build_key) const;

  /// Commits a measured trial.
  void measured(const std::string& config, const std::string& build_key, const char* regime,
                const std::vector<double>& samples, const Interval& interval, const Json& errors);
  /// Commits a trial that failed. Hangs and crashes are quarantined as well.
  void failed(const std::string& config, const std::string& build_key, cache::TrialStatus status,
              const std::string& reason, const Json& errors);
  /// The reason if this build is in quarantine in this environment.
  std::optional<std::string> quarantined(const std::string& build_key);
  void finish();

 private:
  void append(cache::Trial trial);

  TrialOrigin origin_;
  std::string plan_key_;
  std::string session_;
  std::map<std::string, cache::Trial> last_;  // by config
};

}  // namespace attune::tuner
