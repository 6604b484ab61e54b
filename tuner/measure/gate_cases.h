// The small problems on which every kernel must be right before it may be timed.
#pragma once

#include <attune/problem.h>

#include <string>
#include <vector>

#include "codegen/kernel_spec.h"

namespace attune::tuner {

/// What the numbers of a gate case look like. Scores are multiplied by 1 / sqrt(head_dim).
struct Scores {
  std::string name;    ///< "plain", "sd 30", ...
  double sd = 1;       ///< standard deviation of the scores, in nats: Q is scaled
  double outlier = 0;  ///< score that single keys reach, in nats; 0: none
  double shift = 0;    ///< added to every score, in nats: the softmax does not change, its exponents do

  bool operator==(const Scores&) const = default;
};

/// Standard deviation of the scores on which kernels for ScoreKind::peaked are checked at full size and timed.
inline constexpr double kPeakedDeviation = 20;
/// The scores of a problem's own kind.
Scores scores_of(const Problem& problem);

/// About the largest sum over the head dim of |scale q_d k_d|, in nats.
double score_magnitude(const Problem& problem, const Scores& scores);

/// About the largest |q_d| and |k_d|.
double query_magnitude(const Scores& scores);
double key_magnitude(const Problem& problem, const Scores& scores);

struct GateShape {
  Problem problem;
  std::vector<Scores> scores;
};

/// The first column of Q and of K, which shifts every score; zeros: none.
struct LeadingColumns {
  float q = 0, k = 0;
};
LeadingColumns leading_columns(const Problem& problem, const Scores& scores);

/// Thread blocks, or clusters of them, of a persistent grid in the gate: few, so that each computes many tiles and
/// meets every boundary.
inline constexpr int kGateWorkers = 3;
/// Query heads of a KV head in the gate; where they may be divided over thread blocks, they are.
inline constexpr int kGateGroup = 2;
/// The kernel's config with that many.
codegen::Config gate_config(const codegen::KernelSpec& spec);

/// How large the small problems are: for a GPU, which computes any of them in no time, or for the CPU emulator.
enum class GateSize { device, emulator };

/// "sd 30, 317 queries, 384 keys"
std::string case_text(const Problem& problem, const Scores& scores);

/// Ragged lengths that the spec serves (its shortest among them, fully masked rows where it allows them), grouped
/// heads, a batch; for the backward pass no queries, too; the first shape with wide, shifted and outlying scores as
/// well. The spec serves every shape.
std::vector<GateShape> gate_shapes(const codegen::KernelSpec& spec, GateSize size = GateSize::device);

/// The keys that hold an outlier for query row `row`, one for each planted row: (row, key) within one head.
struct Outlier {
  std::int64_t row, key;
};
std::vector<Outlier> outliers_of(const Problem& problem);

}  // namespace attune::tuner
