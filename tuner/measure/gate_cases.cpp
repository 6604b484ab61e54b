#include "tuner/measure/gate_cases.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "tuner/measure/accuracy.h"

namespace attune::tuner {
namespace {

// Not a multiple of 8, of any block_m or of any block_n.
constexpr std::int64_t kRaggedQ = 317;

std::vector<Scores> all_scores() {
  return {{.name = "plain"},
          {.name = "sd 10", .sd = 10},
          {.name = "sd 30", .sd = 30},
          {.name = "sd 60", .sd = 60},
          {.name = "outliers of 200", .outlier = 200},
          {.name = "shifted by -12", .shift = -12},
          {.name = "shifted by 40", .shift = 40}};
}

struct Blocks {
  std::int64_t m, n;
};
Blocks blocks_of(const codegen::Config& config) {
  if (config.family == codegen::Family::sm90_backward) return {config.backward.block_m, config.backward.block_n()};
  return {config.cluster_m(), std::max(config.block_n, 16)};
}

constexpr float kLeadingQuery = 4;  // exact in both types

}  // namespace

Scores scores_of(const Problem& problem) {
  if (problem.scores == ScoreKind::any) return {.name = "plain"};
  return {.name = fmt::format("sd {:.0f}", kPeakedDeviation), .sd = kPeakedDeviation};
}

double score_magnitude(const Problem& problem, const Scores& scores) {
  return std::max(normal_score_magnitude(problem, scores.sd), scores.outlier) + std::abs(scores.shift);
}

double query_magnitude(const Scores& scores) {
  return std::max(scores.sd, scores.shift != 0 ? static_cast<double>(kLeadingQuery) : 0);
}

double key_magnitude(const Problem& problem, const Scores& scores) {
  // An outlier is a query, scaled so that their product is its score: |q|^2 is about the head dim.
  const double outlier = scores.outlier / std::sqrt(static_cast<double>(problem.head_dim));
  return std::max({1.0, outlier, std::abs(static_cast<double>(leading_columns(problem, scores).k))});
}

LeadingColumns leading_columns(const Problem& problem, const Scores& scores) {
  if (scores.shift == 0) return {};
  const double other =
      scores.shift * std::sqrt(static_cast<double>(problem.head_dim)) / static_cast<double>(kLeadingQuery);
  return {kLeadingQuery, static_cast<float>(other)};
}

codegen::Config gate_config(const codegen::KernelSpec& spec) {
  codegen::Config config = spec.config;
  if (config.family == codegen::Family::sm90_backward)
    config.backward.workers = kGateWorkers;
  else
    config.workers = kGateWorkers * config.cluster;
  if (config.family == codegen::Family::sm90_backward && config.backward.dkv == codegen::backward::DkvPath::parts)
    config.backward.parts = kGateGroup;
  return config;
}

std::string case_text(const Problem& problem, const Scores& scores) {
  return fmt::format("{}, {} queries, {} keys", scores.name, problem.seqlen_q, problem.seqlen_k);
}

std::vector<GateShape> gate_shapes(const codegen::KernelSpec& spec, GateSize size) {
  const int heads_kv = size == GateSize::device ? 2 : 1;
  Problem base{.op = codegen::op_of(spec.config.family),
               .dtype = spec.dtype,
               .head_dim = spec.head_dim,
               .head_dim_v = spec.head_dim_v,
               .heads = heads_kv * kGateGroup,
               .heads_kv = heads_kv,
               .causal = spec.causal,
               .batch = 2,
               .deterministic = spec.deterministic};
  std::vector<GateShape> shapes;
  const auto add = [&](std::int64_t seqlen_q, std::int64_t seqlen_k) {
    Problem p = base;
    p.seqlen_q = seqlen_q;
    p.seqlen_k = seqlen_k;
    if (seqlen_k < 0 || !codegen::serves(spec, p)) return;
    shapes.push_back({p, shapes.empty() ? all_scores() : std::vector<Scores>{{.name = "plain"}}});
  };
  const auto [m, n] = blocks_of(spec.config);
  // On the emulator just beyond one tile and one block.
  const std::int64_t ragged = size == GateSize::device ? kRaggedQ : std::max(m, n) + 53;
  if (!spec.causal) {
    add(ragged, 3 * n);
    add(ragged, 2 * n + spec.tail);
    add(ragged, 2 * n + 37);  // any length
    add(61, n);
    add(61, spec.tail);
    add(61, 5);
    add(61, 0);
  } else {
    add(ragged, ragged);
    add(ragged, ragged + n);
    add(ragged, ragged - n);  // the first n rows see nothing
    add(ragged, ragged + 37);
    add(ragged, ragged - 45);
    add(61, 0);
  }
  if (base.op == Op::backward) add(0, n);
  return shapes;
}

std::vector<Outlier> outliers_of(const Problem& problem) {
  std::vector<Outlier> planted;
  const std::int64_t rows = problem.seqlen_q, keys = problem.seqlen_k;
  for (const std::int64_t row : {rows / 3, 2 * rows / 3, rows - 1}) {
    const std::int64_t visible = problem.causal ? std::min(keys, row + 1 + keys - rows) : keys;
    if (visible < 4) continue;
    // In the first, a middle and the last block that the row meets; never the same key twice.
    const std::int64_t key = planted.empty() ? visible / 7 : planted.size() == 1 ? visible / 2 : visible - 1;
    if (std::none_of(planted.begin(), planted.end(), [&](const Outlier& o) { return o.key == key; }))
      planted.push_back({row, key});
  }
  return planted;
}

}  // namespace attune::tuner
