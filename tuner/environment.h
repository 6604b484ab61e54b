// The circumstances that a trial's figures hold under, beside the device's identity.
#pragma once

#include <string>

#include "tuner/measurer.h"

namespace attune::tuner {

/// "driver=580.65.06,cuda=13000,nvrtc=13.0.88,emitter=0123456789ab,power_cap=700": canonical text, one line. What is
/// not known is "unknown".
std::string environment_text(const DeviceInfo& device, const std::string& nvrtc_version);

/// A name for one run of the tuner, never the same twice.
std::string new_session();

}  // namespace attune::tuner
