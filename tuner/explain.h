// Why this config: what the trials say about the winner, the runner-up and the losers, and where the time goes.
#pragma once

#include <attune/problem.h>

#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "cache/store.h"
#include "codegen/space.h"
#include "tuner/report.h"

namespace attune::tuner {

struct Contender {
  Timing timing;
  double tflops = 0;
  double slower = 0;  ///< than the winner in the same regime: 0.02 is 2%; 0 for the winner itself
  bool tied = false;  ///< not clearly slower than the fastest
  std::string regime;
  codegen::CostEstimate estimate;  ///< the cost model's split of its time
  /// Where its config differs from the winner's: "block_n=176 (winner 128)".
  std::vector<std::string> differences;
};

struct Loser {
  std::string config;
  std::string status;  ///< "rejected", "wrong", "timeout", "crashed"
  std::string reason;
  /// Of what kind that is: "spills", "serialised wgmma", "build error", "numerics", "hung", "crashed".
  std::string cause;
  std::vector<std::string> differences;  ///< as those of a Contender
};

/// A value that the search tried on one axis, and the winner has not.
struct AxisValue {
  std::string axis, value;       ///< "block_n", "176"
  std::string winner;            ///< the winner's value
  std::optional<double> slower;  ///< the fastest raced config with this value, against the winner; nothing: none raced
  bool alone = false;            ///< that config differs from the winner in this axis only
  int raced = 0, lost = 0;       ///< configs with this value that were timed; that were rejected, wrong, ...
};

struct Explanation {
  Problem problem;
  std::string plan_key;
  std::string device;       ///< identity
  std::string environment;  ///< of the winner's trial
  std::string session;
  std::string regime;
  bool finished = false;               ///< false: the session was cut off, or is going on
  std::string errors;                  ///< the winner's, JSON; holds the conditions of its race too
  std::optional<Contender> winner;     ///< empty: nothing was tuned
  std::optional<Contender> runner_up;  ///< the fastest that is not the winner
  std::vector<Contender> others;       ///< the rest, fastest first; finalists before those that left earlier
  std::vector<Loser> losers;           ///< of the same session, by status and config
  std::vector<AxisValue> axes;         ///< in the order of a config's text; the values of an axis fastest first
  double share_of_limit = 0;           ///< of the winner
};

/// The kind of a trial's failure, as Loser has it.
std::string cause_of(cache::TrialStatus status, std::string_view reason);

/// `arch` and `identity` say for which device; both follow from runtime::DeviceProperties.
Explanation explain(cache::Store store, const Problem& problem, const Arch& arch, const std::string& identity);

/// A plan that the store has, near one that it has not.
struct NearMiss {
  cache::PlanRow plan;
  std::vector<std::string> differences;  ///< "seqlen_q: 2048 here, 4096 asked for"; empty: another version of attune
};
/// Plans that differ least from what was asked for, at most `limit`: which part of the key made it a miss.
std::vector<NearMiss> explain_miss(cache::Store store, const Problem& problem, const std::string& identity,
                                   std::size_t limit = 3);

}  // namespace attune::tuner
