// Backward kernels drawn from the whole space, each with a problem that it serves: the same ones on every machine.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <random>

#include <attune/problem.h>

#include "codegen/space.h"
#include "tests/emu/backward_data.h"

namespace attune::emulator {

struct BackwardSample {
  Problem problem;
  codegen::Config config;
  BackwardOptions options;
};

/// The generator's numbers are used as they come, since the standard's distributions differ between libraries.
class BackwardSampler {
 public:
  explicit BackwardSampler(std::uint32_t seed) : random_(seed) {}

  BackwardSample next() {
    for (;;) {
      BackwardSample sample;
      sample.problem = dimensions();
      sample.config = config();
      if (!sample.problem.causal || sample.config.backward.split != codegen::backward::Split::rows)
        sample.config.backward.skip = false;
      if (!sample.problem.causal) sample.config.backward.visits = codegen::backward::Visits::ascending;
      if (sample.config.backward.dkv == codegen::backward::DkvPath::parts)
        sample.config.backward.parts = pick({0, 1, sample.problem.heads / sample.problem.heads_kv});
      lengths(sample);
      if (!legal(sample)) continue;
      sample.options.gaps = pick({0, 1, 2, 3}) == 0;
      sample.options.d_lse = pick({0, 1, 2}) == 0;
      if (pick({0, 1, 2, 3}) == 0) sample.options.sd = pick({4.F, 12.F});
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
    p.op = Op::backward;
    p.dtype = pick({DType::bf16, DType::fp16});
    // Each class of widths: narrower than a 64-column chunk, one, between, two, three, four of them.
    p.head_dim = pick({8, 16, 24, 40, 48, 64, 64, 72, 80, 96, 112, 128, 128, 136, 160, 192, 200, 256});
    p.head_dim_v = p.head_dim;
    if (pick({0, 1, 2, 3}) == 0) p.head_dim_v = pick({8, 16, 40, 64, 72, 128, 128, 192, 256});
    p.causal = pick({false, true});
    p.batch = pick({1, 1, 2});
    p.heads = pick({1, 2, 2, 3});
    p.heads_kv = p.heads == 2 ? pick({1, 2}) : pick({1, p.heads});
    p.layout = pick({Layout::bshd, Layout::bhsd});
    p.deterministic = pick({false, false, true});
    return p;
  }

  codegen::Config config() {
    using namespace codegen::backward;
    codegen::Config c{.family = codegen::Family::sm90_backward};
    Tunables& t = c.backward;
    t.block_m = pick({16, 32, 48, 64, 64, 64, 80, 96, 112, 128, 128});
    t.split = pick({Split::rows, Split::rows, Split::rows, Split::rows, Split::columns});
    if (pick({0, 1, 2, 3, 4, 5, 6, 7}) == 0) t.split = Split::products;  // few rules forbid it
    t.q_stages = pick({1, 2, 2, 3});
    t.do_stages = pick({1, 2, 2, 3});
    t.ds_stages = pick({1, 2, 2, 3});
    t.lag = pick({false, true});
    t.ping_pong = pick({false, true});
    t.late_fences = pick({false, true});
    t.prefetch = pick({false, true});
    t.skip = pick({false, true});
    t.visits = pick({Visits::ascending, Visits::descending});
    t.dq = pick({DqPath::bulk, DqPath::bulk, DqPath::direct});
    t.sums = t.dq == DqPath::bulk ? pick({Sums::zeroed, Sums::stored}) : Sums::zeroed;
    t.dkv = pick({DkvPath::staged, DkvPath::direct, DkvPath::parts});
    t.v_in_registers = pick({false, true});
    t.persistent = pick({false, true});
    if (t.persistent) t.k_stages = pick({1, 2});
    t.finish = pick({Finish::launch, Finish::ring});
    t.prepare = pick({Prepare::launch, Prepare::inside});
    if (t.persistent && pick({false, true})) {  // most of the rest is against the rules
      t.boundary = Boundary::overlapped;
      t.lag = true;
      t.k_stages = 2;
      t.dkv = pick({DkvPath::direct, DkvPath::parts});
    }
    t.registers = pick({224, 232, 240});
    t.section = pick({0, 1, 2});
    if (!t.persistent || t.block_m % 64 != 0) t.finish = Finish::launch;
    if (t.split != Split::rows) {  // most of the rest is against the rules
      t.block_m = 64;
      t.lag = t.ping_pong = t.persistent = t.v_in_registers = false;
      t.boundary = Boundary::drained;
      t.k_stages = 1;
      t.finish = Finish::launch;
      t.ds_stages = pick({1, 2});
    }
    if (t.split == Split::products) {
      t.dq = DqPath::pass;
      t.visits = Visits::ascending;
      t.sums = Sums::zeroed;
      t.late_fences = t.prefetch = false;
      t.dkv = DkvPath::staged;
    }
    return c;
  }

  // Lengths that meet each kind of edge: whole tiles, parts of them, none at all; diagonals that are aligned, that are
  // not, and rows that see nothing.
  void lengths(BackwardSample& sample) {
    Problem& p = sample.problem;
    const std::int64_t m = sample.config.backward.block_m, n = sample.config.backward.block_n();
    p.seqlen_q = pick<std::int64_t>({1, 61, m, 2 * m, m + 29, 3 * m + 7, 0});
    const std::int64_t q = p.seqlen_q;
    if (p.causal) {
      p.seqlen_k = pick<std::int64_t>({q, q, q + n, q + 37, q - 45, q + 1, 0});
    } else {
      p.seqlen_k = pick<std::int64_t>({n, 2 * n, n + 16, n + 5, 2 * n - 3, 5, 0});
    }
    p.seqlen_k = std::max<std::int64_t>(p.seqlen_k, 0);
  }

  bool legal(const BackwardSample& sample) {
    const Problem& p = sample.problem;
    if (p.seqlen_q == 0 && p.seqlen_k == 0) return false;
    if ((p.seqlen_q == 0 || p.seqlen_k == 0) && pick({0, 1, 2, 3}) != 0) return false;
    // The score matrices of all heads, so that no sample takes long.
    if (p.batch * p.heads * p.seqlen_q * p.seqlen_k > 120'000) return false;
    const Arch arch = parse_arch("sm_90a");
    const codegen::KernelSpec spec = codegen::specialise(arch, p, sample.config);
    return codegen::serves(spec, p) && !codegen::violates(arch, spec);
  }

  std::mt19937 random_;
};

}  // namespace attune::emulator
