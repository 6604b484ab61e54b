// Hard rules of the backward pass: each says in words why a spec cannot be built.
#include <fmt/format.h>

#include <algorithm>

#include "codegen/backward/layout.h"
#include "codegen/backward/space.h"

namespace attune::codegen::backward {
namespace {

using Reason = std::optional<std::string>;

Reason shapes(const Arch&, const KernelSpec& s) {
  const Tunables& t = s.config.backward;
  if (t.block_m % 16 != 0 || t.block_m < 16 || t.block_m > 128)
    return fmt::format("block_m: {} is not a multiple of 16 up to 128", t.block_m);
  if (t.split != Split::rows && t.block_m != 64)
    return fmt::format("block_m: {} with split = columns or products (allowed: 64)", t.block_m);
  if (t.split == Split::rows && t.block_m != 64 && s.head_dim > 128)
    return fmt::format("block_m: {} above head dim 128 (allowed: 64)", t.block_m);
  if (t.registers != 224 && t.registers != 232 && t.registers != 240)
    return fmt::format("registers: {} (allowed: 224, 232, 240)", t.registers);
  return {};
}

Reason schedule(const Arch&, const KernelSpec& s) {
  const Tunables& t = s.config.backward;
  if ((t.split == Split::products) != (t.dq == DqPath::pass))
    return "split: products leaves dQ to a pass of its own (allowed: products with dq = pass, and only so)";
  if (t.split == Split::products && t.dkv == DkvPath::direct)
    return "dkv: direct with split = products (allowed: staged)";
  if (t.dkv == DkvPath::parts && (t.split != Split::rows || t.dq != DqPath::bulk || t.finish != Finish::launch))
    return "dkv: parts needs split = rows, dq = bulk and finish = launch";
  if (t.split == Split::products && (t.lag || t.prefetch))
    return "lag, prefetch: with split = products every warpgroup has one order (allowed: 0)";
  if (t.split == Split::products && t.q_stages < 2)
    return "q_stages: with split = products the next Q is loaded while dK still reads this one (allowed: 2 and more)";
  if (t.lag && t.split == Split::columns) return "lag: with split = columns every product needs both warpgroups' dS";
  if (t.lag && t.ds_stages < 2) return "lag: needs ds_stages = 2 or more";
  if (!t.lag && t.ds_stages > 2) return "ds_stages: more than 2 are used with lag alone";
  if (t.ping_pong && !t.lag) return "ping_pong: the warpgroups meet in every step (allowed with lag)";
  if (t.late_fences && t.dq != DqPath::bulk) return "late_fences: needs dq = bulk";
  if (t.v_in_registers && t.split != Split::rows)
    return "v_in_registers: both warpgroups need all of V (allowed: rows)";
  if (t.skip && (!s.causal || t.split != Split::rows))
    return "skip: every tile sees keys of both warpgroups (allowed with causal = 1 and split = rows)";
  if (t.visits == Visits::descending && (!s.causal || t.dq == DqPath::pass))
    return "visits: descending has a causal mask and sums of dQ to serve (allowed with causal = 1, and not with dq = "
           "pass)";
  if (t.sums == Sums::stored && t.dq != DqPath::bulk) return "sums: stored needs dq = bulk";
  if (s.deterministic && t.dq == DqPath::direct)
    return "dq: direct additions come in any order (deterministic: bulk, pass)";
  return {};
}

Reason grid(const Arch&, const KernelSpec& s) {
  const Tunables& t = s.config.backward;
  if (t.boundary == Boundary::overlapped && (!t.persistent || !t.lag || t.k_stages < 2 || t.dkv == DkvPath::staged))
    return "boundary: overlapped needs persistent = 1, lag = 1, k_stages = 2 and dkv = direct or parts";
  if (!t.persistent && t.k_stages > 1) return "k_stages: 2 have a next block of keys to serve (allowed: persistent)";
  if (!t.persistent) return {};
  if (t.split != Split::rows || t.dq != DqPath::bulk) return "persistent: needs split = rows and dq = bulk";
  if (t.dkv != DkvPath::staged) return {};
  const Layout l = backward::layout_of(s);
  for (const DqPart& part : l.dq)
    if (4 * part.floats() < l.qk_chunks * 64 * 128)
      return fmt::format("persistent: dK, {} bytes a warpgroup, leaves from dQ's {}", l.qk_chunks * 64 * 128,
                         4 * part.floats());
  if (t.ds_stages * l.ds_bytes < kConsumers * l.v_chunks * 64 * 128)
    return fmt::format("persistent: dV, {} bytes, leaves from dS's {}", kConsumers * l.v_chunks * 64 * 128,
                       t.ds_stages * l.ds_bytes);
  return {};
}

Reason finish(const Arch&, const KernelSpec& s) {
  const Tunables& t = s.config.backward;
  if (t.finish != Finish::ring) return {};
  if (!t.persistent) return "finish: ring needs persistent = 1";
  if (t.block_m % 64 != 0)
    return fmt::format("finish: ring with block_m = {}, whose dQ is transposed (allowed: 64, 128)", t.block_m);
  // One of them would hold a tile that another thread block waits for, while the other one waits for that block.
  if (t.sums == Sums::stored && !s.deterministic)
    return "sums: stored with finish = ring, whose two warps add in any order (allowed: zeroed, or deterministic)";
  if (t.registers > 232) return fmt::format("finish: ring with registers = {} (allowed: 224, 232)", t.registers);
  return {};
}

Reason prepare(const Arch&, const KernelSpec& s) {
  const Tunables& t = s.config.backward;
  if (t.prepare == Prepare::launch) return {};
  if (t.dq != DqPath::bulk) return "prepare: inside needs dq = bulk";
  if (t.visits == Visits::descending) return "prepare: inside with visits = descending (allowed: ascending)";
  if (takes_turns(s))
    return "prepare: inside with a deterministic dQ, whose additions take these warps (allowed: launch)";
  if (t.registers > 232) return fmt::format("prepare: inside with registers = {} (allowed: 224, 232)", t.registers);
  return {};
}

Reason shared_memory(const Arch& arch, const KernelSpec& s) {
  const int needed = backward::layout_of(s).bytes;
  if (needed > arch.shared_per_block)
    return fmt::format("shared memory: {} bytes needed, {} available", needed, arch.shared_per_block);
  return {};
}

// An estimate, and so a soft rule: what it lets through is still checked for spills after compiling.
Reason registers(const Arch&, const KernelSpec& s) {
  const Tunables& t = s.config.backward;
  const Layout l = backward::layout_of(s);
  if (t.split == Split::products) {
    // dV, or dK, or dQ, with scores of 64 columns and their packed halves.
    const int needed = std::max(s.head_dim, s.head_dim_v) / 2 + 64 + 16 + 24;
    if (needed > t.registers)
      return fmt::format("registers: about {} a thread needed, {} available", needed, t.registers);
    return {};
  }
  const bool rows = t.split == Split::rows;
  const int gradients = rows ? (s.head_dim + s.head_dim_v) / 2 : (l.dk[0].count + l.dv[0].count) / 2;
  const int scores = rows ? t.block_m : t.block_m / 2;  // S and dP
  const int packed = rows ? t.block_m / 2 : 0;          // P and dS, beside dQ
  const int keys = t.v_in_registers ? 4 * ((s.head_dim_v + 15) / 16) : 0;
  const int counters = t.persistent ? 28 : 24;
  const int needed = gradients + keys + std::max(scores, packed + l.dq[0].width / 2) + counters;
  if (needed > t.registers)
    return fmt::format("registers: about {} a thread needed, {} available", needed, t.registers);
  return {};
}

}  // namespace

std::optional<std::string> violates(const Arch& arch, const KernelSpec& spec) {
  for (const auto rule : {shapes, schedule, grid, finish, prepare, shared_memory, registers})
    if (Reason reason = rule(arch, spec)) return reason;
  return {};
}

}  // namespace attune::codegen::backward
