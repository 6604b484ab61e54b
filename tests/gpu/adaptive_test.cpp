// Plans that follow the scores, on a device.
#include "runtime/forward_plan.h"
#include "tests/gpu/support.h"

namespace attune::gpu {
namespace {

Problem problem() {
  return {
      .head_dim = 128, .head_dim_v = 128, .heads = 8, .heads_kv = 8, .batch = 4, .seqlen_q = 2048, .seqlen_k = 2048};
}

TEST_CASE("adaptive: failures and starts arrive in the host's memory") {
  const Plan pinned = shared_runtime().plan(problem(), {.pinned = true});
  const auto kernel = std::dynamic_pointer_cast<const runtime::ForwardPlan>(pinned.state());
  REQUIRE(kernel);
  runtime::DeviceBuffer counted(*device(), sizeof(unsigned));
  const unsigned none = 0;
  device()->copy_to_device(counted.data(), &none, sizeof none);
  const runtime::SharedObject<runtime::LaunchReport> report(*device());
  Attention plain(problem()), wide(problem(), {.q_scale = 30});
  // The failures of launch `number`; what it tells while it runs are those before it and some of its own.
  unsigned so_far = 0;
  const auto launch = [&](const Attention& attention, std::uint32_t number) {
    kernel->launch(attention.args(),
                   {.failures = static_cast<unsigned*>(counted.data()), .report = report.get(), .launch = number});
    device()->synchronize();
    const unsigned before = so_far;
    device()->copy_to_host(&so_far, counted.data(), sizeof so_far);
    CHECK(report.get()->started == number);
    CHECK(report.get()->failures >= before);
    CHECK(report.get()->failures <= so_far);
    return so_far - before;
  };
  const double limit =
      runtime::failure_limit(problem(), codegen::launch_shape(codegen::parse_kernel_spec(pinned.info().spec)),
                             codegen::parse_config(pinned.info().config).softmax);
  CHECK(launch(plain, 1) < limit / 16);
  const unsigned once = launch(wide, 2);
  CHECK(once > limit);
  CHECK(launch(wide, 3) == once);
  CHECK(launch(plain, 4) < limit / 16);
}

TEST_CASE("adaptive: right on peaked scores before and after the change, and back on ordinary ones") {
  const Plan plan = shared_runtime().plan(problem());
  REQUIRE(!plan.info().peaked_config.empty());
  Attention plain(problem()), wide(problem(), {.q_scale = 30});
  // Each kernel has bits of its own.
  const Plan exact = shared_runtime().plan(peaked_twin(problem()).value());
  exact.launch(wide.args());
  const auto exact_bits = wide.output();
  shared_runtime().plan(problem(), {.pinned = true}).launch(wide.args());
  REQUIRE(wide.output() != exact_bits);
  for (int round = 0; round < 2; ++round) {
    for (int i = 0; i < 100; ++i) {
      plan.launch(wide.args());
      if (i % 10 == 0) device()->synchronize();
      if (i < 12 || i == 99) CHECK(wide.compare({.first = 0, .step = 61}).max_abs < tolerance(problem().dtype).max_abs);
    }
    CHECK(wide.output() == exact_bits);
    for (int i = 0; i < 200; ++i) plan.launch(plain.args());
    device()->synchronize();
    CHECK(plain.compare({.first = 0, .step = 61}).max_abs < tolerance(problem().dtype).max_abs);
  }
}

}  // namespace
}  // namespace attune::gpu
