// Kernels drawn from the whole space, each with a problem that it serves: the same ones on every machine.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <map>
#include <optional>
#include <random>
#include <set>
#include <span>
#include <string>
#include <vector>

#include <attune/plan.h>
#include <attune/problem.h>

#include "codegen/schedule.h"
#include "codegen/space.h"
#include "runtime/tensor_map.h"
#include "tuner/measure/gate_cases.h"

namespace attune::emulator {

struct ConfigSample {
  Problem problem;
  codegen::Config config;
  tuner::Scores scores;
  bool gaps = false;  ///< rows, heads and batches lie further apart than they need
  bool lse = true;
};

/// Draws samples. The generator's numbers are used as they come, since the standard's distributions differ between
/// libraries.
class ConfigSampler {
 public:
  explicit ConfigSampler(std::uint32_t seed) : random_(seed) {}

  ConfigSample next() {
    for (;;) {
      ConfigSample sample;
      sample.problem = dimensions();
      sample.config = config(sample.problem.causal);
      lengths(sample);
      if (!legal(sample)) continue;
      if (pick({0, 1, 2}) == 0) sample.scores = scores();
      sample.gaps = pick({0, 1, 2, 3}) == 0;
      sample.lse = pick({0, 1, 2, 3}) != 0;
      return sample;
    }
  }

 private:
  template <typename T>
  T pick(std::initializer_list<T> values) {
    return values.begin()[random_() % values.size()];
  }

  Problem dimensions() {
    Problem p;
    p.dtype = pick({DType::bf16, DType::fp16});
    // Each class of widths: narrower than a 64-column chunk, one, between, two, three, four of them. The wide ones are
    // rarer, as they take longer to compile.
    p.head_dim = pick({8, 16, 24, 40, 48, 64, 64, 72, 80, 96, 112, 128, 128, 160, 192, 200, 256});
    p.head_dim_v = p.head_dim;
    if (pick({0, 1, 2, 3}) == 0) p.head_dim_v = pick({8, 16, 40, 64, 72, 128, 128, 192, 256});
    p.causal = pick({false, true});
    p.batch = pick({1, 1, 2});
    p.heads = pick({1, 2, 2, 3});
    p.heads_kv = p.heads == 2 ? pick({1, 2}) : pick({1, p.heads});
    p.layout = pick({Layout::bshd, Layout::bhsd});
    return p;
  }

  // Few of the causal ones would be left if most of them had a diagonal that is not allowed.
  codegen::Config config(bool causal) {
    using namespace codegen;
    Config c;
    c.consumers = pick({1, 2, 2, 3});
    c.block_n = pick({16, 32, 48, 64, 80, 96, 112, 128, 128, 144, 160, 176, 192, 256});
    c.stages = pick({1, 2, 2, 2, 3, 4});
    c.softmax = pick({Softmax::exact, Softmax::first_max, Softmax::zero});
    c.order = pick({Order::qk_pv, Order::pv_qk, Order::serial});
    c.ping_pong = pick({false, true});
    c.q = pick({QSource::shared, QSource::registers});
    if (c.q == QSource::shared) c.q_columns = pick({0, 0, 16, 64, 128});
    c.q_buffers = pick({1, 2});
    c.q_ahead = pick({false, true});
    c.o = pick({OBuffer::own, OBuffer::over_q, OBuffer::direct});
    if (c.o == OBuffer::own) c.o_pieces = pick({1, 1, 1, 2});
    c.boundary = pick({Boundary::drained, Boundary::overlapped});
    c.grid = pick({Grid::plain, Grid::persistent, Grid::dynamic});
    c.cluster = pick({1, 1, 2});
    if (causal) c.diagonal = pick({Diagonal::masked, Diagonal::trimmed, Diagonal::skipped});
    if (causal && c.cluster > 1 && c.diagonal == Diagonal::masked) c.diagonal = Diagonal::skipped;
    if (c.cluster > 1 && c.diagonal == Diagonal::trimmed) c.consumers = 2, c.block_n = 128;
    c.exact_tail = pick({false, true});
    c.remember = pick({false, true});
    c.skip_idle = pick({false, true});
    c.warp_epilogue = pick({false, true});
    c.workers = c.cluster * pick({0, 1, 2, 3});
    c.section = pick({0, 1, 2});
    c.early_copies = c.cluster == 1 && pick({false, true});
    c.first_turn = c.ping_pong && pick({false, true});
    return c;
  }

  // Lengths that meet each kind of edge: whole blocks, a first block of the tail's width, any width, none at all;
  // diagonals that are aligned, that are not, and rows that see nothing. A cluster's last tiles may lie beyond all
  // rows.
  void lengths(ConfigSample& sample) {
    Problem& p = sample.problem;
    const std::int64_t n = sample.config.block_n, m = sample.config.cluster_m();
    p.seqlen_q = pick<std::int64_t>({1, 61, m, m + 29, m + 29, 2 * m});
    const std::int64_t q = p.seqlen_q;
    if (p.causal) {
      p.seqlen_k = pick<std::int64_t>({q, q, q + n, q + 37, q - n, q - 45, q + 1, 0});
    } else {
      p.seqlen_k = pick<std::int64_t>({n, 2 * n, 3 * n, n + 16, 2 * n - 16, n + 5, 2 * n + 37, 5, 0});
    }
    p.seqlen_k = std::max<std::int64_t>(p.seqlen_k, 0);
  }

  tuner::Scores scores() {
    return pick<tuner::Scores>({{.name = "sd 20", .sd = 20},
                                {.name = "sd 60", .sd = 60},
                                {.name = "outliers of 200", .outlier = 200},
                                {.name = "shifted by -12", .shift = -12},
                                {.name = "shifted by 40", .shift = 40}});
  }

  static bool legal(const ConfigSample& sample) {
    const Problem& p = sample.problem;
    // The score matrices of all heads, so that no sample takes long.
    if (p.batch * p.heads * p.seqlen_q * p.seqlen_k > 300'000) return false;
    const Arch arch = parse_arch("sm_90a");
    const codegen::KernelSpec spec = codegen::specialise(arch, p, sample.config);
    return codegen::serves(spec, p) && !codegen::violates(arch, spec) && codegen::simulate(spec).empty();
  }

  std::mt19937 random_;
};

/// Strides with gaps behind rows, heads and batches.
inline std::array<Strides, runtime::kOperands> gapped_strides(const Problem& problem) {
  std::array<Strides, runtime::kOperands> all;
  for (std::size_t i = 0; i < all.size(); ++i) {
    const runtime::TensorShape s = runtime::shape_of(problem, static_cast<runtime::Operand>(i));
    const std::int64_t rows = std::max<std::int64_t>(s.rows, 1);
    if (problem.layout == Layout::bshd) {
      all[i].head = s.head_dim + 8;
      all[i].row = s.heads * all[i].head + 16;
      all[i].batch = rows * all[i].row + 24;
    } else {
      all[i].row = s.head_dim + 8;
      all[i].head = rows * all[i].row + 16;
      all[i].batch = s.heads * all[i].head + 24;
    }
  }
  return all;
}

}  // namespace attune::emulator
