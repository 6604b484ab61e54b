// The yardstick: attention by plain loops in float64, for `verify`, the tuner's numerics gate and tests.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include <attune/plan.h>
#include <attune/problem.h>

#include "codegen/kernel_spec.h"
#include "runtime/builder.h"
#include "runtime/device.h"

namespace attune::runtime {

/// Which rows of each head to compute: first, first + step, ..., `count` of them; rows at or beyond seqlen_q
/// are skipped.
struct RowSample {
  std::int64_t first = 0, step = 1, count = 0;  ///< count 0: up to the length
};

/// Rows that a sample really has among `rows`. Throws Error(invalid_argument) that names the sample.
std::int64_t rows_of(const char* name, std::int64_t rows, const RowSample& sample);

/// Keys that a row sees: the first ones.
std::int64_t visible_keys(const Problem& problem, std::int64_t row);

/// Where the results go; null: not written.
struct ReferenceOutputs {
  void* o = nullptr;          ///< rounded to the problem's dtype, with args.o_strides
  float* lse = nullptr;       ///< [batch, heads, seqlen_q]
  double* o_exact = nullptr;  ///< [batch, heads, rows of the sample, head_dim_v], unrounded
};

/// A loaded reference kernel for one problem's dtype, head dims and mask. launch() is safe from any thread.
class Reference {
 public:
  /// Compiles (or takes from the builder's cache) and loads. Throws as Builder::build and Device::load do.
  Reference(std::shared_ptr<Device> device, Builder& builder, const Problem& problem);

  /// Queues the computation on args.stream; reads q, k, v, their strides, scale. `problem` may differ from
  /// the constructor's in lengths, batch, heads and layout only. o, lse, workspace of `args` are ignored.
  /// Throws Error(invalid_argument) as Plan::launch does.
  void launch(const Problem& problem, const ForwardArgs& args, const RowSample& rows,
              const ReferenceOutputs& outputs) const;

  /// Rows that a sample really has for this problem.
  static std::int64_t rows_in(const Problem& problem, const RowSample& rows);

 private:
  std::shared_ptr<Device> device_;
  codegen::KernelSpec spec_;
  codegen::LaunchShape shape_;
  std::unique_ptr<Module> module_;
  Function function_;
};

}  // namespace attune::runtime
