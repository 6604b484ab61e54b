// tune() with measurers of the caller's: for tests, and for devices that no worker serves.
#pragma once

#include "tuner/measurer.h"
#include "tuner/tuner.h"

namespace attune::tuner {

Report tune_with(const Request& request, const Hooks& hooks, const MeasurerFactory& make_measurer);

}  // namespace attune::tuner
