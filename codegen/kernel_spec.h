// Exactly what the emitter reads and the build key hashes: one struct, so the two cannot drift apart.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include <attune/problem.h>
#include "codegen/config.h"

namespace attune::codegen {

/// What is known about the edges of the score matrix when the kernel is compiled.
enum class Edge {
  none,       ///< not causal, block_n divides seqlen_k: no masks at all
  tail,       ///< not causal, the first block processed is `tail` keys wide: no masks
  length,     ///< not causal, any seqlen_k (0 too): the first block (backward: the last) is masked by length
  diagonal,   ///< causal, aligned so that only a warpgroup's first block crosses the diagonal
  diagonals,  ///< causal, any seqlen_q and seqlen_k: masked until below the diagonal
};

struct KernelSpec {
  std::string arch = "sm_90a";
  DType dtype = DType::bf16;
  int head_dim = 128;
  int head_dim_v = 128;
  bool causal = false;
  Edge edge = Edge::none;
  int tail = 0;                ///< with Edge::tail: width of the first block, a multiple of 16 below block_n
  bool deterministic = false;  ///< backward: dQ is summed in one order
  Config config;               ///< launch part always 0 here

  bool operator==(const KernelSpec&) const = default;
};

std::string to_string(const KernelSpec& spec);
KernelSpec parse_kernel_spec(std::string_view text);

/// The spec that serves this problem under this config: derives the edge from the lengths and clears the launch part.
KernelSpec specialise(const Arch& arch, const Problem& problem, const Config& config);
/// Whether a kernel compiled for `spec` computes `problem` rightly (same dims, dtype, mask; lengths fit its edge).
bool serves(const KernelSpec& spec, const Problem& problem);

/// A kernel that runs before or after a build's main one, on the same stream.
struct SideLaunch {
  std::string entry;  ///< name of the __global__ function (extern "C")
  int threads = 0;    ///< a block
  int shared_bytes = 0;
  bool operator==(const SideLaunch&) const = default;
};

/// What the host must know to launch an emitted kernel.
struct LaunchShape {
  std::string entry;     ///< name of the __global__ function (extern "C")
  int threads = 0;       ///< a block
  int shared_bytes = 0;  ///< dynamic shared memory, alignment slack included
  int block_m = 0;       ///< query rows a tile
  int block_n = 0;       ///< key rows a block
  int q_box_rows = 0;    ///< rows of the TMA boxes; every box is 64 columns wide, 128-byte swizzle
  int kv_box_rows = 0;
  int o_box_rows = 0;
  bool counter = false;  ///< needs the 8-byte tile counter, zero before the first launch, left zero by every launch
  // Backward. The main kernel has a thread block for each of the tiles_n * heads_kv * batch key blocks (a persistent
  // one as many as there are workers, if these are fewer and seqlen_q is not 0), also where seqlen_q is 0 and dK and dV
  // are to be zeroed. The boxes of Q and dO have q_box_rows, those of K and V kv_box_rows, those of dQ (where the main
  // kernel stores it), dK and dV o_box_rows rows. The kernels before and after it have a thread block for each of the
  // tiles_m * heads * batch query tiles, the one before where it prepares them all (see BackwardGrid). With
  // DkvPath::parts there are BackwardGrid::parts times as many key blocks, and the kernel after it has thread blocks
  // for these, too. (The reference's grids: see ReferenceBackwardParams.)
  std::vector<SideLaunch> before = {}, after = {};
  /// 0, or: behind those of the key blocks the main kernel has one more thread block for each so many query rows of
  /// each head, which compute dQ; also where seqlen_k is 0 and dQ is to be zeroed.
  int dq_rows = 0;

  bool operator==(const LaunchShape&) const = default;
};
LaunchShape launch_shape(const KernelSpec& spec);

/// Source of one kernel: self-contained (no #include), deterministic, the same bytes for the same spec.
struct EmittedKernel {
  std::string source;
  LaunchShape shape;
};
EmittedKernel emit(const KernelSpec& spec);

/// NVRTC options for a spec, in order, "--gpu-architecture=sm_90a" first. They are part of the build key.
std::vector<std::string> compile_options(const KernelSpec& spec);

/// Run-time arguments of a Family::sm90 kernel: parameters are (TensorMap q, k, v, o; ForwardParams), in that order.
/// Mirrors templates/forward/params.cuh, which asserts the same size.
struct ForwardParams {
  float* lse = nullptr;         ///< [batch, heads, seqlen_q], may be null: not written
  unsigned* counter = nullptr;  ///< two words: next tile, blocks done
  /// To this a speculative kernel adds the blocks of keys that a warp's reference did not serve for. Null: to nothing.
  unsigned* failures = nullptr;
  /// In memory that the host sees; needs `failures`, null: nothing is told. Once the launch has begun the upper half is
  /// `launch`, the lower half what `failures` then was.
  std::uint64_t* report = nullptr;
  void* o = nullptr;  ///< with its strides in elements: OBuffer::direct stores O without a tensor map
  std::int64_t o_batch = 0, o_head = 0, o_row = 0;
  std::int32_t seqlen_q = 0;
  std::int32_t seqlen_k = 0;
  std::int32_t heads = 0;
  std::int32_t group = 1;        ///< heads / heads_kv
  std::int32_t tiles_m = 0;      ///< ceil(seqlen_q / cluster_m): those of a cluster's thread blocks count as one
  std::int32_t total_tiles = 0;  ///< tiles_m * heads * batch
  std::int32_t head_count = 0;   ///< heads * batch
  std::int32_t section = 1;      ///< heads per L2 section (Grid::dynamic)
  float scale = 0;               ///< softmax scale
  float scale_log2 = 0;          ///< scale * log2(e)
  std::uint32_t launch = 0;      ///< its number
};

/// Run-time arguments of a Family::reference kernel (its only parameter). Strides in elements.
/// One thread block of 128 threads computes one (row, head, batch): gridDim = (rows, heads, batch), where row
/// r = row_first + blockIdx.x * row_step; rows beyond seqlen_q are skipped.
struct ReferenceParams {
  const void* q = nullptr;
  const void* k = nullptr;
  const void* v = nullptr;
  void* o = nullptr;          ///< same dtype as Q; null: not written
  float* lse = nullptr;       ///< [batch, heads, seqlen_q]; null: not written
  double* o_exact = nullptr;  ///< [batch, heads, rows, head_dim_v] unrounded; null: not written
  std::int64_t q_batch = 0, q_head = 0, q_row = 0;
  std::int64_t k_batch = 0, k_head = 0, k_row = 0;
  std::int64_t v_batch = 0, v_head = 0, v_row = 0;
  std::int64_t o_batch = 0, o_head = 0, o_row = 0;
  double scale = 0;
  std::int32_t seqlen_q = 0, seqlen_k = 0, heads = 0, group = 1;
  std::int32_t row_first = 0, row_step = 1;
};

/// SHA-256 over the templates and the emitter's version: part of the plan key.
std::string emitter_digest();

}  // namespace attune::codegen
