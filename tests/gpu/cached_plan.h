// The second process of cost_test.cpp: attune_gpu runs itself as `attune_gpu --cached-plan FOLDER`.
#pragma once

#include <chrono>
#include <cstdio>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>

#include <attune/attune.h>

#include "runtime/driver_device.h"

namespace attune::gpu {

inline Problem cached_problem() {
  return {
      .head_dim = 128, .head_dim_v = 128, .heads = 8, .heads_kv = 8, .batch = 1, .seqlen_q = 1024, .seqlen_k = 1024};
}

/// Plans from the cache in `folder` once the context is there, and prints what that took and which libraries it
/// opened. Returns the exit status.
inline int run_cached_plan(const std::string& folder) {
  using Clock = std::chrono::steady_clock;
  try {
    const auto device = runtime::open_device();
    const Clock::time_point start = Clock::now();
    Runtime runtime({.cache_directory = folder}, device);
    const Plan plan = runtime.plan(cached_problem(), {.on_miss = MissPolicy::fail});
    const double milliseconds = std::chrono::duration<double, std::milli>(Clock::now() - start).count();
    bool nvrtc = false, nvml = false;
    std::ifstream maps("/proc/self/maps");
    for (std::string line; std::getline(maps, line);) {
      nvrtc = nvrtc || line.find("libnvrtc") != std::string::npos;
      nvml = nvml || line.find("libnvidia-ml") != std::string::npos;
    }
    const nlohmann::json result{{"test", "cached_plan"},
                                {"milliseconds", milliseconds},
                                {"origin", to_string(plan.info().origin)},
                                {"nvrtc_mapped", nvrtc},
                                {"nvml_mapped", nvml}};
    std::printf("%s\n", result.dump().c_str());
    return 0;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
}

}  // namespace attune::gpu
