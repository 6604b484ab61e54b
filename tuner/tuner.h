// Tuning: from problems to winners in the cache.
//
// For each problem the configs of the space are ranked by the cost model, the best (and some of every kind) are
// compiled in parallel, checked against the float64 reference, and raced on the device in rounds, finalists
// interleaved. Everything that runs a kernel happens in a worker process; this process never initialises CUDA.
//
// Every trial is committed to the store as it ends, so a run that was killed goes on where it was. Trials of the quick
// rounds stand in regime "brief", those of the finals in "burst" and "sustained"; the cache prefers them in that order
// (the last one first), so whatever was reached serves.
#pragma once

#include <attune/problem.h>

#include <functional>
#include <memory>
#include <stop_token>
#include <string>
#include <vector>

#include "cache/store.h"
#include "runtime/compiler.h"
#include "tuner/report.h"
#include "tuner/shard.h"

namespace attune::tuner {

inline constexpr const char* kBrief = "brief";
inline constexpr const char* kBurst = "burst";
inline constexpr const char* kSustained = "sustained";

struct Request {
  cache::Store store;                  ///< gets kernels, trials, quarantine
  std::vector<Problem> problems = {};  ///< duplicates are tuned once
  /// Ordinals or UUIDs (hexadecimal) of equal devices. Each gets a worker; problems are shared out among them.
  std::vector<std::string> devices = {"0"};
  Shard shard = {};                       ///< this process tunes every count-th problem
  bool sustained = false;                 ///< also race the finalists under sustained load
  double seconds = 60;                    ///< budget; above 0. When it ends, what is under way is brought to an end
  int max_candidates = 120;               ///< kernels to find for a problem, the built-in table's on top; at least 1
  int min_raced = 100;                    ///< select more while fewer than this pass the compiler; 0: never
  int compile_threads = 0;                ///< 0: one per hardware thread
  std::vector<std::string> configs = {};  ///< race these texts instead of searching
  bool force = false;                     ///< measure anew what is known, in a new session
  double hang_seconds = 10;               ///< a candidate that is silent for so much longer than expected is killed
  std::string worker = {};                ///< path of attune-worker; empty: find_worker()
  /// Called when something must be compiled; must be safe from any thread.
  std::function<std::shared_ptr<const runtime::Compiler>()> compiler = runtime::Compiler::get;
};

/// A peaked twin beside its problem gets this share of the candidates and of the time: what is left of the space are
/// schedules for one kind of softmax.
inline constexpr int kTwinShare = 3;
/// Whether `problem` is the peaked twin of one of these.
bool is_twin(const std::vector<Problem>& problems, const Problem& problem);

/// Callbacks come from the tuner's threads, one at a time, and must not throw.
struct Hooks {
  std::function<void(const Progress&)> progress = {};
  std::function<void(const std::string&)> warn =
      {};  ///< one line for each thing that was survived (a killed worker, ...)
  /// On a stop the run ends within a second or so, plus the compiles that are under way; Report::interrupted is set.
  std::stop_token stop = {};
};

/// Throws Error(invalid_argument) for a bad request, Error(no_device), Error(unsupported) (no NVRTC, a GPU that no
/// family serves), Error(not_found) without a worker executable, Error(driver) for a hardware error (ECC, Xid), after
/// which nothing is stored any more, and Error(internal) if workers die again and again without a candidate to blame.
/// A problem that cannot be tuned does not throw: its report says `failed`.
Report tune(const Request& request, const Hooks& hooks = {});

/// Makes MissPolicy::tune and ::background work in this process. The shared library does so by itself when it is
/// loaded; a program that links the static archive calls this once. Safe from any thread.
void install_tune_hook();

}  // namespace attune::tuner
