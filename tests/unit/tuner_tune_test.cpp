#include <doctest/doctest.h>

#include <algorithm>
#include <map>
#include <set>
#include <thread>

#include "base/error.h"
#include "codegen/space.h"
#include "runtime/keys.h"
#include "tests/unit/fake_compiler.h"
#include "tests/unit/fake_measurer.h"
#include "tuner/halving.h"
#include "tuner/kernel_pool.h"
#include "tuner/run.h"

namespace attune::tuner {
namespace {

using cache::TrialStatus;
using codegen::Config;

// Refuses the builds that it is told to, by their source.
class PickyCompiler : public tests::FakeCompiler {
 public:
  std::function<bool(const std::string&)> spills;
  runtime::CompileResult compile(const std::string& source, const std::vector<std::string>& options,
                                 bool want_ptx) const override {
    runtime::CompileResult result = FakeCompiler::compile(source, options, want_ptx);
    if (spills && spills(source)) result.spill_stores = 8;
    return result;
  }
};

struct Fixture {
  tests::FakeGpu gpu;
  std::shared_ptr<PickyCompiler> compiler = std::make_shared<PickyCompiler>();
  cache::Store store = cache::Store::memory_only();
  std::stop_source stop;
  // Head dim 256 has the smallest space, which is gone through in each of these tests.
  Problem problem{.head_dim = 256,
                  .head_dim_v = 256,
                  .heads = 32,
                  .heads_kv = 8,
                  .causal = true,
                  .batch = 4,
                  .seqlen_q = 4096,
                  .seqlen_k = 4096};
  std::vector<Progress> progress;
  Request request{.store = store, .problems = {problem}, .max_candidates = 12, .min_raced = 0, .compile_threads = 2};

  Fixture() {
    request.compiler = [this] { return compiler; };
  }
  Report tune() {
    request.problems = request.problems.size() == 1 ? std::vector<Problem>{problem} : request.problems;
    Hooks hooks;
    hooks.progress = [this](const Progress& p) { progress.push_back(p); };
    hooks.stop = stop.get_token();
    return tune_with(request, hooks, [this](const std::string& device) {
      return std::make_unique<tests::FakeMeasurer>(gpu, device, stop.get_token());
    });
  }
  std::string plan_key(const Problem& p) const {
    return runtime::plan_key(p, runtime::identity_text(gpu.properties), codegen::emitter_digest());
  }
  std::vector<cache::Trial> trials() { return store.trials(plan_key(problem)); }
};

TEST_CASE_FIXTURE(Fixture, "the fastest wins, and the store serves it") {
  gpu.seconds = [](const Problem&, const Config& c) { return c.block_n == 64 && c.ping_pong ? 1e-3 : 1.2e-3; };
  const Report report = tune();
  REQUIRE(report.problems.size() == 1);
  const ProblemReport& p = report.problems[0];
  CHECK(p.outcome == Outcome::tuned);
  REQUIRE(p.winner);
  const Config won = codegen::parse_config(p.winner->config);
  CHECK(won.block_n == 64);
  CHECK(won.ping_pong);
  CHECK(p.winner->median == doctest::Approx(1e-3).epsilon(0.01));
  CHECK(p.winner->samples >= 15);
  CHECK(p.winner->low <= p.winner->median);
  CHECK(p.winner->median <= p.winner->high);
  CHECK(p.tflops == doctest::Approx(flops(problem) / p.winner->median * 1e-12));
  CHECK(p.share_of_limit > 0);
  REQUIRE(p.heuristic);
  CHECK(p.over_heuristic == doctest::Approx(p.heuristic->median / p.winner->median));
  CHECK(p.counts.selected >= 12);
  CHECK(p.counts.built == p.counts.selected);
  CHECK(p.counts.raced == p.counts.built);
  CHECK(p.counts.finalists <= 10);
  CHECK(p.conditions.sm_mhz == 1755);
  CHECK(p.conditions.throttle == std::vector<std::string>{"power cap"});
  CHECK(report.kernels == p.counts.selected);
  CHECK(report.complete() == 1);

  const auto winner = store.winner(plan_key(problem));
  REQUIRE(winner);
  CHECK(winner->config == p.winner->config);
  CHECK(winner->session_finished);
  CHECK(winner->regime == kBurst);
  CHECK(winner->environment.find("driver=580.1,cuda=13000,nvrtc=13.0.0,emitter=") == 0);
  CHECK(winner->errors.find("\"gate\"") != std::string::npos);
  CHECK(winner->errors.find("\"conditions\"") != std::string::npos);
  CHECK(store.find_kernel(winner->build_key));
  // Everybody was timed briefly, few in the finals.
  std::size_t brief = 0, burst = 0;
  for (const cache::Trial& trial : trials()) (trial.regime == kBrief ? brief : burst) += 1;
  CHECK(brief >= 12);
  CHECK(burst == static_cast<std::size_t>(p.counts.finalists));
  for (const tuner::RaceOptions& o : gpu.options) CHECK(o.run_seconds == 0);
  CHECK(gpu.options.back().turns * gpu.options.back().launches >= 15);
  CHECK(gpu.options.back().rest_seconds > 0);
  CHECK(progress.back().phase == Phase::done);
}

TEST_CASE_FIXTURE(Fixture, "of equals the first by text wins, and the ties are kept") {
  gpu.seconds = [](const Problem&, const Config&) { return 1e-3; };
  const Report report = tune();
  const ProblemReport& p = report.problems[0];
  REQUIRE(p.winner);
  CHECK(!p.ties.empty());
  for (const Timing& t : p.ties) CHECK(p.winner->config < t.config);
}

TEST_CASE_FIXTURE(Fixture, "what spills, is wrong, hangs or crashes never wins and is on record") {
  compiler->spills = [](const std::string& source) { return source.find("softmax=first_max") != std::string::npos; };
  gpu.gate = [](const Config& c) { return c.block_n == 64 ? TrialStatus::wrong : TrialStatus::ok; };
  gpu.check = [](const Config& c) { return c.block_n == 80 ? TrialStatus::timeout : TrialStatus::ok; };
  gpu.race = [](const Config& c) { return c.ping_pong ? TrialStatus::crashed : TrialStatus::ok; };
  request.max_candidates = 400;
  const Report report = tune();
  const ProblemReport& p = report.problems[0];
  REQUIRE(p.winner);
  CHECK(p.counts.wrong > 0);
  CHECK(p.counts.timeout > 0);
  CHECK(p.counts.crashed > 0);
  const Config won = codegen::parse_config(p.winner->config);
  CHECK(won.block_n == 48);
  CHECK(!won.ping_pong);
  int bad = 0;
  for (const cache::Trial& t : trials()) {
    if (t.status == TrialStatus::ok) continue;
    ++bad;
    CHECK(!t.reason.empty());
  }
  CHECK(bad == p.counts.rejected + p.counts.wrong + p.counts.timeout + p.counts.crashed);
  CHECK(store.list_quarantine().size() == static_cast<std::size_t>(p.counts.timeout + p.counts.crashed));

  // In the same environment a quarantined build is not run again, not even for another length.
  Problem other = problem;
  other.seqlen_q = other.seqlen_k = 2048;
  problem = other;
  gpu.check = {};
  gpu.race = {};
  const Report second = tune();
  CHECK(second.problems[0].counts.quarantined > 0);
  CHECK(second.problems[0].counts.timeout == 0);
}

TEST_CASE_FIXTURE(Fixture, "what is known is not measured again, unless that is asked for") {
  tune();
  const int races = gpu.races;
  const Report again = tune();
  CHECK(again.problems[0].outcome == Outcome::known);
  CHECK(again.complete() == 1);
  REQUIRE(again.problems[0].winner);
  CHECK(again.problems[0].tflops > 0);
  CHECK(gpu.races == races);
  request.force = true;
  CHECK(tune().problems[0].outcome == Outcome::kept);
  CHECK(gpu.races > races);
}

TEST_CASE_FIXTURE(Fixture, "the incumbent stays unless it is clearly beaten") {
  // Ties by nature: any of its few finalists may win the first run.
  gpu.seconds = [](const Problem&, const Config& c) { return c.block_n == 64 ? 1e-3 : 1.001e-3; };
  gpu.noise = 1e-5;
  const std::string first = tune().problems[0].winner->config;
  request.force = true;
  SUBCASE("a tie within the noise") {
    gpu.noise = 0.01;
    gpu.seconds = [&](const Problem&, const Config& c) { return codegen::to_string(c) == first ? 1.002e-3 : 1e-3; };
    const ProblemReport p = tune().problems[0];
    CHECK(p.outcome == Outcome::kept);
    CHECK(p.winner->config == first);
    CHECK(store.winner(plan_key(problem))->config == first);
    CHECK(store.winner(plan_key(problem))->session == p.session);
  }
  SUBCASE("clearly beaten") {
    gpu.seconds = [&](const Problem&, const Config& c) { return codegen::to_string(c) == first ? 1.1e-3 : 1e-3; };
    const ProblemReport p = tune().problems[0];
    CHECK(p.outcome == Outcome::tuned);
    CHECK(p.winner->config != first);
    CHECK(store.winner(plan_key(problem))->config == p.winner->config);
  }
}

TEST_CASE_FIXTURE(Fixture, "after a change of driver the top few are raced again") {
  request.max_candidates = 40;
  const Report before = tune();
  gpu.limits.driver = "590.2";
  gpu.raced.clear();
  const Report after = tune();
  CHECK(after.problems[0].outcome == Outcome::kept);
  CHECK(after.problems[0].session != before.problems[0].session);
  CHECK(after.problems[0].counts.selected <= 17);
  CHECK(store.winner(plan_key(problem))->environment.find("driver=590.2") == 0);
}

TEST_CASE_FIXTURE(Fixture, "more are selected while too few pass the compiler") {
  compiler->spills = [](const std::string& source) { return source.find("remember=0") != std::string::npos; };
  request.max_candidates = 20;
  request.min_raced = 15;
  const Report report = tune();
  CHECK(report.problems[0].counts.rejected > 0);
  CHECK(report.problems[0].counts.selected > 21);
  CHECK(report.problems[0].counts.raced >= 15);
  // The cache remembers the refusals: nothing is compiled twice.
  const int compiles = compiler->compiles;
  request.force = true;
  tune();
  CHECK(compiler->compiles.load() <= compiles + 2);  // helpers and perhaps the reference
}

TEST_CASE_FIXTURE(Fixture, "what the compiler rejects is tried in other code, once") {
  compiler->spills = [](const std::string& source) { return source.find("follow_closely();") == std::string::npos; };
  const Report report = tune();
  const ProblemReport& p = report.problems[0];
  CHECK(p.outcome == Outcome::tuned);
  REQUIRE(p.winner);
  CHECK(codegen::parse_config(p.winner->config).dependent_launch);
  CHECK(p.counts.raced == p.counts.rejected);
  compiler->spills = [](const std::string&) { return true; };
  request.force = true;
  problem.dtype = DType::fp16;
  const ProblemReport none = tune().problems[0];
  CHECK(!none.winner);
  CHECK(none.counts.rejected == none.counts.selected);
}

TEST_CASE_FIXTURE(Fixture, "problems share kernels") {
  request.max_candidates = 20;
  request.problems.clear();
  for (std::int64_t length = 512; length <= 16384; length *= 2) {
    Problem p = problem;
    p.batch = 16384 / length;
    p.seqlen_q = p.seqlen_k = length;
    request.problems.push_back(p);
  }
  request.problems.push_back(request.problems.front());  // twice is once
  const Report report = tune();
  REQUIRE(report.problems.size() == 6);
  CHECK(report.complete() == 6);
  for (std::size_t i = 0; i < 6; ++i) CHECK(report.problems[i].problem == request.problems[i]);
  CHECK(report.kernels < 3 * 20);
  CHECK(gpu.gates == report.kernels);  // once a kernel
}

TEST_CASE_FIXTURE(Fixture, "a peaked twin comes last, among fewer candidates, all of them exact") {
  const Problem twin = peaked_twin(problem).value();
  request.problems = {twin, problem};
  const Report report = tune();
  REQUIRE(report.problems.size() == 2);
  const ProblemReport &of_twin = report.problems[0], &of_any = report.problems[1];
  CHECK(of_twin.problem == twin);
  REQUIRE(of_twin.winner);
  CHECK(codegen::parse_config(of_twin.winner->config).softmax == codegen::Softmax::exact);
  // Whatever the table adds to both.
  CHECK(of_twin.counts.selected < of_any.counts.selected);
  const auto first = [&](const Problem& p) {
    return std::ranges::find_if(progress,
                                [&](const Progress& x) { return x.problem == p && x.phase == Phase::racing; });
  };
  CHECK(first(problem) < first(twin));
  // Alone it is a problem like any other.
  request.problems = {twin};
  problem = twin;
  request.force = true;
  CHECK(tune().problems[0].counts.selected >= request.max_candidates);
}

TEST_CASE_FIXTURE(Fixture, "a stop leaves a usable cache, and the next run goes on") {
  int races = 0;
  gpu.on_call = [&](const std::string& what) {
    if (what == "race" && ++races == 2) stop.request_stop();
  };
  const Report cut = tune();
  CHECK(cut.interrupted);
  CHECK(cut.problems[0].outcome == Outcome::partial);
  REQUIRE(cut.problems[0].winner);
  const auto winner = store.winner(plan_key(problem));
  REQUIRE(winner);
  CHECK(!winner->session_finished);
  CHECK(winner->regime == kBrief);

  stop = {};
  gpu.on_call = {};
  const int checks = gpu.checks;
  const Report report = tune();
  const ProblemReport& p = report.problems[0];
  CHECK(p.outcome == Outcome::tuned);
  CHECK(p.session == cut.problems[0].session);
  CHECK(p.counts.resumed == p.counts.raced);
  CHECK(gpu.checks == checks);
  CHECK(report.compiled == 0);
  CHECK(store.winner(plan_key(problem))->regime == kBurst);
}

TEST_CASE_FIXTURE(Fixture, "a stop while compiling ends soon") {
  compiler->takes = std::chrono::milliseconds(30);
  gpu.on_call = [&](const std::string&) { stop.request_stop(); };
  request.max_candidates = 100;
  const Report report = tune();
  CHECK(report.interrupted);
  CHECK(report.problems[0].outcome == Outcome::failed);
  CHECK(report.seconds < 2);
  CHECK(compiler->compiles < 20);
}

TEST_CASE_FIXTURE(Fixture, "the budget ends the compiling and the race") {
  compiler->takes = std::chrono::milliseconds(20);
  request.max_candidates = 100;
  request.seconds = 0.6;
  const Report report = tune();
  const ProblemReport& p = report.problems[0];
  CHECK(p.counts.unbuilt > 0);
  CHECK(p.winner);
  CHECK(report.seconds < 3);
}

TEST_CASE_FIXTURE(Fixture, "where compiling is slow every problem still has a winner, the best guess at least") {
  compiler->takes = std::chrono::milliseconds(20);
  request.max_candidates = 100;
  request.seconds = 1.5;
  request.problems.clear();
  // Six that share no kernels.
  for (const int head_dim : {64, 96, 128})
    for (const bool causal : {false, true}) {
      Problem p = problem;
      p.head_dim = p.head_dim_v = head_dim;
      p.causal = causal;
      request.problems.push_back(p);
    }
  const Report report = tune();
  for (const ProblemReport& p : report.problems) {
    CAPTURE(to_string(p.problem));
    CHECK(p.winner);
    CHECK(p.heuristic);
    CHECK(p.counts.unbuilt > 0);
  }
  CHECK(report.seconds < 4);
}

TEST_CASE_FIXTURE(Fixture, "a problem that its share of the time cut short comes again in what the others left") {
  const double launch = 0.5;
  gpu.seconds = [=](const Problem&, const Config& c) { return c.block_n == 64 ? launch : 1.1 * launch; };
  RaceOptions least = options_for(Round::finals, 1.1 * launch);
  least.turns = kFewestFinalTurns;
  least.rest_seconds = 0;
  const double needed = expected_seconds(least, 4, 1.1 * launch);  // far more than this takes, as measuring is invented
  request.problems.clear();
  for (const int head_dim : {64, 96, 128}) {
    Problem p = problem;
    p.head_dim = p.head_dim_v = head_dim;
    request.problems.push_back(p);
  }
  SUBCASE("enough for one") {
    request.seconds = 1.3 * needed;
    const Report report = tune();
    for (const ProblemReport& p : report.problems) {
      CAPTURE(to_string(p.problem));
      CHECK(p.outcome == Outcome::tuned);
      CHECK(p.message.empty());
      CHECK(store.winner(plan_key(p.problem))->session_finished);
      CHECK(p.counts.raced <= p.counts.selected);
      std::set<std::string> named{p.winner->config};
      for (const Timing& t : p.ties) CHECK(named.insert(t.config).second);
    }
  }
  SUBCASE("not enough for any") {
    request.seconds = 0.3 * needed;
    const Report report = tune();
    for (const ProblemReport& p : report.problems) CHECK(p.outcome == Outcome::partial);
    CHECK(report.problems[0].message == "the budget ended before the finals");
  }
}

TEST_CASE_FIXTURE(Fixture, "a kernel that waits is given up once nobody wants it") {
  runtime::Builder builder(store, [this] { return compiler; });
  KernelPool pool(builder, /*threads=*/0);
  const codegen::KernelSpec spec = codegen::specialise(parse_arch("sm_90a"), problem, Config{.block_n = 64});
  KernelPool::Kernel* const kernel = pool.add(spec);
  REQUIRE(pool.add(spec) == kernel);
  pool.give_up(kernel);
  CHECK(kernel->state == KernelPool::State::waiting);
  pool.give_up(kernel);
  CHECK(kernel->state == KernelPool::State::dropped);
}

TEST_CASE_FIXTURE(Fixture, "sustained: the finalists run again, and that regime is served") {
  request.sustained = true;
  const Report report = tune();
  CHECK(report.problems[0].outcome == Outcome::tuned);
  REQUIRE(report.problems[0].sustained);
  CHECK(gpu.options.back().run_seconds >= 0.05);  // what it takes to settle
  CHECK(store.winner(plan_key(problem))->regime == kSustained);
  const int races = gpu.races;
  CHECK(tune().problems[0].outcome == Outcome::known);
  CHECK(gpu.races == races);
}

TEST_CASE_FIXTURE(Fixture, "sustained: a kind of tile that is behind in bursts is still there under load") {
  gpu.seconds = [this](const Problem&, const Config& c) {
    const bool loaded = !gpu.options.empty() && gpu.options.back().run_seconds > 0;
    if (c.block_n != 64) return 1.1e-3;
    return c.cluster == 1 ? 1e-3 : loaded ? 0.95e-3 : 1.04e-3;
  };
  problem.seqlen_q = problem.seqlen_k = 2048;  // whose row of the built-in table, which is always there, has no cluster
  request.max_candidates = 60;
  CHECK(codegen::parse_config(tune().problems[0].winner->config).cluster == 1);
  request.force = request.sustained = true;
  const ProblemReport loaded = tune().problems[0];
  REQUIRE(loaded.sustained);
  REQUIRE(loaded.winner);
  CHECK(codegen::parse_config(store.winner(plan_key(problem))->config).cluster == 2);
  CHECK(loaded.winner->config == store.winner(plan_key(problem))->config);  // what is reported is what is served
}

TEST_CASE_FIXTURE(Fixture, "sustained: what is too slow for the finals of bursts can win under load") {
  const Config guess = codegen::default_config(runtime::arch_of(gpu.properties), problem);
  const auto other = [&](const Config& c) { return c.softmax != guess.softmax; };
  gpu.seconds = [&](const Problem&, const Config& c) {
    const bool loaded = !gpu.options.empty() && gpu.options.back().run_seconds > 0;
    return !other(c) ? 1e-3 : loaded ? 0.9e-3 : 1.05e-3;
  };
  request.max_candidates = 24;  // all of them are left after the first round
  CHECK_FALSE(other(codegen::parse_config(tune().problems[0].winner->config)));
  request.force = request.sustained = true;
  CHECK(other(codegen::parse_config(tune().problems[0].winner->config)));
  std::vector<int> turns;  // of the rounds under load
  for (const tuner::RaceOptions& o : gpu.options)
    if (o.run_seconds > 0) turns.push_back(o.turns);
  CHECK(turns == std::vector<int>{3, 12});
}

TEST_CASE_FIXTURE(Fixture, "sustained: each regime has its own incumbent, which a tie does not unseat") {
  gpu.seconds = [](const Problem&, const Config& c) { return c.block_n == 64 ? 1e-3 : 1.2e-3; };
  const std::string burst = tune().problems[0].winner->config;
  // The slow one is behind by median, while every third reading of the others is worse than all of its own: a tie. They
  // take turns with that, so that it is not taken for a drift of the clock.
  std::string slow = burst;
  std::map<std::string, std::size_t> readings;
  gpu.seconds = [&](const Problem&, const Config& c) {
    const std::string text = codegen::to_string(c);
    if (text == slow) return 1.0005e-3;
    return readings.try_emplace(text, readings.size()).first->second++ % 3 == 0 ? 1.0015e-3 : 1e-3;
  };
  request.sustained = request.force = true;
  tune();
  const std::string loaded = slow = store.winner(plan_key(problem), kSustained)->config;
  CHECK(loaded != burst);
  CHECK(store.winner(plan_key(problem), kBurst)->config == burst);
  CHECK(store.winner(plan_key(problem))->config == loaded);
  readings.clear();
  const ProblemReport p = tune().problems[0];
  CHECK(store.winner(plan_key(problem), kSustained)->config == loaded);
  CHECK(store.winner(plan_key(problem), kSustained)->session == p.session);
  CHECK(p.outcome == Outcome::kept);
}

TEST_CASE_FIXTURE(Fixture, "explicit configs are raced as they are, beside the default") {
  const std::vector<Config> all = codegen::candidates(runtime::arch_of(gpu.properties), problem);
  const std::string config = codegen::to_string(all.back());
  request.configs = {config};
  const Report report = tune();
  CHECK(report.problems[0].counts.selected == 2);
  CHECK(std::count(gpu.raced.begin(), gpu.raced.end(), config) > 0);
  request.configs = {"block_n=7"};
  CHECK_THROWS_AS(tune(), Error);
}

TEST_CASE_FIXTURE(Fixture, "a hardware fault stops that device and stores nothing") {
  gpu.failing_devices = {"0"};
  CHECK_THROWS_AS(tune(), HardwareFailure);
  CHECK(trials().empty());
  // Another device takes the work over.
  request.devices = {"0", "1"};
  const Report report = tune();
  CHECK(report.problems[0].outcome == Outcome::tuned);
}

TEST_CASE_FIXTURE(Fixture, "shards cover all problems, each once") {
  request.problems.clear();
  for (int heads : {8, 16, 24, 32, 40}) {
    Problem p = problem;
    p.heads = heads;
    request.problems.push_back(p);
  }
  request.max_candidates = 2;
  std::vector<int> heads;
  for (int index = 0; index < 2; ++index) {
    request.shard = {index, 2};
    for (const ProblemReport& p : tune().problems) heads.push_back(p.problem.heads);
  }
  CHECK(heads == std::vector<int>{8, 24, 40, 16, 32});
}

TEST_CASE_FIXTURE(Fixture, "bad requests are refused by name") {
  const auto refusal = [&](const std::function<void(Request&)>& spoil) -> std::string {
    Request bad = request;
    spoil(bad);
    try {
      tune_with(bad, {},
                [&](const std::string& d) { return std::make_unique<tests::FakeMeasurer>(gpu, d, std::stop_token()); });
    } catch (const Error& error) {
      CHECK(error.code() == ErrorCode::invalid_argument);
      return error.what();
    }
    return "accepted";
  };
  CHECK(refusal([](Request& r) { r.problems.clear(); }) == "problems: none (allowed: 1 and more)");
  CHECK(refusal([](Request& r) { r.seconds = 0; }) == "seconds: 0 (allowed: above 0)");
  CHECK(refusal([](Request& r) { r.max_candidates = 0; }) == "max_candidates: 0 (allowed: 1 and more)");
  CHECK(refusal([](Request& r) { r.shard = {2, 2}; }) == "shard: 2/2 (allowed: 0 <= index < count)");
  CHECK(refusal([](Request& r) { r.problems[0].head_dim = 129; }).find("head_dim") == 0);
}

TEST_CASE_FIXTURE(Fixture, "without NVRTC nothing is started") {
  request.compiler = []() -> std::shared_ptr<const runtime::Compiler> { fail(ErrorCode::unsupported, "no NVRTC"); };
  CHECK_THROWS_AS(tune(), Error);
  CHECK(gpu.opened == 0);
}

}  // namespace
}  // namespace attune::tuner
