// A trial that makes a config the winner of a problem, once its session is finished.
#pragma once

#include <string>

#include "cache/store.h"
#include "codegen/kernel_spec.h"
#include "runtime/keys.h"

namespace attune::tests {

inline cache::Trial winning_trial(const Problem& problem, const std::string& device, const codegen::Config& config,
                                  const std::string& build_key) {
  cache::Trial trial;
  trial.plan_key = runtime::plan_key(problem, device, codegen::emitter_digest());
  trial.problem = to_string(problem);
  trial.config = codegen::to_string(config);
  trial.build_key = build_key;
  trial.device = device;
  trial.regime = "burst";
  trial.session = "s1";
  trial.samples = {1e-3};
  trial.median = trial.low = trial.high = 1e-3;
  return trial;
}

}  // namespace attune::tests
