#include "runtime/cpu/host_attention.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

#include "runtime/cpu/element.h"
#include "runtime/tensor_map.h"

namespace attune::runtime {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

// A head of K or V, row after row; values of 16 bits are exact in float.
std::vector<float> gather(const Problem& problem, const void* base, std::int64_t first, std::int64_t row_stride,
                          int dim) {
  std::vector<float> values(static_cast<std::size_t>(problem.seqlen_k * dim));
  const auto* const elements = static_cast<const std::uint16_t*>(base) + first;
  for (std::int64_t key = 0; key < problem.seqlen_k; ++key) {
    for (int d = 0; d < dim; ++d)
      values[static_cast<std::size_t>(key * dim + d)] = to_float(problem.dtype, elements[key * row_stride + d]);
  }
  return values;
}

// Independent sums hide the latency of an addition.
double dot(const float* a, const float* b, int count) {
  std::array<double, 8> sums{};
  for (int i = 0; i < count; i += 8) {  // head dims are multiples of 8
    for (int j = 0; j < 8; ++j)
      sums[static_cast<std::size_t>(j)] += static_cast<double>(a[i + j]) * static_cast<double>(b[i + j]);
  }
  return ((sums[0] + sums[1]) + (sums[2] + sums[3])) + ((sums[4] + sums[5]) + (sums[6] + sums[7]));
}

std::int64_t visible_keys(const Problem& p, std::int64_t row) {
  return p.causal ? std::clamp<std::int64_t>(row + 1 + p.seqlen_k - p.seqlen_q, 0, p.seqlen_k) : p.seqlen_k;
}

// Writes one row of O, which holds zeros, and returns its LSE.
double attend(const float* q, const std::vector<float>& k, const std::vector<float>& v, std::int64_t keys, int dim,
              int dim_v, double scale, double* o) {
  if (keys == 0) return -kInfinity;
  std::vector<double> scores(static_cast<std::size_t>(keys));
  for (std::size_t key = 0; key < scores.size(); ++key)
    scores[key] = scale * dot(q, &k[key * static_cast<std::size_t>(dim)], dim);
  const double largest = *std::ranges::max_element(scores);
  double sum = 0;
  for (std::size_t key = 0; key < scores.size(); ++key) {
    const double weight = std::exp(scores[key] - largest);
    sum += weight;
    const float* const row = &v[key * static_cast<std::size_t>(dim_v)];
    for (int d = 0; d < dim_v; ++d) o[d] += weight * static_cast<double>(row[d]);
  }
  for (int d = 0; d < dim_v; ++d) o[d] /= sum;
  return largest + std::log(sum);
}

}  // namespace

HostAttention host_attention(const Problem& p, const ForwardArgs& args, const RowSample& sample) {
  const std::int64_t rows = Reference::rows_in(p, sample);
  HostAttention result;
  result.o.resize(static_cast<std::size_t>(p.batch * p.heads * rows * p.head_dim_v));
  result.lse.resize(static_cast<std::size_t>(p.batch * p.heads * rows));
  const Strides q = resolve_strides(p, Operand::q, args.q_strides), k = resolve_strides(p, Operand::k, args.k_strides),
                v = resolve_strides(p, Operand::v, args.v_strides);
  const double scale =
      args.scale != 0 ? static_cast<double>(args.scale) : 1.0 / std::sqrt(static_cast<double>(p.head_dim));
  std::vector<float> query(static_cast<std::size_t>(p.head_dim));
  std::size_t at = 0;
  for (std::int64_t batch = 0; batch < p.batch; ++batch) {
    std::vector<float> keys, values;
    for (std::int64_t head = 0; head < p.heads; ++head) {
      const std::int64_t group = p.heads / p.heads_kv, kv = head / group;
      if (head % group == 0) {
        keys = gather(p, args.k, batch * k.batch + kv * k.head, k.row, p.head_dim);
        values = gather(p, args.v, batch * v.batch + kv * v.head, v.row, p.head_dim_v);
      }
      for (std::int64_t index = 0; index < rows; ++index, ++at) {
        const std::int64_t row = sample.first + index * sample.step;
        const auto* const elements =
            static_cast<const std::uint16_t*>(args.q) + batch * q.batch + head * q.head + row * q.row;
        for (std::size_t d = 0; d < query.size(); ++d) query[d] = to_float(p.dtype, elements[d]);
        result.lse[at] = attend(query.data(), keys, values, visible_keys(p, row), p.head_dim, p.head_dim_v, scale,
                                &result.o[at * static_cast<std::size_t>(p.head_dim_v)]);
      }
    }
  }
  return result;
}

}  // namespace attune::runtime
