// Timing plans, on a device whose clock is a number.
#include <doctest/doctest.h>

#include <cmath>
#include <set>
#include <stop_token>

#include "base/error.h"
#include "cli/bench_run.h"
#include "cli/wording.h"
#include "runtime/plan_state.h"
#include "tests/unit/computing_device.h"

using namespace attune;
using attune::tests::Bug;
using attune::tests::ComputingDevice;

namespace {

Plan plan_of(const std::shared_ptr<runtime::PlanContext>& context, const Problem& problem,
             const codegen::Config& config) {
  runtime::PlanSource source;
  source.config = config;
  source.spec = codegen::specialise(Arch{}, problem, config);
  source.shape = codegen::launch_shape(source.spec);
  std::vector<std::string> entries{source.shape.entry};
  for (const codegen::SideLaunch& side : source.shape.before) entries.push_back(side.entry);
  for (const codegen::SideLaunch& side : source.shape.after) entries.push_back(side.entry);
  source.cubin = tests::fake_cubin(entries);
  return runtime::make_plan(context, problem, std::move(source));
}

struct Fixture {
  std::shared_ptr<ComputingDevice> device = std::make_shared<ComputingDevice>();
  Problem problem{
      .head_dim = 16, .head_dim_v = 16, .heads = 2, .heads_kv = 1, .batch = 1, .seqlen_q = 24, .seqlen_k = 32};
  std::shared_ptr<runtime::PlanContext> context = std::make_shared<runtime::PlanContext>(device);
  std::stop_source stop;

  Plan plan(const codegen::Config& config) const { return plan_of(context, problem, config); }
  cli::Bench bench() const { return {device, problem, nullptr, no_other_plan}; }

  // Plain grids need no counter.
  static codegen::Config config(int block_n) { return {.block_n = block_n, .grid = codegen::Grid::plain}; }
  static Plan no_other_plan(const Problem&) { fail(ErrorCode::internal, "a forward pass needs no other one"); }
};

// A device that runs no backward kernel, but looks at what it is handed, and writes zeros where its results would be.
class GradientDevice : public ComputingDevice {
 public:
  Problem problem{.op = Op::backward,
                  .head_dim = 16,
                  .head_dim_v = 16,
                  .heads = 2,
                  .heads_kv = 1,
                  .batch = 1,
                  .seqlen_q = 24,
                  .seqlen_k = 32};
  std::string leaves;                              // "dK": its last element is not written
  double o_error = 0, lse_error = 0;               // largest of all launches: |O - exact|, |LSE - exact|
  std::set<const void*> inputs, d_os, workspaces;  // Q, dO and workspaces that it was handed
  bool random_d_o = true;                          // that every dO is like normal numbers
  std::vector<std::string> kernels;                // of the backward pass, in order

  void launch(runtime::Function function, const runtime::LaunchConfig& config, void** arguments) override {
    const std::string& entry = *static_cast<const std::string*>(function.handle);
    if (!entry.starts_with("attune_backward")) return ComputingDevice::launch(function, config, arguments);
    kernels.push_back(entry);
    clock += seconds;
    if (entry == "attune_backward") {
      const auto& p = *static_cast<const codegen::BackwardParams*>(arguments[backward_maps]);
      look_at(arguments, p);
      write("dK", p.d_k, elements(problem.seqlen_k, problem.heads_kv, problem.head_dim));
      write("dV", p.d_v, elements(problem.seqlen_k, problem.heads_kv, problem.head_dim_v));
    } else if (entry == "attune_backward_finish") {
      const auto& p = *static_cast<const codegen::BackwardParams*>(arguments[0]);
      write("dQ", p.d_q, elements(problem.seqlen_q, problem.heads, problem.head_dim));
    }
  }

 private:
  std::size_t elements(std::int64_t rows, int heads, int dim) const {
    return static_cast<std::size_t>(problem.batch * rows * heads * dim);
  }
  void write(const std::string& name, void* gradient, std::size_t count) const {
    std::memset(gradient, 0, 2 * (count - (leaves == name ? 1 : 0)));
  }

  void look_at(void** arguments, const codegen::BackwardParams& p) {
    const auto* const q = tensor(arguments[0]);
    const auto* const k = tensor(arguments[1]);
    const auto* const v = tensor(arguments[2]);
    inputs.insert(q);
    d_os.insert(p.d_o);
    workspaces.insert(p.shifts);
    const std::int64_t dim = problem.head_dim, rows = problem.heads * dim;  // one KV head: keys are `dim` apart
    for (std::int64_t row = 0; row < problem.seqlen_q; ++row) {
      for (std::int64_t head = 0; head < problem.heads; ++head) {
        const std::int64_t at = row * rows + head * dim;
        const Row exact = attend(q + at, k, v, dim, dim, problem.seqlen_k, problem.head_dim, problem.head_dim, p.scale);
        for (std::int64_t d = 0; d < dim; ++d) {
          const double o = widened(static_cast<const std::uint16_t*>(p.o)[at + d]);
          o_error = std::max(o_error, distance(o, exact.o[static_cast<std::size_t>(d)]));
        }
        lse_error = std::max(lse_error, distance(p.lse[head * problem.seqlen_q + row], exact.lse));
      }
    }
    double squares = 0;
    const std::size_t count = elements(problem.seqlen_q, problem.heads, problem.head_dim_v);
    for (std::size_t i = 0; i < count; ++i) {
      const double value = widened(static_cast<const std::uint16_t*>(p.d_o)[i]);
      squares += value * value;
    }
    const double variance = squares / static_cast<double>(count);
    random_d_o = random_d_o && variance > 0.7 && variance < 1.4;
  }

  static const std::uint16_t* tensor(const void* map) {
    return reinterpret_cast<const std::uint16_t*>(tests::fake_map(*static_cast<const runtime::TensorMap*>(map)).base);
  }
  static double distance(double value, double wanted) {
    const double d = std::abs(value - wanted);
    return d <= 1e300 ? d : 1e300;
  }
};

struct BackwardFixture {
  std::shared_ptr<GradientDevice> device = std::make_shared<GradientDevice>();
  std::shared_ptr<runtime::PlanContext> context = std::make_shared<runtime::PlanContext>(device);
  std::stop_source stop;
  int forward_plans = 0;

  Plan plan(int block_m) const {
    codegen::Config config{.family = codegen::Family::sm90_backward};
    config.backward.block_m = block_m;
    config.backward.finish = codegen::backward::Finish::launch;
    return plan_of(context, device->problem, config);
  }
  cli::Bench bench() {
    return {device, device->problem, nullptr, [this](const Problem& behind) {
              CHECK(to_string(behind) == to_string(forward_problem()));
              ++forward_plans;
              return plan_of(context, behind, Fixture::config(64));
            }};
  }
  Problem forward_problem() const {
    Problem forward = device->problem;
    forward.op = Op::forward;
    return forward;
  }
};

template <typename F>
Error error_of(F f) {
  try {
    f();
  } catch (const Error& error) {
    return error;
  }
  FAIL("nothing was thrown");
  return {ErrorCode::internal, ""};
}

}  // namespace

TEST_CASE_FIXTURE(Fixture, "bench: medians by the device's clock, every contender as often as any other") {
  cli::Bench bench = this->bench();
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
  cli::Bench bench = this->bench();
  bench.add("one", plan(config(64)));
  const auto results =
      bench.run({.turns = 1, .launches = 1, .sustained = false}, stop.get_token(), [](const std::string&) {});
  CHECK(results[0].burst.has_value());
  CHECK_FALSE(results[0].sustained.has_value());
}

TEST_CASE_FIXTURE(Fixture, "bench: a launch that leaves part of O unwritten is not timed") {
  device->bug = Bug::skips_last_row;
  cli::Bench bench = this->bench();
  const Error error = error_of([&] { bench.add("one", plan(config(64))); });
  CHECK(error.code() == ErrorCode::wrong_result);
  CHECK(std::string(error.what()) == "one: the launch left part of O unwritten");
}

TEST_CASE_FIXTURE(Fixture, "bench: a stop ends it") {
  cli::Bench bench = this->bench();
  bench.add("one", plan(config(64)));
  stop.request_stop();
  CHECK(error_of([&] { bench.run({}, stop.get_token(), [](const std::string&) {}); }).code() == ErrorCode::interrupted);
}

TEST_CASE_FIXTURE(BackwardFixture,
                  "bench backward: all kernels of a launch are timed, O and LSE are the forward pass's") {
  cli::Bench bench = this->bench();
  CHECK(forward_plans == 1);
  const int sets = device->attention_launches;
  CHECK(sets > 1);
  const Plan one = plan(128), two = plan(64);
  REQUIRE(two.workspace_bytes() > one.workspace_bytes());
  bench.add("one", one);
  CHECK(device->workspaces.size() == 1);
  CHECK(device->kernels.size() == 9);  // a look, and two launches to see about how long they take
  bench.add("two", two);
  const int allocations = device->allocations;
  device->workspaces.clear();
  const auto results =
      bench.run({.turns = 2, .launches = 3, .seconds = 0.01}, stop.get_token(), [](const std::string&) {});
  CHECK(device->allocations == allocations);
  CHECK(device->workspaces.size() == 1);
  CHECK(device->attention_launches == sets);
  REQUIRE(results.size() == 2);
  for (const cli::BenchResult& result : results) {
    REQUIRE(result.burst);
    REQUIRE(result.sustained);
    CHECK(result.burst->samples.size() == 6);
    CHECK(result.sustained->samples.size() == 2);
    CHECK(result.burst->median == doctest::Approx(3e-3));
    CHECK(result.sustained->median == doctest::Approx(3e-3));
    CHECK(cli::tflops(device->problem, result.burst->median) ==
          doctest::Approx(2.5 * cli::tflops(forward_problem(), result.burst->median)));
  }
  CHECK(results[0].plan.problem == to_string(device->problem));
  CHECK(results[1].plan.config.find("block_m=64") != std::string::npos);
  REQUIRE(device->kernels.size() % 3 == 0);
  for (std::size_t i = 0; i < device->kernels.size(); i += 3) {
    CHECK(device->kernels[i] == "attune_backward_prepare");
    CHECK(device->kernels[i + 1] == "attune_backward");
    CHECK(device->kernels[i + 2] == "attune_backward_finish");
  }
  CHECK(static_cast<int>(device->inputs.size()) == sets);
  CHECK(static_cast<int>(device->d_os.size()) == sets);
  CHECK(device->random_d_o);
  CHECK(device->o_error < 0.02);  // of bfloat16
  CHECK(device->lse_error < 1e-4);
}

TEST_CASE_FIXTURE(BackwardFixture, "bench backward: a launch that leaves part of a gradient unwritten is not timed") {
  for (const std::string gradient : {"dQ", "dK", "dV"}) {
    device->leaves = gradient;
    cli::Bench bench = this->bench();
    const Error error = error_of([&] { bench.add("one", plan(64)); });
    CHECK(error.code() == ErrorCode::wrong_result);
    CHECK(error.what() == "one: the launch left part of " + gradient + " unwritten");
  }
}

TEST_CASE_FIXTURE(BackwardFixture, "bench backward: without a forward plan the error says what it was for") {
  const Error error = error_of([&] {
    cli::Bench(device, device->problem, nullptr,
               [](const Problem&) -> Plan { fail(ErrorCode::unsupported, "no compiler"); });
  });
  CHECK(error.code() == ErrorCode::unsupported);
  CHECK(std::string(error.what()) == "forward pass, which gives the backward pass O and LSE: no compiler");
}
