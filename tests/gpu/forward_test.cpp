// Every head dim, dtype, mask and awkward length against the reference kernel, with the heuristic's configs.
#include <atomic>
#include <thread>

#include "tests/gpu/support.h"

namespace attune::gpu {
namespace {

struct Dims {
  int qk, v;
};
struct Lengths {
  std::int64_t q, k;
};

constexpr Dims kDims[] = {{8, 8},     {40, 40},   {64, 64},   {72, 72},   {96, 96},  {128, 128}, {136, 136},
                          {192, 192}, {248, 248}, {256, 256}, {192, 128}, {64, 256}, {128, 64},  {32, 200}};
constexpr Lengths kLengths[] = {{1, 1},     {64, 64},   {127, 129}, {128, 1},   {1, 500},
                                {200, 777}, {777, 200}, {512, 512}, {513, 512}, {512, 528}};

std::vector<Problem> problems() {
  std::vector<Problem> all;
  for (const DType dtype : {DType::bf16, DType::fp16}) {
    for (const Dims& dims : kDims) {
      for (const bool causal : {false, true}) {
        for (const Lengths& lengths : kLengths) {
          const int number = static_cast<int>(all.size());
          const int heads_kv = 1 + number % 3, group = 1 + number % 4;
          all.push_back({.dtype = dtype,
                         .head_dim = dims.qk,
                         .head_dim_v = dims.v,
                         .heads = heads_kv * group,
                         .heads_kv = heads_kv,
                         .causal = causal,
                         .batch = 1 + number % 2,
                         .seqlen_q = lengths.q,
                         .seqlen_k = lengths.k,
                         .layout = number % 2 == 0 ? Layout::bshd : Layout::bhsd});
        }
      }
    }
  }
  return all;
}

void build_reference(const Problem& problem) {
  builder().build(
      codegen::specialise(runtime::arch_of(device()->properties()), problem, {.family = codegen::Family::reference}));
}

// Compiling is most of the time, and each kernel serves many lengths: all of them at once, on every core.
void prepare(const std::vector<Problem>& all) {
  std::atomic<std::size_t> next{0};
  std::vector<std::jthread> threads;
  for (unsigned i = 0; i < std::max(1u, std::thread::hardware_concurrency()); ++i) {
    threads.emplace_back([&] {
      for (std::size_t at = next++; at < all.size(); at = next++) {
        try {
          build_reference(all[at]);
          shared_runtime().plan(all[at], {.pinned = true});  // its peaked twin would double what is compiled
        } catch (const Error&) {
          // The test itself meets it again, and says which problem it was.
        }
      }
    });
  }
}

TEST_CASE("forward: every dim, dtype, mask and ragged length") {
  const std::vector<Problem> all = problems();
  prepare(all);
  Difference worst[2];
  for (const Problem& problem : all) {
    CAPTURE(to_string(problem));
    Attention attention(problem);
    const Difference d = check_right(shared_runtime().plan(problem, {.pinned = true}), attention);
    Difference& w = worst[static_cast<int>(problem.dtype)];
    w.max_abs = std::max(w.max_abs, d.max_abs);
    w.relative = std::max(w.relative, d.relative);
    w.lse = std::max(w.lse, d.lse);
    w.rows += d.rows;
  }
  for (const DType dtype : {DType::bf16, DType::fp16}) {
    const Difference& w = worst[static_cast<int>(dtype)];
    report({{"test", "forward"},
            {"dtype", to_string(dtype)},
            {"problems", all.size() / 2},
            {"rows", w.rows},
            {"max_abs", w.max_abs},
            {"max_relative", w.relative},
            {"max_lse", w.lse}});
  }
}

TEST_CASE("forward: long and wide enough for several tiles a block") {
  for (const bool causal : {false, true}) {
    for (const int head_dim : {64, 128, 256}) {
      const Problem problem{.head_dim = head_dim,
                            .head_dim_v = head_dim,
                            .heads = 16,
                            .heads_kv = 4,
                            .causal = causal,
                            .batch = 2,
                            .seqlen_q = 4096,
                            .seqlen_k = 4096};
      Attention attention(problem);
      check_right(shared_runtime().plan(problem), attention, {.first = 3, .step = 61});
    }
  }
}

TEST_CASE("forward: scores too wide for a fixed reference") {
  for (const bool causal : {false, true}) {
    for (const float scale : {4.f, 30.f}) {
      const Problem problem{.head_dim = 128,
                            .head_dim_v = 128,
                            .heads = 4,
                            .heads_kv = 4,
                            .causal = causal,
                            .batch = 1,
                            .seqlen_q = 1024,
                            .seqlen_k = 1024};
      Attention attention(problem, {.q_scale = scale});
      check_right(shared_runtime().plan(problem), attention);
    }
  }
}

TEST_CASE("forward: a scale of the caller's") {
  const Problem problem{
      .head_dim = 64, .head_dim_v = 64, .heads = 2, .heads_kv = 2, .batch = 1, .seqlen_q = 200, .seqlen_k = 200};
  Attention attention(problem);
  ForwardArgs args = attention.args();
  args.scale = 0.5f;
  shared_runtime().plan(problem).launch(args);
  const Difference d = attention.compare({}, args.scale);
  CHECK(d.max_abs < tolerance(problem.dtype).max_abs);
  CHECK(d.lse < tolerance(problem.dtype).lse);
}

TEST_CASE("forward: LSE may be left out") {
  const Problem problem{.heads = 2, .heads_kv = 2, .seqlen_q = 300, .seqlen_k = 300};
  Attention attention(problem);
  ForwardArgs args = attention.args();
  args.lse = nullptr;
  shared_runtime().plan(problem).launch(args);
  CHECK(attention.compare().max_abs < tolerance(problem.dtype).max_abs);
}

TEST_CASE("forward: the same launch twice gives the same bits") {
  const Problem problem{.heads = 8, .heads_kv = 8, .causal = true, .seqlen_q = 1000, .seqlen_k = 1000};
  Attention attention(problem);
  const Plan plan = shared_runtime().plan(problem, {.pinned = true});
  plan.launch(attention.args());
  const auto first = attention.output();
  attention.poison();
  plan.launch(attention.args());
  CHECK(attention.output() == first);
}

}  // namespace
}  // namespace attune::gpu
