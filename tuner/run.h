// tune() with measurers of the caller's: for tests, and for devices that no worker serves.
#pragma once

#include "tuner/measurer.h"
#include "tuner/tuner.h"

namespace attune::tuner {

/// Code of the kernels that measuring needs beside the candidates.
struct ToolCode {
  std::shared_ptr<const std::string> helpers;
  std::map<std::string, std::shared_ptr<const std::string>> references;  ///< by text of the spec
};

Report tune_with(const Request& request, const Hooks& hooks, const MeasurerFactory& make_measurer);

}  // namespace attune::tuner
