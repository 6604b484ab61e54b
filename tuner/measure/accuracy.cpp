#include "tuner/measure/accuracy.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>

namespace attune::tuner {
namespace {

// The safety factor on top of what exact arithmetic with the same roundings would give.
constexpr double kAllowance = 2;

struct Check {
  const char* what;
  double error, bound;
};

std::array<Check, 4> checks(const Accuracy& a, const Bounds& b) {
  return {{{"relative L2 error of O", a.o_rel_l2, b.o_rel_l2},
           {"relative L2 error of the worst row of O", a.o_row_l2, b.o_row_l2},
           {"largest error of O", a.o_max_abs, b.o_max_abs},
           {"largest error of LSE", a.lse_max_abs, b.lse_max_abs}}};
}

}  // namespace

double relative_error(double error_squares, double exact_squares) {
  if (error_squares == 0) return 0;
  if (!(error_squares < kNotANumber)) return kNotANumber;
  return exact_squares > 0 ? std::sqrt(error_squares / exact_squares) : kNotANumber;
}

Accuracy accumulate(std::span<const RowError> rows) {
  Accuracy all;
  double squares = 0, exact_squares = 0;
  for (const RowError& row : rows) {
    squares = std::min(squares + row.squares, kNotANumber);
    exact_squares += row.exact_squares;
    all.o_row_l2 = std::max(all.o_row_l2, relative_error(row.squares, row.exact_squares));
    all.o_max_abs = std::max(all.o_max_abs, row.largest);
    all.lse_max_abs = std::max(all.lse_max_abs, row.lse);
    // A row that was never compared holds whatever the buffer held.
    if (std::isnan(row.squares) || std::isnan(row.largest) || std::isnan(row.lse)) all.o_max_abs = kNotANumber;
  }
  all.o_rel_l2 = relative_error(squares, exact_squares);
  all.rows = rows.size();
  return all;
}

Accuracy worse_of(const Accuracy& a, const Accuracy& b) {
  return {.op = b.op,
          .o_rel_l2 = std::max(a.o_rel_l2, b.o_rel_l2),
          .o_row_l2 = std::max(a.o_row_l2, b.o_row_l2),
          .o_max_abs = std::max(a.o_max_abs, b.o_max_abs),
          .lse_max_abs = std::max(a.lse_max_abs, b.lse_max_abs),
          .dq_rel_l2 = std::max(a.dq_rel_l2, b.dq_rel_l2),
          .dk_rel_l2 = std::max(a.dk_rel_l2, b.dk_rel_l2),
          .dv_rel_l2 = std::max(a.dv_rel_l2, b.dv_rel_l2),
          .dq_usual_l2 = std::max(a.dq_usual_l2, b.dq_usual_l2),
          .dk_usual_l2 = std::max(a.dk_usual_l2, b.dk_usual_l2),
          .dv_usual_l2 = std::max(a.dv_usual_l2, b.dv_usual_l2),
          .rows = a.rows + b.rows};
}

double score_error(const Problem& problem, double score_magnitude) {
  // One rounding, perhaps by truncation, for each 16 terms, and two for the scale and the subtraction.
  return (problem.head_dim / 16.0 + 2) * 0x1p-23 * score_magnitude;
}

Bounds bounds_for(const Problem& problem, double score_magnitude, double lse_magnitude, double value_magnitude) {
  const double half_step = problem.dtype == DType::bf16 ? 0x1p-8 : 0x1p-11;
  const double rms = half_step * 0.393;  // 1 / sqrt(3), over sqrt(3 / (2 ln 2)), the root mean square of a mantissa
  const double score = score_error(problem, score_magnitude);
  Bounds bounds;
  bounds.o_rel_l2 = kAllowance * (2 * rms + score);
  // A single row may be off by a whole half step in all of its weights at once, and its terms may cancel: with few
  // columns they do more often.
  const double cancellation = problem.head_dim_v >= 32 ? 2 : 5;
  bounds.o_row_l2 = kAllowance * cancellation * (half_step * (1 + 1 / std::sqrt(3.0)) + score);
  bounds.o_max_abs = kAllowance * (2 * half_step + score) * value_magnitude;
  // The row sum is added up by four threads in float32; exponentials and the logarithm are good to about 2^-22.
  const double sum = static_cast<double>(problem.seqlen_k) * 0x1p-26;
  bounds.lse_max_abs = kAllowance * (score + sum + 0x1p-21 * (1 + lse_magnitude));
  return bounds;
}

std::optional<std::string> violation(const Accuracy& accuracy, const Bounds& bounds) {
  for (const Check& check : checks(accuracy, bounds)) {
    if (check.error <= check.bound) continue;
    if (!(check.error < kNotANumber)) {
      return fmt::format("{}: not a number, not written, or not exactly 0 and -inf where nothing is seen", check.what);
    }
    return fmt::format("{}: {:.2g} (allowed: up to {:.2g})", check.what, check.error, check.bound);
  }
  return {};
}

double share_of_bounds(const Accuracy& accuracy, const Bounds& bounds) {
  double share = 0;
  for (const Check& check : checks(accuracy, bounds)) {
    const double used = check.bound > 0 ? check.error / check.bound : (check.error > 0 ? kNotANumber : 0);
    share = std::max(share, std::isnan(used) ? kNotANumber : used);
  }
  return share;
}

CaseResult judge(const Accuracy& accuracy, const Bounds& bounds) {
  return {accuracy, share_of_bounds(accuracy, bounds), violation(accuracy, bounds)};
}

double normal_score_magnitude(const Problem& problem, double sd) {
  // The mean of |q k| for independent normal q and k is 2 / pi; half as much again for the tail.
  return 1.5 * 0.637 * sd * std::sqrt(static_cast<double>(problem.head_dim));
}

}  // namespace attune::tuner
