// Attention in float64 by plain loops on the host: the yardstick for kernels on the CPU device, where the reference
// kernel would take longer than what it judges.
#pragma once

#include <vector>

#include <attune/plan.h>
#include <attune/problem.h>

#include "runtime/reference.h"

namespace attune::runtime {

struct HostAttention {
  std::vector<double> o;    ///< [batch, heads, rows of the sample, head_dim_v]
  std::vector<double> lse;  ///< [batch, heads, rows of the sample]; -inf: the row sees no key
};

/// Reads q, k, v, their strides and scale of `args`, all in this process's memory.
HostAttention host_attention(const Problem& problem, const ForwardArgs& args, const RowSample& rows);

}  // namespace attune::runtime
