// What the host's yardsticks of both passes share.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <vector>

#include <attune/plan.h>
#include <attune/problem.h>

#include "runtime/element.h"

namespace attune::runtime {

/// A head of a tensor, row after row; values of 16 bits are exact in float.
inline std::vector<float> gather(DType dtype, const void* base, std::int64_t first, std::int64_t rows,
                                 std::int64_t row_stride, int dim) {
  std::vector<float> values(static_cast<std::size_t>(rows * dim));
  const auto* const elements = static_cast<const std::uint16_t*>(base) + first;
  for (std::int64_t row = 0; row < rows; ++row) {
    for (int d = 0; d < dim; ++d)
      values[static_cast<std::size_t>(row * dim + d)] = to_float(dtype, elements[row * row_stride + d]);
  }
  return values;
}

/// Independent sums hide the latency of an addition. `count` is a multiple of 8, as head dims are.
inline double dot(const float* a, const float* b, int count) {
  std::array<double, 8> sums{};
  for (int i = 0; i < count; i += 8) {
    for (int j = 0; j < 8; ++j)
      sums[static_cast<std::size_t>(j)] += static_cast<double>(a[i + j]) * static_cast<double>(b[i + j]);
  }
  return ((sums[0] + sums[1]) + (sums[2] + sums[3])) + ((sums[4] + sums[5]) + (sums[6] + sums[7]));
}

}  // namespace attune::runtime
