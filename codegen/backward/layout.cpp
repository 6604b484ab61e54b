#include "codegen/backward/layout.h"

#include <algorithm>

#include "codegen/backward/params.h"

namespace attune::codegen {
namespace backward {
namespace {

constexpr int chunks(int columns) { return (columns + 63) / 64; }
constexpr int aligned(int bytes, int to) { return (bytes + to - 1) / to * to; }

// The first warpgroup owns the larger half of the chunks: a product's columns may not begin inside a chunk.
std::array<Columns, kConsumers> halves(int columns) {
  const int first = std::min(columns, 64 * ((chunks(columns) + 1) / 2));
  return {{{0, first}, {first, columns - first}}};
}

std::array<DqPart, kConsumers> dq_parts(const KernelSpec& s, bool transposed) {
  const Tunables& t = s.config.backward;
  const bool one_chunk = s.head_dim <= 64;
  std::array<DqPart, kConsumers> parts;
  if (t.dq == DqPath::pass) return parts;
  for (int w = 0; w < kConsumers; w++) {
    DqPart& part = parts[static_cast<std::size_t>(w)];
    if (t.split == Split::columns || (t.block_m == 64 && s.head_dim > 128)) {
      const Columns own = halves(s.head_dim)[static_cast<std::size_t>(w)];
      part = {.row = 0, .column = own.first, .width = own.count};
    } else if (transposed && one_chunk) {
      part = {.row = w * t.block_m / 2, .column = 0, .width = t.block_m / 2};
    } else if (transposed) {
      part = {.row = 0, .column = 64 * w, .width = t.block_m};
    } else if (t.block_m == 128) {
      part = {.row = 64 * w, .column = 0, .width = s.head_dim};
    } else {  // half of a chunk each (columns beyond the head dim are zero), or a chunk each
      part = {.row = 0, .column = one_chunk ? 32 * w : 64 * w, .width = one_chunk ? 32 : 64};
    }
  }
  return parts;
}

}  // namespace

Layout layout_of(const KernelSpec& s) {
  const Tunables& t = s.config.backward;
  const bool ring = t.finish == Finish::ring;
  Layout l;
  l.qk_chunks = chunks(s.head_dim);
  l.v_chunks = chunks(s.head_dim_v);
  l.k_bytes = t.block_n() * l.qk_chunks * 128;
  l.v_bytes = t.block_n() * l.v_chunks * 128;
  l.q_bytes = t.block_m * l.qk_chunks * 128;
  l.do_bytes = t.block_m * l.v_chunks * 128;
  const bool products = t.split == Split::products;
  l.ds_bytes = products ? 0 : t.block_m * t.block_n() * 2;
  l.p_stages = t.split == Split::rows ? 0 : t.ds_stages;
  // From warpgroup to warpgroup P goes as it is, in float32; as an operand rounded like dS.
  l.p_bytes = t.block_m * t.block_n() * (products ? 4 : 2);
  l.statistics_bytes = aligned(t.block_m * 4, 128);
  l.transposed_dq = t.split == Split::rows && t.block_m % 64 != 0;
  l.dq = dq_parts(s, l.transposed_dq);
  l.dk = halves(s.head_dim);
  l.dv = halves(s.head_dim_v);
  l.k_at = 0;
  l.v_at = l.k_at + t.k_stages * l.k_bytes;
  l.q_at = l.v_at + l.v_bytes;
  l.do_at = l.q_at + t.q_stages * l.q_bytes;
  l.ds_at = l.do_at + t.do_stages * l.do_bytes;
  l.p_at = l.ds_at + t.ds_stages * l.ds_bytes;
  l.dq_at = l.p_at + l.p_stages * l.p_bytes;
  l.rows_at = l.dq_at + (t.dq == DqPath::bulk ? 4 * l.dq_floats() : 0);
  l.sums_at = l.rows_at + (ring ? 64 * 64 * 2 : 0);
  l.lse_at = l.sums_at + (ring ? 64 * 64 * 4 : 0);
  l.delta_at = l.lse_at + t.q_stages * l.statistics_bytes;
  l.barriers_at = l.delta_at + t.do_stages * l.statistics_bytes;
  if (t.dq == DqPath::pass) l.barriers_at = std::max(l.barriers_at, query_layout_of(s).data_bytes);
  // K full, V full; full and empty of each stage of Q, dO and dS; K empty, V empty, full and empty of two items; full
  // of the sums. (A thread block that computes dQ: full of each warpgroup's Q and dO, full and empty of each stage of K
  // and V.)
  l.items_at = aligned(l.barriers_at + 8 * (6 + ring + 2 * (t.k_stages + t.q_stages + t.do_stages + t.ds_stages)), 16);
  l.bytes = l.items_at + (t.persistent ? 2 * 32 : 16);
  l.bytes += 1024;  // swizzled tiles start on 1024 bytes; the window's start need not
  return l;
}

QueryLayout query_layout_of(const KernelSpec& s) {
  const Tunables& t = s.config.backward;
  const int qk_chunks = chunks(s.head_dim), v_chunks = chunks(s.head_dim_v);
  const int k_bytes = t.block_n() * qk_chunks * 128, v_bytes = t.block_n() * v_chunks * 128;
  QueryLayout q;
  q.do_at = kQueryRows * qk_chunks * 128;
  q.k_at = q.do_at + kQueryRows * v_chunks * 128;
  // K of a step is needed longer than V, so that V gets a second buffer only where there is room.
  constexpr int kRoom = 224 * 1024;
  q.k_stages = 2;
  q.v_stages = q.k_at + 2 * (k_bytes + v_bytes) <= kRoom ? 2 : 1;
  q.v_at = q.k_at + q.k_stages * k_bytes;
  q.data_bytes = q.v_at + q.v_stages * v_bytes;
  return q;
}

LaunchShape launch_shape(const KernelSpec& s) {
  const Tunables& t = s.config.backward;
  LaunchShape shape;
  shape.entry = "attune_backward";
  shape.threads = 128 * (kConsumers + 1);
  shape.shared_bytes = layout_of(s).bytes;
  shape.block_m = t.block_m;
  shape.block_n = t.block_n();
  shape.q_box_rows = t.block_m;
  shape.kv_box_rows = t.block_n();
  shape.o_box_rows = 64;
  shape.before = {{.entry = "attune_backward_prepare", .threads = 256}};
  if (t.dq == DqPath::pass)
    shape.dq_rows = kQueryRows;
  else if (t.finish == Finish::launch)
    shape.after = {{.entry = "attune_backward_finish", .threads = 256}};
  return shape;
}

Edge edge_of(const Problem& p, const Tunables& t) {
  if (p.causal) return Edge::diagonals;
  return p.seqlen_k % t.block_n() == 0 ? Edge::none : Edge::length;
}

bool edge_serves(const KernelSpec& s, const Problem& p) {
  return s.edge != Edge::none || p.seqlen_k % s.config.backward.block_n() == 0;
}

bool adds_by_part(const KernelSpec& spec) {
  // The other warps are busy where they prepare tiles.
  if (!claims_tiles(spec) || spec.config.backward.prepare == Prepare::inside) return false;
  const Layout l = layout_of(spec);
  return l.dq[0].width > 0 && l.dq[1].width > 0;
}

}  // namespace backward

BackwardWorkspace backward_workspace(const KernelSpec& spec, const Problem& p, const BackwardGrid& grid) {
  const backward::Tunables& t = spec.config.backward;
  const bool ring = t.finish == backward::Finish::ring;
  const auto block_m = static_cast<std::size_t>(t.block_m);
  const std::size_t tiles_m = (static_cast<std::size_t>(p.seqlen_q) + block_m - 1) / block_m;
  const std::size_t tiles = tiles_m * static_cast<std::size_t>(p.heads) * static_cast<std::size_t>(p.batch);
  const auto parts = static_cast<std::size_t>(grid.parts);
  const std::size_t tiles_of_pair = tiles_m * static_cast<std::size_t>(p.heads / p.heads_kv) / parts;
  const std::size_t pairs = static_cast<std::size_t>(p.heads_kv * p.batch) * parts;
  BackwardWorkspace w;
  const auto take = [&w](std::size_t bytes) {
    const std::size_t at = w.bytes;
    w.bytes +=
        (bytes + BackwardWorkspace::kAlignment - 1) / BackwardWorkspace::kAlignment * BackwardWorkspace::kAlignment;
    return at;
  };
  w.shifts_at = take(tiles * block_m * 4);
  w.deltas_at = take(tiles * block_m * 4);
  w.dq_sums_at = take(static_cast<std::size_t>(grid.slots) * tiles_of_pair *
                      static_cast<std::size_t>(backward::layout_of(spec).dq_floats()) * 4);
  const std::size_t counters = backward::adds_by_part(spec) ? 2 : backward::counts_tiles(spec) ? 1 : 0;
  w.turns_at = take(counters * tiles * 4);
  const bool inside = t.prepare == backward::Prepare::inside;
  w.ticket_at = take(tiles > 0 && (backward::takes_turns(spec) || t.persistent || inside) ? 12 : 0);
  w.finished_at = take(tiles > 0 && ring ? pairs * 4 : 0);
  w.ready_at = take(inside && tiles > 0 ? (tiles + pairs) * 4 : 0);
  const bool apart = t.dkv == backward::DkvPath::parts && tiles > 0;
  const auto block_n = static_cast<std::size_t>(t.block_n());
  w.parts_at = take(apart ? pairs * ((static_cast<std::size_t>(p.seqlen_k) + block_n - 1) / block_n) * block_n *
                                static_cast<std::size_t>(p.head_dim + p.head_dim_v) * 4
                          : 0);
  return w;
}

}  // namespace attune::codegen
