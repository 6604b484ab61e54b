// What the host passes to the kernels of the backward pass, and the memory that they need beside their tensors.
#pragma once

#include <cstddef>
#include <cstdint>

#include "codegen/kernel_spec.h"

namespace attune::codegen {

/// Run-time arguments of every kernel of a Family::sm90_backward build. The main kernel's parameters are (TensorMap q,
/// k, v, dO, dK, dV; with Finish::ring dQ; BackwardParams), in that order; those before and after it take
/// BackwardParams alone. Mirrors templates/backward/params.cuh, which asserts the same size. Strides in elements.
struct BackwardParams {
  const void* o = nullptr;
  const void* d_o = nullptr;
  void* d_q = nullptr;
  void* d_k = nullptr;
  void* d_v = nullptr;
  const float* lse = nullptr;    ///< [batch, heads, seqlen_q], natural logarithm, as the forward pass wrote it
  const float* d_lse = nullptr;  ///< [batch, heads, seqlen_q]; null: zeros
  // -- workspace, see BackwardWorkspace
  float* shifts = nullptr;
  float* deltas = nullptr;
  float* dq_sums = nullptr;
  unsigned* turns = nullptr;
  unsigned* ticket = nullptr;
  unsigned* finished = nullptr;
  unsigned* ready = nullptr;
  float* dkv_parts = nullptr;
  std::int64_t o_batch = 0, o_head = 0, o_row = 0;
  std::int64_t do_batch = 0, do_head = 0, do_row = 0;
  std::int64_t dq_batch = 0, dq_head = 0, dq_row = 0;
  std::int64_t dk_batch = 0, dk_head = 0, dk_row = 0;
  std::int64_t dv_batch = 0, dv_head = 0, dv_row = 0;
  std::int32_t seqlen_q = 0;
  std::int32_t seqlen_k = 0;
  std::int32_t heads = 0;
  std::int32_t heads_kv = 0;       ///< KV heads times parts
  std::int32_t group = 0;          ///< query heads of a pair: heads / heads_kv
  std::int32_t tiles_m = 0;        ///< ceil(seqlen_q / block_m)
  std::int32_t tiles_n = 0;        ///< ceil(seqlen_k / block_n)
  std::int32_t pairs = 0;          ///< heads_kv * batch
  std::int32_t section = 1;        ///< as in BackwardGrid
  std::int32_t slots = 0;          ///< as in BackwardGrid
  std::int32_t tiles_of_pair = 0;  ///< tiles_m * group
  std::int32_t prepared = 0;       ///< as in BackwardGrid
  std::int32_t ahead = 0;          ///< as in BackwardGrid
  std::int32_t parts = 1;          ///< as in BackwardGrid
  float scale = 0;                 ///< softmax scale
  float scale_log2 = 0;            ///< scale * log2(e)
};

static_assert(sizeof(BackwardParams) == 304, "templates/backward/params.cuh takes 304 bytes");

/// How a launch of a Family::sm90_backward build divides its work: the launch part of its config, and rules for what
/// that leaves open. A pair is a KV head of a sequence, with DkvPath::parts one share of the query heads that read it.
struct BackwardGrid {
  int parts = 1;            ///< such shares of a KV head; 1 without queries
  int section = 1;          ///< pairs whose Q and dO share L2 at a time; 1 to their number
  std::int64_t blocks = 0;  ///< thread blocks of the main kernel
  int slots = 0;            ///< pairs whose sums of dQ exist at a time; a section and more, if not all
  int prepared = 0;         ///< query tiles that the kernel before the main one prepares; the main kernel does the rest
  std::int64_t finishing = 0;  ///< thread blocks of the kernel after it: one for each query tile; with DkvPath::parts
                               ///< kFinishers more for each block of keys of a KV head
  int ahead = 0;  ///< Prepare::inside: query tiles are prepared up to the end of the section of the key block that
                  ///< comes so many behind those that run
};
/// Thread blocks that add up the parts of a block of keys: dV and dK of 64 keys each.
constexpr int kFinishers = 4;
/// Throws where the launch part's `parts` does not fit the problem.
BackwardGrid backward_grid(const KernelSpec& spec, const backward::Tunables& launch_part, const Problem& problem,
                           int sms);
/// What follows from shape and grid: all but pointers, strides and scale.
BackwardParams backward_params(const KernelSpec& spec, const Problem& problem, const BackwardGrid& grid);

/// Byte offsets of a backward launch's workspace, at most linear in seqlen_q and, with DkvPath::parts, seqlen_k. It
/// needs no initial contents; launches that may run at the same time must not share it. Aligned to kAlignment.
struct BackwardWorkspace {
  static constexpr std::size_t kAlignment = 256;
  std::size_t shifts_at = 0;   ///< float [batch, heads, tiles_m * block_m]: -LSE log2(e), -inf for rows without keys
  std::size_t deltas_at = 0;   ///< float, likewise: rowsum(dO * O) - dLSE
  std::size_t dq_sums_at = 0;  ///< float [slots, group, tiles_m, floats of a tile]: unscaled, as fragments
  /// unsigned [batch, heads, tiles_m]: key blocks added (deterministic, ring); or whether the sums have been stored
  /// (Sums::stored), two in a row where each warpgroup's part has an adder of its own.
  std::size_t turns_at = 0;
  std::size_t ticket_at = 0;    ///< unsigned [3]: key blocks (where they take turns, or persistent), query tiles
                                ///< to finish (ring) and to prepare (Prepare::inside) handed out
  std::size_t finished_at = 0;  ///< unsigned [batch, heads_kv]: query tiles whose dQ is finished (ring alone)
  /// Prepare::inside alone: unsigned [batch, heads, tiles_m], prepared query tiles; then [pairs], how many of a pair.
  std::size_t ready_at = 0;
  /// DkvPath::parts alone: float [pairs, tiles_n, 2 warpgroups, 64 * (head_dim_v + head_dim)], dV and then dK of 64
  /// keys, unscaled, as fragments.
  std::size_t parts_at = 0;
  std::size_t bytes = 0;
};
BackwardWorkspace backward_workspace(const KernelSpec& spec, const Problem& problem, const BackwardGrid& grid);

/// Run-time arguments of both kernels of a Family::reference_backward build (their only parameter). Strides in
/// elements. The kernel before the main one takes thread block (i, head, batch) of 128 threads for query row
/// row_first + i * row_step and writes its statistics and, if it is asked for, dQ. The main kernel takes (i, KV head,
/// batch) for key row key_first + i * key_step and writes dK and dV; it reads the statistics of every query row, so it
/// needs the first one to have run with row_first 0 and row_step 1. Rows beyond the lengths are skipped.
///
/// With `rounded` the kernels round as those for the matrix units have to: P and dS before the products that they go
/// into. All else stays float64.
struct ReferenceBackwardParams {
  const void* q = nullptr;
  const void* k = nullptr;
  const void* v = nullptr;
  const void* d_o = nullptr;
  const void* o = nullptr;       ///< delta comes from it; null: from dP, unrounded
  const float* lse = nullptr;    ///< [batch, heads, seqlen_q]; null: computed from Q and K. Needs o
  const float* d_lse = nullptr;  ///< [batch, heads, seqlen_q]; null: zeros
  double* statistics = nullptr;  ///< [batch, heads, seqlen_q, 2]: LSE and delta
  void* d_q = nullptr;           ///< rounded, in the problem's dtype; null: not written
  void* d_k = nullptr;
  void* d_v = nullptr;
  double* dq_exact = nullptr;  ///< [batch, heads, rows of the grid, head_dim] unrounded; null: not written
  double* dk_exact = nullptr;  ///< [batch, heads_kv, rows of the grid, head_dim]
  double* dv_exact = nullptr;  ///< [batch, heads_kv, rows of the grid, head_dim_v]
  std::int64_t q_batch = 0, q_head = 0, q_row = 0;
  std::int64_t k_batch = 0, k_head = 0, k_row = 0;
  std::int64_t v_batch = 0, v_head = 0, v_row = 0;
  std::int64_t do_batch = 0, do_head = 0, do_row = 0;
  std::int64_t o_batch = 0, o_head = 0, o_row = 0;
  std::int64_t dq_batch = 0, dq_head = 0, dq_row = 0;
  std::int64_t dk_batch = 0, dk_head = 0, dk_row = 0;
  std::int64_t dv_batch = 0, dv_head = 0, dv_row = 0;
  double scale = 0;
  std::int32_t seqlen_q = 0, seqlen_k = 0, heads = 0, heads_kv = 0;
  std::int32_t row_first = 0, row_step = 1, key_first = 0, key_step = 1;
  std::int32_t rounded = 0, unused = 0;
};
static_assert(sizeof(ReferenceBackwardParams) == 352, "templates/reference/backward.cuh takes 352 bytes");

}  // namespace attune::codegen
