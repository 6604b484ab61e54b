#include "runtime/cpu/host_attention.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "runtime/cpu/host_loops.h"
#include "runtime/tensor_map.h"

namespace attune::runtime {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

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
        keys = gather(p.dtype, args.k, batch * k.batch + kv * k.head, p.seqlen_k, k.row, p.head_dim);
        values = gather(p.dtype, args.v, batch * v.batch + kv * v.head, p.seqlen_k, v.row, p.head_dim_v);
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
