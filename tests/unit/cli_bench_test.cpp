// Timing plans, on a device whose clock is a number.
#include <doctest/doctest.h>

#include <stop_token>

#include "cli/bench_run.h"
#include "runtime/plan_state.h"
#include "tests/unit/computing_device.h"

using namespace attune;
using attune::tests::Bug;
using attune::tests::ComputingDevice;

namespace {

struct Fixture {
  std::shared_ptr<ComputingDevice> device = std::make_shared<ComputingDevice>();
  Problem problem{
      .head_dim = 16, .head_dim_v = 16, .heads = 2, .heads_kv = 1, .batch = 1, .seqlen_q = 24, .seqlen_k = 32};
  std::shared_ptr<runtime::PlanContext> context = std::make_shared<runtime::PlanContext>(device);
  std::stop_source stop;

  Plan plan(const codegen::Config& config) const {
    runtime::PlanSource source;
    source.config = config;
    source.spec = codegen::specialise(Arch{}, problem, config);
    source.shape = codegen::launch_shape(source.spec);
    source.cubin = tests::fake_cubin(source.shape.entry);
    return runtime::make_plan(context, problem, std::move(source));
  }
  // Plain grids need no counter.
  static codegen::Config config(int block_n) { return {.block_n = block_n, .grid = codegen::Grid::plain}; }
};

template <typename F>
ErrorCode code_of(F f) {
  try {
    f();
  } catch (const Error& error) {
    return error.code();
  }
  FAIL("nothing was thrown");
  return ErrorCode::internal;
}

}  // namespace

TEST_CASE_FIXTURE(Fixture, "bench: medians by the device's clock, every contender as often as any other") {
  cli::Bench bench(device, problem, nullptr);
  bench.add("one", plan(config(64)));
  bench.add("two", plan(config(128)));
  int turns = 0;
  const auto results =
      bench.run({.turns = 3, .launches = 4, .seconds = 0.01}, stop.get_token(), [&](const std::string&) { ++turns; });
  REQUIRE(results.size() == 2);
  CHECK(turns == 2 * 3 * 2);
  for (const cli::BenchResult& result : results) {
    REQUIRE(result.burst);
    REQUIRE(result.sustained);
    CHECK(result.burst->samples.size() == 12);
    CHECK(result.sustained->samples.size() == 3);
    CHECK(result.burst->median == doctest::Approx(1e-3));
    CHECK(result.sustained->median == doctest::Approx(1e-3));
    CHECK(result.burst->spread() == doctest::Approx(0));
    CHECK(result.host_seconds > 0);
  }
  CHECK(results[0].label == "one");
  CHECK(results[1].plan.config.find("block_n=128") != std::string::npos);
}

TEST_CASE_FIXTURE(Fixture, "bench: one regime only") {
  cli::Bench bench(device, problem, nullptr);
  bench.add("one", plan(config(64)));
  const auto results =
      bench.run({.turns = 1, .launches = 1, .sustained = false}, stop.get_token(), [](const std::string&) {});
  CHECK(results[0].burst.has_value());
  CHECK_FALSE(results[0].sustained.has_value());
}

TEST_CASE_FIXTURE(Fixture, "bench: a launch that leaves part of O unwritten is not timed") {
  device->bug = Bug::skips_last_row;
  cli::Bench bench(device, problem, nullptr);
  CHECK(code_of([&] { bench.add("one", plan(config(64))); }) == ErrorCode::wrong_result);
}

TEST_CASE_FIXTURE(Fixture, "bench: a stop ends it") {
  cli::Bench bench(device, problem, nullptr);
  bench.add("one", plan(config(64)));
  stop.request_stop();
  CHECK(code_of([&] { bench.run({}, stop.get_token(), [](const std::string&) {}); }) == ErrorCode::interrupted);
}
