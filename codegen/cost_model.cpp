// Time of a forward kernel from counts: how many clocks each unit of an SM is busy, and how much of that a schedule
// hides.
#include <algorithm>
#include <array>
#include <cmath>
#include <utility>

#include "codegen/backward/space.h"
#include "codegen/layout.h"
#include "codegen/space.h"

namespace attune::codegen {
namespace {

// Rates an SM and clock (Hopper): 4096 bf16 FLOP, 16 exponentials, 128 bytes of shared memory, 128 lanes of issue.
constexpr double kTensor = 4096, kExponential = 16, kShared = 128, kIssue = 128, kL2 = 64;
constexpr double kLaunchSeconds = 4e-6;
constexpr double kOverlapSeconds = 4e-7;  // of it, where kernels overlap at their edges (docs/kernels/NOTES.md, 37)
// Of a kernel's start (docs/kernels/NOTES.md, 53): copies before the first barrier; first blocks in turns.
constexpr double kCopiesSeconds = 1e-7, kTurnSeconds = 4e-7;

// Share of the shorter of (tensor, softmax) that stays visible; from measured tensor-pipe shares.
double exposed_share(const Config& c, int head_dim, bool causal) {
  if (c.consumers == 1) return c.order == Order::qk_pv ? 0.7 : 1.0;
  if (c.order == Order::serial) return 0.35;
  double share = c.order == Order::qk_pv ? 0.26 : 0.16;
  // Without turns the warpgroups drift apart. That costs most where blocks are few and long, and little where tiles of
  // unequal length keep them apart anyway.
  if (!c.ping_pong) share += head_dim > 128 ? 0.1 : causal && head_dim > 64 ? 0.02 : 0.05;
  // Where exponentials weigh as much as products, a third warpgroup fills the gaps of the other two.
  if (head_dim <= 64) share += c.consumers == 3 ? 0.0 : 0.12;
  return share;
}

// Clocks a key block costs beside its products: barriers, address arithmetic, the start of the tensor pipe.
constexpr double kBlockClocks = 110;

// Thread blocks of a cluster wait for each other where tiles meet. That they read less of L2 leaves more power to the
// products.
constexpr double kClusterClocks = 600, kClusterProducts = 0.99;

// Two operands from shared memory use all of its bandwidth in narrow products, and copies want some of it, too; the
// less of Q is read there, the better (docs/kernels/NOTES.md, 54).
constexpr double kHeldQProducts = 0.01;

// A piece of O waits until the one before it has been read from the buffer that they share.
constexpr double kPieceClocks = 600;

double boundary_clocks(const Config& c) {
  if (c.boundary == Boundary::drained) return 2200;
  return (c.q == QSource::registers ? 700 : 1100) + (c.o_pieces - 1) * kPieceClocks;
}

// Instructions a score costs a thread beside the exponential: maximum, scale, sum, convert, rescale.
double instructions_per_score(const Config& c) { return c.softmax == Softmax::exact ? 3.7 : 2.4; }

}  // namespace

CostEstimate estimate(const Arch& arch, const Problem& p, const Config& c) {
  if (c.family == Family::sm90_backward) return backward::estimate(arch, p, c);
  CostEstimate e;
  if (is_reference(c.family)) {
    e.total = flops(p) / 1e12;  // no better than a teraflop a second
    e.limit = "tensor";
    return e;
  }
  const double m = c.block_m(), n = c.block_n, d = 16 * std::ceil(p.head_dim / 16.0), dv = p.head_dim_v;
  // Those of a cluster are taken together, also where one of them has no rows.
  const double tiles_m = c.cluster * std::ceil(static_cast<double>(p.seqlen_q) / c.cluster_m());
  const double tiles = tiles_m * p.heads * static_cast<double>(p.batch);
  const double blocks_full = std::ceil(static_cast<double>(p.seqlen_k) / n);
  // Mean key blocks of a tile: a causal tile visits what lies below its diagonal, and part of the block on it.
  double blocks = blocks_full;
  if (p.causal) {
    const double keys = static_cast<double>(p.seqlen_k), queries = static_cast<double>(p.seqlen_q);
    const double mean_keys = std::max(n, keys - queries / 2 + m / 2);
    const double diagonal_waste = c.diagonal == Diagonal::masked ? n / 2 : n / 4;
    blocks = std::min(blocks_full, (mean_keys + diagonal_waste) / n);
  } else if (c.exact_tail) {
    blocks = static_cast<double>(p.seqlen_k) / n;
  }
  const double workers =
      c.grid == Grid::plain ? arch.sms : std::min<double>(tiles, c.workers > 0 ? c.workers : arch.sms);
  // Rows whose products are computed: of a tile on average, where a counter evens them out.
  const bool even = c.skip_idle && c.grid == Grid::dynamic && tiles > workers;
  const double rows = even ? 64 * std::ceil(static_cast<double>(p.seqlen_q) / 64) / tiles_m : m;
  // Whole tiles a worker, except where the longest go first and the rest fills in.
  const double per_worker = c.grid == Grid::dynamic ? std::max(1.0, tiles / workers + 0.3) : std::ceil(tiles / workers);
  const double clock = arch.clock_ghz * 1e9;
  const double steps = per_worker * blocks;
  e.tensor = steps * 2 * rows * n * (d + dv) / kTensor / clock;
  e.exponential = steps * rows * n / kExponential / clock;
  const double issue = steps * rows * n * instructions_per_score(c) / kIssue / clock;
  // Every warpgroup with rows reads all of K and V, and Q where it is not in registers; K and V are written once.
  const double q_reads = c.q == QSource::shared ? rows * (d - c.q_columns) * 2 : 0;
  e.shared_memory = steps * ((rows / 64 + 1) * n * (d + dv) * 2 + q_reads) / kShared / clock;
  e.l2 = steps * n * (d + dv) * 2 / c.cluster / kL2 / clock;
  const double rows_q = static_cast<double>(p.batch) * static_cast<double>(p.seqlen_q) * p.heads;
  const double rows_k = static_cast<double>(p.batch) * static_cast<double>(p.seqlen_k) * p.heads_kv;
  e.hbm = 2 * (rows_q + rows_k) * (p.head_dim + p.head_dim_v) / arch.hbm_bytes_per_second;
  e.launch = kLaunchSeconds - (c.dependent_launch ? kOverlapSeconds : 0);
  if (c.early_copies) e.launch -= kCopiesSeconds;
  if (c.first_turn) e.launch -= kTurnSeconds;
  // The boundary between tiles: load latency, epilogue, first block alone.
  const double boundary = per_worker * (boundary_clocks(c) + (c.cluster - 1) * kClusterClocks) / clock;
  const double softmax = std::max(e.exponential, issue);
  const std::array<std::pair<double, const char*>, 5> limits{{{e.tensor, "tensor"},
                                                              {softmax, "exponential"},
                                                              {e.shared_memory, "shared memory"},
                                                              {e.l2, "L2"},
                                                              {e.hbm, "HBM"}}};
  const double products = (c.cluster > 1 ? kClusterProducts : 1) * (1 - kHeldQProducts * c.q_columns / d);
  const auto largest = *std::max_element(limits.begin(), limits.end());
  e.limit = largest.second;
  e.total = products * largest.first +
            exposed_share(c, std::max(p.head_dim, p.head_dim_v), p.causal) * std::min(e.tensor, softmax) + boundary +
            steps * kBlockClocks / clock + e.launch;
  return e;
}

}  // namespace attune::codegen
