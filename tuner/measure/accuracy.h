// How far a kernel's output may be from the exact result, and how far it is.
//
// The kernels round twice to the 16-bit type: the weights P before the second product, and O. Rounding to nearest with
// a half step of u (2^-8 for bf16, 2^-11 for fp16) leaves an error of u / sqrt(3) times the power of two below the
// value, root mean square; relative to values spread evenly over their binades that is 0.39 u. Over many rows the two
// roundings therefore add up to at most 0.79 u relative to the exact output in the L2 norm, were they to agree
// everywhere, and the gate allows twice as much: 6.2e-3 for bf16, 7.7e-4 for fp16.
//
// Scores have an error of their own: products are exact in float32, but each step of 16 terms along the head dim rounds
// a partial sum as large as the terms together. An error of x nats in a score is a relative error of x in its weight,
// so the allowance grows with the magnitude of the scores' terms.
#pragma once

#include <attune/problem.h>

#include <cstddef>
#include <optional>
#include <span>
#include <string>

#include "tuner/measure/helpers.h"

namespace attune::tuner {

/// An error that stands for NaN and for what must be exact and is not.
inline constexpr double kNotANumber = 1e300;
/// Square root of their ratio, 0 without an error; kNotANumber where the error is that, or the exact values are all 0.
double relative_error(double error_squares, double exact_squares);

/// What a comparison found; errors of 1e300 stand for NaN and for what must be exact and is not.
struct Accuracy {
  Op op = Op::forward;
  // -- forward
  double o_rel_l2 = 0;   ///< ||o - exact|| / ||exact|| over all rows that were compared
  double o_row_l2 = 0;   ///< the same for the worst single row
  double o_max_abs = 0;  ///< max |o - exact|
  double lse_max_abs = 0;
  // -- backward: the same as o_rel_l2, and what the unavoidable roundings alone come to (gradient_accuracy.h)
  double dq_rel_l2 = 0, dk_rel_l2 = 0, dv_rel_l2 = 0;
  double dq_usual_l2 = 0, dk_usual_l2 = 0, dv_usual_l2 = 0;
  std::size_t rows = 0;
};
Accuracy accumulate(std::span<const RowError> rows);
/// Of two comparisons, the larger error in each respect.
Accuracy worse_of(const Accuracy& a, const Accuracy& b);

struct Bounds {
  double o_rel_l2 = 0, o_row_l2 = 0, o_max_abs = 0, lse_max_abs = 0;
};

/// Error of a score, and so relative error of its weight. `score_magnitude` as below.
double score_error(const Problem& problem, double score_magnitude);

/// `score_magnitude`: about the largest sum over the head dim of |scale q_d k_d|, in nats.
/// `lse_magnitude`: about the largest |LSE|. `value_magnitude`: the largest |v|.
Bounds bounds_for(const Problem& problem, double score_magnitude, double lse_magnitude, double value_magnitude);

/// What is beyond its bound, with figures ("relative L2 error of O: 0.31 (allowed: up to 0.0062)"), or nothing. NaN is
/// beyond every bound.
std::optional<std::string> violation(const Accuracy& accuracy, const Bounds& bounds);

/// Largest share of a bound that is used up: at most 1 where violation() finds nothing.
double share_of_bounds(const Accuracy& accuracy, const Bounds& bounds);

/// What the comparison of one launch came to.
struct CaseResult {
  Accuracy accuracy;
  double share_of_bounds = 0;        ///< largest
  std::optional<std::string> wrong;  ///< what is beyond its bound
};
CaseResult judge(const Accuracy& accuracy, const Bounds& bounds);

/// sum over the head dim of |q_d k_d| / sqrt(head_dim) for random normal q and k, scores of standard deviation `sd`.
double normal_score_magnitude(const Problem& problem, double sd);
/// Largest number that the normal generator gives.
inline constexpr double kLargestNormal = 5.77;

}  // namespace attune::tuner
