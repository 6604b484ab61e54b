#include "runtime/tensor_map.h"

#include <algorithm>
#include <cstdint>

#include "base/error.h"

namespace attune::runtime {
namespace {

constexpr std::int64_t kElementBytes = 2;
constexpr std::int64_t kAlignment = 16;                             // bytes: TMA's, of addresses and strides
constexpr std::int64_t kStrideStep = kAlignment / kElementBytes;    // elements
constexpr std::int64_t kStrideLimit = (1ll << 40) / kElementBytes;  // elements, exclusive
constexpr std::int64_t kExtentLimit = 1ll << 32;

struct Axis {
  const char* name;
  std::int64_t length;
  std::int64_t stride;
};

std::array<Axis, 3> axes(const TensorShape& shape, const Strides& strides) {
  return {Axis{"row", shape.rows, strides.row}, Axis{"head", shape.heads, strides.head},
          Axis{"batch", shape.batch, strides.batch}};
}

int box_rows(const codegen::LaunchShape& shape, Operand operand) {
  switch (operand) {
    case Operand::q:
    case Operand::d_o: return shape.q_box_rows;
    case Operand::k:
    case Operand::v: return shape.kv_box_rows;
    case Operand::o:
    case Operand::d_q:
    case Operand::d_k:
    case Operand::d_v: return shape.o_box_rows;
  }
  fail(ErrorCode::internal, "operand {}", static_cast<int>(operand));
}

}  // namespace

const char* to_string(Operand operand) noexcept {
  switch (operand) {
    case Operand::q: return "q";
    case Operand::k: return "k";
    case Operand::v: return "v";
    case Operand::o: return "o";
    case Operand::d_o: return "d_o";
    case Operand::d_q: return "d_q";
    case Operand::d_k: return "d_k";
    case Operand::d_v: return "d_v";
  }
  return "?";
}

const char* symbol_of(Operand operand) noexcept {
  switch (operand) {
    case Operand::q: return "Q";
    case Operand::k: return "K";
    case Operand::v: return "V";
    case Operand::o: return "O";
    case Operand::d_o: return "dO";
    case Operand::d_q: return "dQ";
    case Operand::d_k: return "dK";
    case Operand::d_v: return "dV";
  }
  return "?";
}

bool is_output(Op op, Operand operand) {
  if (op == Op::forward) return operand == Operand::o;
  return operand == Operand::d_q || operand == Operand::d_k || operand == Operand::d_v;
}

TensorShape shape_of(const Problem& p, Operand operand) {
  switch (operand) {
    case Operand::q:
    case Operand::d_q: return {p.head_dim, p.seqlen_q, p.heads, p.batch};
    case Operand::k:
    case Operand::d_k: return {p.head_dim, p.seqlen_k, p.heads_kv, p.batch};
    case Operand::v:
    case Operand::d_v: return {p.head_dim_v, p.seqlen_k, p.heads_kv, p.batch};
    case Operand::o:
    case Operand::d_o: return {p.head_dim_v, p.seqlen_q, p.heads, p.batch};
  }
  fail(ErrorCode::internal, "operand {}", static_cast<int>(operand));
}

Strides default_strides(const Problem& problem, Operand operand) {
  const TensorShape s = shape_of(problem, operand);
  // Bounded by validate(problem): lengths below 2^31, heads and dims small, so no product overflows.
  if (problem.layout == Layout::bshd) {
    return {.batch = s.rows * s.heads * s.head_dim, .head = s.head_dim, .row = s.heads * s.head_dim};
  }
  return {.batch = s.heads * s.rows * s.head_dim, .head = s.rows * s.head_dim, .row = s.head_dim};
}

Strides resolve_strides(const Problem& problem, Operand operand, const Strides& strides) {
  return strides == Strides{} ? default_strides(problem, operand) : strides;
}

void check_strides(const Problem& problem, Operand operand, const Strides& resolved) {
  const TensorShape shape = shape_of(problem, operand);
  const char* tensor = to_string(operand);
  std::array<Axis, 3> all = axes(shape, resolved);
  std::int64_t extent = shape.head_dim;  // elements from the first to behind the last
  for (const Axis& axis : all) {
    if (axis.length <= 1) continue;
    if (axis.stride <= 0 || axis.stride >= kStrideLimit || axis.stride % kStrideStep != 0) {
      fail(ErrorCode::invalid_argument,
           "{}: the {} stride of {} elements is not supported (allowed: multiples of {} from {} to below 2^39)", tensor,
           axis.name, axis.stride, kStrideStep, kStrideStep);
    }
    std::int64_t span = 0;
    if (__builtin_mul_overflow(axis.length - 1, axis.stride, &span) || __builtin_add_overflow(extent, span, &extent) ||
        extent > INT64_MAX / kElementBytes) {
      fail(ErrorCode::invalid_argument, "{}: {} {}s with a stride of {} elements reach beyond 2^63 bytes", tensor,
           axis.length, axis.name, axis.stride);
    }
  }
  if (!is_output(problem.op, operand)) return;  // inputs may overlap themselves
  std::ranges::sort(all, {}, &Axis::stride);
  std::int64_t inner = shape.head_dim;
  for (const Axis& axis : all) {
    if (axis.length <= 1) continue;
    if (axis.stride < inner) {
      fail(ErrorCode::invalid_argument,
           "{}: with a {} stride of {} elements its elements would overlap (allowed: {} and more)", tensor, axis.name,
           axis.stride, inner);
    }
    inner = (axis.length - 1) * axis.stride + inner;
  }
}

TensorMapGeometry geometry(const Problem& problem, const codegen::LaunchShape& shape, Operand operand,
                           const Strides& resolved) {
  TensorMapGeometry g;
  g.dtype = problem.dtype;
  g.box_rows = static_cast<std::uint32_t>(box_rows(shape, operand));
  TensorShape t = shape_of(problem, operand);
  Strides strides = resolved;
  if (t.rows == 0) {
    // One row of another tensor's memory, no wider than any of them.
    t = {std::min(problem.head_dim, problem.head_dim_v), 1, 1, 1};
    strides = {};
  } else {
    check_strides(problem, operand, resolved);
  }
  for (const auto& [name, length] : {std::pair{"rows", t.rows}, {"heads", t.heads}, {"batch", t.batch}}) {
    if (length < 1 || length > kExtentLimit) {
      fail(ErrorCode::invalid_argument, "{}: {} {} (allowed: 1 to 2^32)", to_string(operand), length, name);
    }
  }
  g.dims = {static_cast<std::uint64_t>(t.head_dim), static_cast<std::uint64_t>(t.rows),
            static_cast<std::uint64_t>(t.heads), static_cast<std::uint64_t>(t.batch)};
  // A stride that is never taken must still be legal: a row's length is a multiple of 16 bytes.
  const std::uint64_t row_bytes = static_cast<std::uint64_t>(t.head_dim * kElementBytes);
  const std::array<Axis, 3> all = axes(t, strides);
  for (std::size_t i = 0; i < all.size(); ++i) {
    g.strides[i] = all[i].length > 1 ? static_cast<std::uint64_t>(all[i].stride * kElementBytes) : row_bytes;
  }
  return g;
}

void check_base(Operand operand, const void* base) {
  if (base == nullptr) {
    fail(ErrorCode::invalid_argument, "{}: null (allowed: device memory aligned to {} bytes)", to_string(operand),
         kAlignment);
  }
  if (reinterpret_cast<std::uintptr_t>(base) % kAlignment != 0) {
    fail(ErrorCode::invalid_argument, "{}: address {} is not aligned to {} bytes", to_string(operand), base,
         kAlignment);
  }
}

}  // namespace attune::runtime
