// One problem on the device: its inputs, the kernels that compete for it, checks at full size, and timing.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "codegen/kernel_spec.h"
#include "tuner/measure/gate.h"
#include "tuner/measure/measured_case.h"
#include "tuner/measure/workbench.h"

namespace attune::tuner {

/// How a race is run. A turn of an entrant is `warm` launches, then `launches` timed ones; all entrants have their
/// first turn before any has its second.
struct RaceOptions {
  int turns = 1;
  int launches = 3;
  int warm = 1;
  double rest_seconds = 0;  ///< idle after each turn, so that every burst starts from a cool chip
  /// Above 0: a turn is a run of this length after an equally long one that is not timed; its one sample is the mean.
  double run_seconds = 0;
};

/// What was seen of the operating point during a race.
struct RaceReadings {
  std::vector<double> sm_mhz;  ///< one for each turn of each entrant
  std::optional<double> watts;
  std::optional<unsigned> celsius;
  std::uint64_t throttle = 0;  ///< NVML's reasons, all that were seen
};

class ShapeBench {
 public:
  /// Allocates as many sets of inputs as it takes to exceed L2 three times, within 40% of the free memory, and computes
  /// the reference for some rows of every head. Throws Error(out_of_memory).
  ShapeBench(Workbench& bench, const Problem& problem);

  const Problem& problem() const { return problem_; }
  int sets() const { return static_cast<int>(sets_.size()); }

  /// Loads a kernel under an id; the same id twice replaces the first. Throws as runtime::make_plan does.
  void load(int id, const codegen::KernelSpec& spec, const codegen::Config& config, const std::string& cubin);

  /// One launch, compared with the reference; every element of its outputs must be written. Also measures roughly.
  Judgement check(int id);

  /// Before each turn `begin(id)` is called, after it `end(id, turn, seconds of each launch)`. Throws what launching
  /// throws; the id that was begun last is to blame.
  RaceReadings race(const std::vector<int>& ids, const RaceOptions& options, const std::function<void(int)>& begin,
                    const std::function<void(int, int, const std::vector<double>&)>& end);

 private:
  struct Entrant {
    Plan plan;
    double seconds = 0;  ///< of a launch, rough; 0: not known
  };

  Entrant& entrant(int id);
  void launch(const Plan& plan);
  /// `meanwhile` is called while the device is busy with what was queued.
  std::vector<double> burst(Entrant& e, const RaceOptions& options, const std::function<void()>& meanwhile);
  std::vector<double> steady_run(Entrant& e, const RaceOptions& options, const std::function<void()>& meanwhile);
  void note_clock(RaceReadings& readings);
  void note_nvml(RaceReadings& readings) const;
  runtime::Event& event(std::size_t index);

  Workbench& bench_;
  Problem problem_;
  std::vector<std::unique_ptr<MeasuredCase>> sets_;  // the first one is compared
  std::map<int, Entrant> entrants_;
  std::vector<std::unique_ptr<runtime::Event>> events_;
  runtime::DeviceBuffer clock_;
  std::size_t next_set_ = 0;
};

}  // namespace attune::tuner
