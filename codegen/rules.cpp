// Hard rules: each says in words why a spec cannot be built.
#include <fmt/format.h>

#include "codegen/backward/space.h"
#include "codegen/layout.h"
#include "codegen/space.h"

namespace attune::codegen {
namespace {

using Reason = std::optional<std::string>;

Reason shapes(const Arch&, const KernelSpec& s) {
  const Config& c = s.config;
  if (c.block_n % 16 != 0 || c.block_n > 256)
    return fmt::format("block_n: {} is not a wgmma shape (allowed: 16, 32, ..., 256)", c.block_n);
  if (c.consumers < 1 || c.consumers > 3) return fmt::format("consumers: {} (allowed: 1, 2, 3)", c.consumers);
  if (s.edge == Edge::tail && (s.tail % 16 != 0 || s.tail <= 0 || s.tail >= c.block_n))
    return fmt::format("tail: {} is not a multiple of 16 below block_n = {}", s.tail, c.block_n);
  return {};
}

Reason schedule(const Arch&, const KernelSpec& s) {
  const Config& c = s.config;
  if (c.softmax != Softmax::exact && c.order == Order::qk_pv)
    return "softmax: speculation needs an intact S (allowed with order pv_qk or serial)";
  if (c.ping_pong && (c.consumers < 2 || c.order == Order::serial))
    return "ping_pong: needs two consumers or more and an order other than serial";
  if (c.first_turn && !c.ping_pong) return "first_turn: without turns there is no first one (allowed: ping_pong = 1)";
  if (!c.remember && c.softmax != Softmax::zero) return "remember: only softmax zero has something to remember";
  return {};
}

Reason query(const Arch&, const KernelSpec& s) {
  const Config& c = s.config;
  if (c.q_columns == 0) return {};
  if (c.q != QSource::shared) return "q_columns: all of Q is in registers (allowed: 0)";
  if (c.q_columns % 16 != 0 || c.q_columns >= s.head_dim)
    return fmt::format("q_columns: {} is not a multiple of 16 below head_dim = {}", c.q_columns, s.head_dim);
  return {};
}

Reason buffers(const Arch&, const KernelSpec& s) {
  const Config& c = s.config;
  const SharedLayout l = layout_of(s);
  if (c.boundary == Boundary::overlapped && c.o == OBuffer::over_q)
    return "boundary: overlapped needs Q's buffer for the next tile (allowed: o = own, direct)";
  if (c.boundary == Boundary::overlapped && c.grid == Grid::plain)
    return "boundary: one tile a block has no next tile to overlap with (grid = plain)";
  if (c.o == OBuffer::over_q && l.o_bytes > l.q_bytes)
    return fmt::format("o: {} bytes do not fit over Q's {} bytes (allowed: own)", l.o_bytes, l.q_bytes);
  const bool q_is_free_early = c.q_buffers == 2 || c.moves_q();
  if (c.q_ahead && !q_is_free_early) return "q_ahead: needs q_buffers = 2, or q = registers with o = own or direct";
  if (c.q_ahead && c.grid == Grid::plain) return "q_ahead: one tile a block has no next tile (grid = plain)";
  if (c.o_pieces > 1 && c.o != OBuffer::own) return "o_pieces: needs o = own";
  if (c.o_pieces > l.v_chunks)
    return fmt::format("o_pieces: {} of {} chunks of 64 columns (allowed: 1 to {})", c.o_pieces, l.v_chunks,
                       l.v_chunks);
  if (c.warp_epilogue && c.o != OBuffer::own) return "warp_epilogue: needs o = own";
  return {};
}

Reason diagonal(const Arch&, const KernelSpec& s) {
  const Config& c = s.config;
  if (c.diagonal != Diagonal::masked && !s.causal) return "diagonal: only a causal kernel has one (allowed: masked)";
  if (c.diagonal == Diagonal::trimmed && !(c.consumers == 2 && c.block_n == 128))
    return "diagonal: trimmed needs consumers = 2 and block_n = 128";
  if (c.diagonal == Diagonal::skipped && c.block_n >= c.cluster_m())
    return fmt::format("diagonal: skipped needs block_n below the {} rows of a cluster's tiles", c.cluster_m());
  if (c.cluster > 1 && s.causal && !c.skips_blocks())
    return "diagonal: tiles of a cluster do not end at the same block of keys (allowed: trimmed, skipped)";
  if (c.exact_tail && s.causal) return "exact_tail: a causal kernel's first block is the diagonal";
  return {};
}

Reason cluster(const Arch&, const KernelSpec& s) {
  const Config& c = s.config;
  // Clusters of four lost 7 to 10% on an H200 (docs/kernels/NOTES.md, 40).
  if (c.cluster < 1 || c.cluster > 2) return fmt::format("cluster: {} (allowed: 1, 2)", c.cluster);
  if (c.early_copies && c.cluster > 1)
    return "early_copies: a cluster's copies arrive at barriers of all its thread blocks (allowed: cluster = 1)";
  return {};
}

Reason shared_memory(const Arch& arch, const KernelSpec& s) {
  const int needed = layout_of(s).bytes + kStaticShared;
  if (needed > arch.shared_per_block)
    return fmt::format("shared memory: {} bytes needed, {} available", needed, arch.shared_per_block);
  return {};
}

// An estimate, and so a soft rule: what it lets through is still checked for spills after compiling.
Reason registers(const Arch&, const KernelSpec& s) {
  const int needed = registers_needed(s), available = register_split(s).consumer;
  if (needed > available) return fmt::format("registers: about {} a thread needed, {} available", needed, available);
  return {};
}

}  // namespace

std::optional<std::string> violates(const Arch& arch, const KernelSpec& spec) {
  if (is_reference(spec.config.family)) return {};
  if (spec.config.family == Family::sm90_backward) return backward::violates(arch, spec);
  for (const auto rule : {shapes, schedule, query, buffers, diagonal, cluster, shared_memory, registers})
    if (Reason reason = rule(arch, spec)) return reason;
  return {};
}

}  // namespace attune::codegen
