// Timing plans as their users launch them: through the public interface, with no kernel but their own.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <stop_token>
#include <string>
#include <vector>

#include <attune/plan.h>

#include "cli/bench_tensors.h"
#include "runtime/device.h"
#include "runtime/nvml.h"

namespace attune::cli {

struct BenchOptions {
  int turns = 7;          ///< each contender has one before any has its next
  int launches = 5;       ///< timed ones of a turn in the burst regime
  bool burst = true;      ///< turns of a few launches with a rest after each, so that the chip stays cool
  bool sustained = true;  ///< turns of `seconds`, back to back, each after a warm-up of the same kind
  double seconds = 1;     ///< of a sustained turn
};

struct BenchTiming {
  std::vector<double> samples;  ///< seconds a launch: burst one for each launch, sustained one for each turn
  double median = 0, quartile_low = 0, quartile_high = 0;
  std::optional<unsigned> sm_mhz;  ///< as NVML saw it after the last turn
  std::optional<double> watts;
  std::uint64_t throttle = 0;  ///< NVML's reasons, all that were seen

  double spread() const { return median > 0 ? (quartile_high - quartile_low) / median : 0; }
};

struct BenchResult {
  std::string label;
  PlanInfo plan;
  std::optional<BenchTiming> burst, sustained;
  double host_seconds = 0;  ///< that launch() takes the calling thread
};

class Bench {
 public:
  /// Allocates and fills tensors as make_bench_tensors() says. `nvml` may be null and must outlive it.
  Bench(std::shared_ptr<runtime::Device> device, const Problem& problem, const runtime::Nvml* nvml,
        const Planner& planner);
  ~Bench();

  /// A plan for the same problem. Launches it once and looks at what it wrote: Error(wrong_result) that names the
  /// outputs with elements that were not written. Throws Error(out_of_memory).
  void add(const std::string& label, Plan plan);

  /// `progress` hears a few words before each turn. Throws Error(interrupted) soon after a stop.
  std::vector<BenchResult> run(const BenchOptions& options, const std::stop_token& stop,
                               const std::function<void(const std::string&)>& progress);

 private:
  struct Contender {
    std::string label;
    Plan plan;
    double rough = 0;  // seconds of a launch
  };

  double timed(const Plan& plan, int launches);
  void burst_turn(const Contender& contender, const BenchOptions& options, BenchTiming& timing);
  void sustained_turn(const Contender& contender, const BenchOptions& options, BenchTiming& timing);
  void note_conditions(BenchTiming& timing);
  double host_seconds(const Contender& contender);

  std::shared_ptr<runtime::Device> device_;
  const runtime::Nvml* nvml_;
  runtime::Stream stream_;
  std::vector<std::unique_ptr<runtime::Event>> events_;
  std::unique_ptr<BenchTensors> tensors_;
  runtime::DeviceBuffer scratch_;
  std::vector<Contender> contenders_;
};

}  // namespace attune::cli
