// How far gradients may be from the exact ones, and how far they are.
//
// Unlike O, a gradient may cancel: where one key takes all of a row's weight, or K has a large mean, dS is the small
// difference of large numbers, and the rounding of O, from which delta comes, weighs as much as the gradient itself. No
// figure relative to the exact gradient can tell a wrong kernel from such a case. The yardstick is therefore computed
// twice: exactly, and with the roundings to the 16-bit type that no kernel for the matrix units can do without (O, P,
// dS and the result). What the second is off by is the usual error; the gate allows twice as much over a whole tensor,
// and four times as much in a single row, whose few terms may be off in one direction. Added to it are the errors of
// scores, as for O (accuracy.h), and of sums in float32: 1e-5 of the largest terms, where everything else cancels.
#pragma once

#include <attune/problem.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "runtime/reference.h"
#include "tuner/measure/accuracy.h"
#include "tuner/measure/gate_cases.h"
#include "tuner/measure/helpers.h"

namespace attune::tuner {

/// Rows of one gradient, one behind the other, where the host has them.
struct GradientRows {
  const char* name = "";  ///< "dQ"
  DType dtype = DType::bf16;
  int columns = 0;
  std::vector<double> got = {};      ///< what the kernel wrote
  std::vector<double> exact = {};    ///< nothing rounded
  std::vector<double> kernels = {};  ///< O, P and dS rounded, the result not yet
  std::vector<bool> alone = {};      ///< by row: it sees nothing, or nothing sees it, so that it must be exactly 0
};

/// Queries that see no key are the first so many, keys that no query sees are all or none.
std::int64_t lonely_queries(const Problem& problem);
std::int64_t lonely_keys(const Problem& problem);
/// GradientRows::alone of dQ, and of dK and dV, for sampled rows of every head, from these.
std::vector<bool> alone_of_queries(const Problem& problem, const runtime::RowSample& sample);
std::vector<bool> alone_of_keys(const Problem& problem, const runtime::RowSample& sample);

/// The same rows by their sums alone, as the device computes them.
struct GradientSums {
  const char* name = "";
  int columns = 0;
  std::vector<GradientRow> rows = {};
};
GradientSums sums_of(const GradientRows& rows);

struct GradientBound {
  double score = 0;      ///< score_error(): relative error of a weight
  double amplitude = 1;  ///< about the largest factor that dS (for dV: P) is multiplied by
};

struct GradientError {
  double rel_l2 = 0;                 ///< ||got - exact|| / ||exact||; 1e300: not a number, or not 0 where it must be
  double usual_l2 = 0;               ///< the same of the usual error
  double share = 0;                  ///< largest share of a bound that is used up
  std::optional<std::string> wrong;  ///< what is beyond its bound, with figures
};
GradientError compare(const GradientSums& sums, const GradientBound& bound);

/// dQ, dK and dV of one case.
struct GradientCase {
  GradientRows d_q, d_k, d_v;
};
struct GradientCaseSums {
  GradientSums d_q, d_k, d_v;
};
struct GradientBounds {
  GradientBound d_q, d_k, d_v;
};
GradientBounds gradient_bounds(const Problem& problem, const Scores& scores);
CaseResult judge(const GradientCaseSums& gradients, const GradientBounds& bounds);
CaseResult judge(const GradientCase& gradients, const GradientBounds& bounds);

}  // namespace attune::tuner
