#include "runtime/cpu/host_gradients.h"

#include <cmath>

#include "runtime/cpu/host_loops.h"
#include "runtime/reference.h"
#include "runtime/tensor_map.h"

namespace attune::runtime {
namespace {

// One head of a 16-bit tensor as float.
std::vector<float> head_of(const Problem& p, Operand operand, const void* base, const Strides& given,
                           std::int64_t batch, std::int64_t head) {
  const TensorShape shape = shape_of(p, operand);
  if (shape.rows == 0) return {};
  const Strides s = resolve_strides(p, operand, given);
  return gather(p.dtype, base, batch * s.batch + head * s.head, shape.rows, s.row, static_cast<int>(shape.head_dim));
}

void add_scaled(double* sums, const float* values, double factor, int count) {
  for (int d = 0; d < count; ++d) sums[d] += factor * static_cast<double>(values[d]);
}

// The gradients of one query head; those of its KV head are added to what other query heads gave.
class Head {
 public:
  Head(const Problem& problem, const BackwardArgs& args, std::int64_t batch, std::int64_t head, HostGradients& result)
      : p_(problem),
        q_(head_of(problem, Operand::q, args.q, args.q_strides, batch, head)),
        k_(head_of(problem, Operand::k, args.k, args.k_strides, batch, head / (problem.heads / problem.heads_kv))),
        v_(head_of(problem, Operand::v, args.v, args.v_strides, batch, head / (problem.heads / problem.heads_kv))),
        o_(head_of(problem, Operand::o, args.o, args.o_strides, batch, head)),
        d_o_(head_of(problem, Operand::d_o, args.d_o, args.d_o_strides, batch, head)),
        scale_(args.scale != 0 ? static_cast<double>(args.scale)
                               : 1.0 / std::sqrt(static_cast<double>(problem.head_dim))),
        d_lse_(args.d_lse == nullptr ? nullptr : args.d_lse + (batch * problem.heads + head) * problem.seqlen_q),
        first_query_((batch * problem.heads + head) * problem.seqlen_q),
        first_key_((batch * problem.heads_kv + head / (problem.heads / problem.heads_kv)) * problem.seqlen_k),
        result_(result) {}

  void add_row(std::int64_t row) {
    const std::int64_t keys = visible_keys(p_, row);
    if (keys == 0) return;
    const float *q = &q_[at(row, p_.head_dim)], *d_o = &d_o_[at(row, p_.head_dim_v)];
    std::vector<double> weights(static_cast<std::size_t>(keys)), d_weights(weights.size());
    for (std::size_t j = 0; j < weights.size(); ++j) {
      const auto key = static_cast<std::int64_t>(j);
      weights[j] = scale_ * dot(q, &k_[at(key, p_.head_dim)], p_.head_dim);
      d_weights[j] = dot(d_o, &v_[at(key, p_.head_dim_v)], p_.head_dim_v);
    }
    const double largest = *std::ranges::max_element(weights);
    double sum = 0, weighted = 0;
    for (std::size_t j = 0; j < weights.size(); ++j) {
      weights[j] = std::exp(weights[j] - largest);
      sum += weights[j];
      weighted += weights[j] * d_weights[j];
    }
    for (double& weight : weights) weight /= sum;
    const double d_lse = d_lse_ == nullptr ? 0 : static_cast<double>(d_lse_[row]);
    add(result_.exact, row, weights, d_weights, weighted / sum - d_lse, [](double value) { return value; });
    add(result_.kernels, row, weights, d_weights, dot(d_o, &o_[at(row, p_.head_dim_v)], p_.head_dim_v) - d_lse,
        [this](double value) {
          return static_cast<double>(to_float(p_.dtype, to_element(p_.dtype, static_cast<float>(value))));
        });
  }

 private:
  static std::size_t at(std::int64_t row, int dim) { return static_cast<std::size_t>(row * dim); }

  template <typename Round>
  void add(GradientArrays& to, std::int64_t row, const std::vector<double>& weights,
           const std::vector<double>& d_weights, double delta, const Round& rounded) {
    const float *q = &q_[at(row, p_.head_dim)], *d_o = &d_o_[at(row, p_.head_dim_v)];
    double* const d_q = &to.d_q[at(first_query_ + row, p_.head_dim)];
    for (std::size_t j = 0; j < weights.size(); ++j) {
      const auto key = static_cast<std::int64_t>(j);
      const double d_score = scale_ * rounded(weights[j] * (d_weights[j] - delta));
      add_scaled(d_q, &k_[at(key, p_.head_dim)], d_score, p_.head_dim);
      add_scaled(&to.d_k[at(first_key_ + key, p_.head_dim)], q, d_score, p_.head_dim);
      add_scaled(&to.d_v[at(first_key_ + key, p_.head_dim_v)], d_o, rounded(weights[j]), p_.head_dim_v);
    }
  }

  const Problem& p_;
  const std::vector<float> q_, k_, v_, o_, d_o_;
  const double scale_;
  const float* const d_lse_;
  const std::int64_t first_query_, first_key_;  // rows of the results
  HostGradients& result_;
};

}  // namespace

HostGradients host_gradients(const Problem& p, const BackwardArgs& args) {
  HostGradients result;
  for (GradientArrays* arrays : {&result.exact, &result.kernels}) {
    arrays->d_q.resize(static_cast<std::size_t>(p.batch * p.heads * p.seqlen_q * p.head_dim));
    arrays->d_k.resize(static_cast<std::size_t>(p.batch * p.heads_kv * p.seqlen_k * p.head_dim));
    arrays->d_v.resize(static_cast<std::size_t>(p.batch * p.heads_kv * p.seqlen_k * p.head_dim_v));
  }
  if (p.seqlen_k == 0) return result;
  for (std::int64_t batch = 0; batch < p.batch; ++batch) {
    for (std::int64_t head = 0; head < p.heads; ++head) {
      Head gradients(p, args, batch, head, result);
      for (std::int64_t row = 0; row < p.seqlen_q; ++row) gradients.add_row(row);
    }
  }
  return result;
}

}  // namespace attune::runtime
