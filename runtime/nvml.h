// The parts of NVML that measuring needs: clocks, power, throttling. Opened at run time. The path from a
// cached plan to a launch never touches it.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "runtime/device.h"

namespace attune::runtime {

/// One look at a device's operating point. What the device or the user's rights do not offer is left empty.
struct NvmlReading {
  std::optional<unsigned> sm_mhz;
  std::optional<unsigned> memory_mhz;
  std::optional<double> watts;  ///< averaged by the device over some 100 ms
  std::optional<unsigned> celsius;
  std::optional<std::uint64_t> throttle;  ///< NVML's bit mask of reasons why the clock is below its maximum
};

/// The reasons in a mask that make a timing doubtful or explain it, e.g. {"power cap", "thermal (hardware)"}.
std::vector<std::string> throttle_reasons(std::uint64_t mask);

/// What does not change while measuring.
struct NvmlLimits {
  std::optional<double> power_cap_watts;  ///< enforced now
  std::optional<double> power_cap_default_watts;
  std::optional<unsigned> max_sm_mhz;
  std::optional<bool> mig;                       ///< whether MIG mode is on
  std::optional<std::uint64_t> ecc_uncorrected;  ///< since the driver was loaded
  std::string driver;                            ///< e.g. "580.65.06", empty if unknown
};

/// NVML's view of one device. Safe from any thread.
class Nvml {
 public:
  /// Finds the device by UUID. Null, with the reason in `why`, where NVML or the device cannot be opened:
  /// measuring goes on without it.
  static std::unique_ptr<Nvml> open(const DeviceProperties& device, std::string* why = nullptr);
  virtual ~Nvml() = default;

  virtual NvmlReading read() const = 0;
  virtual NvmlLimits limits() const = 0;
};

}  // namespace attune::runtime
