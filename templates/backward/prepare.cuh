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

// A query tile, by kThreads threads. A row that sees no key (LSE -inf) and a row beyond seqlen_q get the shift -inf, so
// that their P is 0. kAtOnce: rows of each thread whose loads are under way together.
template <typename Element, int kHeadDimV, int kBlockM, int kThreads, int kAtOnce>
ATTUNE_DEVICE void prepare_rows(const BackwardParams& params, int index, int batch, int head, int m, int thread) {
  constexpr float kLog2E = 1.44269504088896f;
  constexpr int kLanes = lanes_of_row(kHeadDimV), kRows = kThreads / kLanes;
  const int lane = thread % kLanes, rows = min(kBlockM, params.seqlen_q - m * kBlockM);
  const bool in_row = 8 * lane < kHeadDimV;
  const int64_t row = m * kBlockM + thread / kLanes;
  const uint16_t* o_row = params.o + batch * params.o_batch + head * params.o_head + row * params.o_row + 8 * lane;
  const uint16_t* do_row =
      params.d_o + batch * params.do_batch + head * params.do_head + row * params.do_row + 8 * lane;
#pragma unroll 1
  for (int first = thread / kLanes; first < kBlockM; first += kAtOnce * kRows) {
    uint4 o[kAtOnce], d_o[kAtOnce];  // all loads first
#pragma unroll
    for (int i = 0; i < kAtOnce; i++) {
      o[i] = d_o[i] = make_uint4(0, 0, 0, 0);
      if (first + i * kRows < rows && in_row) {
        o[i] = *reinterpret_cast<const uint4*>(o_row);
        d_o[i] = *reinterpret_cast<const uint4*>(do_row);
      }
      o_row += kRows * params.o_row;
      do_row += kRows * params.do_row;
    }
#pragma unroll
    for (int i = 0; i < kAtOnce; i++) {
      const int in_tile = first + i * kRows;
      float sum = (dot_of_pairs<Element>(o[i].x, d_o[i].x) + dot_of_pairs<Element>(o[i].y, d_o[i].y)) +
                  (dot_of_pairs<Element>(o[i].z, d_o[i].z) + dot_of_pairs<Element>(o[i].w, d_o[i].w));
#pragma unroll
      for (int distance = kLanes / 2; distance > 0; distance /= 2) sum += __shfl_xor_sync(kFullWarp, sum, distance);
      if (lane != 0 || in_tile >= kBlockM) continue;
      const int64_t at = static_cast<int64_t>(index) * kBlockM + in_tile;
      const int64_t of_lse =
          (static_cast<int64_t>(batch) * params.heads + head) * params.seqlen_q + m * kBlockM + in_tile;
      const float lse = in_tile < rows ? params.lse[of_lse] : -infinity();
      const bool sees_keys = lse != -infinity();
      params.shifts[at] = sees_keys ? -lse * kLog2E : -infinity();
      params.deltas[at] = !sees_keys ? 0.f : params.d_lse != nullptr ? sum - params.d_lse[of_lse] : sum;
    }
  }
}

template <int kFloats, int kThreads>
ATTUNE_DEVICE void zero_sums(float* sums, int thread) {
#pragma unroll 4
  for (int i = thread; i < kFloats / 4; i += kThreads)
    reinterpret_cast<float4*>(sums)[i] = make_float4(0.f, 0.f, 0.f, 0.f);
}

// kStored: the first block of keys that sees a tile stores its sums. kInside: the main kernel prepares what follows
// behind params.prepared tiles.
template <typename Element, int kHeadDim, int kHeadDimV, int kBlockM, int kBlockN, int kDqFloats, bool kCausal,
          bool kCounted, bool kTicket, bool kRing, bool kStored, bool kInside>
ATTUNE_DEVICE void prepare_tile(const BackwardParams& params) {
  constexpr int kPasses = (kBlockM * lanes_of_row(kHeadDimV) + kPrepareThreads - 1) / kPrepareThreads;
  const auto [pair, batch, head, m, tile] = ordered_tile_at(blockIdx.x, params);
  const bool unseen = key_blocks_of<kBlockM, kBlockN, kCausal>(m, params) == 0;
  if (kRing ? !kStored && tile < params.slots * params.tiles_of_pair : !kStored || unseen)
    zero_sums<kDqFloats, kPrepareThreads>(params.dq_sums + static_cast<int64_t>(tile) * kDqFloats, threadIdx.x);
  if (kRing && (kStored ? unseen : params.tiles_n == 0)) zero_dq<kHeadDim, kBlockM>(params, batch, head, m);
  prepare_rows<Element, kHeadDimV, kBlockM, kPrepareThreads, kPasses>(params, tile, batch, head, m, threadIdx.x);
  if (kInside) {  // fewer thread blocks than tiles
    const int tiles = params.pairs * params.tiles_of_pair;
    for (int i = blockIdx.x * kPrepareThreads + threadIdx.x; i < tiles; i += gridDim.x * kPrepareThreads) {
      if (kCounted) params.turns[i] = 0;
      if (kRing && i % params.tiles_of_pair == 0) params.finished[i / params.tiles_of_pair] = 0;
      params.ready[i] = place_of(i, params) < params.prepared;
    }
  }
  if (threadIdx.x != 0) return;
  if (kCounted && !kInside) params.turns[tile] = 0;
  if (blockIdx.x == 0) {
    if (kTicket) params.ticket[0] = 0;
    if (kRing) params.ticket[1] = 0;
    if (kInside) params.ticket[2] = params.prepared;
  }
  if (kRing && !kInside && tile % params.tiles_of_pair == 0) params.finished[pair] = 0;
}
