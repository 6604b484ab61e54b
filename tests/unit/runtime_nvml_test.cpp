#include <doctest/doctest.h>

#include "runtime/driver.h"
#include "runtime/nvml.h"

namespace attune::runtime {
namespace {

TEST_CASE("NVML: reasons have names, idle is none") {
  CHECK(throttle_reasons(0).empty());
  CHECK(throttle_reasons(0x1).empty());
  CHECK(throttle_reasons(0x4 | 0x40) == std::vector<std::string>{"power cap", "thermal (hardware)"});
}

TEST_CASE("NVML: where it is not there, measuring gets a reason instead") {
  if (Driver::available()) return;
  DeviceProperties device;
  device.uuid = "00";
  std::string why;
  CHECK(Nvml::open(device, &why) == nullptr);
  CHECK(!why.empty());
  CHECK(Nvml::open(device) == nullptr);
}

}  // namespace
}  // namespace attune::runtime
