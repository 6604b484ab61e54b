// Backward plans on the CPU device: what the host hands to the kernels, and the yardsticks themselves.
#include <doctest/doctest.h>

#include <cmath>

#include "base/error.h"
#include "cli/emulator/emulated_gate.h"
#include "cli/emulator/emulated_gradients.h"
#include "runtime/cpu/host_gradients.h"
#include "runtime/cpu/ptx_compiler.h"
#include "runtime/reference_backward.h"
#include "runtime/runtime_state.h"
#include "tests/backward_cases.h"
#include "tests/emu/config_samples.h"
#include "tests/emu/ptx_cache.h"
#include "tests/nvrtc.h"

namespace attune::emulator {
namespace {

using attune::tests::BackwardCase;

struct Fixture {
  std::shared_ptr<runtime::CpuDevice> device = std::make_shared<runtime::CpuDevice>();
  runtime::RuntimeState state{{.use_cache = false, .check_pointers = true, .on_warning = [](const std::string&) {}},
                              device,
                              [] { return tests::ptx_compiler(); }};

  Plan plan(const BackwardCase& c) {
    PlanOptions options;
    if (!c.config.empty()) options.config = "family=sm90_backward," + c.config;
    return state.plan(c.parsed(), options);
  }

  cli::EmulatedGradients tensors(const BackwardCase& c, std::size_t workspace_bytes) {
    cli::EmulatedGradients::Options options{.d_lse = c.d_lse, .workspace_bytes = workspace_bytes};
    if (c.gaps) options.strides = gapped_strides(c.parsed());
    return {*device, c.parsed(), options};
  }

  void check_launches() {
    for (const runtime::CpuLaunch& launch : device->take_launches())
      CHECK_MESSAGE(launch.report.clean(), launch.kernel << ": " << launch.report.text());
  }
};

std::string refusal(const Plan& plan, const BackwardArgs& args) {
  try {
    plan.launch(args);
  } catch (const Error& error) {
    CHECK(error.code() == ErrorCode::invalid_argument);
    return error.what();
  }
  return "accepted";
}

double distance(const std::vector<double>& a, const std::vector<double>& b) {
  REQUIRE(a.size() == b.size());
  double worst = 0;
  for (std::size_t i = 0; i < a.size(); ++i) worst = std::max(worst, std::abs(a[i] - b[i]));
  return worst;
}

}  // namespace

TEST_CASE_FIXTURE(Fixture, "backward plan: right, nothing found, nothing else written") {
  if (!attune::tests::nvrtc()) return;
  for (const BackwardCase& c : attune::tests::small_backward_cases()) {
    CAPTURE(c.problem);
    const Plan p = plan(c);
    cli::EmulatedGradients gradients = tensors(c, p.workspace_bytes());
    for (const std::uint64_t seed : {0, 1}) {
      device->set_seed(seed);
      gradients.reset();
      p.launch(gradients.args());
      check_launches();
      CHECK(gradients.result().wrong.value_or("") == "");
      CHECK(gradients.damage().value_or("") == "");
    }
  }
}

TEST_CASE_FIXTURE(Fixture, "backward plan: a deterministic one gives the same bits in every order of threads") {
  if (!attune::tests::nvrtc()) return;
  const BackwardCase c{"head_dim=64,heads=2,heads_kv=1,batch=1,causal=1,seqlen_q=150,seqlen_k=300,deterministic=1", ""};
  const Plan p = plan(c);
  cli::EmulatedGradients gradients = tensors(c, p.workspace_bytes());
  p.launch(gradients.args());
  const tuner::GradientCase first = gradients.gradients();
  for (const std::uint64_t seed : {1, 2, 3}) {
    device->set_seed(seed);
    gradients.reset();
    p.launch(gradients.args());
    const tuner::GradientCase other = gradients.gradients();
    CHECK(first.d_q.got == other.d_q.got);
    CHECK(first.d_k.got == other.d_k.got);
    CHECK(first.d_v.got == other.d_v.got);
  }
}

TEST_CASE_FIXTURE(Fixture, "backward plan: refused launches touch nothing") {
  if (!attune::tests::nvrtc()) return;
  const BackwardCase c{"head_dim=64,heads=1,batch=1,seqlen_q=70", ""};
  const Plan p = plan(c);
  cli::EmulatedGradients gradients = tensors(c, p.workspace_bytes());
  BackwardArgs args = gradients.args();
  args.workspace_bytes -= 1;
  CHECK(refusal(p, args).starts_with("workspace_bytes: " + std::to_string(p.workspace_bytes() - 1) +
                                     " (allowed: " + std::to_string(p.workspace_bytes()) + " and more)"));
  args = gradients.args();
  args.workspace = nullptr;
  CHECK(refusal(p, args).starts_with("workspace: null"));
  std::vector<std::uint16_t> host(70 * 64);
  args = gradients.args();
  args.d_v = reinterpret_cast<void*>((reinterpret_cast<std::uintptr_t>(host.data()) + 15) / 16 * 16);
  CHECK(refusal(p, args).find("is host memory") != std::string::npos);
  CHECK(device->take_launches().empty());
  CHECK(gradients.result().wrong.has_value());  // dQ, dK and dV hold NaN still
}

TEST_CASE_FIXTURE(Fixture,
                  "backward plan: the reference kernels and the host agree, rounded and not, rows of a sample") {
  if (!attune::tests::nvrtc()) return;
  const BackwardCase c{
      "head_dim=24,head_dim_v=40,heads=4,heads_kv=2,batch=2,causal=1,seqlen_q=30,seqlen_k=23,dtype=fp16", "", true,
      true};
  const Problem problem = c.parsed();
  runtime::Builder builder(cache::Store::memory_only(), [] { return tests::ptx_compiler(); });
  const runtime::ReferenceBackward reference(device, builder, problem);
  cli::EmulatedGradients gradients = tensors(c, runtime::ReferenceBackward::workspace_bytes(problem));
  const runtime::HostGradients host = runtime::host_gradients(problem, gradients.args());
  const runtime::GradientSample sample{.queries = {.first = 1, .step = 3}, .keys = {.first = 2, .step = 5}};
  const auto pick = [](const std::vector<double>& all, std::int64_t heads, std::int64_t rows, std::int64_t columns,
                       const runtime::RowSample& s) {
    std::vector<double> picked;
    for (std::int64_t head = 0; head < heads; ++head)
      for (std::int64_t row = s.first; row < rows; row += s.step) {
        const auto at = all.begin() + (head * rows + row) * columns;
        picked.insert(picked.end(), at, at + columns);
      }
    return picked;
  };
  using runtime::GradientRounding;
  using runtime::GradientStatistics;
  for (const auto& [rounding, statistics] : {std::pair{GradientRounding::none, GradientStatistics::computed},
                                             std::pair{GradientRounding::kernels, GradientStatistics::computed},
                                             std::pair{GradientRounding::kernels, GradientStatistics::given}}) {
    const runtime::GradientArrays& want = rounding == GradientRounding::none ? host.exact : host.kernels;
    // LSE is given in float32, and a rounding may go the other way for it.
    const double allowed = statistics == GradientStatistics::given ? 5e-4 : 1e-10;
    const std::vector<double> dq = pick(want.d_q, 8, 30, 24, sample.queries),
                              dk = pick(want.d_k, 4, 23, 24, sample.keys), dv = pick(want.d_v, 4, 23, 40, sample.keys);
    const runtime::DeviceBuffer dq_exact(*device, dq.size() * 8), dk_exact(*device, dk.size() * 8),
        dv_exact(*device, dv.size() * 8);
    reference.launch(problem, gradients.args(), sample, rounding, statistics,
                     {.dq_exact = static_cast<double*>(dq_exact.data()),
                      .dk_exact = static_cast<double*>(dk_exact.data()),
                      .dv_exact = static_cast<double*>(dv_exact.data())});
    check_launches();
    const auto values = [](const runtime::DeviceBuffer& buffer) {
      const auto* const first = static_cast<const double*>(buffer.data());
      return std::vector<double>(first, first + buffer.size() / 8);
    };
    CHECK(distance(values(dq_exact), dq) < allowed);
    CHECK(distance(values(dk_exact), dk) < allowed);
    CHECK(distance(values(dv_exact), dv) < allowed);
  }
  CHECK(distance(host.exact.d_q, host.kernels.d_q) > 1e-5);
  CHECK(distance(host.exact.d_k, host.kernels.d_k) > 1e-5);
  CHECK(distance(host.exact.d_v, host.kernels.d_v) > 1e-5);
}

TEST_CASE_FIXTURE(Fixture, "backward plan: the gate finds kernels that compute something else") {
  if (!attune::tests::nvrtc()) return;
  runtime::Builder builder(cache::Store::memory_only(), [] { return tests::ptx_compiler(); });
  const codegen::KernelSpec spec =
      codegen::specialise(parse_arch("sm_90a"), parse_problem("op=backward,head_dim=64,causal=1"),
                          codegen::parse_config("family=sm90_backward"));
  cli::EmulatedGate gate(device, {});
  const std::string source = codegen::emit(spec).source;
  const auto judge = [&](const std::string& from, const std::string& to) {
    std::string changed = source;
    const std::size_t at = changed.find(from);
    REQUIRE(at != std::string::npos);
    changed.replace(at, from.size(), to);
    const auto options = codegen::compile_options(spec);
    return gate.judge(spec, tests::ptx_compiler()->compile(changed, options, false).cubin);
  };
  CHECK(gate.judge(spec, builder.build(spec).cubin).good());
  // Delta without dLSE; dQ with too small a scale; a causal mask that is off by one.
  CHECK(judge("sum - d_lse : 0.f", "sum : 0.f").judgement.wrong.value_or("").find("error of") != std::string::npos);
  CHECK(judge("x.x * scale, x.y * scale", "x.x * scale, x.y").judgement.wrong.has_value());
  CHECK(judge("if (limit > 8 * i)", "if (limit >= 8 * i)").judgement.wrong.has_value());
}

}  // namespace attune::emulator
