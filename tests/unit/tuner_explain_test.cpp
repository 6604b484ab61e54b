#include <doctest/doctest.h>

#include "codegen/space.h"
#include "runtime/keys.h"
#include "tuner/explain.h"
#include "tuner/report.h"
#include "tuner/tuner.h"

namespace attune::tuner {
namespace {

const Problem kProblem{.heads = 8, .heads_kv = 8, .batch = 2, .seqlen_q = 2048, .seqlen_k = 2048};
const char* const kIdentity = "name=X,cc=90,sms=132";
const std::string kBuild(64, 'a');

struct Fixture {
  cache::Store store = cache::Store::memory_only();

  void trial(const std::string& config, const char* regime, double median, double low, double high,
             const char* session = "s") {
    cache::Trial t;
    t.plan_key = runtime::plan_key(kProblem, kIdentity, codegen::emitter_digest());
    t.problem = to_string(kProblem);
    t.device = kIdentity;
    t.environment = "driver=1";
    t.config = codegen::to_string(codegen::parse_config(config));
    t.build_key = kBuild;
    t.regime = regime;
    t.session = session;
    t.samples = {low, median, high};
    t.median = median;
    t.low = low;
    t.high = high;
    t.errors = "{\"o_rel_l2\":0.002}";
    store.append_trial(t);
  }
  void failed(const std::string& config, cache::TrialStatus status, const char* reason) {
    cache::Trial t;
    t.plan_key = runtime::plan_key(kProblem, kIdentity, codegen::emitter_digest());
    t.problem = to_string(kProblem);
    t.device = kIdentity;
    t.config = codegen::to_string(codegen::parse_config(config));
    t.build_key = kBuild;
    t.regime = kBrief;
    t.session = "s";
    t.status = status;
    t.reason = reason;
    store.append_trial(t);
  }
};

TEST_CASE_FIXTURE(Fixture, "explain: winner, runner-up, the rest, the losers") {
  trial("block_n=112", kBurst, 9e-4, 9e-4, 9e-4, "older");
  for (const auto& [config, seconds] : {std::pair{"block_n=128", 1.0e-3}, std::pair{"block_n=144", 1.005e-3},
                                        std::pair{"block_n=96", 1.3e-3}, std::pair{"block_n=80", 1.2e-3}})
    trial(config, kBrief, seconds, seconds * 0.9, seconds * 1.1);
  trial("block_n=128", kBurst, 1.01e-3, 1.0e-3, 1.02e-3);
  trial("block_n=144", kBurst, 1.015e-3, 1.005e-3, 1.03e-3);
  trial("block_n=160,ping_pong=0", kBurst, 1.2e-3, 1.19e-3, 1.21e-3);
  failed("block_n=176", cache::TrialStatus::wrong, "relative L2 error of O: 1 (allowed: up to 0.006)");
  failed("block_n=192", cache::TrialStatus::rejected, "registers spill");
  store.finish_session(runtime::plan_key(kProblem, kIdentity, codegen::emitter_digest()), "s");

  const Explanation e = explain(store, kProblem, Arch{}, kIdentity);
  REQUIRE(e.winner);
  CHECK(codegen::parse_config(e.winner->timing.config).block_n == 128);
  CHECK(e.session == "s");
  CHECK(e.regime == kBurst);
  CHECK(e.finished);
  CHECK(e.winner->slower == 0);
  CHECK(e.winner->differences.empty());
  CHECK(e.winner->timing.median == 1.01e-3);
  CHECK(e.winner->timing.samples == 3);
  CHECK(e.winner->tflops == doctest::Approx(flops(kProblem) / 1.01e-3 * 1e-12));
  CHECK(e.share_of_limit > 0);
  CHECK(e.winner->estimate.total > 0);
  REQUIRE(e.runner_up);
  CHECK(e.runner_up->tied);
  CHECK(e.runner_up->slower == doctest::Approx(0.00495).epsilon(0.01));
  CHECK(e.runner_up->differences == std::vector<std::string>{"block_n=144 (winner 128)"});
  REQUIRE(e.others.size() == 3);
  CHECK(!e.others[0].tied);
  CHECK(e.others[0].differences == std::vector<std::string>{"block_n=160 (winner 128)", "ping_pong=0 (winner 1)"});
  CHECK(e.others[0].slower == doctest::Approx(1.2e-3 / 1.01e-3 - 1));
  CHECK(codegen::parse_config(e.others[1].timing.config).block_n == 80);
  CHECK(e.others[1].slower == doctest::Approx(0.2));  // than the winner was in that round
  CHECK(codegen::parse_config(e.others[2].timing.config).block_n == 96);
  REQUIRE(e.losers.size() == 2);
  CHECK(e.losers[0].status == "rejected");
  CHECK(e.losers[0].cause == "spills");
  CHECK(e.losers[0].differences == std::vector<std::string>{"block_n=192 (winner 128)"});
  CHECK(e.losers[1].reason.find("relative L2") == 0);
  CHECK(e.losers[1].cause == "numerics");
}

TEST_CASE_FIXTURE(Fixture, "explain: what each axis costs") {
  trial("block_n=128,stages=2", kBurst, 1.00e-3, 0.99e-3, 1.01e-3);
  trial("block_n=144,stages=2", kBurst, 1.10e-3, 1.09e-3, 1.11e-3);
  trial("block_n=144,stages=2,ping_pong=0", kBurst, 1.05e-3, 1.04e-3, 1.06e-3);
  trial("block_n=128,stages=3,ping_pong=0", kBurst, 1.20e-3, 1.19e-3, 1.21e-3);
  trial("block_n=96,stages=2", kBurst, 1.02e-3, 1.01e-3, 1.03e-3);
  failed("block_n=192", cache::TrialStatus::rejected, "ptxas serialised the wgmma instructions (C7511)");
  failed("block_n=144,stages=3", cache::TrialStatus::crashed, "illegal address");
  store.finish_session(runtime::plan_key(kProblem, kIdentity, codegen::emitter_digest()), "s");

  const Explanation e = explain(store, kProblem, Arch{}, kIdentity);
  REQUIRE(e.winner);
  REQUIRE(e.axes.size() == 5);
  const auto check = [&](std::size_t i, const char* axis, const char* value, const char* winner, double slower,
                         bool alone, int raced, int lost) {
    CAPTURE(i);
    CHECK(e.axes[i].axis == axis);
    CHECK(e.axes[i].value == value);
    CHECK(e.axes[i].winner == winner);
    REQUIRE(e.axes[i].slower);
    CHECK(*e.axes[i].slower == doctest::Approx(slower));
    CHECK(e.axes[i].alone == alone);
    CHECK(e.axes[i].raced == raced);
    CHECK(e.axes[i].lost == lost);
  };
  check(0, "block_n", "96", "128", 0.02, true, 1, 0);
  check(1, "block_n", "144", "128", 0.05, false, 2, 1);
  CHECK(e.axes[2].value == "192");
  CHECK(!e.axes[2].slower);
  CHECK(e.axes[2].raced == 0);
  CHECK(e.axes[2].lost == 1);
  check(3, "stages", "3", "2", 0.20, false, 1, 1);
  check(4, "ping_pong", "0", "1", 0.05, false, 2, 0);
  CHECK(e.losers[0].cause == "crashed");
  CHECK(e.losers[1].cause == "serialised wgmma");
}

TEST_CASE("explain: the kinds of failure") {
  using cache::TrialStatus;
  CHECK(cause_of(TrialStatus::rejected, "registers spill: 4 bytes of stores, 8 bytes of loads") == "spills");
  CHECK(cause_of(TrialStatus::rejected, "build rejected: registers spill: 4 bytes of stores (...)") == "spills");
  CHECK(cause_of(TrialStatus::rejected, "templates/x.cuh:3: expected a ';'") == "build error");
  CHECK(cause_of(TrialStatus::timeout, "silent for 10 s, killed") == "hung");
  CHECK(cause_of(TrialStatus::crashed, "illegal address") == "crashed");
  CHECK(cause_of(TrialStatus::wrong, "registers spill") == "numerics");
}

TEST_CASE_FIXTURE(Fixture, "explain: nothing was tuned, but something near") {
  trial("block_n=128", kBurst, 1e-3, 1e-3, 1e-3);
  Problem other = kProblem;
  other.seqlen_q = other.seqlen_k = 4096;
  CHECK(!explain(store, other, Arch{}, kIdentity).winner);
  std::vector<NearMiss> near = explain_miss(store, other, kIdentity);
  REQUIRE(near.size() == 1);
  CHECK(near[0].differences ==
        std::vector<std::string>{"seqlen_q: 2048 here, 4096 asked for", "seqlen_k: 2048 here, 4096 asked for"});
  near = explain_miss(store, kProblem, "name=Y,cc=90,sms=132");
  CHECK(near[0].differences == std::vector<std::string>{"name: X here, Y asked for"});
  CHECK(explain_miss(store, kProblem, kIdentity, 0).empty());
}

}  // namespace
}  // namespace attune::tuner
