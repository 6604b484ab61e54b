#include "tuner/measure/forward_case.h"

#include <algorithm>

namespace attune::tuner {

ForwardCase::ForwardCase(Workbench& bench, const Problem& problem, const Scores& scores, std::uint64_t seed,
                         Compared compared)
    : bench_(&bench), tensors_(bench, problem, seed) {
  const LeadingColumns leading = leading_columns(problem, scores);
  tensors_.fill(scores.sd, {problem.head_dim, leading.q, leading.q != 0},
                {problem.head_dim, leading.k, leading.k != 0});
  if (scores.outlier != 0 && problem.seqlen_k > 0)
    plant_outliers(bench, problem, tensors_.q(), tensors_.k(), scores.outlier);
  std::vector<runtime::RowSample> samples;
  if (compared == Compared::all) samples = {{}};
  if (compared == Compared::sampled) samples = sampled_rows(problem.seqlen_q);
  double lse = 0;
  for (const runtime::RowSample& rows : samples) {
    if (runtime::Reference::rows_in(problem, rows) == 0) continue;
    exact_.emplace_back(bench, problem, tensors_.args(), rows);
    lse = std::max(lse, exact_.back().lse_magnitude());
  }
  bounds_ = bounds_for(problem, score_magnitude(problem, scores), lse, kLargestNormal);
}

CaseResult ForwardCase::compare() {
  std::vector<RowError> errors;
  for (ExactRows& rows : exact_) rows.compare(tensors_);
  for (ExactRows& rows : exact_) {
    const std::vector<RowError> more = rows.errors();
    errors.insert(errors.end(), more.begin(), more.end());
  }
  return judge(accumulate(errors), bounds_);
}

std::optional<std::string> ForwardCase::damage() {
  if (!tensors_.guards_intact()) return "memory behind O or LSE was written";
  if (!bench_->counter_is_zero()) return "the tile counter was not left zero";
  return {};
}

std::uint64_t ForwardCase::bytes() const {
  std::uint64_t all = tensors_.bytes();
  for (const ExactRows& rows : exact_) all += rows.bytes();
  return all;
}

}  // namespace attune::tuner
