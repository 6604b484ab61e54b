// Measures in a worker process, and starts a fresh one when a candidate has taken it down.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>

#include "tuner/measurer.h"
#include "tuner/protocol.h"
#include "tuner/worker_process.h"

namespace attune::tuner {

struct WorkerOptions {
  std::string path;    ///< of attune-worker
  std::string device;  ///< ordinal or UUID
  double hang_seconds = 10;
  double start_seconds = 60;  ///< a driver may take its time with the first context
  std::stop_token stop;
  std::function<void(const std::string&)> warn;  ///< hears of every worker that was lost
};

class WorkerMeasurer : public Measurer {
 public:
  explicit WorkerMeasurer(WorkerOptions options) : options_(std::move(options)) {}

  const DeviceInfo& device() override;
  void set_helpers(std::shared_ptr<const std::string> cubin) override;
  void set_reference(const std::string& spec, std::shared_ptr<const std::string> cubin) override;
  Verdict gate(const Entrant& entrant) override;
  Verdict check(const Problem& problem, const Entrant& entrant) override;
  RaceReadings race(const Problem& problem, std::span<const Entrant> entrants, const RaceOptions& options,
                    const std::function<void(const Entrant&, const RaceResult&)>& done) override;

 private:
  // A worker that is gone. `culprit` is the id that it began last; -1: none.
  struct Loss {
    cache::TrialStatus status;
    std::string reason;
    int culprit;
  };

  /// Sends a command and reads to its end. Throws Loss; Error as the worker reports it; HardwareFailure.
  Json ask(const Json& command, double silence, const std::function<void(const Json&)>& on_event = {});
  [[noreturn]] void lose(WorkerProcess::Status status, double silence, int culprit);
  [[noreturn]] void lose_to(const std::string& reason, int culprit);
  void forget_worker();
  /// Throws Error(internal) when too many were lost in a row without a culprit.
  void count_loss(const Loss& loss);

  void start();
  void ensure_tools();
  void ensure_reference(const Problem& problem);
  void ensure_code(const std::string& key, const std::string& cubin);
  void ensure_problem(const Problem& problem);
  void ensure_loaded(const Problem& problem, const Entrant& entrant);

  Verdict judge(const Entrant& entrant, const std::function<Json()>& attempt);
  double silence_for(double expected_seconds) const { return options_.hang_seconds + 4 * expected_seconds; }

  WorkerOptions options_;
  std::optional<DeviceInfo> device_;
  std::shared_ptr<const std::string> helpers_;
  std::map<std::string, std::shared_ptr<const std::string>> references_;
  int losses_ = 0;  // in a row, with nobody to blame

  // What the worker that runs now has.
  std::unique_ptr<WorkerProcess> worker_;
  std::set<std::string> has_code_;
  std::set<std::string> has_reference_;
  bool has_tools_ = false;
  std::string has_problem_;
  std::set<int> has_loaded_;
};

}  // namespace attune::tuner
