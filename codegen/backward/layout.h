// What follows from a backward spec alone: the shared-memory plan, how dQ is divided among warpgroups, the edges. One
// place for the rules, the emitter and the host.
#pragma once

#include <array>

#include "codegen/kernel_spec.h"

namespace attune::codegen::backward {

constexpr int kConsumers = 2;

/// A warpgroup's part of dQ's tile: 64 accumulator rows of `width` columns. As dQ = dS K its rows are query rows and
/// its columns are dQ's; as dQ^T = K^T dS^T (where 64 does not divide block_m) the other way round.
struct DqPart {
  int row = 0, column = 0;  ///< first query row and first column of dQ
  int width = 0;            ///< 0: this warpgroup has none
  int floats() const { return 64 * width; }
};

/// 64-column chunks of a head dim that a warpgroup owns, as columns.
struct Columns {
  int first = 0, count = 0;
};

struct Layout {
  int qk_chunks = 0, v_chunks = 0;              ///< 64-column chunks of Q and K rows, of V and dO rows
  int k_bytes = 0, v_bytes = 0;                 ///< the block of keys
  int q_bytes = 0, do_bytes = 0, ds_bytes = 0;  ///< one buffer
  int p_stages = 0;                             ///< buffers of P: 0 where it stays in registers
  int p_bytes = 0;                              ///< one of them
  int statistics_bytes = 0;                     ///< one buffer of LSE or delta
  bool transposed_dq = false;                   ///< dQ^T = K^T dS^T
  std::array<DqPart, kConsumers> dq;            ///< by warpgroup
  std::array<Columns, kConsumers> dk, dv;       ///< by warpgroup, Split::columns: what it owns
  int k_at = 0, v_at = 0, q_at = 0, do_at = 0, ds_at = 0, p_at = 0, dq_at = 0, lse_at = 0, delta_at = 0,
      barriers_at = 0, items_at = 0;
  int rows_at = 0, sums_at = 0;  ///< Finish::ring: a chunk of dQ that leaves, and the sums that it is made of
  int bytes = 0;                 ///< dynamic shared memory to ask for

  /// Floats of dQ's sums of one query tile, and where a warpgroup's part starts in them.
  int dq_floats() const { return dq[0].floats() + dq[1].floats(); }
  int dq_start(int warpgroup) const { return warpgroup == 0 ? 0 : dq[0].floats(); }
};
Layout layout_of(const KernelSpec& spec);

/// DqPath::pass: the plan of a thread block that computes dQ. Each warpgroup has 64 query rows, whose Q and dO stay.
struct QueryLayout {
  int k_stages = 0, v_stages = 0;
  int q_at = 0, do_at = 0, k_at = 0, v_at = 0;  ///< Q and dO: a warpgroup's behind the other's
  int data_bytes = 0;                           ///< of all these
};
QueryLayout query_layout_of(const KernelSpec& spec);
/// Query rows of such a thread block.
constexpr int kQueryRows = 64 * kConsumers;

/// Whether the blocks of a head take turns at dQ's sums.
inline bool takes_turns(const KernelSpec& spec) {
  return spec.deterministic && spec.config.backward.dq != DqPath::pass;
}
/// Whether the first one that comes to a tile of dQ stores its sums.
inline bool claims_tiles(const KernelSpec& spec) {
  return !spec.deterministic && spec.config.backward.sums == Sums::stored;
}
/// Whether each tile of dQ has a counter.
inline bool counts_tiles(const KernelSpec& spec) {
  return takes_turns(spec) || claims_tiles(spec) || spec.config.backward.finish == Finish::ring;
}
/// Whether two warps that add to dQ's sums serve every other step each: where a contribution is counted once it is
/// complete, so that one waits until it is while the other goes on.
inline bool adds_by_step(const KernelSpec& spec) {
  return takes_turns(spec) || spec.config.backward.finish == Finish::ring;
}
/// Whether each of two warps serves one warpgroup: where a claim takes what time one warp for both has left. Counters
/// are those of a warpgroup's part, too.
bool adds_by_part(const KernelSpec& spec);
/// Warps that add to dQ's sums.
inline int adders(const KernelSpec& spec) { return adds_by_step(spec) || adds_by_part(spec) ? 2 : 1; }

LaunchShape launch_shape(const KernelSpec& spec);

Edge edge_of(const Problem& problem, const Tunables& tunables);
bool edge_serves(const KernelSpec& spec, const Problem& problem);

}  // namespace attune::codegen::backward
