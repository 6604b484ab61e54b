#include <doctest/doctest.h>

#include <atomic>
#include <functional>
#include <thread>

#include <attune/attune.h>

#include "base/sha256.h"
#include "cache/store.h"
#include "codegen/space.h"
#include "runtime/keys.h"
#include "runtime/pack.h"
#include "runtime/runtime_state.h"
#include "runtime/tune_hook.h"
#include "tests/nvrtc.h"
#include "tests/unit/fake_compiler.h"
#include "tests/unit/temporary_folder.h"

namespace attune::runtime {
namespace {

const Problem kProblem{
    .head_dim = 128, .head_dim_v = 128, .heads = 4, .heads_kv = 4, .batch = 1, .seqlen_q = 1024, .seqlen_k = 1024};

struct Fixture {
  tests::TemporaryFolder folder;
  std::shared_ptr<tests::FakeDevice> device = std::make_shared<tests::FakeDevice>();
  std::shared_ptr<tests::FakeCompiler> compiler = std::make_shared<tests::FakeCompiler>();
  std::vector<std::string> warnings;

  ~Fixture() { register_tune_hook(nullptr); }

  RuntimeOptions options() {
    return {.cache_directory = folder.string(),
            .on_warning = [this](const std::string& text) { warnings.push_back(text); }};
  }
  std::unique_ptr<RuntimeState> state(RuntimeOptions o) {
    return std::make_unique<RuntimeState>(std::move(o), device,
                                          [this] { return std::shared_ptr<const Compiler>(compiler); });
  }
  std::unique_ptr<RuntimeState> state() { return state(options()); }

  cache::Store store() const {
    cache::Options o;
    o.directory = folder.string();
    return cache::Store::open(o);
  }
  std::string key(const Problem& problem = kProblem) const {
    return plan_key(problem, identity_text(device->properties()), codegen::emitter_digest());
  }
  // What a tuner leaves behind.
  static void win(cache::Store store, const std::string& key, const codegen::Config& config,
                  const std::string& build_key) {
    cache::Trial trial;
    trial.plan_key = key;
    trial.problem = to_string(kProblem);
    trial.config = codegen::to_string(config);
    trial.build_key = build_key;
    trial.device = "device";
    trial.regime = "burst";
    trial.session = "session";
    trial.samples = {1e-4};
    trial.median = trial.low = trial.high = 1e-4;
    trial.errors = R"({"o":0.001})";
    store.append_trial(trial);
    store.finish_session(key, "session");
  }
  std::string build(const codegen::Config& config) {
    return Builder(store(), [this] { return std::shared_ptr<const Compiler>(compiler); })
        .build(codegen::specialise(arch_of(device->properties()), kProblem, config))
        .key;
  }
};

std::string refusal(ErrorCode code, const std::function<void()>& body) {
  try {
    body();
  } catch (const Error& error) {
    CHECK(error.code() == code);
    return error.what();
  }
  return "accepted";
}

struct FakeTuner : TuneHook {
  std::function<void(const TuneRequest&, std::stop_token)> body;
  std::atomic<int> calls{0};
  void tune(const TuneRequest& request, std::stop_token stop) override {
    ++calls;
    body(request, std::move(stop));
  }
};

codegen::Config some_config() { return {.block_n = 64, .workers = 100}; }

TEST_CASE_FIXTURE(Fixture, "plan: the heuristic serves a miss, which is noted and told once") {
  const auto runtime = state();
  const Plan plan = runtime->plan(kProblem, {});
  CHECK(plan.info().origin == Origin::heuristic);
  CHECK(plan.info().config == codegen::to_string(codegen::default_config(arch_of(device->properties()), kProblem)));
  CHECK(plan.info().problem == to_string(kProblem));
  CHECK(!plan.info().expected_seconds);
  CHECK(warnings.size() == 1);
  REQUIRE(store().list_misses().size() == 1);
  CHECK(store().list_misses()[0].plan_key == key());
}

TEST_CASE_FIXTURE(Fixture, "plan: the second call comes from memory") {
  const auto runtime = state();
  runtime->plan(kProblem, {.pinned = true});
  runtime->plan(kProblem, {.pinned = true});
  CHECK(device->loads == 1);
  CHECK(compiler->compiles == 1);
}

TEST_CASE_FIXTURE(Fixture,
                  "plan: one whose kernel speculates has a second one for peaked scores, unless it is pinned") {
  const auto runtime = state();
  Problem peaked = kProblem;
  peaked.scores = ScoreKind::peaked;
  const Plan plan = runtime->plan(kProblem, {});
  const Arch arch = arch_of(device->properties());
  CHECK(codegen::parse_config(plan.info().config).softmax != codegen::Softmax::exact);
  CHECK(plan.info().peaked_config == codegen::to_string(codegen::default_config(arch, peaked)));
  CHECK(codegen::parse_config(plan.info().peaked_config).softmax == codegen::Softmax::exact);
  CHECK(device->loads == 2);
  CHECK(warnings.size() == 1);  // of the guess, not of its twin
  CHECK(runtime->plan(kProblem, {.pinned = true}).info().peaked_config.empty());
  CHECK(runtime->plan(peaked, {}).info().peaked_config.empty());
  CHECK(runtime->plan(kProblem, {.config = plan.info().config}).info().peaked_config.empty());
}

TEST_CASE_FIXTURE(Fixture, "plan: the second kernel is the winner for peaked scores, where there is one") {
  Problem peaked = kProblem;
  peaked.scores = ScoreKind::peaked;
  const codegen::Config speculative{.block_n = 64, .softmax = codegen::Softmax::zero, .order = codegen::Order::pv_qk};
  win(store(), key(), speculative, build(speculative));
  RuntimeOptions o = options();
  o.allow_compiler = false;
  // Beside a winner only what is there already will do, and nothing is compiled.
  const int compiled = compiler->compiles;
  CHECK(state(o)->plan(kProblem, {}).info().peaked_config.empty());
  CHECK(state()->plan(kProblem, {}).info().peaked_config.empty());
  CHECK(compiler->compiles == compiled);
  CHECK(warnings.empty());
  win(store(), key(peaked), some_config(), build(some_config()));
  CHECK(state(o)->plan(kProblem, {.on_miss = MissPolicy::fail}).info().peaked_config ==
        codegen::to_string(some_config()));
  CHECK(state(o)->plan(kProblem, {.on_miss = MissPolicy::fail, .pinned = true}).info().peaked_config.empty());
}

TEST_CASE_FIXTURE(Fixture, "plan: a launch that is captured or refused is no trial") {
  const Plan plan = state()->plan(kProblem, {});
  ForwardArgs args{.q = reinterpret_cast<void*>(0x1000),
                   .k = reinterpret_cast<void*>(0x2000),
                   .v = reinterpret_cast<void*>(0x3000),
                   .o = reinterpret_cast<void*>(0x4000)};
  const auto launch = [&] {
    plan.launch(args);
    return device->launches.back().function;
  };
  const void* const speculative = launch();
  const auto report = reinterpret_cast<unsigned*>(device->launches.back().params.report);
  report[0] = 1u << 30;
  report[1] = 1;
  const void* const exact = launch();
  CHECK(exact != speculative);
  for (int i = 0; i < 63; ++i) CHECK(launch() == exact);
  // Its turn has come.
  args.stream = reinterpret_cast<CUstream_st*>(0x1230);
  device->captured.insert(args.stream);
  for (int i = 0; i < 3; ++i) CHECK(launch() == exact);
  device->captured.clear();
  args.scale = -1;
  CHECK_THROWS_AS(plan.launch(args), Error);
  args.scale = 0;
  CHECK(launch() == speculative);
  CHECK(launch() == exact);  // until it has told
}

TEST_CASE_FIXTURE(Fixture, "plan: launches take the exact kernel while speculation fails, and come back") {
  const Plan plan = state()->plan(kProblem, {});
  const int exact_n = codegen::parse_config(plan.info().peaked_config).block_n;
  // Which kernel it was shows in the boxes of K, or else in the grid.
  const auto launch = [&] {
    plan.launch({.q = reinterpret_cast<void*>(0x1000),
                 .k = reinterpret_cast<void*>(0x2000),
                 .v = reinterpret_cast<void*>(0x3000),
                 .o = reinterpret_cast<void*>(0x4000)});
    return device->launches.back();
  };
  const tests::RecordedLaunch first = launch();
  REQUIRE(first.params.report != nullptr);
  CHECK(first.params.launch == 1);
  REQUIRE(first.params.failures != nullptr);
  const auto report = reinterpret_cast<unsigned*>(first.params.report);
  const void* const speculative = first.function;
  const std::uint64_t blocks = 4 * (1024 / 16) * (1024 / codegen::parse_config(plan.info().config).block_n);
  report[1] = 1;
  report[0] = static_cast<unsigned>(blocks / 8);
  CHECK(launch().function == speculative);  // an eighth
  report[1] = 2;
  report[0] += static_cast<unsigned>(blocks / 2);
  const tests::RecordedLaunch exact = launch();
  CHECK(exact.function != speculative);
  CHECK(tests::fake_map(exact.maps[1]).box_rows == static_cast<std::uint64_t>(exact_n));
  CHECK(exact.params.report == first.params.report);
  CHECK(exact.params.failures == first.params.failures);
  CHECK(exact.params.launch == 3);
  for (int i = 0; i < 63; ++i) CHECK(launch().function != speculative);
  CHECK(launch().function == speculative);  // the trial
  report[1] = 68;
  CHECK(launch().function == speculative);  // nothing failed
}

TEST_CASE_FIXTURE(Fixture, "plan: a winner in the cache needs no compiler") {
  win(store(), key(), some_config(), build(some_config()));
  RuntimeOptions o = options();
  o.allow_compiler = false;
  const Plan plan = state(o)->plan(kProblem, {.on_miss = MissPolicy::fail});
  CHECK(plan.info().origin == Origin::cache);
  CHECK(plan.info().config == codegen::to_string(some_config()));
  CHECK(plan.info().blocks == 32);
  CHECK(plan.info().expected_seconds == 1e-4);
  CHECK(plan.info().errors == R"({"o":0.001})");
  CHECK(compiler->compiles == 1);  // the one of build()
  CHECK(warnings.empty());
}

TEST_CASE_FIXTURE(Fixture, "plan: a winner whose code is gone is compiled again") {
  win(store(), key(), some_config(), std::string(64, 'a'));
  const Plan plan = state()->plan(kProblem, {});
  CHECK(plan.info().origin == Origin::cache);
  CHECK(compiler->compiles == 1);
}

TEST_CASE_FIXTURE(Fixture, "plan: a winner of another problem's shape is skipped with a warning") {
  Problem other = kProblem;
  other.seqlen_k = 1000;
  win(store(), key(other), some_config(), build(some_config()));
  CHECK(state()->plan(other, {}).info().origin == Origin::heuristic);
  CHECK(warnings.size() == 2);
}

TEST_CASE_FIXTURE(Fixture, "plan: policy fail") {
  const std::string words =
      refusal(ErrorCode::not_prepared, [&] { state()->plan(kProblem, {.on_miss = MissPolicy::fail}); });
  CHECK(words.find("head_dim=128") != std::string::npos);
  CHECK(compiler->compiles == 0);
}

TEST_CASE_FIXTURE(Fixture, "plan: policy tune without a tuner, and with one") {
  const auto runtime = state();
  CHECK(refusal(ErrorCode::unsupported, [&] {
          runtime->plan(kProblem, {.on_miss = MissPolicy::tune});
        }).starts_with("on_miss: this process has no tuner"));
  runtime->plan(kProblem, {});

  const auto tuner = std::make_shared<FakeTuner>();
  tuner->body = [&](const TuneRequest& request, std::stop_token) {
    CHECK(request.seconds == 5);
    CHECK(request.problem == kProblem);
    win(request.store, key(), some_config(), build(some_config()));
  };
  register_tune_hook(tuner);
  // A guess in memory does not do where tuning is asked for.
  const Plan plan = runtime->plan(kProblem, {.on_miss = MissPolicy::tune, .tune_seconds = 5});
  CHECK(plan.info().origin == Origin::tuned);
  runtime->plan(kProblem, {.on_miss = MissPolicy::tune, .tune_seconds = 5});
  CHECK(tuner->calls == 1);
}

TEST_CASE_FIXTURE(Fixture, "plan: policy background serves a guess, later the winner") {
  const auto tuner = std::make_shared<FakeTuner>();
  tuner->body = [&](const TuneRequest& request, std::stop_token) {
    win(request.store, key(), some_config(), build(some_config()));
  };
  register_tune_hook(tuner);
  const auto runtime = state();
  const PlanOptions background{.on_miss = MissPolicy::background};
  CHECK(runtime->plan(kProblem, background).info().origin == Origin::heuristic);
  Origin origin = Origin::heuristic;
  for (int i = 0; i < 500 && origin == Origin::heuristic; ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
    origin = runtime->plan(kProblem, background).info().origin;
  }
  CHECK(origin == Origin::tuned);
  CHECK(tuner->calls == 1);
}

TEST_CASE_FIXTURE(Fixture, "plan: destroying the runtime stops tuning in the background") {
  const auto tuner = std::make_shared<FakeTuner>();
  std::atomic<bool> stopped = false, started = false;
  tuner->body = [&](const TuneRequest&, std::stop_token stop) {
    started = true;
    while (!stop.stop_requested()) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    stopped = true;
    fail(ErrorCode::interrupted, "stopped");
  };
  register_tune_hook(tuner);
  auto runtime = state();
  const Plan plan = runtime->plan(kProblem, {.on_miss = MissPolicy::background});
  while (!started) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  runtime.reset();
  CHECK(stopped);
  // The plan outlives it.
  plan.launch({.q = reinterpret_cast<void*>(0x1000),
               .k = reinterpret_cast<void*>(0x2000),
               .v = reinterpret_cast<void*>(0x3000),
               .o = reinterpret_cast<void*>(0x4000)});
  CHECK(device->launches.size() == 1);
}

TEST_CASE_FIXTURE(Fixture, "plan: a config of the caller's") {
  const auto runtime = state();
  const Plan plan = runtime->plan(kProblem, {.config = "block_n=64,workers=7"});
  CHECK(plan.info().origin == Origin::override);
  CHECK(plan.info().blocks == 7);
  CHECK(refusal(ErrorCode::invalid_argument, [&] { runtime->plan(kProblem, {.config = "block_m=9000"}); }) !=
        "accepted");
  CHECK(refusal(ErrorCode::invalid_argument, [&] {
          runtime->plan(kProblem, {.config = "softmax=zero,order=qk_pv"});
        }).starts_with("config: softmax: "));
}

TEST_CASE_FIXTURE(Fixture, "plan: under capture only what is ready in memory") {
  const auto runtime = state();
  const auto stream = reinterpret_cast<CUstream_st*>(0x770);
  device->captured.insert(stream);
  const std::string words = refusal(ErrorCode::not_prepared, [&] { runtime->plan(kProblem, {.stream = stream}); });
  CHECK(words.find("call plan() for this problem before the capture") != std::string::npos);
  CHECK(compiler->compiles == 0);
  CHECK(device->loads == 0);
  runtime->plan(kProblem, {});
  CHECK(runtime->plan(kProblem, {.stream = stream}).info().origin == Origin::heuristic);
}

TEST_CASE_FIXTURE(Fixture, "plan: guesses that spill are passed over") {
  compiler->fails = 2;
  // Pinned: whichever is taken, it has no exact kernel beside it.
  CHECK(state()->plan(kProblem, {.pinned = true}).info().origin == Origin::heuristic);
  CHECK(compiler->compiles == 3);
}

TEST_CASE_FIXTURE(Fixture, "plan: when nothing builds the last error is thrown") {
  compiler->fails = 1000;
  CHECK(refusal(ErrorCode::compile_failed, [&] {
          state()->plan(kProblem, {});
        }).find("(the last one: file.cuh:1: refused") != std::string::npos);
  CHECK(compiler->compiles < 20);
}

TEST_CASE_FIXTURE(Fixture, "plan: a pack comes before the cache and needs neither compiler nor cache") {
  const codegen::KernelSpec spec = codegen::specialise(arch_of(device->properties()), kProblem, some_config());
  const codegen::LaunchShape shape = codegen::launch_shape(spec);
  const std::string cubin = tests::fake_cubin(shape.entry);
  PackEntry entry;
  entry.problem = to_string(kProblem);
  entry.config = codegen::to_string(some_config());
  entry.spec = codegen::to_string(spec);
  entry.arch = spec.arch;
  entry.launch = {shape.entry,      shape.threads,     shape.shared_bytes, shape.block_m, shape.block_n,
                  shape.q_box_rows, shape.kv_box_rows, shape.o_box_rows,   shape.counter};
  entry.build_key = std::string(64, 'b');
  entry.cubin_sha256 = sha256_hex(cubin);
  entry.cubin_bytes = cubin.size();
  entry.registers = 168;
  entry.median = "0.00025 s";
  entry.errors = R"({"o":0.002})";
  const std::string pack = (folder.path() / "pack").string();
  write_pack(pack, {.producer = "test", .created = "", .entries = {entry}, .quarantine = {}},
             {{entry.cubin_sha256, cubin}});

  RuntimeOptions o = options();
  o.use_cache = o.allow_compiler = false;
  o.packs = {pack};
  CHECK(refusal(ErrorCode::pack, [&] { state(o); }) != "accepted");  // unsigned
  o.allow_unsigned_packs = true;
  const Plan plan = state(o)->plan(kProblem, {.on_miss = MissPolicy::fail});
  CHECK(plan.info().origin == Origin::pack);
  CHECK(plan.info().blocks == 32);
  CHECK(plan.info().expected_seconds == 0.00025);
  CHECK(plan.info().errors == entry.errors);
  CHECK(warnings.empty());

  Problem other = kProblem;
  other.seqlen_q = 2048;
  refusal(ErrorCode::not_prepared, [&] { state(o)->plan(other, {.on_miss = MissPolicy::fail}); });
}

TEST_CASE_FIXTURE(Fixture, "plan: what NVRTC makes of the heuristic's kernel passes every check") {
  if (!tests::nvrtc()) return;
  for (const bool causal : {false, true}) {
    Problem problem = kProblem;
    problem.causal = causal;
    const Plan plan = RuntimeState(options(), device).plan(problem, {});
    CHECK(plan.info().peaked_config.empty() == causal);  // the guess for the causal one is exact anyway
    CHECK(plan.info().registers > 100);
    CHECK(plan.info().shared_bytes > 0);
    CHECK(plan.info().build_key.size() == 64);
  }
  CHECK(device->loads == 3);
}

TEST_CASE_FIXTURE(Fixture, "plan: bad problems and options are refused") {
  const auto runtime = state();
  const auto with = [&](auto change) {
    Problem p = kProblem;
    change(p);
    return refusal(ErrorCode::invalid_argument, [&] { runtime->plan(p, {}); });
  };
  CHECK(with([](Problem& p) { p.head_dim = 129; }) ==
        "head_dim: 129 is not a multiple of 8 (allowed: 8, 16, ..., 256)");
  CHECK(with([](Problem& p) { p.head_dim_v = 264; }).starts_with("head_dim_v: 264"));
  CHECK(with([](Problem& p) { p.heads = 0; }).starts_with("heads: 0"));
  CHECK(with([](Problem& p) { p.heads_kv = 3; }).starts_with("heads_kv: 3"));
  CHECK(with([](Problem& p) { p.batch = -1; }).starts_with("batch: -1"));
  CHECK(with([](Problem& p) { p.seqlen_q = -1; }).starts_with("seqlen_q: -1"));
  CHECK(with([](Problem& p) { p.seqlen_k = 1ll << 40; }).starts_with("seqlen_k: 1099511627776"));
  CHECK(refusal(ErrorCode::invalid_argument, [&] { runtime->plan(kProblem, {.tune_seconds = 0}); }) ==
        "tune_seconds: 0 (allowed: above 0)");
}

TEST_CASE_FIXTURE(Fixture, "plan: without a compiler and without a winner the error says so") {
  RuntimeOptions o = options();
  o.allow_compiler = false;
  CHECK(refusal(ErrorCode::unsupported, [&] { state(o)->plan(kProblem, {}); }).starts_with("allow_compiler: "));
}

TEST_CASE_FIXTURE(Fixture, "plan: threads that want one problem at once compile it once") {
  compiler->takes = std::chrono::milliseconds(30);
  const auto runtime = state();
  {
    std::vector<std::jthread> threads;
    for (int i = 0; i < 4; ++i) threads.emplace_back([&] { runtime->plan(kProblem, {.pinned = true}); });
  }
  CHECK(compiler->compiles == 1);
  CHECK(device->loads == 1);
}

TEST_CASE("miss policies have names") {
  for (const MissPolicy policy : {MissPolicy::heuristic, MissPolicy::tune, MissPolicy::background, MissPolicy::fail}) {
    CHECK(parse_miss_policy(to_string(policy)) == policy);
  }
  CHECK_THROWS_AS(parse_miss_policy("never"), Error);
}

TEST_CASE("a runtime needs a device") { CHECK_THROWS_WITH_AS(Runtime({}, nullptr), "device: null", Error); }

}  // namespace
}  // namespace attune::runtime
