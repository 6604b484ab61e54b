// The yardstick of the backward pass: gradients by plain loops in float64, and how exact the same computation is with
// the roundings that kernels for the matrix units cannot do without.
#pragma once

#include <cstddef>
#include <memory>

#include <attune/plan.h>
#include <attune/problem.h>

#include "codegen/kernel_spec.h"
#include "runtime/builder.h"
#include "runtime/device.h"
#include "runtime/reference.h"

namespace attune::runtime {

/// Which rows of each head: of Q, whose dQ is computed, and of K, whose dK and dV are.
struct GradientSample {
  RowSample queries, keys;
};

/// What is rounded to the problem's dtype on the way.
enum class GradientRounding {
  none,     ///< nothing, unless O is given
  kernels,  ///< O (as args.o has it) where delta comes from it, P and dS, as in a kernel for the matrix units
};

/// Where LSE and delta come from.
enum class GradientStatistics {
  computed,  ///< from Q, K, V and dO: what the gradients are by definition
  given,     ///< from args.lse and args.o, whatever these hold: what a kernel computes. Makes a sample of rows cheap
};

/// Where the results go; null: not written.
struct GradientOutputs {
  void* d_q = nullptr;  ///< rounded to the problem's dtype, with the args' strides
  void* d_k = nullptr;
  void* d_v = nullptr;
  double* dq_exact = nullptr;  ///< [batch, heads, rows of the sample, head_dim], unrounded
  double* dk_exact = nullptr;  ///< [batch, heads_kv, rows of the sample, head_dim]
  double* dv_exact = nullptr;  ///< [batch, heads_kv, rows of the sample, head_dim_v]
};

/// Loaded reference kernels for one problem's dtype, head dims and mask. launch() is safe from any thread.
class ReferenceBackward {
 public:
  /// Compiles (or takes from the builder's cache) and loads. Throws as Builder::build and Device::load do.
  ReferenceBackward(std::shared_ptr<Device> device, Builder& builder, const Problem& problem);

  /// Bytes of args.workspace that a launch needs, linear in seqlen_q; aligned to 8.
  static std::size_t workspace_bytes(const Problem& problem);

  /// Queues the computation on args.stream; reads q, k, v, d_o, d_lse, their strides, scale, and o and lse if rounding
  /// and statistics call for them. `problem` may differ from the constructor's in lengths, batch, heads and layout
  /// only. Throws Error(invalid_argument) for null or misaligned inputs, strides, and a workspace that is too small.
  void launch(const Problem& problem, const BackwardArgs& args, const GradientSample& sample, GradientRounding rounding,
              GradientStatistics statistics, const GradientOutputs& outputs) const;

 private:
  std::shared_ptr<Device> device_;
  codegen::KernelSpec spec_;
  codegen::LaunchShape shape_;
  std::unique_ptr<Module> module_;
  Function rows_, keys_;
};

}  // namespace attune::runtime
