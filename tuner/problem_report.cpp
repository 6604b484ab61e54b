// What ProblemTuner says: progress, and the report of a problem from what the store holds.
#include <algorithm>

#include "tuner/limits.h"
#include "tuner/problem_tuner.h"

namespace attune::tuner {
namespace {

template <typename Row>
Timing timing_of(const Row& row) {
  return {.config = row.config, .build_key = row.build_key, .median = row.median, .low = row.low, .high = row.high};
}

}  // namespace

void ProblemTuner::show(Phase phase, int done, int total) {
  if (!run_.progress) return;
  Progress progress;
  progress.phase = phase;
  progress.problem = problem_;
  progress.done = done;
  progress.total = total;
  const Candidate* best = nullptr;
  const Candidate* heuristic = nullptr;
  for (const Candidate& c : candidates_) {
    if (!c.in || c.seconds <= 0) continue;
    if (best == nullptr || c.seconds < best->seconds) best = &c;
    if (c.text == heuristic_) heuristic = &c;
  }
  if (best != nullptr) {
    progress.best_seconds = best->seconds;
    progress.best_tflops = flops(problem_) / best->seconds * 1e-12;
    progress.share_of_limit = limit_seconds(codegen::estimate(run_.arch, problem_, best->config)) / best->seconds;
    if (heuristic != nullptr) progress.over_heuristic = heuristic->seconds / best->seconds;
  }
  run_.progress(progress);
}

void ProblemTuner::report_winner() {
  report_.counts.built = static_cast<int>(std::count_if(candidates_.begin(), candidates_.end(), [](const Candidate& c) {
    return c.settled && !c.variant && c.kernel->state == KernelPool::State::ready;
  }));
  const bool complete =
      report_.outcome == Outcome::tuned || report_.outcome == Outcome::kept || report_.outcome == Outcome::known;
  cache::Store& store = log_.store();
  const char* const regime = run_.request.sustained ? kSustained : kBurst;
  std::optional<cache::Winner> winner = store.winner(log_.plan_key(), complete ? regime : "");
  if (!winner) winner = store.winner(log_.plan_key());
  report_.ties.clear();  // of an earlier call
  report_.heuristic.reset();
  report_.sustained.reset();
  report_.over_heuristic = 0;
  if (!winner) {
    report_.outcome = Outcome::failed;
    if (report_.message.empty()) report_.message = "no config could be timed";
    return;
  }
  report_.winner = timing_of(*winner);
  report_.errors = winner->errors;
  for (const cache::Trial& trial : store.trials(log_.plan_key())) {
    if (trial.session != winner->session || trial.regime != winner->regime || trial.status != cache::TrialStatus::ok)
      continue;
    if (trial.config == winner->config) report_.winner->samples = static_cast<int>(trial.samples.size());
    if (!heuristic_.empty() && trial.config == heuristic_) {
      report_.heuristic = timing_of(trial);
      report_.heuristic->samples = static_cast<int>(trial.samples.size());
    }
  }
  for (const cache::Standing& tied : winner->tie_set)
    if (tied.config != winner->config) report_.ties.push_back(timing_of(tied));
  if (report_.winner->median > 0) {
    report_.tflops = flops(problem_) / report_.winner->median * 1e-12;
    if (report_.heuristic) report_.over_heuristic = report_.heuristic->median / report_.winner->median;
    const codegen::CostEstimate estimate =
        codegen::estimate(run_.arch, problem_, codegen::parse_config(winner->config));
    report_.limit = estimate.limit;
    report_.share_of_limit = limit_seconds(estimate) / report_.winner->median;
  }
  if (const auto sustained = store.winner(log_.plan_key(), kSustained);
      sustained && sustained->session == winner->session)
    report_.sustained = timing_of(*sustained);
  if (report_.outcome == Outcome::tuned && is_incumbent(winner->regime, winner->config)) {
    report_.outcome = Outcome::kept;
    report_.message = "the incumbent was not clearly beaten";
  }
  if (report_.outcome == Outcome::failed) report_.outcome = Outcome::partial;  // an older session still serves
}

}  // namespace attune::tuner
