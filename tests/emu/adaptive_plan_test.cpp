// Kernels that speculate count their failures, and a plan of one follows them.
#include <doctest/doctest.h>

#include "cli/emulator/emulated_tensors.h"
#include "runtime/cpu/ptx_compiler.h"
#include "runtime/forward_plan.h"
#include "runtime/keys.h"
#include "tests/emu/ptx_cache.h"
#include "tests/nvrtc.h"

namespace attune::emulator {
namespace {

constexpr Problem kProblem{
    .head_dim = 64, .head_dim_v = 64, .heads = 2, .heads_kv = 1, .batch = 1, .seqlen_q = 150, .seqlen_k = 512};
constexpr unsigned kWarpBlocks = 2 * 3 * 4 * 4;  // 2 heads, 3 tiles of 64 rows, 4 warps, 4 blocks of 128 keys
constexpr tuner::Scores kWide{.name = "sd 30", .sd = 30};

constexpr const char* kSpeculative[] = {
    "softmax=zero,order=pv_qk,consumers=1,ping_pong=0,block_n=128",
    "softmax=first_max,order=pv_qk,consumers=1,ping_pong=0,block_n=128,grid=dynamic",
};
constexpr const char* kExact = "softmax=exact,order=qk_pv,consumers=2,block_n=64";

struct Scene {
  std::shared_ptr<runtime::CpuDevice> device = std::make_shared<runtime::CpuDevice>();
  std::shared_ptr<runtime::PlanContext> context = std::make_shared<runtime::PlanContext>(device);
  runtime::Builder builder{cache::Store::memory_only(), [] { return tests::ptx_compiler(); }};

  runtime::PlanSource source(const std::string& text, const Problem& problem = kProblem) {
    const codegen::Config config = codegen::parse_config(text);
    return plan_source(builder.build(codegen::specialise(parse_arch("sm_90a"), problem, config)), config,
                       Origin::override);
  }
  void expect_clean(std::size_t launches) const {
    const std::vector<runtime::CpuLaunch> taken = device->take_launches();
    CHECK(taken.size() == launches);
    for (const runtime::CpuLaunch& launch : taken) CHECK_MESSAGE(launch.report.clean(), launch.report.text());
  }
};

// What a plan's launches tell, beside what an AdaptiveForwardPlan has.
struct Telling {
  explicit Telling(runtime::Device& on) : device(on), counted(on, sizeof(unsigned)), report(on) {
    const unsigned none = 0;
    device.copy_to_device(counted.data(), &none, sizeof none);
  }
  runtime::Reporting launch(std::uint32_t number) const {
    return {.failures = static_cast<unsigned*>(counted.data()), .report = report.get(), .launch = number};
  }
  unsigned failures() const {
    unsigned all = 0;
    device.copy_to_host(&all, counted.data(), sizeof all);
    return all;
  }

  runtime::Device& device;
  runtime::DeviceBuffer counted;
  runtime::SharedObject<runtime::LaunchReport> report;
};

void expect_right(const cli::EmulatedTensors& tensors) {
  CHECK(tuner::violation(tensors.accuracy(), tensors.bounds()).value_or("") == "");
}

}  // namespace

TEST_CASE("adaptive plan: a speculative kernel counts its failures, on scores that it fails for") {
  if (!attune::tests::nvrtc()) return;
  for (const char* config : kSpeculative) {
    CAPTURE(std::string(config));
    Scene scene;
    const runtime::ForwardPlan plan(scene.context, kProblem, scene.source(config));
    const Telling telling(*scene.device);
    const runtime::LaunchReport& report = *telling.report.get();
    cli::EmulatedTensors plain(*scene.device, kProblem, {}), wide(*scene.device, kProblem, {.scores = kWide});
    plan.launch(plain.args(), telling.launch(7));
    expect_right(plain);
    CHECK(telling.failures() == 0);
    CHECK(report.started == 7);
    plan.launch(wide.args(), telling.launch(8));
    expect_right(wide);
    const unsigned once = telling.failures();
    CHECK(once > kWarpBlocks / 4);
    CHECK(once < kWarpBlocks);
    CHECK(report.started == 8);
    CHECK(report.failures <= once);  // some of its own
    wide.reset();
    plan.launch(wide.args(), telling.launch(9));
    CHECK(telling.failures() == 2 * once);
    CHECK(report.started == 9);
    CHECK(report.failures >= once);
    CHECK(report.failures <= 2 * once);
    // Nobody need be told.
    wide.reset();
    plan.launch(wide.args());
    expect_right(wide);
    CHECK(telling.failures() == 2 * once);
    CHECK(report.started == 9);
    scene.expect_clean(4);
  }
}

TEST_CASE("adaptive plan: rows to which a mask leaves few keys are no failures on ordinary scores") {
  if (!attune::tests::nvrtc()) return;
  for (const char* config :
       {"softmax=zero,order=pv_qk,consumers=2,ping_pong=0,block_n=128,grid=dynamic,diagonal=masked,remember=0",
        "softmax=first_max,order=pv_qk,consumers=2,ping_pong=0,block_n=128,grid=dynamic,diagonal=masked"}) {
    for (const std::int64_t length : {40, 128, 300}) {
      CAPTURE(std::string(config));
      CAPTURE(length);
      Problem causal = kProblem;
      causal.causal = true;
      causal.seqlen_q = causal.seqlen_k = length;
      Scene scene;
      const runtime::PlanSource source = scene.source(config, causal);
      const runtime::ForwardPlan plan(scene.context, causal, source);
      const Telling telling(*scene.device);
      cli::EmulatedTensors plain(*scene.device, causal, {});
      plan.launch(plain.args(), telling.launch(1));
      expect_right(plain);
      CHECK(telling.failures() <= runtime::failure_limit(causal, source.shape, source.config.softmax));
      scene.expect_clean(1);
    }
  }
}

TEST_CASE("adaptive plan: an exact kernel tells which launch began") {
  if (!attune::tests::nvrtc()) return;
  Scene scene;
  const runtime::ForwardPlan plan(scene.context, kProblem, scene.source(kExact));
  const Telling telling(*scene.device);
  cli::EmulatedTensors wide(*scene.device, kProblem, {.scores = kWide});
  plan.launch(wide.args(), telling.launch(5));
  expect_right(wide);
  CHECK(telling.report.get()->started == 5);
  CHECK(telling.report.get()->failures == 0);
  scene.expect_clean(1);
}

TEST_CASE("adaptive plan: launches change to the exact kernel for wide scores, and every result is right") {
  if (!attune::tests::nvrtc()) return;
  Scene scene;
  const Plan exact = make_plan(scene.context, kProblem, scene.source(kExact));
  const Plan plan = runtime::adaptive_plan(make_plan(scene.context, kProblem, scene.source(kSpeculative[0])), exact);
  CHECK(plan.info().peaked_config == exact.info().config);
  cli::EmulatedTensors plain(*scene.device, kProblem, {}), wide(*scene.device, kProblem, {.scores = kWide});
  const auto instructions = [&](const Plan& with, cli::EmulatedTensors& tensors) {
    tensors.reset();
    with.launch(tensors.args());
    expect_right(tensors);
    const std::vector<runtime::CpuLaunch> launches = scene.device->take_launches();
    REQUIRE(launches.size() == 1);
    CHECK_MESSAGE(launches.front().report.clean(), launches.front().report.text());
    return launches.front().report.instructions;
  };
  const auto by_exact = instructions(exact, wide);
  // Which kernel it was shows in how much there was to do.
  const auto is_exact = [&](auto count) { return count > 0.95 * by_exact && count < 1.05 * by_exact; };
  for (int i = 0; i < 3; ++i) CHECK(!is_exact(instructions(plan, plain)));
  // Some launches pass until enough have failed.
  CHECK(!is_exact(instructions(plan, wide)));
  for (int i = 0; i < 8; ++i) (void)instructions(plan, wide);
  for (int i = 0; i < 3; ++i) CHECK(is_exact(instructions(plan, wide)));
}

}  // namespace attune::emulator
