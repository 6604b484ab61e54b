// Attention and its gradients in double on the host: the yardstick of the backward kernels on the emulator.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <vector>

#include <attune/problem.h>

#include "runtime/element.h"

namespace attune::emulator {

/// Dense [batch, heads, rows, columns] in double.
struct Values {
  std::int64_t batch = 0, heads = 0, rows = 0, columns = 0;
  std::vector<double> data;

  Values(std::int64_t b, std::int64_t h, std::int64_t r, std::int64_t c)
      : batch(b), heads(h), rows(r), columns(c), data(static_cast<std::size_t>(b * h * r * c)) {}
  double* row(std::int64_t b, std::int64_t h, std::int64_t r) {
    return data.data() + ((b * heads + h) * rows + r) * columns;
  }
  const double* row(std::int64_t b, std::int64_t h, std::int64_t r) const {
    return data.data() + ((b * heads + h) * rows + r) * columns;
  }
};

struct Inputs {
  Values q, k, v, d_o, d_lse;  ///< d_lse has one column
  double scale = 1;
};

struct Outputs {
  Values o, lse;
};

struct Gradients {
  Values q, k, v;
};

inline double dot_product(const double* a, const double* b, std::int64_t count) {
  double sum = 0;
  for (std::int64_t i = 0; i < count; ++i) sum += a[i] * b[i];
  return sum;
}

inline std::int64_t visible_keys(const Problem& p, std::int64_t row) {
  return p.causal ? std::clamp<std::int64_t>(row + 1 + p.seqlen_k - p.seqlen_q, 0, p.seqlen_k) : p.seqlen_k;
}

inline Outputs attention(const Problem& p, const Inputs& in) {
  Outputs out{Values(p.batch, p.heads, p.seqlen_q, p.head_dim_v), Values(p.batch, p.heads, p.seqlen_q, 1)};
  std::vector<double> weights(static_cast<std::size_t>(p.seqlen_k));
  for (std::int64_t b = 0; b < p.batch; ++b)
    for (std::int64_t h = 0; h < p.heads; ++h)
      for (std::int64_t i = 0; i < p.seqlen_q; ++i) {
        const std::int64_t kv = h / (p.heads / p.heads_kv), keys = visible_keys(p, i);
        double& lse = *out.lse.row(b, h, i);
        lse = -std::numeric_limits<double>::infinity();
        if (keys == 0) continue;
        double largest = lse, sum = 0;
        for (std::int64_t j = 0; j < keys; ++j) {
          weights[static_cast<std::size_t>(j)] =
              in.scale * dot_product(in.q.row(b, h, i), in.k.row(b, kv, j), p.head_dim);
          largest = std::max(largest, weights[static_cast<std::size_t>(j)]);
        }
        for (std::int64_t j = 0; j < keys; ++j) sum += std::exp(weights[static_cast<std::size_t>(j)] - largest);
        lse = largest + std::log(sum);
        for (std::int64_t j = 0; j < keys; ++j) {
          const double weight = std::exp(weights[static_cast<std::size_t>(j)] - lse);
          for (int c = 0; c < p.head_dim_v; ++c) out.o.row(b, h, i)[c] += weight * in.v.row(b, kv, j)[c];
        }
      }
  return out;
}

/// What the gradients are computed with: everything in double, or O, P and dS rounded to the element type where a
/// kernel for the matrix units has to round them.
enum class Rounding { none, element };

inline Gradients gradients(const Problem& p, const Inputs& in, const Outputs& forward, Rounding rounding) {
  Gradients g{Values(p.batch, p.heads, p.seqlen_q, p.head_dim), Values(p.batch, p.heads_kv, p.seqlen_k, p.head_dim),
              Values(p.batch, p.heads_kv, p.seqlen_k, p.head_dim_v)};
  const auto rounded = [&](double value) {
    if (rounding == Rounding::none) return value;
    return static_cast<double>(runtime::to_float(p.dtype, runtime::to_element(p.dtype, static_cast<float>(value))));
  };
  for (std::int64_t b = 0; b < p.batch; ++b)
    for (std::int64_t h = 0; h < p.heads; ++h)
      for (std::int64_t i = 0; i < p.seqlen_q; ++i) {
        const std::int64_t kv = h / (p.heads / p.heads_kv), keys = visible_keys(p, i);
        const double *q = in.q.row(b, h, i), *d_o = in.d_o.row(b, h, i), *o = forward.o.row(b, h, i);
        double delta = -*in.d_lse.row(b, h, i);
        for (int c = 0; c < p.head_dim_v; ++c) delta += d_o[c] * rounded(o[c]);
        for (std::int64_t j = 0; j < keys; ++j) {
          const double* k = in.k.row(b, kv, j);
          const double weight = std::exp(in.scale * dot_product(q, k, p.head_dim) - *forward.lse.row(b, h, i));
          const double ds = rounded(weight * (dot_product(d_o, in.v.row(b, kv, j), p.head_dim_v) - delta)) * in.scale;
          double *dq = g.q.row(b, h, i), *dk = g.k.row(b, kv, j), *dv = g.v.row(b, kv, j);
          for (int c = 0; c < p.head_dim; ++c) {
            dq[c] += ds * k[c];
            dk[c] += ds * q[c];
          }
          const double rounded_weight = rounded(weight);
          for (int c = 0; c < p.head_dim_v; ++c) dv[c] += rounded_weight * d_o[c];
        }
      }
  if (rounding == Rounding::element)
    for (Values* values : {&g.q, &g.k, &g.v})
      for (double& value : values->data) value = rounded(value);
  return g;
}

/// |b|, Euclidean.
inline double norm(const Values& b) {
  double sum = 0;
  for (const double value : b.data) sum += value * value;
  return std::sqrt(sum);
}

/// |a - b|; infinite if any of a is not a number.
inline double distance(const Values& a, const Values& b) {
  double sum = 0;
  for (std::size_t i = 0; i < a.data.size(); ++i) {
    if (!std::isfinite(a.data[i])) return std::numeric_limits<double>::infinity();
    sum += (a.data[i] - b.data[i]) * (a.data[i] - b.data[i]);
  }
  return std::sqrt(sum);
}

/// |a - b| / |b|; 0 where both are zero.
inline double relative_error(const Values& a, const Values& b) {
  const double difference = distance(a, b);
  return difference == 0 ? 0 : difference / norm(b);
}

}  // namespace attune::emulator
