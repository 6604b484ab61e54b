#include "runtime/device.h"

#include <cctype>

#include "base/error.h"
#include "base/fields.h"

namespace attune::runtime {
namespace {

// Measured on an H200: what streaming kernels reach of the product of memory clock and bus width.
constexpr double kReachableBandwidth = 0.82;

}  // namespace

std::string identity_text(const DeviceProperties& p) {
  std::string name = p.name;
  for (char& c : name) {
    if (!std::isalnum(static_cast<unsigned char>(c)) && c != '.' && c != '-') c = '_';
  }
  constexpr std::int64_t kGib = 1ll << 30;
  return join_fields({{"name", name},
                      {"cc", std::to_string(p.compute_capability)},
                      {"sms", std::to_string(p.sms)},
                      {"l2", std::to_string(p.l2_bytes)},
                      // Drivers reserve differing amounts of the memory, so bytes would change with the driver.
                      {"memory_gib", std::to_string((p.memory_bytes + kGib / 2) / kGib)},
                      {"clock_mhz", std::to_string(p.clock_khz / 1000)},
                      {"memory_clock_mhz", std::to_string(p.memory_clock_khz / 1000)},
                      {"bus", std::to_string(p.memory_bus_bits)}});
}

Arch arch_of(const DeviceProperties& p) {
  if (p.compute_capability != 90) {
    fail(ErrorCode::unsupported, "device {} ({}): compute capability {}.{} is not supported (allowed: 9.0)", p.ordinal,
         p.name, p.compute_capability / 10, p.compute_capability % 10);
  }
  Arch arch = parse_arch("sm_90a");
  arch.sms = p.sms;
  arch.shared_per_block = p.shared_per_block;
  arch.registers_per_sm = p.registers_per_sm;
  arch.l2_bytes = p.l2_bytes;
  // Data moves on both edges of the memory clock.
  const double peak = 2.0 * 1e3 * p.memory_clock_khz * (p.memory_bus_bits / 8.0);
  if (peak > 0) arch.hbm_bytes_per_second = kReachableBandwidth * peak;
  return arch;
}

}  // namespace attune::runtime
