// Time of a backward pass from counts: clocks that each unit of an SM is busy in a step, and how much of that a
// schedule hides.
#include <algorithm>
#include <array>
#include <cmath>
#include <utility>

#include "codegen/backward/layout.h"
#include "codegen/backward/params.h"
#include "codegen/backward/space.h"

namespace attune::codegen::backward {
namespace {

// Rates an SM and clock (Hopper): bf16 FLOP, exponentials, bytes of shared memory, lanes of issue, bytes of L2.
constexpr double kTensor = 4096, kExponential = 16, kShared = 128, kIssue = 128, kL2 = 64;
constexpr double kLaunchSeconds = 4e-6;
// Bytes of dQ a clock that warps add from registers while they do nothing else.
constexpr double kDirect = 40;
// Clocks a block of keys costs beside its steps: K and V come, the pipeline fills, dK and dV leave.
constexpr double kBlockClocks = 10500;
// Clocks a step waits for Q, and for dO, where there is one buffer of it: it is asked for when the last product is
// done.
constexpr double kUnbuffered = 2000;
// Instructions a score costs a thread beside its exponential.
constexpr double kInstructions = 9;

// Two passes, for 64 queries and 64 keys: bytes of shared memory that a thread block of keys and one of queries read
// and write. Left operands of scores are read by one warpgroup, the others' are in registers.
double pass_bytes(const KernelSpec& s, const Layout& l) {
  const double d = 64 * l.qk_chunks, dv = 64 * l.v_chunks, dims = s.head_dim + s.head_dim_v;
  const double scores = 2 * 2 * 64 * (d + dv);
  const double keys = scores + 2 * 64 * dims + 2 * l.p_bytes + 2 * 64 * dims;
  return keys + scores + 2 * 64 * s.head_dim + 64 * dims;
}

// Bytes of shared memory that a step reads and writes.
double shared_bytes(const KernelSpec& s, const Layout& l) {
  const Tunables& t = s.config.backward;
  if (t.dq == DqPath::pass) return pass_bytes(s, l);
  const double m = t.block_m, d = 64 * l.qk_chunks, dv = 64 * l.v_chunks, dims = s.head_dim + s.head_dim_v;
  const bool rows = t.split == Split::rows;
  // S and dP: each warpgroup its keys and queries.
  double bytes = kConsumers * 2 * (rows ? 64 + m : 64 + m / 2) * (d + dv);
  if (t.v_in_registers) bytes -= kConsumers * 2 * 64 * dv;
  // dV and dK: right operands, and left ones that are not in registers.
  bytes += rows ? kConsumers * 2 * m * dims : 2 * m * dims + kConsumers * 2 * 2 * 64 * m;
  // dQ: each warpgroup dS and K.
  for (const DqPart& part : l.dq) bytes += 2.0 * t.block_n() * (64 + part.width);
  bytes += l.ds_bytes * (rows ? 1.0 : 2.0) + 2 * m * dims;
  if (t.dq == DqPath::bulk) bytes += 2 * 4.0 * l.dq_floats();
  return bytes + 4 * 2 * 32 * 8 * (m / 8);  // LSE and delta, by every warp
}

// Share of so many bytes, written and read again beside the tensors, that L2 cannot hold.
double outside_l2(const Arch& arch, double bytes) {
  return std::clamp(2 * bytes / static_cast<double>(arch.l2_bytes) - 1, 0.0, 1.0);
}

// Share of the elementwise part that stays visible; from measured clocks a step.
double exposed_share(const Tunables& t, int head_dim) {
  if (t.dq == DqPath::pass) return 1.5;
  double share = t.lag ? 0.55 : 0.65;
  if (t.late_fences) share -= 0.05;
  if (t.prefetch) share += head_dim > 64 ? -0.03 : 0.05;
  return head_dim <= 64 ? share + 0.3 : share;
}

}  // namespace

CostEstimate estimate(const Arch& arch, const Problem& p, const Config& config) {
  CostEstimate e;
  const KernelSpec spec = specialise(arch, p, config);
  const Tunables& t = config.backward;
  const Layout l = layout_of(spec);
  const double m = t.block_m, n = t.block_n(), rows = static_cast<double>(p.seqlen_q),
               keys = static_cast<double>(p.seqlen_k);
  const double tiles_m = std::ceil(rows / m), tiles_n = std::ceil(keys / n);
  const BackwardGrid grid = backward_grid(spec, t, p, arch.sms);
  const double blocks = tiles_n * p.heads_kv * static_cast<double>(p.batch) * grid.parts;
  // Mean query tiles of a block of keys: a causal block is seen by the rows below its diagonal.
  double steps_of_block = tiles_m;
  if (p.causal && rows > 0 && keys > 0) {
    const double visible = rows <= keys ? rows * (keys - rows / 2) : keys * keys / 2;
    steps_of_block = std::min(tiles_m, visible / keys / m + (n + m) / (2 * m));
    // The second warpgroup sees nothing of the first tile but where that lies askew; all but dQ of its half is saved.
    if (t.skip) steps_of_block -= 0.4 * std::min(1.0, 64 / m);
  }
  const double heads_of_block = static_cast<double>(p.heads) / p.heads_kv / grid.parts;
  steps_of_block *= heads_of_block;
  // Whole blocks an SM; causal ones differ in length, the longest go first and the rest fills in.
  const double mean = blocks / (t.persistent && t.workers > 0 ? t.workers : arch.sms);
  const double per_sm = p.causal ? std::max(1.0, mean + 0.4) : std::ceil(mean);
  double steps = per_sm * steps_of_block;
  // A causal head's first block of keys is seen by all rows that see any.
  if (p.causal) steps = std::max(steps, heads_of_block * std::ceil(std::min(rows, keys) / m));
  const double clock = arch.clock_ghz * 1e9;
  const double qk = 16 * std::ceil(p.head_dim / 16.0), v = 16 * std::ceil(p.head_dim_v / 16.0);
  // Two passes compute the scores twice, and dQ without sums.
  const bool passes = t.dq == DqPath::pass;
  const double scores = passes ? 2 : 1, dq_columns = passes ? p.head_dim : l.dq_floats() / m;
  e.tensor = steps * 2 * m * n * (scores * (qk + v) + p.head_dim + p.head_dim_v + dq_columns) / kTensor / clock;
  e.exponential = scores * steps * m * n / kExponential / clock;
  e.shared_memory = steps * shared_bytes(spec, l) / kShared / clock;
  e.l2 = steps * ((passes ? 3 : 2) * m * (p.head_dim + p.head_dim_v) + 4.0 * l.dq_floats()) / kL2 / clock;
  const double q_heads = static_cast<double>(p.batch) * p.heads * rows;
  const double kv_heads = static_cast<double>(p.batch) * p.heads_kv * keys;
  const double dims = p.head_dim + p.head_dim_v, sums = l.dq_floats() / m * 4;
  // What is prepared in the main kernel comes beside its products.
  const double tiles = tiles_m * p.heads * static_cast<double>(p.batch);
  const double prepared = tiles > 0 ? grid.prepared / tiles : 1;
  // Prepare: O, dO; main: all inputs, dK, dV; dQ.
  e.hbm = (prepared * q_heads * 4.0 * p.head_dim_v + (q_heads + 2 * kv_heads) * 2 * dims + q_heads * 2.0 * p.head_dim) /
          arch.hbm_bytes_per_second;
  e.launch = (passes || t.finish == Finish::ring ? 2 : 3) * kLaunchSeconds;
  const double passes_over_sums = t.sums == Sums::stored ? 1 : 2;  // zeros before, sums after
  if (t.finish == Finish::ring) {
    // What L2 cannot hold of a ring, beside the tensors, comes and goes.
    const double pairs = static_cast<double>(p.batch) * p.heads_kv;
    const double ring = pairs > 0 ? q_heads * sums * grid.slots / pairs : 0;
    e.hbm += outside_l2(arch, ring) * 2 * q_heads * sums / arch.hbm_bytes_per_second;
    e.l2 += passes_over_sums * q_heads * sums / arch.sms / kL2 / clock;
  } else {  // none in two passes
    e.hbm += passes_over_sums * q_heads * sums / arch.hbm_bytes_per_second;
  }
  double adding = 0;  // float32 dK and dV of shares of the query heads go to L2, or beyond it, and come back
  if (t.dkv == DkvPath::parts) {
    const double bytes = grid.parts * kv_heads * dims * 4;
    adding = 2 * bytes / arch.sms / kL2 / clock;
    e.hbm += outside_l2(arch, bytes) * 2 * bytes / arch.hbm_bytes_per_second;
  }
  const double elementwise = std::max(e.exponential, scores * steps * m * n * kInstructions / kIssue / clock);
  const std::array<std::pair<double, const char*>, 4> limits{
      {{e.tensor, "tensor"}, {e.shared_memory, "shared memory"}, {elementwise, "exponential"}, {e.l2, "L2"}}};
  const auto largest = *std::ranges::max_element(limits);
  e.limit = largest.second;
  double waits = 0;  // additions from registers hold up the warps that issue them
  if (t.dq == DqPath::direct) waits = steps * 4.0 * l.dq_floats() / kDirect / clock;
  const int unbuffered = (t.q_stages == 1) + (t.do_stages == 1);
  waits += steps * unbuffered * kUnbuffered / clock;
  // The next block's K and V come while this one ends.
  double block_clocks = t.persistent ? 0.7 * kBlockClocks : kBlockClocks;
  if (t.boundary == Boundary::overlapped)  // by arithmetic: V comes late, dK and dV leave
    block_clocks = 0.35 * kBlockClocks;
  else if (t.dkv == DkvPath::direct)
    block_clocks *= p.head_dim > 64 && t.k_stages == 1 ? 1.3 : 0.9;
  const double blocks_of_sm = passes ? 1.5 * per_sm : per_sm;  // one of 128 queries for two of 64 keys
  e.total = largest.first + exposed_share(t, p.head_dim) * elementwise + waits + blocks_of_sm * block_clocks / clock +
            e.hbm + adding + e.launch;
  if (takes_turns(spec)) e.total += tiles_n * largest.first / std::max(1.0, steps);  // each waits for the one before
  return e;
}

}  // namespace attune::codegen::backward
