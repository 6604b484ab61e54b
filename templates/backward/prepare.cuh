// needs: types.cuh element.cuh ptx/global.cuh backward/params.cuh backward/tile.cuh
// What the main kernel needs of each query row, counters and sums of dQ that start from zero. Before it, a thread block
// a query tile.

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
ATTUNE_DEVICE void zero_dq(const BackwardParams& params, int batch, int head, int m) {
  for (int i = threadIdx.x; i < kBlockM * (kHeadDim / 8); i += kPrepareThreads) {
    const int row = m * kBlockM + i / (kHeadDim / 8), unit = i % (kHeadDim / 8);
    if (row >= params.seqlen_q) continue;
    st_global_v4(params.d_q + batch * params.dq_batch + head * params.dq_head + row * params.dq_row + 8 * unit, 0, 0, 0,
                 0);
  }
}

template <typename Element>
ATTUNE_DEVICE float dot_of_units(const uint4& a, const uint4& b) {
  return (dot_of_pairs<Element>(a.x, b.x) + dot_of_pairs<Element>(a.y, b.y)) +
         (dot_of_pairs<Element>(a.z, b.z) + dot_of_pairs<Element>(a.w, b.w));
}

// What the main kernel needs of a row. One that sees no key, and one beyond seqlen_q, has the LSE -inf: it gets the
// shift -inf, so that its P is 0.
ATTUNE_DEVICE void store_statistics(const BackwardParams& params, int64_t at, float lse, float d_lse, float sum) {
  constexpr float kLog2E = 1.44269504088896f;
  const bool sees_keys = lse != -infinity();
  params.shifts[at] = sees_keys ? -lse * kLog2E : -infinity();
  params.deltas[at] = sees_keys ? sum - d_lse : 0.f;
}

// A query tile, by a thread block.
template <typename Element, int kHeadDimV, int kBlockM>
ATTUNE_DEVICE void prepare_rows(const BackwardParams& params, int index, int batch, int head, int m) {
  constexpr int kLanes = lanes_of_row(kHeadDimV), kRows = kPrepareThreads / kLanes;
  constexpr int kPasses = (kBlockM + kRows - 1) / kRows;
  const int lane = threadIdx.x % kLanes, first = threadIdx.x / kLanes;
  const int rows = min(kBlockM, params.seqlen_q - m * kBlockM);
  uint4 o[kPasses], d_o[kPasses];  // all loads first
#pragma unroll
  for (int pass = 0; pass < kPasses; pass++) {
    const int in_tile = first + pass * kRows;
    const int64_t row = m * kBlockM + in_tile;
    o[pass] = d_o[pass] = make_uint4(0, 0, 0, 0);
    if (in_tile < rows && 8 * lane < kHeadDimV) {
      o[pass] = *reinterpret_cast<const uint4*>(params.o + batch * params.o_batch + head * params.o_head +
                                                row * params.o_row + 8 * lane);
      d_o[pass] = *reinterpret_cast<const uint4*>(params.d_o + batch * params.do_batch + head * params.do_head +
                                                  row * params.do_row + 8 * lane);
    }
  }
#pragma unroll
  for (int pass = 0; pass < kPasses; pass++) {
    const int in_tile = first + pass * kRows;
    float sum = dot_of_units<Element>(o[pass], d_o[pass]);
#pragma unroll
    for (int distance = kLanes / 2; distance > 0; distance /= 2) sum += __shfl_xor_sync(kFullWarp, sum, distance);
    if (lane != 0 || in_tile >= kBlockM) continue;
    const int64_t of_lse =
        (static_cast<int64_t>(batch) * params.heads + head) * params.seqlen_q + m * kBlockM + in_tile;
    const float lse = in_tile < rows ? params.lse[of_lse] : -infinity();
    const float d_lse = in_tile < rows && params.d_lse != nullptr ? params.d_lse[of_lse] : 0.f;
    store_statistics(params, static_cast<int64_t>(index) * kBlockM + in_tile, lse, d_lse, sum);
  }
}

template <int kFloats>
ATTUNE_DEVICE void zero_sums(float* sums) {
#pragma unroll 4
  for (int i = threadIdx.x; i < kFloats / 4; i += kPrepareThreads)
    reinterpret_cast<float4*>(sums)[i] = make_float4(0.f, 0.f, 0.f, 0.f);
}

// kStored: a block of keys stores the sums of each tile, others add to them. kInside: there are params.prepared thread
// blocks, and the main kernel prepares the rows of what follows behind as many tiles. All sums are zeroed here, with
// the whole chip's bandwidth: a warp or two of the main kernel would be slower at that than everything else.
template <typename Element, int kHeadDim, int kHeadDimV, int kBlockM, int kBlockN, int kDqFloats, bool kCausal,
          int kCounters, bool kTicket, bool kRing, bool kStored, bool kInside>
ATTUNE_DEVICE void prepare_tile(const BackwardParams& params) {
  const auto [pair, batch, head, m, tile] = ordered_tile_at(blockIdx.x, params);
  const auto unseen = [&](int of_head) { return key_blocks_of<kBlockM, kBlockN, kCausal>(of_head, params) == 0; };
  const int tiles = params.pairs * params.tiles_of_pair, summed = kRing ? params.slots * params.tiles_of_pair : tiles;
  for (int i = blockIdx.x; i < summed; i += gridDim.x)
    if (kRing ? !kStored : !kStored || unseen(i % params.tiles_m))
      zero_sums<kDqFloats>(params.dq_sums + static_cast<int64_t>(i) * kDqFloats);
  if (kRing && (kStored ? unseen(m) : params.tiles_n == 0)) zero_dq<kHeadDim, kBlockM>(params, batch, head, m);
  prepare_rows<Element, kHeadDimV, kBlockM>(params, tile, batch, head, m);
  if (kInside) {  // fewer thread blocks than tiles
    for (int i = blockIdx.x * kPrepareThreads + threadIdx.x; i < tiles; i += gridDim.x * kPrepareThreads) {
      if (kCounters == 1) params.turns[i] = 0;
      const int of_pair = i / params.tiles_of_pair, step = i - of_pair * params.tiles_of_pair;
      const int there = tiles_within(params.prepared, of_pair, params);
      params.ready[i] = step < there;
      if (step > 0) continue;
      params.ready[tiles + of_pair] = there;
      if (kRing) params.finished[of_pair] = 0;
    }
  }
  if (threadIdx.x != 0) return;
  for (int i = 0; i < kCounters && !kInside; i++) params.turns[tile * kCounters + i] = 0;
  if (blockIdx.x == 0) {
    if (kTicket) params.ticket[0] = 0;
    if (kRing) params.ticket[1] = 0;
    if (kInside) params.ticket[2] = params.prepared;
  }
  if (kRing && !kInside && tile % params.tiles_of_pair == 0) params.finished[pair] = 0;
}
