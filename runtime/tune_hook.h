// How plan() reaches the tuner, which stands above runtime and so cannot be called by name.
#pragma once

#include <memory>
#include <stop_token>

#include <attune/problem.h>

#include "cache/store.h"
#include "runtime/device.h"

namespace attune::runtime {

struct TuneRequest {
  Problem problem;
  std::shared_ptr<Device> device;
  cache::Store store;   ///< gets the trials; its directory() is empty if it is in memory only
  double seconds = 30;  ///< budget
};

class TuneHook {
 public:
  virtual ~TuneHook() = default;
  /// Tunes within the budget and appends the trials to the store under plan_key(problem,
  /// identity_text(device), emitter_digest()), the builds beside them, so that the store has a winner
  /// afterwards. Called from any thread, also from several at once. Throws Error(interrupted) soon after a
  /// stop is requested, another Error on failure.
  virtual void tune(const TuneRequest& request, std::stop_token stop) = 0;
};

/// Replaces the hook of this process; null removes it. Safe from any thread.
void register_tune_hook(std::shared_ptr<TuneHook> hook);
std::shared_ptr<TuneHook> tune_hook();  ///< null if none is registered

}  // namespace attune::runtime
