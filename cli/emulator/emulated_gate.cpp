#include "cli/emulator/emulated_gate.h"

#include "base/error.h"
#include "cli/emulator/emulated_gradients.h"
#include "cli/emulator/emulated_tensors.h"

namespace attune::cli {
namespace {

// Each case has another order than its neighbours with the same seed, since some faults show with some orders only.
constexpr std::uint64_t kMostCases = 1000;
constexpr int kFullSizeCase = kMostCases - 1;

std::uint64_t launch_seed(std::uint64_t seed, int number) {
  return seed * kMostCases + static_cast<std::uint64_t>(number);
}

}  // namespace

EmulatedGate::EmulatedGate(std::shared_ptr<runtime::CpuDevice> device, EmulatedGateOptions options)
    : device_(std::move(device)),
      plans_(std::make_shared<runtime::PlanContext>(device_)),
      options_(std::move(options)) {}

Plan EmulatedGate::plan(const codegen::KernelSpec& spec, const codegen::Config& config, const std::string& code,
                        const Problem& problem) const {
  runtime::PlanSource source;
  source.config = config;
  source.spec = spec;
  source.shape = codegen::launch_shape(spec);
  source.cubin = code;
  return runtime::make_plan(plans_, problem, std::move(source));
}

std::unique_ptr<EmulatedCase> EmulatedGate::prepare(const Plan& plan, const tuner::Scores& scores,
                                                    const runtime::RowSample& rows) const {
  const Problem& problem = plan.problem();
  if (problem.op == Op::backward) {
    return std::make_unique<EmulatedGradients>(
        *device_, problem, EmulatedGradients::Options{.scores = scores, .workspace_bytes = plan.workspace_bytes()});
  }
  return std::make_unique<EmulatedTensors>(*device_, problem, EmulatedTensors::Options{.scores = scores, .rows = rows});
}

void EmulatedGate::run(const Plan& plan, const tuner::Scores& scores, const runtime::RowSample& rows, int number,
                       EmulatedVerdict& verdict) {
  const std::string where = tuner::case_text(plan.problem(), scores);
  const std::unique_ptr<EmulatedCase> tensors = prepare(plan, scores, rows);
  tuner::Judgement& judgement = verdict.judgement;
  const int cases = judgement.cases;
  for (int i = 0; i < options_.seeds && verdict.good(); ++i) {
    if (options_.stop.stop_requested()) fail(ErrorCode::interrupted, "interrupted");
    const std::uint64_t seed = options_.first_seed + static_cast<std::uint64_t>(i);
    verdict.seed = seed;
    tensors->reset();
    device_->set_seed(launch_seed(seed, number));
    device_->set_stop(options_.stop);
    device_->take_launches();
    tensors->launch(plan);
    for (runtime::CpuLaunch& launch : device_->take_launches()) {
      verdict.seconds += launch.report.seconds;
      verdict.instructions += launch.report.instructions;
      for (emulator::Finding& finding : launch.report.findings)
        verdict.findings.push_back({where, seed, std::move(finding)});
      if (!launch.report.output.empty()) verdict.prints.push_back({where, seed, std::move(launch.report.output)});
    }
    const tuner::CaseResult result = tensors->result();
    tuner::add(judgement, result, where);
    judgement.wrong = result.wrong;
    if (!judgement.wrong) judgement.wrong = tensors->damage();
    if (judgement.wrong) judgement.wrong = fmt::format("{}: {}", where, *judgement.wrong);
  }
  judgement.cases = cases + 1;  // one, in however many orders
}

EmulatedVerdict EmulatedGate::judge(const codegen::KernelSpec& spec, const std::string& code) {
  EmulatedVerdict verdict;
  const codegen::Config config = tuner::gate_config(spec);
  for (const tuner::GateShape& shape : tuner::gate_shapes(spec, tuner::GateSize::emulator)) {
    const Plan plan = this->plan(spec, config, code, shape.problem);
    for (const tuner::Scores& scores : shape.scores) {
      run(plan, scores, {}, verdict.judgement.cases, verdict);
      if (!verdict.good()) return verdict;
    }
  }
  if (verdict.judgement.cases == 0) verdict.judgement.wrong = "no small problem fits this kernel";
  return verdict;
}

EmulatedVerdict EmulatedGate::judge(const codegen::KernelSpec& spec, const codegen::Config& config,
                                    const std::string& code, const Problem& problem, const runtime::RowSample& rows) {
  EmulatedVerdict verdict;
  run(plan(spec, config, code, problem), tuner::scores_of(problem), rows, kFullSizeCase, verdict);
  return verdict;
}

}  // namespace attune::cli
