// What stands behind attune::Runtime: where kernels are looked for, and in which order.
#pragma once

#include <condition_variable>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include <attune/attune.h>

#include "cache/store.h"
#include "runtime/builder.h"
#include "runtime/device.h"
#include "runtime/pack.h"
#include "runtime/plan_state.h"

namespace attune::runtime {

/// Passes warnings on, each text once. Safe from any thread.
class Warnings {
 public:
  explicit Warnings(std::function<void(const std::string&)> sink) : sink_(std::move(sink)) {}
  void operator()(const std::string& text);

 private:
  std::function<void(const std::string&)> sink_;
  std::mutex mutex_;
  std::set<std::string> said_;
};

class RuntimeState {
 public:
  /// `compiler` replaces NVRTC in tests.
  RuntimeState(RuntimeOptions options, std::shared_ptr<Device> device,
               std::function<std::shared_ptr<const Compiler>()> compiler = Compiler::get);
  ~RuntimeState();

  Plan plan(const Problem& problem, const PlanOptions& options);
  std::string device_identity() const { return identity_text(device_->properties()); }

 private:
  // One problem (and override). Its mutex is held while the plan is made, so that two callers compile once.
  struct Entry {
    std::mutex mutex;
    std::optional<Plan> plan;
    bool queued = false;  // for tuning in the background
  };
  struct Job {
    Problem problem;
    PlanOptions options;
    std::shared_ptr<Entry> entry;
  };

  std::shared_ptr<Entry> entry_for(const std::string& key);
  bool capturing(const PlanOptions& options);
  Plan resolve(const Problem& problem, const PlanOptions& options, const std::shared_ptr<Entry>& entry);

  /// `plan`, with a second kernel for peaked scores where its own speculates and there is one.
  Plan adaptive(Plan plan, const PlanOptions& options);

  std::optional<Plan> from_packs(const Problem& problem);
  std::optional<Plan> from_cache(const Problem& problem, Origin origin);
  std::optional<Plan> from_standing(const Problem& problem, const cache::Standing& standing, const std::string& errors,
                                    Origin origin);
  Plan by_config(const Problem& problem, const codegen::Config& config, Origin origin);
  Plan by_heuristic(const Problem& problem);
  Plan tuned(const Problem& problem, double seconds, std::stop_token stop);

  void queue_tuning(const Problem& problem, const PlanOptions& options, const std::shared_ptr<Entry>& entry);
  void tune_in_background(std::stop_token stop);

  const RuntimeOptions options_;
  const std::shared_ptr<Device> device_;
  const std::shared_ptr<Warnings> warn_;
  cache::Store store_;
  Builder builder_;
  std::vector<Pack> packs_;
  const std::shared_ptr<PlanContext> context_;

  std::mutex mutex_;  // guards entries_, jobs_ and tuner_
  std::map<std::string, std::shared_ptr<Entry>> entries_;
  std::deque<Job> jobs_;
  std::condition_variable_any more_jobs_;
  std::jthread tuner_;  // last: it uses all of the above
};

}  // namespace attune::runtime
