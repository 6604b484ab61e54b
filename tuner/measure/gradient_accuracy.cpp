#include "tuner/measure/gradient_accuracy.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "runtime/element.h"

namespace attune::tuner {
namespace {

constexpr double kNotANumber = 1e300;
constexpr double kAllowance = 2, kRowAllowance = 4;
constexpr double kFloat32 = 1e-5;

double round_to(DType dtype, double value) {
  return static_cast<double>(runtime::to_float(dtype, runtime::to_element(dtype, static_cast<float>(value))));
}

struct Squares {
  double error = 0, exact = 0, usual = 0;
  bool sound = true;  // all of it is a number, and zero where it must be

  void add(const Squares& other) {
    error += other.error;
    exact += other.exact;
    usual += other.usual;
    sound = sound && other.sound;
  }
};

Squares squares_of(const GradientRows& rows, std::size_t row) {
  Squares sums;
  const auto columns = static_cast<std::size_t>(rows.columns);
  for (std::size_t i = row * columns; i < (row + 1) * columns; ++i) {
    const double error = rows.got[i] - rows.exact[i];
    const double usual = round_to(rows.dtype, rows.kernels[i]) - rows.exact[i];
    sums.sound = sums.sound && std::abs(error) < 1e150;
    sums.error += error * error;
    sums.exact += rows.exact[i] * rows.exact[i];
    sums.usual += usual * usual;
  }
  if (rows.alone[row] && sums.error != 0) sums.sound = false;
  return sums;
}

double relative(double error_squares, double exact_squares) {
  if (error_squares == 0) return 0;
  return exact_squares > 0 ? std::sqrt(error_squares / exact_squares) : kNotANumber;
}

}  // namespace

std::vector<bool> lonely_queries(const Problem& p, const runtime::RowSample& sample) {
  std::vector<bool> alone;
  const std::int64_t rows = runtime::rows_of("queries", p.seqlen_q, sample);
  for (std::int64_t pair = 0; pair < p.batch * p.heads; ++pair) {
    for (std::int64_t i = 0; i < rows; ++i) {
      alone.push_back(runtime::visible_keys(p, sample.first + i * sample.step) == 0);
    }
  }
  return alone;
}

std::vector<bool> lonely_keys(const Problem& p, const runtime::RowSample& sample) {
  // The last query sees every key, with a mask, too.
  const std::int64_t rows = runtime::rows_of("keys", p.seqlen_k, sample);
  return std::vector<bool>(static_cast<std::size_t>(p.batch * p.heads_kv * rows), p.seqlen_q == 0);
}

GradientError compare(const GradientRows& rows, const GradientBound& bound) {
  const std::size_t count = rows.exact.size() / static_cast<std::size_t>(rows.columns);
  std::vector<Squares> each(count);
  Squares all;
  for (std::size_t row = 0; row < count; ++row) {
    each[row] = squares_of(rows, row);
    all.add(each[row]);
  }
  GradientError result;
  if (count == 0) return result;
  result.usual_l2 = relative(all.usual, all.exact);
  if (!all.sound) {
    result.rel_l2 = result.share = kNotANumber;
    result.wrong = fmt::format("{}: not a number, not written, or not exactly 0 where nothing is seen", rows.name);
    return result;
  }
  result.rel_l2 = relative(all.error, all.exact);
  const double floor = kFloat32 * bound.amplitude * std::sqrt(static_cast<double>(rows.columns));
  const auto check = [&](const char* what, double error_squares, double allowed, double exact_squares) {
    const double error = std::sqrt(error_squares);
    result.share = std::max(result.share, error / allowed);
    if (error <= allowed || result.wrong) return;
    result.wrong = fmt::format("error of {}{}: {:.2g} (allowed: up to {:.2g}; its norm: {:.2g})", what, rows.name,
                               error, allowed, std::sqrt(exact_squares));
  };
  check("", all.error,
        kAllowance * (std::sqrt(all.usual) + bound.score * std::sqrt(all.exact)) +
            floor * std::sqrt(static_cast<double>(count)),
        all.exact);
  const double usual_row = std::sqrt(all.usual / static_cast<double>(count));
  for (const Squares& row : each) {
    check("a row of ", row.error,
          kRowAllowance * (std::sqrt(row.usual) + usual_row + bound.score * std::sqrt(row.exact)) + floor, row.exact);
  }
  return result;
}

GradientBounds gradient_bounds(const Problem& problem, const Scores& scores) {
  const double score = score_error(problem, score_magnitude(problem, scores));
  return {.d_q = {score, key_magnitude(problem, scores)}, .d_k = {score, query_magnitude(scores)}, .d_v = {score, 1}};
}

CaseResult judge(const GradientCase& gradients, const GradientBounds& bounds) {
  CaseResult result;
  result.accuracy.op = Op::backward;
  const auto add = [&](const GradientRows& rows, const GradientBound& bound, double& rel_l2, double& usual_l2) {
    const GradientError error = compare(rows, bound);
    rel_l2 = error.rel_l2;
    usual_l2 = error.usual_l2;
    result.share_of_bounds = std::max(result.share_of_bounds, error.share);
    if (!result.wrong) result.wrong = error.wrong;
    result.accuracy.rows += rows.exact.size() / static_cast<std::size_t>(rows.columns);
  };
  Accuracy& a = result.accuracy;
  add(gradients.d_q, bounds.d_q, a.dq_rel_l2, a.dq_usual_l2);
  add(gradients.d_k, bounds.d_k, a.dk_rel_l2, a.dk_usual_l2);
  add(gradients.d_v, bounds.d_v, a.dv_rel_l2, a.dv_usual_l2);
  return result;
}

}  // namespace attune::tuner
