// The tuner's small parts: statistics, rounds, searchers, bounds, gate cases, shards, progress lines.
#include <doctest/doctest.h>
#include <stdlib.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <set>

#include "base/error.h"
#include "codegen/backward/params.h"
#include "runtime/tune_hook.h"
#include "tests/nvrtc.h"
#include "tests/unit/fake_device.h"
#include "tuner/forecast.h"
#include "tuner/halving.h"
#include "tuner/measure/accuracy.h"
#include "tuner/measure/gate_cases.h"
#include "tuner/report.h"
#include "tuner/searcher.h"
#include "tuner/shard.h"
#include "tuner/statistics.h"
#include "tuner/stop_condition.h"
#include "tuner/tuner.h"
#include "tuner/worker_path.h"

namespace attune::tuner {
namespace {

const Problem kCausal{.heads = 32, .heads_kv = 8, .causal = true, .batch = 1, .seqlen_q = 16384, .seqlen_k = 16384};

TEST_CASE("quantiles and the median's interval") {
  CHECK(quantile({}, 0.5) == 0);
  CHECK(quantile({3, 1, 2}, 0.5) == 2);
  CHECK(quantile({4, 1, 2, 3}, 0.5) == 2.5);
  CHECK(quantile({1, 2}, 1) == 2);
  std::vector<double> samples;
  for (int i = 15; i >= 1; --i) samples.push_back(i);
  // Textbook: with 15 samples the 4th and the 12th hold the median with 96.5%.
  Interval interval = median_interval(samples);
  CHECK(interval.median == 8);
  CHECK(interval.low == 4);
  CHECK(interval.high == 12);
  interval = median_interval({5, 1, 3});
  CHECK(interval.low == 1);
  CHECK(interval.high == 5);
  CHECK(median_interval({2}).high == 2);
  samples.clear();
  for (int i = 1; i <= 2000; ++i) samples.push_back(i);
  interval = median_interval(samples);
  CHECK(interval.low == doctest::Approx(956).epsilon(0.01));
}

TEST_CASE("what is common to a turn is taken out") {
  // Two entrants, one 10% slower; the second turn is 5% slower for both.
  const std::vector<std::vector<double>> level = without_drift({{{1.0}, {1.05}, {1.0}}, {{1.1}, {1.155}, {1.1}}});
  for (const double s : level[0]) CHECK(s == doctest::Approx(1.0));
  for (const double s : level[1]) CHECK(s == doctest::Approx(1.1));
  // One entrant alone has nothing to be compared with.
  CHECK(without_drift({{{1.0}, {2.0}}})[0] == std::vector<double>{1.0, 2.0});
}

TEST_CASE("who stays in a race") {
  std::vector<Placing> placings;
  for (int i = 0; i < 40; ++i) placings.push_back({i, 1.0 + 0.001 * (39 - i)});
  CHECK(survivors(placings, 3, {}) == std::vector<int>{39, 38, 37});
  CHECK(survivors(placings, 2, {0, 38}) == std::vector<int>{39, 38, 0});
  // Equal times go by id; the hopeless leave early, but eight stay.
  CHECK(survivors({{7, 1}, {3, 1}}, 1, {}) == std::vector<int>{3});
  placings.clear();
  for (int i = 0; i < 20; ++i) placings.push_back({i, i == 0 ? 1.0 : 2.0});
  CHECK(survivors(placings, 20, {19}).size() == 9);
  CHECK(kept_after(Round::first, 120) == 40);
  CHECK(kept_after(Round::first, 30) == 24);
  CHECK(kept_after(Round::first, 5) == 5);
  const RaceOptions finals = options_for(Round::finals, 3e-3);
  CHECK(finals.turns * finals.launches >= 15);
  CHECK(kFewestFinalTurns * static_cast<std::size_t>(finals.launches) >= 15);
  CHECK(finals.rest_seconds > finals.launches * 3e-3);
  CHECK(options_for(Round::second, 3e-3).rest_seconds == finals.rest_seconds);
  CHECK(expected_seconds(finals, 8, 3e-3) < 3);
}

TEST_CASE("a stop condition ends by time or by wish") {
  double now = 100;
  std::stop_source source;
  const StopCondition stop(10, source.get_token(), [&] { return now; });
  CHECK(!stop.expired());
  now = 104;
  CHECK(stop.elapsed() == 4);
  CHECK(stop.seconds_left() == 6);
  const StopCondition part = stop.slice(2);
  CHECK(part.seconds_left() == 2);
  CHECK(stop.slice(50).seconds_left() == 6);
  now = 106;
  CHECK(part.expired());
  CHECK(!part.interrupted());
  CHECK(!stop.expired());
  source.request_stop();
  CHECK(stop.expired());
  CHECK(stop.interrupted());
}

TEST_CASE("the ranked searcher: the best first, and some of every kind") {
  const Arch arch;
  RankedSearcher searcher(arch, kCausal);
  const std::size_t space = searcher.space();
  CHECK(space >= 200);
  const std::vector<codegen::Config> first = searcher.next(120, {});
  REQUIRE(first.size() == 120);
  std::set<std::string> kernels;
  std::set<int> softmaxes, blocks, consumers, pings;
  for (const codegen::Config& c : first) {
    kernels.insert(codegen::kernel_part(c));
    softmaxes.insert(static_cast<int>(c.softmax));
    blocks.insert(c.block_n);
    consumers.insert(c.consumers);
    pings.insert(c.ping_pong);
  }
  CHECK(kernels.size() == 120);
  std::set<int> all_blocks, all_consumers, all_softmaxes;
  for (const codegen::Config& c : codegen::candidates(arch, kCausal)) {
    all_blocks.insert(c.block_n);
    all_consumers.insert(c.consumers);
    all_softmaxes.insert(static_cast<int>(c.softmax));
  }
  CHECK(softmaxes == all_softmaxes);
  CHECK(blocks == all_blocks);
  CHECK(consumers == all_consumers);
  CHECK(pings.size() == 2);
  const auto total = [&](const codegen::Config& c) { return codegen::estimate(arch, kCausal, c).total; };
  CHECK(total(first.front()) == doctest::Approx(total(codegen::default_config(arch, kCausal))).epsilon(0.2));
  CHECK(std::is_sorted(first.begin(), first.end(), [&](const auto& a, const auto& b) { return total(a) < total(b); }));

  // What is compiled anyway can be asked for alone.
  const std::set<std::string> some{codegen::kernel_part(first[3])};
  CHECK(searcher.next_among(10, some).empty());
  RankedSearcher another(arch, kCausal);
  CHECK(another.next_among(10, some).size() == 1);
  CHECK(another.next_among(10, some).empty());

  // The rest comes later, nothing twice, until there is no more.
  std::size_t seen = first.size();
  for (;;) {
    const std::vector<codegen::Config> more = searcher.next(100, {});
    if (more.empty()) break;
    for (const codegen::Config& c : more) CHECK(kernels.insert(codegen::kernel_part(c)).second);
    seen += more.size();
  }
  CHECK(seen == space);
}

TEST_CASE("the ranked searcher: kernels that are compiled anyway are preferred") {
  const Arch arch;
  Problem shorter = kCausal;
  shorter.batch = 16;
  shorter.seqlen_q = shorter.seqlen_k = 1024;
  std::set<std::string> preferred;
  for (const codegen::Config& c : RankedSearcher(arch, kCausal).next(120, {}))
    preferred.insert(codegen::kernel_part(c));
  int shared = 0;
  const std::vector<codegen::Config> second = RankedSearcher(arch, shorter).next(120, preferred);
  for (const codegen::Config& c : second) shared += preferred.contains(codegen::kernel_part(c)) ? 1 : 0;
  CHECK(second.size() == 120);
  CHECK(shared >= 64);
}

TEST_CASE("the list searcher takes what it is given") {
  const Arch arch;
  const std::string config = codegen::to_string(codegen::default_config(arch, kCausal));
  ListSearcher searcher(arch, kCausal, {config, config});
  CHECK(searcher.space() == 1);
  CHECK(searcher.next(10, {}).size() == 1);
  CHECK(searcher.next(10, {}).empty());
  CHECK_THROWS_AS(ListSearcher(arch, kCausal, {"family=reference"}), Error);
  CHECK_THROWS_AS(ListSearcher(arch, kCausal, {"block_n=24"}), Error);
  CHECK_THROWS_AS(ListSearcher(arch, kCausal, {"nonsense=1"}), Error);
}

// -- numerics -----------------------------------------------------------------------------------------------------

float to_bf16(double value) {
  const auto single = static_cast<float>(value);
  std::uint32_t word = 0;
  std::memcpy(&word, &single, sizeof word);
  word = (word + 0x7fff + ((word >> 16) & 1)) >> 16 << 16;
  float rounded = 0;
  std::memcpy(&rounded, &word, sizeof rounded);
  return rounded;
}

TEST_CASE("bounds: exact arithmetic with the kernels' roundings uses about half of them") {
  // Weights e^s rounded to bf16, row sum not rounded, output rounded: what a perfect kernel does.
  const int keys = 200, dims = 64, rows = 64;
  std::uint64_t state = 1;
  const auto normal = [&] {
    double sum = 0;
    for (int i = 0; i < 12; ++i) {
      state = state * 6364136223846793005ull + 1442695040888963407ull;
      sum += static_cast<double>(state >> 11) * 0x1p-53;
    }
    return sum - 6;
  };
  std::vector<std::vector<double>> v(keys, std::vector<double>(dims));
  for (auto& row : v)
    for (double& x : row) x = to_bf16(normal());
  for (const double sd : {1.0, 10.0, 30.0}) {
    CAPTURE(sd);
    std::vector<RowError> errors;
    for (int r = 0; r < rows; ++r) {
      std::vector<double> exact(dims), rounded(dims);
      double sum = 0;
      std::vector<double> scores(keys);
      for (double& score : scores) score = sd * normal();
      const double largest = *std::max_element(scores.begin(), scores.end());
      for (int j = 0; j < keys; ++j) {
        const double p =
            std::exp(scores[static_cast<std::size_t>(j)] - largest + 0.3);  // any reference but the maximum
        sum += p;
        for (int d = 0; d < dims; ++d) {
          exact[static_cast<std::size_t>(d)] += p * v[static_cast<std::size_t>(j)][static_cast<std::size_t>(d)];
          rounded[static_cast<std::size_t>(d)] +=
              to_bf16(p) * v[static_cast<std::size_t>(j)][static_cast<std::size_t>(d)];
        }
      }
      RowError error;
      for (int d = 0; d < dims; ++d) {
        const double wanted = exact[static_cast<std::size_t>(d)] / sum,
                     got = to_bf16(rounded[static_cast<std::size_t>(d)] / sum);
        error.squares += (got - wanted) * (got - wanted);
        error.exact_squares += wanted * wanted;
        error.largest = std::max(error.largest, std::abs(got - wanted));
      }
      errors.push_back(error);
    }
    const Accuracy a = accumulate(errors);
    const Bounds b = bounds_for(kCausal, normal_score_magnitude(kCausal, sd), 0, kLargestNormal);
    CHECK(!violation(a, b));
    CHECK(a.o_rel_l2 < 0.6 * b.o_rel_l2);
    CHECK(a.o_rel_l2 > 0.2 * b.o_rel_l2);
    CHECK(a.o_row_l2 < 0.6 * b.o_row_l2);
  }
  const Bounds plain = bounds_for(kCausal, normal_score_magnitude(kCausal, 1), 10, kLargestNormal);
  CHECK(plain.o_rel_l2 == doctest::Approx(6.2e-3).epsilon(0.02));
  Problem half = kCausal;
  half.dtype = DType::fp16;
  CHECK(bounds_for(half, normal_score_magnitude(half, 1), 10, kLargestNormal).o_rel_l2 ==
        doctest::Approx(8e-4).epsilon(0.1));
  CHECK(plain.lse_max_abs < 1e-3);
}

TEST_CASE("bounds: NaN never passes") {
  const Bounds bounds = bounds_for(kCausal, 10, 10, kLargestNormal);
  const double nan = std::nan("");
  for (const RowError& bad :
       {RowError{nan, 1, 0, 0}, RowError{0, 1, nan, 0}, RowError{0, 1, 0, nan}, RowError{1e300, 1, 1e300, 0},
        RowError{0, 1, 0, 1e300}, RowError{HUGE_VAL, 1, HUGE_VAL, 0}}) {
    const std::vector<RowError> rows{{1e-9, 1, 1e-5, 0}, bad};
    const Accuracy a = accumulate(rows);
    CHECK(violation(a, bounds));
    CHECK(!(share_of_bounds(a, bounds) <= 1));
  }
  // One wrong row among many is seen.
  std::vector<RowError> rows(5000, {1e-6, 1, 1e-3, 0});
  CHECK(!violation(accumulate(rows), bounds));
  rows[4711].squares = 0.01;
  CHECK(violation(accumulate(rows), bounds));
}

TEST_CASE("gate shapes: query heads of a KV head are divided where a kernel may do that") {
  const Arch arch;
  const Problem p = parse_problem("op=backward,head_dim=64,heads=8,heads_kv=2,batch=1,seqlen_q=100");
  for (const char* dkv : {"parts", "direct"}) {
    const codegen::KernelSpec spec =
        codegen::specialise(arch, p, codegen::parse_config(std::string("family=sm90_backward,dkv=") + dkv));
    const codegen::Config config = gate_config(spec);
    CHECK(config.backward.workers == kGateWorkers);
    const bool divided = dkv == std::string("parts");
    for (const GateSize size : {GateSize::device, GateSize::emulator})
      for (const GateShape& shape : gate_shapes(spec, size))
        CHECK(codegen::backward_grid(spec, config.backward, shape.problem, 132).parts ==
              (divided && shape.problem.seqlen_q > 0 ? kGateGroup : 1));
  }
}

TEST_CASE("gate shapes: every kernel of the space has some, all of which it serves") {
  const Arch arch;
  for (const bool causal : {false, true}) {
    for (const std::int64_t keys : {960, 1008, 77}) {
      Problem p = kCausal;
      p.head_dim = p.head_dim_v = 256;  // the smallest space
      p.causal = causal;
      p.seqlen_q = 1000;
      p.seqlen_k = keys;
      for (const codegen::Config& c : codegen::candidates(arch, p)) {
        const codegen::KernelSpec spec = codegen::specialise(arch, p, c);
        for (const GateSize size : {GateSize::device, GateSize::emulator}) {
          const std::vector<GateShape> shapes = gate_shapes(spec, size);
          REQUIRE(shapes.size() >= 2);
          CHECK(shapes.front().scores.size() == 7);
          for (const GateShape& shape : shapes) {
            CHECK(codegen::serves(spec, shape.problem));
            CHECK_NOTHROW(validate(shape.problem));
          }
          // More than a tile, and no whole number of them.
          const std::int64_t rows = shapes.front().problem.seqlen_q;
          CHECK(rows > c.block_m());
          CHECK(rows % 8 != 0);
        }
      }
    }
  }
  Problem p = kCausal;
  p.seqlen_q = p.seqlen_k = 317;
  const std::vector<Outlier> outliers = outliers_of(p);
  CHECK(outliers.size() == 3);
  for (const Outlier& o : outliers) CHECK(o.key <= o.row);
}

TEST_CASE("the helper kernels compile") {
  const auto compiler = tests::nvrtc();
  if (!compiler) return;
  const runtime::CompileResult result = compiler->compile(std::string(helpers_source()), helpers_options("sm_90a"));
  for (const char* entry : {"attune_fill_normal", "attune_count_halves", "attune_compare_rows",
                            "attune_compare_gradient", "attune_spin", "attune_clock_probe"})
    CHECK(result.cubin.find(entry) != std::string::npos);
}

// -- texts --------------------------------------------------------------------------------------------------------

TEST_CASE("shards") {
  CHECK(parse_shard("2/8") == Shard{2, 8});
  for (const char* bad : {"8/8", "-1/8", "1", "a/b", "1/0", ""}) CHECK_THROWS_AS(parse_shard(bad), Error);
  const auto clear = [] {
    for (const char* name :
         {"SLURM_PROCID", "SLURM_NTASKS", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "PMI_RANK", "PMI_SIZE"})
      unsetenv(name);
  };
  clear();
  CHECK(!shard_from_environment());
  setenv("OMPI_COMM_WORLD_RANK", "3", 1);
  setenv("OMPI_COMM_WORLD_SIZE", "4", 1);
  CHECK(shard_from_environment() == Shard{3, 4});
  setenv("SLURM_PROCID", "1", 1);
  setenv("SLURM_NTASKS", "2", 1);
  CHECK(shard_from_environment() == Shard{1, 2});
  setenv("SLURM_PROCID", "two", 1);
  CHECK_THROWS_AS(shard_from_environment(), Error);
  clear();
}

TEST_CASE("a forecast falls as the work is done") {
  Forecast forecast;
  Problem other = kCausal;
  other.heads = 8;
  forecast.expect(kCausal, 10);
  forecast.expect(other, 4);
  Progress p;
  p.problem = kCausal;
  p.phase = Phase::compiling;
  p.done = 1;
  p.total = 4;
  p.seconds = 5;
  CHECK(forecast.seconds_left(p) == doctest::Approx(15 + 14));
  p.phase = Phase::finals;
  p.done = p.total;
  CHECK(forecast.seconds_left(p) == doctest::Approx(4));
  p.problem = other;
  p.phase = Phase::checking;
  p.done = 0;
  CHECK(forecast.seconds_left(p) == doctest::Approx(4));
}

TEST_CASE("the worker's path may be given, and must then be a program") {
  setenv("ATTUNE_WORKER", "/bin/sh", 1);
  CHECK(find_worker() == "/bin/sh");
  setenv("ATTUNE_WORKER", "/nowhere/worker", 1);
  try {
    install_tune_hook();
    runtime::tune_hook()->tune({kCausal, std::make_shared<tests::FakeDevice>(), cache::Store::memory_only()}, {});
    CHECK(false);
  } catch (const Error& error) {
    CHECK(error.code() == ErrorCode::not_found);
    CHECK(error.what() == std::string("ATTUNE_WORKER: '/nowhere/worker' is no executable file"));
  }
  runtime::register_tune_hook(nullptr);
  unsetenv("ATTUNE_WORKER");
}

TEST_CASE("a progress line") {
  Progress p;
  p.phase = Phase::racing;
  p.problem = {.heads = 32, .heads_kv = 8, .causal = true, .batch = 4, .seqlen_q = 4096, .seqlen_k = 4096};
  p.done = 142;
  p.total = 188;
  p.best_tflops = 701;
  p.share_of_limit = 0.88;
  p.over_heuristic = 1.11;
  p.seconds_left = 13.2;
  CHECK(progress_line(p) ==
        "tuning d128 causal 4x4096  142/188  best 701 TFLOP/s (88% of the limit, 1.11x heuristic)  0:14 left");
  p.problems = 6;
  p.problem_index = 2;
  p.best_tflops = 0;
  p.phase = Phase::compiling;
  CHECK(progress_line(p) == "compiling d128 causal 4x4096 (3 of 6)  142/188  0:14 left");
}

}  // namespace
}  // namespace attune::tuner
