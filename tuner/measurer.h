// What the tuner asks of a device. The worker process answers in earnest; tests answer with figures of their own.
#pragma once

#include <functional>
#include <memory>
#include <span>
#include <stop_token>
#include <string>
#include <vector>

#include "base/error.h"
#include "cache/store.h"
#include "codegen/kernel_spec.h"
#include "runtime/device.h"
#include "runtime/nvml.h"
#include "tuner/measure/gate.h"
#include "tuner/measure/shape_bench.h"

namespace attune::tuner {

struct DeviceInfo {
  runtime::DeviceProperties properties;
  runtime::NvmlLimits limits;
};

/// A config with its code, ready to run.
struct Entrant {
  int id = 0;  ///< unique in a run of the tuner
  codegen::Config config;
  codegen::KernelSpec spec;
  std::string build_key;
  std::shared_ptr<const std::string> cubin;
  double expected_seconds = 0;  ///< of a launch, by the cost model: sets how long silence is taken for work
};

/// How a check ended: ok, wrong, timeout, crashed, or rejected (the driver refused to load it).
struct Verdict {
  cache::TrialStatus status = cache::TrialStatus::ok;
  std::string reason;
  Judgement judgement;  ///< if it ran
};

/// How one entrant's race ended.
struct RaceResult {
  cache::TrialStatus status = cache::TrialStatus::ok;
  std::string reason;
  std::vector<std::vector<double>> turns;  ///< seconds of each launch
};

/// The device is not to be trusted any more (ECC, Xid): nothing that it measured may be stored.
class HardwareFailure : public Error {
 public:
  explicit HardwareFailure(const std::string& message) : Error(ErrorCode::driver, message) {}
};

/// One device. A candidate that hangs or crashes is reported as such and costs the others nothing. Not thread-safe, and
/// all calls come from one thread. Every function throws Error(interrupted) soon after a stop, HardwareFailure, and
/// Error(internal) if measuring fails again and again without a candidate to blame.
class Measurer {
 public:
  virtual ~Measurer() = default;

  /// Starts what there is to start.
  virtual const DeviceInfo& device() = 0;
  /// Code of the helper kernels, and of the reference kernel for a spec's text. Needed before what follows.
  virtual void set_helpers(std::shared_ptr<const std::string> cubin) = 0;
  virtual void set_reference(const std::string& spec, std::shared_ptr<const std::string> cubin) = 0;

  /// The numerics gate on small problems.
  virtual Verdict gate(const Entrant& entrant) = 0;
  /// One launch at full size, compared.
  virtual Verdict check(const Problem& problem, const Entrant& entrant) = 0;
  /// `done` hears of each entrant once, as soon as its last turn is over or it failed.
  virtual RaceReadings race(const Problem& problem, std::span<const Entrant> entrants, const RaceOptions& options,
                            const std::function<void(const Entrant&, const RaceResult&)>& done) = 0;
};

/// Makes the measurer of a device (an ordinal or a UUID). Called from the thread that will use it.
using MeasurerFactory = std::function<std::unique_ptr<Measurer>(const std::string& device)>;

}  // namespace attune::tuner
