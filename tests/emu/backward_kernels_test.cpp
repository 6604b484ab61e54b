// Backward kernels on the emulator: the gradients of the host, and nothing found.
//
// ATTUNE_EMU_SHARD=2/4 runs the second of four shares. ATTUNE_EMU_ALL=1 runs every candidate of the space for problems
// of each kind instead of a sample.
#include <doctest/doctest.h>
#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "base/error.h"
#include "tests/emu/backward_samples.h"
#include "tests/nvrtc.h"

namespace attune::emulator {
namespace {

constexpr std::size_t kSamples = 120;
constexpr std::uint32_t kSampleSeed = 20261203;
const Arch kArch = parse_arch("sm_90a");

std::vector<BackwardSample> samples() {
  std::vector<BackwardSample> all;
  BackwardSampler sampler(kSampleSeed);
  while (all.size() < kSamples) all.push_back(sampler.next());
  return all;
}

// Every candidate, each with one of the problems of its kind.
std::vector<BackwardSample> all_candidates() {
  std::vector<BackwardSample> all;
  for (const auto& [dim, dim_v] :
       {std::pair{8, 8}, {40, 40}, {64, 64}, {72, 72}, {64, 128}, {128, 128}, {192, 128}, {256, 256}}) {
    for (const bool causal : {false, true}) {
      BackwardSample sample;
      sample.problem = {.op = Op::backward,
                        .dtype = dim % 64 == 0 ? DType::bf16 : DType::fp16,
                        .head_dim = dim,
                        .head_dim_v = dim_v,
                        .heads = 2,
                        .heads_kv = causal ? 1 : 2,
                        .causal = causal,
                        .batch = 1,
                        .seqlen_q = 221,
                        .seqlen_k = 272};
      for (const codegen::Config& config : codegen::candidates(kArch, sample.problem)) {
        sample.config = config;
        sample.options.gaps = all.size() % 4 == 3;
        sample.options.d_lse = all.size() % 3 == 2;
        all.push_back(sample);
      }
    }
  }
  return all;
}

Gradients run(const BackwardSample& sample, std::uint64_t seed) {
  const Problem& p = sample.problem;
  const codegen::KernelSpec spec = codegen::specialise(kArch, p, sample.config);
  const auto program = Program::load(ptx_of(codegen::emit(spec).source));
  const std::unique_ptr<Machine> machine = Machine::create();
  BackwardData data(*machine, p, sample.options);
  data.reset();
  for (const Report& report : launch_backward(*machine, *program, spec, p, data, seed, sample.config.backward))
    CHECK_MESSAGE(report.clean(), report.text());
  CHECK(data.damage() == "");
  Gradients got = data.results();
  const Gradients exact = gradients(p, data.inputs, data.forward, Rounding::none),
                  rounded = gradients(p, data.inputs, data.forward, Rounding::element);
  // Rounding as the kernels have to, and a little of float32's own, for gradients that cancel to nothing.
  const auto close = [](const char* name, const Values& a, const Values& b, const Values& c) {
    const double error = distance(a, b), usual = distance(c, b);
    const double allowed = 1.5 * usual + 1e-5 * (norm(b) + std::sqrt(static_cast<double>(b.data.size())));
    CHECK_MESSAGE(error <= allowed,
                  name << ": error " << error << ", of rounding alone " << usual << ", norm " << norm(b));
  };
  close("dQ", got.q, exact.q, rounded.q);
  close("dK", got.k, exact.k, rounded.k);
  close("dV", got.v, exact.v, rounded.v);
  return got;
}

Gradients check(const BackwardSample& sample, std::uint64_t seed) {
  const std::string text =
      fmt::format("{} | {} (sd {}{}{}, seed {})", to_string(sample.problem), codegen::to_string(sample.config),
                  sample.options.sd, sample.options.gaps ? ", gaps" : "", sample.options.d_lse ? ", dLSE" : "", seed);
  CAPTURE(text);
  return run(sample, seed);
}

BackwardSample sample_of(const char* problem, const char* config) {
  return {parse_problem(std::string("op=backward,") + problem),
          codegen::parse_config(std::string("family=sm90_backward,") + config),
          {}};
}

}  // namespace

TEST_CASE("backward: the sample has every value of every tunable, and every kind of problem") {
  const std::vector<BackwardSample> all = samples();
  std::map<std::string, std::set<std::string>> values;
  for (const BackwardSample& sample : all)
    for (const auto& [key, value] :
         parse_fields("spec", codegen::to_string(codegen::specialise(kArch, sample.problem, sample.config))))
      values[key].insert(value);
  CHECK(values["block_m"].size() == 8);
  CHECK(values["edge"].size() == 3);
  CHECK(values["ds_stages"].size() == 3);
  CHECK(values["registers"].size() == 3);
  CHECK(values["head_dim"].size() >= 14);
  for (const char* key : {"q_stages", "do_stages", "split", "dq", "dkv"}) CHECK_MESSAGE(values[key].size() == 3, key);
  for (const char* key :
       {"dtype", "causal", "deterministic", "lag", "ping_pong", "late_fences", "prefetch", "persistent", "k_stages",
        "finish", "v_in_registers", "skip", "visits", "sums", "boundary", "prepare"})
    CHECK_MESSAGE(values[key].size() == 2, key);
  const auto some = [&](const auto& predicate) { return std::ranges::any_of(all, predicate); };
  CHECK(some([](const BackwardSample& s) { return s.problem.seqlen_k == 0; }));
  CHECK(some([](const BackwardSample& s) { return s.problem.seqlen_q == 0; }));
  CHECK(some([](const BackwardSample& s) { return s.problem.causal && s.problem.seqlen_q > s.problem.seqlen_k; }));
  CHECK(some([](const BackwardSample& s) { return s.problem.heads > s.problem.heads_kv; }));
  CHECK(some([](const BackwardSample& s) { return s.problem.head_dim < s.problem.head_dim_v; }));
  CHECK(some([](const BackwardSample& s) { return s.config.backward.parts > 1; }));
  CHECK(some([](const BackwardSample& s) { return s.problem.head_dim > s.problem.head_dim_v; }));
}

TEST_CASE("backward: right, and nothing found") {
  if (!attune::tests::nvrtc()) return;
  std::size_t index = 1, share = 1;
  if (const char* text = std::getenv("ATTUNE_EMU_SHARD")) REQUIRE(std::sscanf(text, "%zu/%zu", &index, &share) == 2);
  const char* const whole = std::getenv("ATTUNE_EMU_ALL");
  const std::vector<BackwardSample> all = whole != nullptr && std::string(whole) == "1" ? all_candidates() : samples();
  CHECK(index <= all.size());
  for (std::size_t i = index - 1; i < all.size(); i += share) check(all[i], i);
}

TEST_CASE("backward: deterministic kernels give the same bits in every order of threads") {
  if (!attune::tests::nvrtc()) return;
  for (const char* config :
       {"lag=1,ping_pong=1,late_fences=1,section=1", "lag=1,ping_pong=1,late_fences=1,visits=descending,sums=stored",
        "visits=descending,persistent=1,registers=224",
        "lag=1,ping_pong=1,dkv=direct,k_stages=2,boundary=overlapped,visits=descending,persistent=1,registers=224"}) {
    const BackwardSample sample =
        sample_of("head_dim=64,heads=2,heads_kv=1,seqlen_q=150,seqlen_k=300,causal=1,deterministic=1", config);
    const Gradients first = check(sample, 0);
    for (const std::uint64_t seed : {1, 2, 3}) {
      const Gradients other = check(sample, seed);
      CHECK(first.q.data == other.q.data);
      CHECK(first.k.data == other.k.data);
      CHECK(first.v.data == other.v.data);
    }
  }
}

TEST_CASE("backward: sums that whoever comes first stores, in every order of threads") {
  if (!attune::tests::nvrtc()) return;
  for (const auto& [problem, config] :
       {std::pair{"head_dim=64,heads=2,batch=1,seqlen_q=200,seqlen_k=600,causal=1", "lag=1,ping_pong=1,sums=stored"},
        {"head_dim=128,heads=2,heads_kv=1,batch=1,seqlen_q=150,seqlen_k=400", "sums=stored,late_fences=1"},
        {"head_dim=64,heads=2,batch=2,seqlen_q=330,seqlen_k=150,causal=1",
         "block_m=128,sums=stored,visits=descending,persistent=1,registers=224,workers=3"},
        // More tiles than one look tells of; parts that differ.
        {"head_dim=64,heads=2,heads_kv=1,batch=1,seqlen_q=600,seqlen_k=300", "block_m=16,sums=stored"},
        {"head_dim=64,heads=1,batch=1,seqlen_q=600,seqlen_k=300,causal=1", "block_m=16,sums=stored,visits=descending"},
        {"head_dim=136,heads=1,batch=1,seqlen_q=150,seqlen_k=200", "split=columns,sums=stored"},
        // Nothing of the last step for one warpgroup.
        {"head_dim=64,heads=2,heads_kv=1,batch=1,seqlen_q=200,seqlen_k=300,causal=1",
         "lag=1,ping_pong=1,skip=1,visits=descending,sums=stored"},
        {"head_dim=64,heads=2,batch=1,seqlen_q=300,seqlen_k=300,causal=1",
         "lag=1,ping_pong=1,skip=1,visits=descending,dkv=direct,k_stages=2,boundary=overlapped,persistent=1,"
         "registers=224"},
        {"head_dim=64,heads=2,batch=1,seqlen_q=300,seqlen_k=300,causal=1",
         "lag=1,ping_pong=1,sums=stored,dkv=direct,k_stages=2,boundary=overlapped,persistent=1,registers=224"}})
    for (const std::uint64_t seed : {0, 1, 2, 3}) check(sample_of(problem, config), seed);
}

TEST_CASE("backward: a ring with fewer slots than pairs, in every order of threads") {
  if (!attune::tests::nvrtc()) return;
  for (const auto& [problem, config] :
       {std::pair{"head_dim=64,heads=6,batch=1,seqlen_q=150,seqlen_k=200",
                  "block_m=128,lag=1,ping_pong=1,late_fences=1,persistent=1,finish=ring,registers=224"},
        {"head_dim=64,heads=5,batch=1,seqlen_q=100,seqlen_k=140,causal=1,deterministic=1",
         "persistent=1,finish=ring,registers=224"},
        {"head_dim=128,heads=14,heads_kv=7,batch=1,seqlen_q=140,seqlen_k=100,causal=1",
         "lag=1,ping_pong=1,late_fences=1,prefetch=1,persistent=1,finish=ring,registers=224"},
        {"head_dim=72,heads=7,batch=1,seqlen_q=130,seqlen_k=130,deterministic=1",
         "lag=1,ping_pong=1,persistent=1,finish=ring,registers=232,section=2"},
        {"head_dim=64,heads=6,batch=1,seqlen_q=150,seqlen_k=200,causal=1",
         "lag=1,ping_pong=1,late_fences=1,skip=1,dkv=direct,k_stages=2,boundary=overlapped,persistent=1,finish=ring,"
         "registers=224"},
        {"head_dim=64,heads=7,batch=1,seqlen_q=250,seqlen_k=130,causal=1,deterministic=1",
         "lag=1,ping_pong=1,late_fences=1,visits=descending,sums=stored,persistent=1,finish=ring,registers=224,section="
         "2"},
        {"head_dim=64,heads=6,batch=1,seqlen_q=450,seqlen_k=200",
         "block_m=128,persistent=1,finish=ring,prepare=inside,registers=224"},
        {"head_dim=128,heads=18,heads_kv=9,batch=1,seqlen_q=260,seqlen_k=100,causal=1",
         "lag=1,ping_pong=1,late_fences=1,persistent=1,finish=ring,prepare=inside,registers=224,section=2"}}) {
    const BackwardSample sample = sample_of(problem, config);
    const codegen::KernelSpec spec = codegen::specialise(kArch, sample.problem, sample.config);
    const codegen::BackwardGrid grid = codegen::backward_grid(spec, sample.config.backward, sample.problem, 2);
    CHECK(grid.slots < sample.problem.heads_kv * sample.problem.batch);
    std::optional<Gradients> first;
    for (const std::uint64_t seed : {0, 1, 2}) {
      const Gradients got = check(sample, seed);
      if (!first) first = got;
      if (sample.problem.deterministic) CHECK(first->q.data == got.q.data);
    }
  }
}

TEST_CASE("backward: more query tiles than the kernel before the main one prepares, in every order of threads") {
  if (!attune::tests::nvrtc()) return;
  for (const auto& [problem, config] :
       {std::pair{"head_dim=64,heads=3,batch=2,seqlen_q=450,seqlen_k=300,causal=1",
                  "lag=1,ping_pong=1,late_fences=1,dkv=direct,k_stages=2,boundary=overlapped,persistent=1,"
                  "registers=224,prepare=inside"},
        {"head_dim=72,heads=4,heads_kv=2,batch=1,seqlen_q=500,seqlen_k=200,causal=1",
         "block_m=80,prefetch=1,registers=232,prepare=inside,section=2"},
        {"head_dim=64,heads=3,batch=1,seqlen_q=700,seqlen_k=200",
         "persistent=1,registers=232,prepare=inside,workers=1"},
        {"head_dim=64,heads=3,batch=1,seqlen_q=500,seqlen_k=300", "sums=stored,registers=232,prepare=inside"}}) {
    const BackwardSample sample = sample_of(problem, config);
    const codegen::KernelSpec spec = codegen::specialise(kArch, sample.problem, sample.config);
    const codegen::BackwardGrid grid = codegen::backward_grid(spec, sample.config.backward, sample.problem, 2);
    const codegen::BackwardParams params = codegen::backward_params(spec, sample.problem, grid);
    CHECK(2 * grid.prepared < params.tiles_of_pair * params.pairs);
    for (const std::uint64_t seed : {0, 1, 2}) check(sample, seed);
  }
}

TEST_CASE("backward: the query heads of a KV head divided over blocks of keys, in every order of threads") {
  if (!attune::tests::nvrtc()) return;
  struct Case {
    const char *problem, *config;
    int parts;
  };
  const char* const overlapped =
      "lag=1,ping_pong=1,late_fences=1,k_stages=2,boundary=overlapped,persistent=1,registers=224,dkv=parts";
  for (const Case& c : {Case{"head_dim=64,heads=4,heads_kv=1,batch=1,seqlen_q=150,seqlen_k=100,causal=1",
                             "lag=1,ping_pong=1,late_fences=1,dkv=parts", 4},
                        {"head_dim=64,heads=8,heads_kv=2,batch=1,seqlen_q=130,seqlen_k=300,causal=1",
                         "block_m=128,lag=1,ping_pong=1,late_fences=1,dkv=parts,parts=2", 2},
                        {"head_dim=128,heads=6,heads_kv=2,batch=2,seqlen_q=70,seqlen_k=150,deterministic=1",
                         "lag=1,ping_pong=1,late_fences=1,dkv=parts,parts=3,section=1", 3},
                        {"head_dim=128,heads=4,heads_kv=1,batch=1,seqlen_q=200,seqlen_k=90,causal=1", "dkv=parts", 4},
                        {"head_dim=80,head_dim_v=40,heads=4,heads_kv=2,batch=1,seqlen_q=65,seqlen_k=130,causal=1",
                         "block_m=80,dkv=parts,parts=2", 2},
                        {"head_dim=40,head_dim_v=72,heads=4,heads_kv=1,batch=1,seqlen_q=100,seqlen_k=128",
                         "persistent=1,registers=224,dkv=parts", 4},
                        {"head_dim=64,heads=4,heads_kv=1,batch=2,seqlen_q=150,seqlen_k=200", overlapped, 1},
                        {"head_dim=128,heads=8,heads_kv=2,batch=1,seqlen_q=140,seqlen_k=100,causal=1", overlapped, 2},
                        {"head_dim=64,heads=3,heads_kv=1,batch=1,seqlen_q=450,seqlen_k=140,causal=1",
                         "persistent=1,registers=232,prepare=inside,sums=stored,dkv=parts", 3}}) {
    BackwardSample sample = sample_of(c.problem, c.config);
    sample.options.gaps = sample.options.d_lse = true;
    const codegen::KernelSpec spec = codegen::specialise(kArch, sample.problem, sample.config);
    CHECK(codegen::backward_grid(spec, sample.config.backward, sample.problem, 2).parts == c.parts);
    std::optional<Gradients> first;
    for (const std::uint64_t seed : {0, 1, 2}) {
      const Gradients got = check(sample, seed);
      if (!first) first = got;
      CHECK(first->k.data == got.k.data);
      CHECK(first->v.data == got.v.data);
      if (sample.problem.deterministic) CHECK(first->q.data == got.q.data);
    }
  }
  for (const char* problem : {"head_dim=64,heads=4,heads_kv=1,batch=2,seqlen_q=0,seqlen_k=150",
                              "head_dim=64,heads=4,heads_kv=1,batch=2,seqlen_q=150,seqlen_k=0"})
    for (const char* config : {"dkv=parts,parts=2", overlapped}) check(sample_of(problem, config), 0);
}

TEST_CASE("backward: one case from the environment") {
  const char *problem = std::getenv("ATTUNE_EMU_PROBLEM"), *config = std::getenv("ATTUNE_EMU_CONFIG");
  if (problem == nullptr || config == nullptr) return;
  check(sample_of(problem, config), 0);
}

}  // namespace attune::emulator
