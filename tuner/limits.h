// What the cost model calls the limit.
#pragma once

#include <algorithm>

#include "codegen/space.h"

namespace attune::tuner {

/// The largest of the times that a config's units need: no schedule hides more than all the others.
inline double limit_seconds(const codegen::CostEstimate& e) {
  return std::max({e.tensor, e.exponential, e.shared_memory, e.l2, e.hbm});
}

}  // namespace attune::tuner
