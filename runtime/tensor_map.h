// Tensor maps for Q, K, V, O and the gradients: from a problem and strides to what the device encodes, every limit of
// TMA checked.
#pragma once

#include <array>
#include <cstdint>

#include <attune/plan.h>
#include <attune/problem.h>

#include "codegen/kernel_spec.h"
#include "runtime/device.h"

namespace attune::runtime {

enum class Operand { q, k, v, o, d_o, d_q, d_k, d_v };
inline constexpr int kForwardOperands = 4;  ///< the first ones
inline constexpr int kOperands = 8;
const char* to_string(Operand operand) noexcept;  ///< "q", "d_o", ...
const char* symbol_of(Operand operand) noexcept;  ///< "Q", "dO", ...

/// Whether kernels for this operation write the tensor rather than read it.
bool is_output(Op op, Operand operand);

/// One tensor's extents, in elements.
struct TensorShape {
  std::int64_t head_dim = 0, rows = 0, heads = 0, batch = 0;

  std::int64_t elements() const { return head_dim * rows * heads * batch; }
};
TensorShape shape_of(const Problem& problem, Operand operand);

/// Strides of the problem's layout, densely packed.
Strides default_strides(const Problem& problem, Operand operand);

/// `strides`, or the default ones if all three are zero.
Strides resolve_strides(const Problem& problem, Operand operand, const Strides& strides);

/// Throws Error(invalid_argument), naming the tensor, what it was and what is allowed: strides of dimensions
/// longer than 1 must be positive multiples of 8 elements below 2^39 and an output's rows must not overlap; the whole
/// extent must stay below 2^63 bytes. A dimension of length 1 may have any stride. (TMA: strides are
/// multiples of 16 bytes below 2^40.)
void check_strides(const Problem& problem, Operand operand, const Strides& resolved);

/// The geometry that is encoded. Strides of dimensions of length 1 are replaced by legal ones. Checks strides
/// and extents (1 to 2^32). A tensor without rows becomes one row: the caller points it at memory of another tensor
/// and the kernel, which knows the length, never uses it.
TensorMapGeometry geometry(const Problem& problem, const codegen::LaunchShape& shape, Operand operand,
                           const Strides& resolved);

/// The address must be non-null and 16-byte aligned, else Error(invalid_argument) naming the tensor and the
/// address.
void check_base(Operand operand, const void* base);

}  // namespace attune::runtime
