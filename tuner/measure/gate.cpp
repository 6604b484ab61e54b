#include "tuner/measure/gate.h"

#include <fmt/format.h>

#include "base/error.h"
#include "runtime/plan_state.h"

namespace attune::tuner {
namespace {

// Prepared inputs beyond this are thrown away and made again when they are needed.
constexpr std::uint64_t kCaseBytes = 2ull << 30;

}  // namespace

void add(Judgement& judgement, const CaseResult& result, const std::string& where) {
  judgement.accuracy = judgement.cases == 0 ? result.accuracy : worse_of(judgement.accuracy, result.accuracy);
  if (result.share_of_bounds > judgement.share_of_bounds) {
    judgement.share_of_bounds = result.share_of_bounds;
    judgement.worst_case = where;
  }
  ++judgement.cases;
}

MeasuredCase& Gate::prepare(const Problem& problem, const Scores& scores) {
  constexpr std::uint64_t kSeed = 7;
  const std::string key = to_string(problem) + "|" + scores.name;
  if (const auto it = cases_.find(key); it != cases_.end()) return *it->second;
  if (bytes_ > kCaseBytes) {
    cases_.clear();
    bytes_ = 0;
  }
  std::unique_ptr<MeasuredCase> made = make_case(bench_, problem, scores, kSeed, Compared::all);
  bytes_ += made->bytes();
  return *cases_.emplace(key, std::move(made)).first->second;
}

std::optional<std::string> Gate::run(const Plan& plan, MeasuredCase& c, Judgement& judgement,
                                     const std::string& where) {
  c.poison();
  c.launch(plan);
  const CaseResult result = c.compare();
  add(judgement, result, where);
  return result.wrong ? result.wrong : c.damage();
}

Judgement Gate::judge(const codegen::KernelSpec& spec, const std::string& cubin) {
  Judgement judgement;
  bench_.reset_counter();
  for (const GateShape& shape : gate_shapes(spec)) {
    runtime::PlanSource source;
    source.config = gate_config(spec);
    source.spec = spec;
    source.shape = codegen::launch_shape(spec);
    source.cubin = cubin;
    const Plan plan = runtime::make_plan(bench_.plans(), shape.problem, std::move(source));
    for (const Scores& scores : shape.scores) {
      const std::string where = case_text(shape.problem, scores);
      judgement.wrong = run(plan, prepare(shape.problem, scores), judgement, where);
      if (!judgement.wrong) continue;
      judgement.wrong = fmt::format("{}: {}", where, *judgement.wrong);
      bench_.reset_counter();
      return judgement;
    }
  }
  if (judgement.cases == 0) judgement.wrong = "no small problem fits this kernel";
  return judgement;
}

}  // namespace attune::tuner
