#include "tuner/measure/gradient_accuracy.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "runtime/element.h"

namespace attune::tuner {
namespace {

constexpr double kAllowance = 2, kRowAllowance = 4;
constexpr double kFloat32 = 1e-5;

double round_to(DType dtype, double value) {
  return static_cast<double>(runtime::to_float(dtype, runtime::to_element(dtype, static_cast<float>(value))));
}

std::vector<bool> alone_of(std::int64_t pairs, std::int64_t rows, const runtime::RowSample& sample,
                           std::int64_t lonely) {
  std::vector<bool> alone;
  for (std::int64_t pair = 0; pair < pairs; ++pair)
    for (std::int64_t i = 0; i < rows; ++i) alone.push_back(sample.first + i * sample.step < lonely);
  return alone;
}

}  // namespace

std::int64_t lonely_queries(const Problem& p) {
  if (p.seqlen_k == 0) return p.seqlen_q;
  return p.causal ? std::max<std::int64_t>(p.seqlen_q - p.seqlen_k, 0) : 0;
}

// The last query sees every key, with a mask, too.
std::int64_t lonely_keys(const Problem& p) { return p.seqlen_q == 0 ? p.seqlen_k : 0; }

std::vector<bool> alone_of_queries(const Problem& p, const runtime::RowSample& sample) {
  return alone_of(p.batch * p.heads, runtime::rows_of("queries", p.seqlen_q, sample), sample, lonely_queries(p));
}

std::vector<bool> alone_of_keys(const Problem& p, const runtime::RowSample& sample) {
  return alone_of(p.batch * p.heads_kv, runtime::rows_of("keys", p.seqlen_k, sample), sample, lonely_keys(p));
}

GradientSums sums_of(const GradientRows& rows) {
  const auto columns = static_cast<std::size_t>(rows.columns);
  GradientSums sums{.name = rows.name, .columns = rows.columns};
  sums.rows.resize(rows.exact.size() / columns);
  for (std::size_t i = 0; i < sums.rows.size() * columns; ++i) {
    GradientRow& row = sums.rows[i / columns];
    const double error = rows.got[i] - rows.exact[i];
    const double usual = round_to(rows.dtype, rows.kernels[i]) - rows.exact[i];
    const bool sound = rows.alone[i / columns] ? rows.got[i] == 0 : std::abs(error) < 1e150;
    row.error += sound ? error * error : kNotANumber;
    row.exact += rows.exact[i] * rows.exact[i];
    row.usual += usual * usual;
  }
  return sums;
}

GradientError compare(const GradientSums& sums, const GradientBound& bound) {
  const std::size_t count = sums.rows.size();
  GradientRow all;
  for (const GradientRow& row : sums.rows) {
    all.error += row.error;
    all.exact += row.exact;
    all.usual += row.usual;
  }
  GradientError result;
  if (count == 0) return result;
  result.usual_l2 = relative_error(all.usual, all.exact);
  if (!(all.error < kNotANumber)) {
    result.rel_l2 = result.share = kNotANumber;
    result.wrong = fmt::format("{}: not a number, not written, or not exactly 0 where nothing is seen", sums.name);
    return result;
  }
  result.rel_l2 = relative_error(all.error, all.exact);
  const double floor = kFloat32 * bound.amplitude * std::sqrt(static_cast<double>(sums.columns));
  const auto check = [&](const char* what, double error_squares, double allowed, double exact_squares) {
    const double error = std::sqrt(error_squares);
    result.share = std::max(result.share, error / allowed);
    if (error <= allowed || result.wrong) return;
    result.wrong = fmt::format("error of {}{}: {:.2g} (allowed: up to {:.2g}; its norm: {:.2g})", what, sums.name,
                               error, allowed, std::sqrt(exact_squares));
  };
  check("", all.error,
        kAllowance * (std::sqrt(all.usual) + bound.score * std::sqrt(all.exact)) +
            floor * std::sqrt(static_cast<double>(count)),
        all.exact);
  const double usual_row = std::sqrt(all.usual / static_cast<double>(count));
  for (const GradientRow& row : sums.rows) {
    check("a row of ", row.error,
          kRowAllowance * (std::sqrt(row.usual) + usual_row + bound.score * std::sqrt(row.exact)) + floor, row.exact);
  }
  return result;
}

GradientBounds gradient_bounds(const Problem& problem, const Scores& scores) {
  const double score = score_error(problem, score_magnitude(problem, scores));
  return {.d_q = {score, key_magnitude(problem, scores)}, .d_k = {score, query_magnitude(scores)}, .d_v = {score, 1}};
}

CaseResult judge(const GradientCaseSums& gradients, const GradientBounds& bounds) {
  CaseResult result;
  result.accuracy.op = Op::backward;
  const auto add = [&](const GradientSums& sums, const GradientBound& bound, double& rel_l2, double& usual_l2) {
    const GradientError error = compare(sums, bound);
    rel_l2 = error.rel_l2;
    usual_l2 = error.usual_l2;
    result.share_of_bounds = std::max(result.share_of_bounds, error.share);
    if (!result.wrong) result.wrong = error.wrong;
    result.accuracy.rows += sums.rows.size();
  };
  Accuracy& a = result.accuracy;
  add(gradients.d_q, bounds.d_q, a.dq_rel_l2, a.dq_usual_l2);
  add(gradients.d_k, bounds.d_k, a.dk_rel_l2, a.dk_usual_l2);
  add(gradients.d_v, bounds.d_v, a.dv_rel_l2, a.dv_usual_l2);
  return result;
}

CaseResult judge(const GradientCase& gradients, const GradientBounds& bounds) {
  return judge(GradientCaseSums{sums_of(gradients.d_q), sums_of(gradients.d_k), sums_of(gradients.d_v)}, bounds);
}

}  // namespace attune::tuner
