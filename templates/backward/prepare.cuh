// needs: types.cuh element.cuh ptx/global.cuh backward/params.cuh backward/tile.cuh
// Before the main kernel: what it needs of each query row, counters and sums of dQ that start from zero. A block a
// query tile.

constexpr int kPrepareThreads = 256;

// Lanes that share a row: each reads 16 bytes of O and of dO.
constexpr int lanes_of_row(int head_dim_v) {
  int lanes = 1;
  while (8 * lanes < head_dim_v) lanes *= 2;
  return lanes;
}

template <typename Element>
ATTUNE_DEVICE float dot_of_pairs(uint32_t a, uint32_t b) {
  const float low = Element::to_float(static_cast<uint16_t>(a)) * Element::to_float(static_cast<uint16_t>(b));
  return fmaf(Element::to_float(static_cast<uint16_t>(a >> 16)), Element::to_float(static_cast<uint16_t>(b >> 16)),
              low);
}

// dQ of a tile whose sums in a ring nobody finishes, since nothing is added to them.
template <int kHeadDim, int kBlockM>
ATTUNE_DEVICE void zero_dq(const BackwardParams& params, int64_t batch, int64_t head, int m) {
  for (int i = threadIdx.x; i < kBlockM * (kHeadDim / 8); i += kPrepareThreads) {
    const int row = m * kBlockM + i / (kHeadDim / 8), unit = i % (kHeadDim / 8);
    if (row >= params.seqlen_q) continue;
    st_global_v4(params.d_q + batch * params.dq_batch + head * params.dq_head + row * params.dq_row + 8 * unit, 0, 0, 0,
                 0);
  }
}

// A row that sees no key (LSE -inf) and a row beyond seqlen_q get the shift -inf, so that their P is 0.
// kStored: the first block of keys that sees a tile stores its sums.
template <typename Element, int kHeadDim, int kHeadDimV, int kBlockM, int kBlockN, int kDqFloats, bool kCausal,
          bool kCounted, bool kTicket, bool kRing, bool kStored>
ATTUNE_DEVICE void prepare_tile(const BackwardParams& params) {
  constexpr float kLog2E = 1.44269504088896f;
  constexpr int kLanes = lanes_of_row(kHeadDimV), kRows = kPrepareThreads / kLanes;
  constexpr int kPasses = (kBlockM + kRows - 1) / kRows;
  const int64_t tile = blockIdx.x;
  const int64_t pair = tile / params.tiles_m;
  const int m = static_cast<int>(tile - pair * params.tiles_m);
  const int64_t batch = pair / params.heads, head = pair - batch * params.heads;
  const int lane = threadIdx.x % kLanes, first = threadIdx.x / kLanes;
  uint4 o[kPasses], d_o[kPasses];  // all loads first
#pragma unroll
  for (int pass = 0; pass < kPasses; pass++) {
    const int in_tile = first + pass * kRows, row = m * kBlockM + in_tile;
    o[pass] = d_o[pass] = make_uint4(0, 0, 0, 0);
    if (in_tile < kBlockM && row < params.seqlen_q && 8 * lane < kHeadDimV) {
      o[pass] = *reinterpret_cast<const uint4*>(params.o + batch * params.o_batch + head * params.o_head +
                                                row * params.o_row + 8 * lane);
      d_o[pass] = *reinterpret_cast<const uint4*>(params.d_o + batch * params.do_batch + head * params.do_head +
                                                  row * params.do_row + 8 * lane);
    }
  }
  const bool unseen = key_blocks_of<kBlockM, kBlockN, kCausal>(m, params) == 0;
  if (kRing ? !kStored && tile < params.slots * params.tiles_of_pair : !kStored || unseen) {
    float4* const sums = reinterpret_cast<float4*>(params.dq_sums + tile * kDqFloats);
    for (int i = threadIdx.x; i < kDqFloats / 4; i += kPrepareThreads) sums[i] = make_float4(0.f, 0.f, 0.f, 0.f);
  }
  if (kRing && (kStored ? unseen : params.tiles_n == 0)) zero_dq<kHeadDim, kBlockM>(params, batch, head, m);
#pragma unroll
  for (int pass = 0; pass < kPasses; pass++) {
    const int in_tile = first + pass * kRows, row = m * kBlockM + in_tile;
    float sum = (dot_of_pairs<Element>(o[pass].x, d_o[pass].x) + dot_of_pairs<Element>(o[pass].y, d_o[pass].y)) +
                (dot_of_pairs<Element>(o[pass].z, d_o[pass].z) + dot_of_pairs<Element>(o[pass].w, d_o[pass].w));
#pragma unroll
    for (int distance = kLanes / 2; distance > 0; distance /= 2) sum += __shfl_xor_sync(kFullWarp, sum, distance);
    if (lane != 0 || in_tile >= kBlockM) continue;
    const int64_t at = tile * kBlockM + in_tile;
    const int64_t index = pair * params.seqlen_q + row;
    const float lse = row < params.seqlen_q ? params.lse[index] : -infinity();
    const bool sees_keys = lse != -infinity();
    params.shifts[at] = sees_keys ? -lse * kLog2E : -infinity();
    params.deltas[at] = !sees_keys ? 0.f : params.d_lse != nullptr ? sum - params.d_lse[index] : sum;
  }
  if (threadIdx.x != 0) return;
  if (kCounted) params.turns[tile] = 0;
  if (kTicket && tile == 0) params.ticket[0] = 0;
  if (kRing && tile == 0) params.ticket[1] = 0;
  if (kRing && tile % params.tiles_of_pair == 0) params.finished[tile / params.tiles_of_pair] = 0;
}
