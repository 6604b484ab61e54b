#include "cli/emulator/emulated_gate.h"

#include "base/error.h"

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

void EmulatedGate::run(const Plan& plan, EmulatedTensors& tensors, int number, const std::string& where,
                       EmulatedVerdict& verdict) {
  tuner::Judgement& judgement = verdict.judgement;
  const tuner::Bounds bounds = tensors.bounds();
  for (int i = 0; i < options_.seeds && verdict.good(); ++i) {
    if (options_.stop.stop_requested()) fail(ErrorCode::interrupted, "interrupted");
    const std::uint64_t seed = options_.first_seed + static_cast<std::uint64_t>(i);
    verdict.seed = seed;
    tensors.reset();
    device_->set_seed(launch_seed(seed, number));
    device_->set_stop(options_.stop);
    device_->take_launches();
    plan.launch(tensors.args());
    for (runtime::CpuLaunch& launch : device_->take_launches()) {
      verdict.seconds += launch.report.seconds;
      verdict.instructions += launch.report.instructions;
      for (emulator::Finding& finding : launch.report.findings)
        verdict.findings.push_back({where, seed, std::move(finding)});
      if (!launch.report.output.empty()) verdict.prints.push_back({where, seed, std::move(launch.report.output)});
    }
    const tuner::Accuracy accuracy = tensors.accuracy();
    judgement.accuracy = tuner::worse_of(judgement.accuracy, accuracy);
    const double share = tuner::share_of_bounds(accuracy, bounds);
    if (share > judgement.share_of_bounds) {
      judgement.share_of_bounds = share;
      judgement.worst_case = where;
    }
    judgement.wrong = tuner::violation(accuracy, bounds);
    if (!judgement.wrong) judgement.wrong = tensors.damage();
    if (judgement.wrong) judgement.wrong = fmt::format("{}: {}", where, *judgement.wrong);
  }
  ++judgement.cases;
}

EmulatedVerdict EmulatedGate::judge(const codegen::KernelSpec& spec, const std::string& code) {
  EmulatedVerdict verdict;
  codegen::Config config = spec.config;
  config.workers = tuner::kGateWorkers;
  for (const tuner::GateShape& shape : tuner::gate_shapes(spec, tuner::GateSize::emulator)) {
    const Plan plan = this->plan(spec, config, code, shape.problem);
    for (const tuner::Scores& scores : shape.scores) {
      EmulatedTensors tensors(*device_, shape.problem, {.scores = scores});
      run(plan, tensors, verdict.judgement.cases, tuner::case_text(shape.problem, scores), verdict);
      if (!verdict.good()) return verdict;
    }
  }
  if (verdict.judgement.cases == 0) verdict.judgement.wrong = "no small problem fits this kernel";
  return verdict;
}

EmulatedVerdict EmulatedGate::judge(const codegen::KernelSpec& spec, const codegen::Config& config,
                                    const std::string& code, const Problem& problem, const runtime::RowSample& rows) {
  EmulatedVerdict verdict;
  const tuner::Scores plain{.name = "plain"};
  EmulatedTensors tensors(*device_, problem, {.scores = plain, .rows = rows});
  run(plan(spec, config, code, problem), tensors, kFullSizeCase, tuner::case_text(problem, plain), verdict);
  return verdict;
}

}  // namespace attune::cli
