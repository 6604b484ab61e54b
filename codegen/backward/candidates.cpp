// Which backward configs are worth trying for a problem. Axes first, rules after.
#include <algorithm>
#include <utility>

#include "codegen/backward/params.h"
#include "codegen/backward/space.h"

namespace attune::codegen::backward {
namespace {

std::vector<int> block_ms(const Problem& p) {
  if (std::max(p.head_dim, p.head_dim_v) <= 64) return {64, 96, 128};
  return {64, 80};
}

struct Order {
  bool lag, ping_pong, late_fences, prefetch;
  int ds_stages;
};
constexpr Order kOrders[] = {
    {false, false, false, false, 2}, {false, false, false, false, 1}, {false, false, true, false, 2},
    {false, false, false, true, 2},  {true, true, false, false, 2},   {true, true, true, false, 2},
    {true, true, true, false, 3},    {true, true, true, true, 2},     {true, true, true, true, 3},
};

// How dQ leaves, how blocks of keys are handed out, and what registers that takes: a persistent producer has more to
// remember, and one that finishes dQ more still.
struct Grid {
  DqPath dq;
  bool persistent;
  int registers;
  Finish finish = Finish::launch;
};
constexpr Grid kGrids[] = {
    {DqPath::bulk, false, 240}, {DqPath::bulk, false, 224},   {DqPath::bulk, true, 232},
    {DqPath::bulk, true, 224},  {DqPath::direct, false, 240}, {DqPath::bulk, true, 224, Finish::ring},
    {DqPath::bulk, false, 232},
};

// What happens between two blocks of keys.
struct Boundaries {
  DkvPath dkv;
  int k_stages;
  Boundary boundary = Boundary::drained;
};
constexpr Boundaries kBoundaries[] = {{DkvPath::staged, 1},
                                      {DkvPath::staged, 2},
                                      {DkvPath::direct, 1},
                                      {DkvPath::direct, 2},
                                      {DkvPath::direct, 2, Boundary::overlapped},
                                      {DkvPath::parts, 1},
                                      {DkvPath::parts, 2, Boundary::overlapped}};

struct Stages {
  int q, d_o;
};
// Deeper ones first: a shallower one is of use only where these do not fit.
constexpr Stages kStages[] = {{2, 2}, {2, 1}, {1, 1}};

// Soft rules; the hard ones are in rules.cpp.
bool worth_trying(const Arch& arch, const Problem& p, const Tunables& t) {
  if (t.dkv == DkvPath::parts && !wants_parts(arch, p, t)) return false;
  const bool wide = std::max(p.head_dim, p.head_dim_v) > 64;
  if (!t.persistent && (t.k_stages > 1 || t.dkv == DkvPath::direct)) return false;
  // Which buffer it is costs registers. Where the boundaries overlap, others are free.
  if (t.k_stages > 1 && t.boundary == Boundary::drained && wide && t.registers < 232) return false;
  // At head dim 128, where K comes late, the instructions cost more than the wait that they save.
  if (t.dkv == DkvPath::direct && wide && t.k_stages == 1) return false;
  if (t.v_in_registers && (!t.ping_pong || p.head_dim_v > 64)) return false;
  // A tile of 128 queries has some for both warpgroups unless the lengths differ.
  return !t.skip || t.block_m < 128;
}

}  // namespace

// Else parts are bytes for nothing.
bool wants_parts(const Arch& arch, const Problem& p, const Tunables& t) {
  const std::int64_t blocks = (p.seqlen_k + t.block_n() - 1) / t.block_n() * p.heads_kv * p.batch;
  return p.heads > p.heads_kv && blocks <= arch.sms;
}

std::vector<Config> candidates(const Arch& arch, const Problem& p) {
  std::vector<Config> all;
  const auto fits = [&](const Config& c) { return !backward::violates(arch, specialise(arch, p, c)); };
  const auto consider = [&](Tunables t) {
    for (const Stages& stages : kStages) {
      t.q_stages = stages.q;
      t.do_stages = stages.d_o;
      Config c{.family = Family::sm90_backward};
      c.backward = t;
      if (!fits(c)) continue;
      all.push_back(c);
      return;
    }
  };
  // Two passes pay where a block has few keys for its additions to dQ, and where these would have to wait for each
  // other.
  if (std::max(p.head_dim, p.head_dim_v) > 128 || p.deterministic)
    for (int ds_stages : {2, 1}) consider({.split = Split::products, .ds_stages = ds_stages, .dq = DqPath::pass});
  // Where blocks of keys wait for each other, they had better begin with the same tile. Elsewhere it is all one.
  const Visits visits = p.causal && p.deterministic ? Visits::descending : Visits::ascending;
  for (Split split : {Split::rows, Split::columns})
    for (int block_m : block_ms(p))
      for (const Order& order : kOrders)
        for (const Grid& grid : kGrids)
          for (bool v_in_registers : {false, true})
            for (const Boundaries& boundaries : kBoundaries)
              for (Sums sums : {Sums::zeroed, Sums::stored})
                for (bool skip : {false, true})
                  for (Prepare prepare : {Prepare::inside, Prepare::launch}) {
                    const Tunables t{.block_m = block_m,
                                     .split = split,
                                     .k_stages = boundaries.k_stages,
                                     .ds_stages = order.ds_stages,
                                     .lag = order.lag,
                                     .ping_pong = order.ping_pong,
                                     .late_fences = order.late_fences,
                                     .prefetch = order.prefetch,
                                     .v_in_registers = v_in_registers,
                                     .skip = skip,
                                     .visits = visits,
                                     .dq = grid.dq,
                                     .sums = sums,
                                     .dkv = boundaries.dkv,
                                     .boundary = boundaries.boundary,
                                     .persistent = grid.persistent,
                                     .finish = grid.finish,
                                     .prepare = prepare,
                                     .registers = grid.registers};
                    if (worth_trying(arch, p, t)) consider(t);
                  }
  return all;
}

std::vector<Config> launch_variants(const Arch& arch, const Problem& p, const Config& config) {
  std::vector<Config> all{config};
  const BackwardGrid grid = backward_grid(specialise(arch, p, config), config.backward, p, arch.sms);
  const std::int64_t pairs = p.batch * p.heads_kv, usual = grid.section / grid.parts;
  const auto add = [&](std::int64_t section) {
    if (section == usual) return;
    all.push_back(config);
    all.back().backward.section = static_cast<int>(section);
  };
  if (config.backward.persistent) {  // a few idle SMs can leave the others a higher clock or an even last wave
    all.push_back(config);
    all.back().backward.workers = arch.sms - arch.sms % 8;
  }
  for (std::int64_t section = 1; section < pairs && section <= 64; section *= 2) add(section);
  add(pairs);
  if (config.backward.dkv == DkvPath::parts) {
    const int group = p.heads / p.heads_kv;
    for (int parts = 2; parts <= group; parts++)
      if (group % parts == 0 && parts != grid.parts) {
        all.push_back(config);
        all.back().backward.parts = parts;
      }
  }
  return all;
}

}  // namespace attune::codegen::backward
