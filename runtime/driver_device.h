// Device by the CUDA driver.
#pragma once

#include <memory>
#include <vector>

#include "runtime/device.h"

namespace attune::runtime {

/// What every visible device offers; needs no context and creates none. Throws Error(no_device).
std::vector<DeviceProperties> list_devices();

/// The device of that ordinal with its primary context, which is retained until the Device is destroyed and
/// made current on the calling thread if it has no current context. ordinal -1: the calling thread's current
/// context, or device 0's primary context if there is none. Throws Error(no_device), Error(invalid_argument)
/// for an ordinal that does not exist, Error(driver).
std::shared_ptr<Device> open_device(int ordinal = -1);

}  // namespace attune::runtime
