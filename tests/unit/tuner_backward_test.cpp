// Tuning the backward pass: candidates of its own and of the built-in table, errors of gradients on record, and plans
// from the winners.
#include <doctest/doctest.h>

#include "codegen/default_table.h"
#include "codegen/space.h"
#include "runtime/device.h"
#include "runtime/keys.h"
#include "runtime/runtime_state.h"
#include "tests/unit/fake_compiler.h"
#include "tests/unit/fake_measurer.h"
#include "tests/unit/temporary_folder.h"
#include "tuner/run.h"

namespace attune::tuner {
namespace {

TEST_CASE("tuning the backward pass: the fastest wins, and plan() finds it") {
  const tests::TemporaryFolder folder;
  cache::Options options;
  options.directory = folder.string();
  cache::Store store = cache::Store::open(options);
  tests::FakeGpu gpu;
  gpu.seconds = [](const Problem&, const codegen::Config& c) {
    return c.backward.persistent && c.backward.q_stages == 2 ? 1e-3 : 1.3e-3;
  };
  const auto compiler = std::make_shared<tests::FakeCompiler>();
  const Problem problem = parse_problem("op=backward,head_dim=128,heads=16,batch=4,causal=1,seqlen_q=4096");
  Request request{.store = store, .problems = {problem}, .max_candidates = 24, .min_raced = 0, .compile_threads = 2};
  request.compiler = [&] { return compiler; };
  std::stop_source stop;
  const Report report = tune_with(request, {.stop = stop.get_token()}, [&](const std::string& device) {
    return std::make_unique<tests::FakeMeasurer>(gpu, device, stop.get_token());
  });
  REQUIRE(report.problems.size() == 1);
  const ProblemReport& p = report.problems[0];
  CHECK(p.outcome == Outcome::tuned);
  REQUIRE(p.winner);
  const codegen::Config won = codegen::parse_config(p.winner->config);
  CHECK(won.family == codegen::Family::sm90_backward);
  CHECK(won.backward.persistent);
  CHECK(p.counts.selected >= 20);
  CHECK(p.tflops == doctest::Approx(flops(problem) / p.winner->median * 1e-12));

  const auto winner =
      store.winner(runtime::plan_key(problem, runtime::identity_text(gpu.properties), codegen::emitter_digest()));
  REQUIRE(winner);
  CHECK(winner->errors.find("\"dq_rel_l2\"") != std::string::npos);
  CHECK(winner->errors.find("\"o_rel_l2\"") == std::string::npos);

  const auto device = std::make_shared<tests::FakeDevice>();
  device->fake = gpu.properties;
  runtime::RuntimeState state({.cache_directory = folder.string(), .allow_compiler = false}, device);
  const Plan plan = state.plan(problem, {.on_miss = MissPolicy::fail});
  CHECK(plan.info().origin == Origin::cache);
  CHECK(plan.info().config == p.winner->config);
  CHECK(plan.info().kernel == "attune_backward");
  CHECK(plan.workspace_bytes() > 0);
  // Deterministic sums are another problem.
  Problem deterministic = problem;
  deterministic.deterministic = true;
  CHECK_THROWS_AS(state.plan(deterministic, {.on_miss = MissPolicy::fail}), Error);
}

TEST_CASE("the built-in table's configs race, whatever the model thinks of them") {
  const tests::TemporaryFolder folder;
  cache::Options options;
  options.directory = folder.string();
  cache::Store store = cache::Store::open(options);
  for (const char* text : {"op=backward,head_dim=64,heads=32,batch=16,causal=1,seqlen_q=1024",
                           "head_dim=128,heads=16,batch=4,causal=1,seqlen_q=4096"}) {
    const Problem problem = parse_problem(text);
    const tests::FakeGpu seen;
    const std::vector<codegen::Config> tabled = codegen::tabled_configs(runtime::arch_of(seen.properties), problem);
    REQUIRE(tabled.size() > 1);
    tests::FakeGpu gpu;
    gpu.seconds = [&](const Problem&, const codegen::Config& c) { return c == tabled.back() ? 1e-3 : 1.3e-3; };
    const auto compiler = std::make_shared<tests::FakeCompiler>();
    Request request{.store = store, .problems = {problem}, .max_candidates = 1, .min_raced = 0, .compile_threads = 2};
    request.compiler = [&] { return compiler; };
    std::stop_source stop;
    const Report report = tune_with(request, {.stop = stop.get_token()}, [&](const std::string& device) {
      return std::make_unique<tests::FakeMeasurer>(gpu, device, stop.get_token());
    });
    REQUIRE(report.problems[0].winner);
    CHECK(codegen::parse_config(report.problems[0].winner->config) == tabled.back());
    CHECK(report.problems[0].heuristic);
  }
}

}  // namespace
}  // namespace attune::tuner
