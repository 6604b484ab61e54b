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
  // The failures of the launches before, as launch `number` tells them when it begins.
  const auto launch = [&](const Attention& attention, std::uint32_t number) {
    kernel->launch(attention.args(),
                   {.failures = static_cast<unsigned*>(counted.data()), .report = report.get(), .launch = number});
    device()->synchronize();
    CHECK(report.get()->started == number);
    return report.get()->failures;
  };
  CHECK(launch(plain, 1) == 0);
  const double limit = runtime::failure_limit(problem(), codegen::parse_config(pinned.info().config).block_n);
  const std::uint32_t few = launch(wide, 2);
  CHECK(few < limit / 16);
  const std::uint32_t once = launch(wide, 3) - few;
  CHECK(once > limit);
  CHECK(launch(plain, 4) == few + 2 * once);
}

TEST_CASE("adaptive: right on peaked scores before and after the change, and back on ordinary ones") {
  const Plan plan = shared_runtime().plan(problem());
  REQUIRE(!plan.info().peaked_config.empty());
  Attention plain(problem()), wide(problem(), {.q_scale = 30});
  for (int round = 0; round < 2; ++round) {
    for (int i = 0; i < 100; ++i) {
      plan.launch(wide.args());
      if (i % 10 == 0) device()->synchronize();
      if (i < 3 || i == 99) CHECK(wide.compare({.first = 0, .step = 61}).max_abs < tolerance(problem().dtype).max_abs);
    }
    for (int i = 0; i < 200; ++i) plan.launch(plain.args());
    device()->synchronize();
    CHECK(plain.compare({.first = 0, .step = 61}).max_abs < tolerance(problem().dtype).max_abs);
  }
}

}  // namespace
}  // namespace attune::gpu
