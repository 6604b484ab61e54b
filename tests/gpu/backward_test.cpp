// The backward pass: head dims, dtypes, masks, awkward lengths, strides, determinism, graphs, refusals.
#include "codegen/space.h"
#include "tests/backward_cases.h"
#include "tests/gpu/backward_support.h"
#include "tests/gpu/graph.h"

namespace attune::gpu {
namespace {

using tests::BackwardCase;

Plan plan_of(const Problem& problem, const std::string& config = "") {
  PlanOptions options;
  if (!config.empty()) options.config = "family=sm90_backward," + config;
  return shared_runtime().plan(problem, options);
}

void check_cases(const std::vector<BackwardCase>& cases) {
  std::vector<std::optional<Plan>> plans(cases.size());
  in_parallel(cases.size(), [&](std::size_t i) {
    const Problem problem = cases[i].parsed();
    build_references(problem);
    plans[i] = plan_of(problem, cases[i].config);
  });
  // Drawing and computing the exact gradients takes longest: cases of the same data that follow each other share them.
  std::optional<Backward> backward;
  const BackwardCase* drawn = nullptr;
  for (std::size_t i = 0; i < cases.size(); ++i) {
    const BackwardCase& c = cases[i];
    CAPTURE(c.problem);
    const Problem problem = c.parsed();
    if (!plans[i]) plans[i] = plan_of(problem, c.config);  // says why not
    if (drawn == nullptr || drawn->problem != c.problem || drawn->gaps != c.gaps || drawn->d_lse != c.d_lse) {
      backward.reset();
      backward.emplace(problem, Backward::Options{.gaps = c.gaps, .d_lse = c.d_lse});
      drawn = &c;
    }
    check_right(*plans[i], *backward);
  }
}

constexpr const char* kRing = "lag=1,ping_pong=1,late_fences=1,prefetch=1,persistent=1,finish=ring,registers=224";
constexpr const char* kWideRing = "block_m=128,lag=1,ping_pong=1,late_fences=1,persistent=1,finish=ring,registers=224";

std::string refusal(const Plan& plan, const BackwardArgs& args) {
  try {
    plan.launch(args);
  } catch (const Error& error) {
    CHECK(error.code() == ErrorCode::invalid_argument);
    return error.what();
  }
  return "accepted";
}

bool same_bits(const Backward& a, const std::array<std::vector<std::uint16_t>, 3>& b) {
  return a.bits(Operand::d_q) == b[0] && a.bits(Operand::d_k) == b[1] && a.bits(Operand::d_v) == b[2];
}
std::array<std::vector<std::uint16_t>, 3> bits_of(const Backward& a) {
  return {a.bits(Operand::d_q), a.bits(Operand::d_k), a.bits(Operand::d_v)};
}

TEST_CASE("backward: the small cases of the emulator") { check_cases(tests::small_backward_cases()); }

TEST_CASE("backward: every class of head dims, dtype and mask, with lengths that fit nothing") {
  int number = 0;
  std::vector<BackwardCase> cases;
  for (const char* dims : {"8", "16", "40", "64", "72", "80", "96", "112", "128", "136", "160", "192", "200", "256",
                           "192,head_dim_v=128", "64,head_dim_v=128", "128,head_dim_v=40"}) {
    for (const char* dtype : {"bf16", "fp16"}) {
      for (const bool causal : {false, true}) {
        constexpr std::array kLengths{"seqlen_q=317,seqlen_k=384", "seqlen_q=200,seqlen_k=777",
                                      "seqlen_q=513,seqlen_k=512", "seqlen_q=777,seqlen_k=200", "seqlen_q=256"};
        const char* const lengths = kLengths[static_cast<std::size_t>(number) % kLengths.size()];
        const int heads_kv = 1 + number % 3, group = 1 + number % 4;
        cases.push_back({"head_dim=" + std::string(dims) + ",dtype=" + dtype + ",causal=" + (causal ? "1" : "0") + "," +
                             lengths + ",batch=" + std::to_string(1 + number % 2) +
                             ",heads=" + std::to_string(heads_kv * group) + ",heads_kv=" + std::to_string(heads_kv) +
                             ",layout=" + (number % 2 == 0 ? "bshd" : "bhsd"),
                         "", number % 3 == 0, number % 4 == 1});
        ++number;
      }
    }
  }
  check_cases(cases);
}

TEST_CASE("backward: query tiles prepared in the main kernel, far more than before it") {
  const std::string lagging = "lag=1,ping_pong=1,late_fences=1,";
  std::vector<BackwardCase> cases;
  for (const std::string& config :
       {lagging + "dkv=direct,k_stages=2,boundary=overlapped,persistent=1,registers=224",
        lagging + "prefetch=1,persistent=1,finish=ring,registers=224", std::string("persistent=1,registers=232"),
        lagging + "prefetch=1,registers=232", std::string("sums=stored,registers=232")})
    for (const char* text : {"head_dim=128,heads=16,batch=2,seqlen_q=1000,seqlen_k=1100,causal=1",
                             "head_dim=64,heads=8,heads_kv=4,batch=2,seqlen_q=2000,seqlen_k=700",
                             "head_dim=72,heads=6,batch=3,seqlen_q=900"})
      cases.push_back({text, config + ",prepare=inside,workers=8", false, false});
  check_cases(cases);
}

TEST_CASE("backward: the query heads of a KV head divided over blocks of keys") {
  const std::string lagging = "lag=1,ping_pong=1,late_fences=1,dkv=parts";
  std::vector<BackwardCase> cases;
  for (const std::string& config :
       {lagging, lagging + ",parts=2", lagging + ",k_stages=2,boundary=overlapped,persistent=1,registers=224"})
    for (const char* text : {"head_dim=128,heads=32,heads_kv=8,batch=1,seqlen_q=1024,causal=1",
                             "head_dim=128,heads=8,heads_kv=2,batch=2,seqlen_q=700,seqlen_k=1100,causal=1",
                             "head_dim=64,heads=8,heads_kv=2,batch=2,seqlen_q=1000,seqlen_k=777,deterministic=1",
                             "head_dim=80,head_dim_v=40,heads=12,heads_kv=2,batch=1,seqlen_q=500,causal=1"})
      cases.push_back({text, config, cases.size() % 2 == 1, cases.size() % 3 == 1});
  check_cases(cases);
}

TEST_CASE("backward: long sequences, sampled rows") {
  for (const char* text :
       {"head_dim=64,heads=4,batch=1,causal=1,seqlen_q=4096", "head_dim=128,heads=2,batch=2,seqlen_q=4000",
        "head_dim=128,heads=8,heads_kv=2,batch=1,causal=1,seqlen_q=3000,seqlen_k=5000",
        "head_dim=256,heads=2,batch=1,causal=1,seqlen_q=4096"}) {
    const Problem problem = parse_problem(std::string("op=backward,") + text);
    Backward backward(problem, {.sample = {{.first = 0, .step = 97}, {.first = 1, .step = 89}}});
    const tuner::CaseResult result = check_right(plan_of(problem), backward);
    report({{"test", "backward long"},
            {"problem", to_string(problem)},
            {"dq_rel_l2", result.accuracy.dq_rel_l2},
            {"dk_rel_l2", result.accuracy.dk_rel_l2},
            {"dv_rel_l2", result.accuracy.dv_rel_l2},
            {"share_of_bounds", result.share_of_bounds}});
  }
}

TEST_CASE("backward: configs of the space") {
  constexpr std::size_t kConfigs = 12;
  const Arch arch = runtime::arch_of(device()->properties());
  for (const char* text :
       {"head_dim=64,heads=4,heads_kv=2,batch=1,causal=1,seqlen_q=700",
        "head_dim=128,heads=4,heads_kv=2,batch=1,causal=1,seqlen_q=700", "head_dim=256,heads=2,batch=1,seqlen_q=700",
        "head_dim=128,heads=4,batch=1,seqlen_q=700,deterministic=1"}) {
    const Problem problem = parse_problem(std::string("op=backward,") + text);
    const std::vector<codegen::Config> all = codegen::candidates(arch, problem);
    REQUIRE(!all.empty());
    const std::size_t count = std::min(kConfigs, all.size());
    std::vector<std::string> errors(count);
    std::vector<std::optional<Plan>> plans(count);
    in_parallel(count, [&](std::size_t i) {
      try {
        plans[i] = shared_runtime().plan(problem, {.config = codegen::to_string(all[i * all.size() / count])});
      } catch (const Error& error) {
        // A build that spills is rejected, which is what candidates are for.
        if (error.code() != ErrorCode::compile_failed) errors[i] = error.what();
      }
    });
    Backward backward(problem);
    int ran = 0;
    for (std::size_t i = 0; i < count; ++i) {
      CHECK(errors[i] == "");
      if (!plans[i]) continue;
      CAPTURE(codegen::to_string(all[i * all.size() / count]));
      check_right(*plans[i], backward);
      ++ran;
    }
    CHECK(ran >= 4);
  }
}

TEST_CASE("backward: dQ finished in the main kernel, with more pairs than slots") {
  // Groups, masks, rows that see no key, lengths that fit nothing, sections of several heads, few thread blocks.
  std::vector<BackwardCase> cases;
  int problems = 0;
  const auto add = [&](const char* problem, const char* config, std::initializer_list<const char*> launches) {
    const int n = problems++;
    for (const char* launch : launches)
      cases.push_back({problem, std::string(config) + launch, n % 2 == 1, n % 3 == 1});
  };
  for (const char* problem :
       {"head_dim=128,heads=16,batch=16,seqlen_q=512", "head_dim=128,heads=16,batch=8,causal=1,seqlen_q=1000",
        "head_dim=128,heads=8,heads_kv=2,batch=30,causal=1,seqlen_q=700,seqlen_k=300,dtype=fp16",
        "head_dim=128,heads=16,batch=8,causal=1,seqlen_q=512,deterministic=1"})
    add(problem, kRing, {"", ",section=4", ",workers=5,section=2"});
  for (const char* problem :
       {"head_dim=64,heads=32,batch=16,seqlen_q=512", "head_dim=64,heads=32,heads_kv=8,batch=4,causal=1,seqlen_q=900",
        "head_dim=40,heads=32,batch=8,seqlen_q=333,seqlen_k=555"})
    add(problem, kWideRing, {"", ",section=8", ",workers=5"});
  check_cases(cases);
}

TEST_CASE("backward: a deterministic plan gives the same bits again and again, beside other work too") {
  const Problem problem = parse_problem(
      "op=backward,head_dim=128,heads=8,heads_kv=4,batch=2,causal=1,seqlen_q=2000,"
      "deterministic=1");
  for (const char* config : {"", kRing}) {
    const Plan plan = plan_of(problem, config);
    Backward backward(problem, {.sample = {{.first = 0, .step = 53}, {.first = 0, .step = 59}}});
    check_right(plan, backward);
    const auto first = bits_of(backward);
    StreamOwner other;
    Backward noise(problem, {.seed = 2});
    for (int i = 0; i < 100; ++i) {
      backward.poison();
      BackwardArgs args = noise.args(plan);
      args.stream = other.stream;
      plan.launch(args);
      plan.launch(backward.args(plan));
      CHECK(same_bits(backward, first));
    }
  }
}

TEST_CASE("backward: a captured launch is replayed, also on another stream") {
  for (const char* text : {"head_dim=128,heads=8,batch=2,causal=1,seqlen_q=700",
                           "head_dim=64,heads=8,batch=2,seqlen_q=700,deterministic=1"}) {
    const Problem problem = parse_problem(std::string("op=backward,") + text);
    const Plan plan = plan_of(problem);
    StreamOwner a, b;
    Backward backward(problem, {.sample = {{.first = 0, .step = 7}, {.first = 0, .step = 7}}});
    BackwardArgs args = backward.args(plan);
    args.stream = a.stream;
    const Graph graph(a.stream, [&] {
      plan.launch(args);
      plan.launch(args);
    });
    for (const runtime::Stream stream : {a.stream, b.stream, a.stream}) {
      backward.poison();
      graph.launch(stream);
      CHECK(backward.compare().wrong.value_or("") == "");
    }
  }
}

TEST_CASE("backward: launches on several streams, each with a workspace of its own") {
  // The second kernel's thread blocks wait for each other, and those of four launches do not all run at a time.
  for (const auto& [text, config] : {std::pair{"head_dim=128,heads=4,batch=1,causal=1,seqlen_q=1000", ""},
                                     {"head_dim=128,heads=16,batch=4,causal=1,seqlen_q=1000", kRing}}) {
    const Problem problem = parse_problem(std::string("op=backward,") + text);
    const Plan plan = plan_of(problem, config);
    std::vector<std::unique_ptr<StreamOwner>> streams;
    std::vector<std::unique_ptr<Backward>> cases;
    for (unsigned i = 0; i < 4; ++i) {
      streams.push_back(std::make_unique<StreamOwner>());
      cases.push_back(std::make_unique<Backward>(problem, Backward::Options{.seed = i + 1}));
      cases.back()->poison();
    }
    for (int round = 0; round < 25; ++round) {
      for (std::size_t i = 0; i < cases.size(); ++i) {
        BackwardArgs args = cases[i]->args(plan);
        args.stream = streams[i]->stream;
        plan.launch(args);
      }
    }
    for (const auto& backward : cases) CHECK(backward->compare().wrong.value_or("") == "");
  }
}

TEST_CASE("backward: from a forward plan's own O and LSE") {
  Problem problem = parse_problem("op=backward,head_dim=128,heads=8,heads_kv=2,batch=2,causal=1,seqlen_q=900");
  const Plan plan = plan_of(problem);
  Backward backward(problem, {.sample = {{.first = 0, .step = 7}, {.first = 0, .step = 7}}});
  BackwardArgs args = backward.args(plan);
  problem.op = Op::forward;
  shared_runtime().plan(problem).launch(ForwardArgs{
      .q = args.q, .k = args.k, .v = args.v, .o = const_cast<void*>(args.o), .lse = const_cast<float*>(args.lse)});
  plan.launch(args);
  CHECK(backward.compare().wrong.value_or("") == "");
}

TEST_CASE("backward: refusals leave the device well, and launch nothing") {
  const Problem problem = parse_problem("op=backward,head_dim=64,heads=2,batch=1,seqlen_q=100");
  const Plan plan = plan_of(problem);
  Backward backward(problem);
  BackwardArgs args = backward.args(plan);
  args.workspace_bytes -= 1;
  CHECK(refusal(plan, args).starts_with("workspace_bytes: "));
  args = backward.args(plan);
  args.workspace = nullptr;
  CHECK(refusal(plan, args).starts_with("workspace: null (allowed: " + std::to_string(plan.workspace_bytes())));
  args = backward.args(plan);
  args.d_o = static_cast<const char*>(args.d_o) + 2;
  CHECK(refusal(plan, args).starts_with("d_o: address"));
  args = backward.args(plan);
  args.d_k = args.d_v;
  CHECK(refusal(plan, args).starts_with("d_v: address"));
  CHECK_THROWS_AS(plan.launch({.q = args.q, .k = args.k, .v = args.v, .o = args.d_q}), Error);
  device()->synchronize();
  const std::vector<std::uint16_t> d_q = backward.bits(Operand::d_q);
  CHECK(std::ranges::count(d_q, kPoison) == static_cast<std::int64_t>(d_q.size()));
  check_right(plan, backward);
}

}  // namespace
}  // namespace attune::gpu
