// Gradients of attention in float64 by plain loops on the host: the yardstick for backward kernels on the CPU device.
#pragma once

#include <vector>

#include <attune/plan.h>
#include <attune/problem.h>

namespace attune::runtime {

struct GradientArrays {
  std::vector<double> d_q;  ///< [batch, heads, seqlen_q, head_dim]
  std::vector<double> d_k;  ///< [batch, heads_kv, seqlen_k, head_dim]
  std::vector<double> d_v;  ///< [batch, heads_kv, seqlen_k, head_dim_v]
};

/// Nothing is rounded in `exact`; in `kernels` what GradientRounding::kernels says.
struct HostGradients {
  GradientArrays exact, kernels;
};

/// Reads q, k, v, o, d_o, d_lse, their strides and scale of `args`, all in this process's memory.
HostGradients host_gradients(const Problem& problem, const BackwardArgs& args);

}  // namespace attune::runtime
