// What a tuning run found, and what it says while it runs.
#pragma once

#include <attune/problem.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace attune::tuner {

/// One config's time for one problem, in seconds.
struct Timing {
  std::string config;  ///< canonical text, launch part included
  std::string build_key;
  double median = 0;
  double low = 0;  ///< with high: interval that holds the true median with at least 95%, where there are enough samples
  double high = 0;
  int samples = 0;
};

/// The operating point while a problem was raced, as NVML and a clock probe on the device saw it.
struct Conditions {
  double sm_mhz = 0;      ///< measured on the device right after the launches, median; 0: unknown
  double sm_mhz_low = 0;  ///< lowest seen
  std::optional<double> watts;
  std::optional<unsigned> celsius;
  std::vector<std::string> throttle;  ///< reasons why the clock was below its maximum, each once
  double spread = 0;  ///< median over the finalists of (upper quartile - lower quartile) / median of the raw samples
};

enum class Outcome {
  tuned,    ///< raced to the end; the store's winner is this session's
  kept,     ///< raced to the end; the incumbent was not clearly beaten and stays
  known,    ///< tuned before in this environment; nothing was measured
  partial,  ///< stopped or out of time before the finals; the store serves the best so far
  failed,   ///< the store has no usable config for it
};
const char* to_string(Outcome outcome) noexcept;

/// How many configs went where.
struct Counts {
  int space = 0;        ///< pass the rules
  int selected = 0;     ///< chosen by the searcher
  int built = 0;        ///< selected ones whose build was accepted
  int rejected = 0;     ///< build refused: spills, serialised wgmma, compile errors
  int unbuilt = 0;      ///< not compiled within the budget
  int quarantined = 0;  ///< hung or crashed before in this environment: not run
  int wrong = 0;        ///< outside the numerics gate
  int timeout = 0;      ///< did not end
  int crashed = 0;      ///< illegal address and the like
  int raced = 0;        ///< kernels that were timed; `resumed` ones included
  int resumed = 0;      ///< timed by an earlier run of this session
  int finalists = 0;
};

struct ProblemReport {
  Problem problem;
  std::string plan_key;
  std::string session;  ///< empty if nothing was measured
  Outcome outcome = Outcome::failed;
  std::string message;              ///< why it failed, is partial or was kept; else empty
  std::optional<Timing> winner;     ///< under load if that was asked for
  std::vector<Timing> ties;         ///< not clearly slower than the winner, by median
  std::optional<Timing> sustained;  ///< the winner under sustained load, if that was asked for
  /// default_config()'s time in the same race. Empty if it could not be built or was not raced.
  std::optional<Timing> heuristic;
  double tflops = 0;          ///< of the winner
  double over_heuristic = 0;  ///< heuristic's median / winner's median; 0: unknown
  std::string limit;          ///< largest term of the cost model for the winner ("tensor", ...)
  double share_of_limit = 0;  ///< that term's time / measured time
  std::string errors;         ///< of the winner against the reference: JSON
  Counts counts;
  Conditions conditions;
  double seconds = 0;  ///< from the first check to the last trial
};

struct Report {
  std::vector<ProblemReport> problems;  ///< in the order of the request; of this shard only
  std::string device;                   ///< product name
  std::string identity;                 ///< runtime::identity_text()
  std::string environment;
  bool interrupted = false;    ///< a stop was requested
  bool out_of_time = false;    ///< the budget ended before the work did
  int kernels = 0;             ///< distinct kernels over all problems
  int compiled = 0;            ///< of these, compiled in this run; the others came from the cache
  int rejected = 0;            ///< of these, refused
  double compile_seconds = 0;  ///< wall time until the last build
  double seconds = 0;          ///< wall time of everything

  /// Problems that ended as tuned, kept or known.
  int complete() const;
};

/// Report as one JSON object with fixed keys, for `attune tune --json`.
std::string to_json(const Report& report);

enum class Phase { starting, compiling, checking, racing, finals, sustained, done };
const char* to_string(Phase phase) noexcept;

struct Progress {
  Phase phase = Phase::starting;
  Problem problem;        ///< being raced; while compiling, the first one
  int problem_index = 0;  ///< of `problem`, from 0
  int problems = 1;
  int done = 0;  ///< kernels (compiling) or configs (checking and after) of this phase
  int total = 0;
  double best_seconds = 0;    ///< of this problem so far; 0: nothing was timed yet
  double best_tflops = 0;     ///< likewise
  double share_of_limit = 0;  ///< likewise, of the best config's cost-model limit
  double over_heuristic = 0;  ///< likewise; 0: the heuristic's config was not timed yet
  double seconds = 0;         ///< since the start
  double seconds_left = 0;    ///< estimate, never beyond the budget; 0 while starting
};

/// "tuning d128 causal 4x4096  142/188  best 701 TFLOP/s (88% of the limit, 1.11x heuristic)  0:14 left"
std::string progress_line(const Progress& progress);

}  // namespace attune::tuner
