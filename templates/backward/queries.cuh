// needs: types.cuh element.cuh ptx/math.cuh ptx/global.cuh ptx/shared.cuh backward/params.cuh
// dQ by a thread block of its own: which rows, the elementwise part where rows are queries, and the way out.

// 64 query rows for each of two warpgroups.
struct QueryBlock {
  int row, head, batch;  // first query row
  int keys;              // that its last row sees
};

// Read anew wherever it is called, so that what follows from it need not live in registers meanwhile.
ATTUNE_DEVICE int thread_block_index() {
  int index;
  asm volatile("mov.u32 %0, %%ctaid.x;" : "=r"(index));
  return index;
}
ATTUNE_DEVICE int thread_index() {
  int index;
  asm volatile("mov.u32 %0, %%tid.x;" : "=r"(index));
  return index;
}

// Keys that some row before `end` sees.
ATTUNE_DEVICE int keys_seen(int end, bool causal, const BackwardParams& params) {
  if (!causal) return params.seqlen_k;
  return max(0, min(params.seqlen_k, min(end, params.seqlen_q) + params.seqlen_k - params.seqlen_q));
}

// Block by block inside sections of KV heads, whose K and V share L2; with a mask the longest come first.
// Those of keys come first in the grid.
template <int kRows>
ATTUNE_DEVICE QueryBlock this_query_block(bool causal, const BackwardParams& params) {
  const int index = thread_block_index() - params.tiles_n * params.pairs;
  const int tiles = (params.seqlen_q + kRows - 1) / kRows, group = params.group;
  const int per_section = params.section * group * tiles;
  const int section = index / per_section, rest = index - section * per_section;
  const int first_head = section * params.section * group;
  const int heads = min(params.section * group, params.pairs * group - first_head);
  const int tile = rest / heads, head = first_head + (rest - tile * heads);
  QueryBlock block;
  block.row = (tiles - 1 - tile) * kRows;
  block.batch = head / params.heads;
  block.head = head - block.batch * params.heads;
  block.keys = keys_seen(block.row + kRows, causal, params);
  return block;
}

// A ring's place and parity in a step.
template <int kStages>
ATTUNE_DEVICE int stage_of(int step) {
  return step % kStages;
}
template <int kStages>
ATTUNE_DEVICE int phase_of(int step) {
  return step / kStages % 2;
}

// An operand that stays for all steps would make the compiler keep the descriptor of each k-step in registers.
ATTUNE_DEVICE void forget(uint64_t& descriptor) { asm volatile("" : "+l"(descriptor)); }

// What a thread's two rows, 8 apart, have in common for all keys: of the upper one and the lower one.
struct QueryRows {
  float2 shift, delta;
};
template <int kBlockM>
ATTUNE_DEVICE QueryRows load_query_rows(const QueryBlock& block, int row, const BackwardParams& params) {
  const int prepared = params.tiles_m * kBlockM;
  const int64_t first = (static_cast<int64_t>(block.batch) * params.heads + block.head) * prepared;
  QueryRows rows;
  rows.shift = make_float2(-infinity(), -infinity());
  rows.delta = make_float2(0.f, 0.f);
  if (row < prepared) {
    rows.shift.x = params.shifts[first + row];
    rows.delta.x = params.deltas[first + row];
  }
  if (row + 8 < prepared) {
    rows.shift.y = params.shifts[first + row + 8];
    rows.delta.y = params.deltas[first + row + 8];
  }
  return rows;
}

// -inf where a key lies beyond the last one that its row sees; `upper` and `lower` are this thread's first key's
// distance from it.
template <int kSize>
ATTUNE_DEVICE void mask_unseen(float (&s)[kSize], int upper, int lower) {
#pragma unroll
  for (int i = 0; i < kSize / 4; i++) {
    if (upper + 8 * i > 0) s[4 * i] = -infinity();
    if (upper + 8 * i + 1 > 0) s[4 * i + 1] = -infinity();
    if (lower + 8 * i > 0) s[4 * i + 2] = -infinity();
    if (lower + 8 * i + 1 > 0) s[4 * i + 3] = -infinity();
  }
}

template <int kSize>
ATTUNE_DEVICE void query_probabilities(float (&s)[kSize], const QueryRows& rows, float scale_log2) {
#pragma unroll
  for (int i = 0; i < kSize / 4; i++) {
    s[4 * i] = ex2_approx(fmaf(s[4 * i], scale_log2, rows.shift.x));
    s[4 * i + 1] = ex2_approx(fmaf(s[4 * i + 1], scale_log2, rows.shift.x));
    s[4 * i + 2] = ex2_approx(fmaf(s[4 * i + 2], scale_log2, rows.shift.y));
    s[4 * i + 3] = ex2_approx(fmaf(s[4 * i + 3], scale_log2, rows.shift.y));
  }
}

// dS = P (dP - delta), packed.
template <typename Element, int kSize, int kPacked>
ATTUNE_DEVICE void query_gradients(const float (&p)[kSize], const float (&dp)[kSize], const QueryRows& rows,
                                   uint32_t (&ds)[kPacked]) {
#pragma unroll
  for (int i = 0; i < kSize / 4; i++) {
    ds[2 * i] = Element::pack(p[4 * i] * (dp[4 * i] - rows.delta.x), p[4 * i + 1] * (dp[4 * i + 1] - rows.delta.x));
    ds[2 * i + 1] =
        Element::pack(p[4 * i + 2] * (dp[4 * i + 2] - rows.delta.y), p[4 * i + 3] * (dp[4 * i + 3] - rows.delta.y));
  }
}

// 64 rows of dQ, staged as stage_gradient() does in a warpgroup's own buffer, go out 16 bytes a thread; rows beyond
// seqlen_q stay. Each warp stores what it has staged.
template <int kHeadDim>
ATTUNE_DEVICE void store_query_rows(const BackwardParams& params, const QueryBlock& block, int row, uint32_t buffer,
                                    int warp, int lane) {
  __syncwarp();
  constexpr int kUnits = kHeadDim / 8;
  uint16_t* const d_q = params.d_q + block.batch * params.dq_batch + block.head * params.dq_head;
  for (int i = lane; i < 16 * kUnits; i += 32) {
    const int in_tile = warp * 16 + i / kUnits, unit = i % kUnits;
    if (row + in_tile >= params.seqlen_q) continue;
    int x, y, z, w;
    ld_shared_v4(buffer + unit / 8 * (64 * 128) + in_tile * 128 + ((unit % 8 ^ (in_tile & 7)) << 4), x, y, z, w);
    st_global_v4(d_q + (row + in_tile) * params.dq_row + 8 * unit, x, y, z, w);
  }
}

// Rows that see no key.
template <int kHeadDim>
ATTUNE_DEVICE void store_no_gradient(const BackwardParams& params, const QueryBlock& block, int row, int thread) {
  constexpr int kUnits = kHeadDim / 8;
  uint16_t* const d_q = params.d_q + block.batch * params.dq_batch + block.head * params.dq_head;
  for (int i = thread; i < 64 * kUnits; i += 128)
    if (row + i / kUnits < params.seqlen_q)
      st_global_v4(d_q + (row + i / kUnits) * params.dq_row + 8 * (i % kUnits), 0, 0, 0, 0);
}
