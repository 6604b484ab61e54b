#include "tuner/environment.h"

#include <cmath>
#include <random>

#include "base/fields.h"
#include "codegen/kernel_spec.h"

#include <fmt/format.h>

namespace attune::tuner {

std::string environment_text(const DeviceInfo& device, const std::string& nvrtc_version) {
  const auto known = [](std::string text) {
    for (char& c : text) {
      if (c == ',' || c == '=' || c == ' ' || c == '\n') c = '_';
    }
    return text.empty() ? std::string("unknown") : text;
  };
  const auto& cap = device.limits.power_cap_watts;
  return join_fields({{"driver", known(device.limits.driver)},
                      {"cuda", std::to_string(device.properties.driver_version)},
                      {"nvrtc", known(nvrtc_version)},
                      {"emitter", codegen::emitter_digest().substr(0, 12)},
                      {"power_cap", cap ? std::to_string(std::lround(*cap)) : "unknown"}});
}

std::string new_session() {
  std::random_device device;
  const auto word = [&] { return (static_cast<std::uint64_t>(device()) << 32) | device(); };
  return fmt::format("{:016x}{:016x}", word(), word());
}

}  // namespace attune::tuner
