// Kernels across the whole space on the emulator: right within the numerics gate's bounds, and nothing found.
//
// ATTUNE_EMU_SHARD=2/4 runs the second of four shares. ATTUNE_EMU_ALL=1 runs every candidate of the space for problems
// of each kind instead of a sample: `./dev test --all`.
#include <doctest/doctest.h>
#include <fmt/format.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>

#include "base/error.h"
#include "cli/emulator/emulated_gate.h"
#include "cli/emulator/emulated_tensors.h"
#include "runtime/cpu/ptx_compiler.h"
#include "tests/emu/config_samples.h"
#include "tests/emu/ptx_cache.h"
#include "tests/nvrtc.h"

namespace attune::emulator {
namespace {

constexpr std::size_t kSamples = 320;
constexpr std::uint32_t kSampleSeed = 20251131;

struct Shard {
  std::size_t index = 0, count = 1;
};
Shard shard() {
  Shard s;
  if (const char* text = std::getenv("ATTUNE_EMU_SHARD")) {
    REQUIRE(std::sscanf(text, "%zu/%zu", &s.index, &s.count) == 2);
    REQUIRE((s.index >= 1 && s.index <= s.count));
    --s.index;
  }
  return s;
}

bool whole_space() {
  const char* text = std::getenv("ATTUNE_EMU_ALL");
  return text != nullptr && std::string(text) == "1";
}

std::vector<ConfigSample> samples() {
  std::vector<ConfigSample> all;
  ConfigSampler sampler(kSampleSeed);
  while (all.size() < kSamples) all.push_back(sampler.next());
  return all;
}

// Every candidate, each with one of the problems of its kind.
std::vector<ConfigSample> all_candidates() {
  std::vector<ConfigSample> all;
  for (const auto& [dim, dim_v] :
       {std::pair{8, 8}, {40, 40}, {64, 64}, {72, 72}, {64, 128}, {128, 128}, {192, 128}, {256, 256}}) {
    for (const bool causal : {false, true}) {
      ConfigSample sample;
      sample.problem = {.dtype = dim % 64 == 0 ? DType::bf16 : DType::fp16,
                        .head_dim = dim,
                        .head_dim_v = dim_v,
                        .heads = 2,
                        .heads_kv = 1,
                        .causal = causal,
                        .batch = 1,
                        .seqlen_q = 221,
                        .seqlen_k = 272};
      const Arch arch = parse_arch("sm_90a");
      std::vector<codegen::Config> configs = codegen::candidates(arch, sample.problem);
      // Clusters are for problems that take too long here; what they compute is the same with fewer rows and keys.
      Problem large = sample.problem;
      large.batch = 64;
      large.seqlen_q += 4096;
      large.seqlen_k += 4096;
      for (const codegen::Config& config : codegen::candidates(arch, large))
        if (config.cluster > 1) configs.push_back(config);
      for (const codegen::Config& config : configs) {
        sample.config = config;
        sample.config.workers = tuner::kGateWorkers * config.cluster;
        // Only large problems would have none; some that skip blocks deadlock without.
        codegen::Config later = sample.config;
        later.early_copies = later.first_turn = false;
        if (all.size() / 4 % 2 == 1 && codegen::simulate(codegen::specialise(arch, sample.problem, later)).empty())
          sample.config = later;
        sample.gaps = all.size() % 4 == 3;
        all.push_back(sample);
      }
    }
  }
  return all;
}

/// What the GPU's suite allows for scores of ordinary size.
struct Tolerance {
  double max_abs, relative, lse;
};
Tolerance tolerance(DType dtype) {
  return dtype == DType::bf16 ? Tolerance{4e-2, 6e-3, 1e-4} : Tolerance{5e-3, 8e-4, 1e-4};
}

class Runner {
 public:
  void run(const ConfigSample& sample, std::uint64_t seed) {
    const codegen::KernelSpec spec = codegen::specialise(arch_, sample.problem, sample.config);
    const std::string text = fmt::format("--problem {} --config {} ({}{}{}, seed {})", to_string(sample.problem),
                                         codegen::to_string(sample.config), sample.scores.name,
                                         sample.gaps ? ", gaps" : "", sample.lse ? "" : ", no LSE", seed);
    CAPTURE(text);
    const auto start = std::chrono::steady_clock::now();
    // A builder of its own, since it would keep the PTX, and the whole space has gigabytes of it.
    const runtime::Build build =
        runtime::Builder(cache::Store::memory_only(), [this] { return compiler_; }).build(spec);
    const auto compiled = std::chrono::steady_clock::now();
    const Plan plan =
        runtime::make_plan(plans_, sample.problem, runtime::plan_source(build, sample.config, Origin::override));
    cli::EmulatedTensors::Options options{.scores = sample.scores, .lse = sample.lse};
    if (sample.gaps) options.strides = gapped_strides(sample.problem);
    cli::EmulatedTensors tensors(*device_, sample.problem, options);
    device_->set_seed(seed);
    const auto loaded = std::chrono::steady_clock::now();
    plan.launch(tensors.args());
    const auto ran = std::chrono::steady_clock::now();
    for (const runtime::CpuLaunch& launch : device_->take_launches()) {
      CHECK_MESSAGE(launch.report.clean(), launch.report.text());
      instructions += launch.report.instructions;
    }
    const tuner::Accuracy accuracy = tensors.accuracy();
    const std::string wrong = tuner::violation(accuracy, tensors.bounds()).value_or("");
    CHECK(wrong == "");
    CHECK(tensors.damage().value_or("") == "");
    if (sample.scores == tuner::Scores{}) {
      const Tolerance allowed = tolerance(sample.problem.dtype);
      CHECK(accuracy.o_max_abs < allowed.max_abs);
      CHECK(accuracy.o_rel_l2 < allowed.relative);
      CHECK(accuracy.lse_max_abs < allowed.lse);
    }
    const auto seconds = [](auto from, auto to) { return std::chrono::duration<double>(to - from).count(); };
    compile_seconds += seconds(start, compiled);
    load_seconds += seconds(compiled, loaded);
    run_seconds += seconds(loaded, ran);
  }

  double compile_seconds = 0, load_seconds = 0, run_seconds = 0;
  std::uint64_t instructions = 0;

 private:
  // The whole space is too large to be kept.
  std::shared_ptr<const runtime::Compiler> compiler_ = whole_space() ? runtime::ptx_compiler() : tests::ptx_compiler();
  Arch arch_ = parse_arch("sm_90a");
  std::shared_ptr<runtime::CpuDevice> device_ = std::make_shared<runtime::CpuDevice>();
  std::shared_ptr<runtime::PlanContext> plans_ = std::make_shared<runtime::PlanContext>(device_);
};

// Texts of the values of every tunable, edge and type that the samples have.
std::map<std::string, std::set<std::string>> values_in(const std::vector<ConfigSample>& all) {
  std::map<std::string, std::set<std::string>> values;
  for (const ConfigSample& sample : all) {
    const std::string text =
        codegen::to_string(codegen::specialise(parse_arch("sm_90a"), sample.problem, sample.config));
    for (std::size_t at = 0; at < text.size();) {
      const std::size_t end = std::min(text.find(',', at), text.size()), equals = text.find('=', at);
      values[text.substr(at, equals - at)].insert(text.substr(equals + 1, end - equals - 1));
      at = end + 1;
    }
  }
  return values;
}

}  // namespace

TEST_CASE("configs: the sample has every value of every tunable, and every kind of problem") {
  const std::vector<ConfigSample> all = samples();
  const auto values = values_in(all);
  const auto count = [&](const char* key) { return values.at(key).size(); };
  CHECK(count("consumers") == 3);
  CHECK(count("block_n") == 13);
  CHECK(count("stages") == 4);
  CHECK(count("softmax") == 3);
  CHECK(count("order") == 3);
  CHECK(count("o") == 3);
  CHECK(count("grid") == 3);
  CHECK(count("diagonal") == 3);
  CHECK(count("edge") == 5);
  CHECK(count("dtype") == 2);
  CHECK(count("head_dim") >= 12);
  for (const char* flag : {"ping_pong", "q", "q_buffers", "q_ahead", "o_pieces", "boundary", "cluster", "remember",
                           "skip_idle", "warp_epilogue", "early_copies", "first_turn", "causal"})
    CHECK_MESSAGE(count(flag) == 2, flag);
  const auto some = [&](const auto& predicate) { return std::ranges::any_of(all, predicate); };
  CHECK(some([](const ConfigSample& s) { return s.problem.seqlen_k == 0; }));
  CHECK(some([](const ConfigSample& s) { return s.problem.causal && s.problem.seqlen_q > s.problem.seqlen_k; }));
  CHECK(some([](const ConfigSample& s) { return s.problem.heads > s.problem.heads_kv; }));
  CHECK(some([](const ConfigSample& s) { return s.problem.head_dim < s.problem.head_dim_v; }));
  CHECK(some([](const ConfigSample& s) { return s.problem.head_dim > s.problem.head_dim_v; }));
  // Clusters of each grid and mask, of which some have tiles after their first ones, others one tile with rows.
  for (const codegen::Grid grid : {codegen::Grid::plain, codegen::Grid::persistent, codegen::Grid::dynamic})
    for (const bool causal : {false, true})
      CHECK_MESSAGE(some([&](const ConfigSample& s) {
                      return s.config.cluster > 1 && s.config.grid == grid && s.problem.causal == causal;
                    }),
                    static_cast<int>(grid) << " " << causal);
  const auto clusters = [](const ConfigSample& s) {
    const std::int64_t tiles_m = (s.problem.seqlen_q + s.config.cluster_m() - 1) / s.config.cluster_m();
    return s.problem.batch * s.problem.heads * tiles_m;
  };
  const auto many = [&](const ConfigSample& s) {
    return s.config.cluster > 1 && s.config.grid != codegen::Grid::plain && s.config.workers > 0 &&
           clusters(s) > s.config.workers / s.config.cluster;
  };
  CHECK(some([&](const ConfigSample& s) { return many(s) && s.problem.seqlen_q > s.config.cluster_m(); }));
  CHECK(some([&](const ConfigSample& s) { return many(s) && s.config.tells_claims() && s.config.workers > 2; }));
  CHECK(some([](const ConfigSample& s) { return s.config.cluster > 1 && s.problem.seqlen_q <= s.config.block_m(); }));
  // Tiles that a warpgroup passes over, between others and as the first ones, with and without turns.
  const auto idle = [](const ConfigSample& s) {
    return s.config.skip_idle && (s.problem.seqlen_q + 63) / 64 % (s.config.cluster * s.config.consumers) != 0;
  };
  for (const codegen::Boundary boundary : {codegen::Boundary::drained, codegen::Boundary::overlapped})
    for (const bool turns : {false, true})
      for (const bool causal : {false, true})
        CHECK_MESSAGE(some([&](const ConfigSample& s) {
                        return idle(s) && s.config.boundary == boundary && s.config.ping_pong == turns &&
                               s.problem.causal == causal && s.config.grid != codegen::Grid::plain;
                      }),
                      static_cast<int>(boundary) << " " << turns << " " << causal);
  for (const codegen::Boundary boundary : {codegen::Boundary::drained, codegen::Boundary::overlapped})
    CHECK(some([&](const ConfigSample& s) { return s.config.o_pieces > 1 && s.config.boundary == boundary; }));
  CHECK(some([&](const ConfigSample& s) { return idle(s) && s.config.cluster > 1; }));
  for (const codegen::Boundary boundary : {codegen::Boundary::drained, codegen::Boundary::overlapped})
    for (const bool idles : {false, true})
      CHECK_MESSAGE(some([&](const ConfigSample& s) {
                      return s.config.first_turn && idle(s) == idles && s.config.boundary == boundary &&
                             s.config.grid != codegen::Grid::plain;
                    }),
                    static_cast<int>(boundary) << " " << idles);
  for (const bool ahead : {false, true})
    CHECK_MESSAGE(
        some([&](const ConfigSample& s) { return idle(s) && s.config.moves_q() && s.config.q_ahead == ahead; }), ahead);
  for (const codegen::Grid grid : {codegen::Grid::plain, codegen::Grid::persistent, codegen::Grid::dynamic})
    CHECK_MESSAGE(some([&](const ConfigSample& s) { return s.config.q_columns > 0 && s.config.grid == grid; }),
                  static_cast<int>(grid));
  for (const codegen::Diagonal diagonal : {codegen::Diagonal::trimmed, codegen::Diagonal::skipped})
    CHECK(some([&](const ConfigSample& s) { return s.config.cluster > 1 && s.config.diagonal == diagonal; }));
}

TEST_CASE("configs: right, and nothing found") {
  if (!attune::tests::nvrtc()) return;
  const std::vector<ConfigSample> all = whole_space() ? all_candidates() : samples();
  const Shard mine = shard();
  Runner runner;
  int ran = 0;
  for (std::size_t i = mine.index; i < all.size(); i += mine.count, ++ran) runner.run(all[i], i);
  CHECK(ran > 0);
  MESSAGE(
      fmt::format("{} kernels: {:.0f} s to compile, {:.0f} s to translate, {:.0f} s to run {:.0f} million instructions",
                  ran, runner.compile_seconds, runner.load_seconds, runner.run_seconds,
                  static_cast<double>(runner.instructions) * 1e-6));
}

}  // namespace attune::emulator
