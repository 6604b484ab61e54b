// needs: types.cuh ptx/prefetch.cuh ptx/turn.cuh backward/tile.cuh backward/prepare.cuh
// Query tiles prepared in the main kernel, by warps that have little else to do, a little ahead of the blocks of keys
// that visit them: what that reads comes while the matrix units work, and the zeros are still in L2 when they are added
// to.
//
// Nobody waits for ever: tiles are handed out in the order in which blocks of keys visit them, every thread block hands
// out to its own warps until those that it visits itself are taken, and who prepares a tile waits for nobody.

constexpr int kNoneYet = -1, kNoneLeft = -2;

// The place of the next tile to prepare, or one of these. By one thread.
template <int kBlockN, bool kPersistent>
ATTUNE_DEVICE int next_to_prepare(const BackwardParams& params) {
  const int tiles = params.pairs * params.tiles_of_pair, taken = ld_relaxed(params.ticket + 2);
  const int block = kPersistent ? static_cast<int>(ld_relaxed(params.ticket)) : static_cast<int>(blockIdx.x);
  if (taken >= tiles) return kNoneLeft;
  const int last = min(block + params.ahead, params.tiles_n * params.pairs - 1);
  const int section = last / (params.section * params.tiles_n);
  const int wanted = min((section + 1) * params.section, params.pairs) * params.tiles_of_pair;
  if (taken >= wanted) return kNoneYet;
  const int at = atomicAdd(params.ticket + 2, 1u);
  return at < tiles ? at : kNoneLeft;
}

// Read anew wherever it is called, so that nothing that follows from it takes a register in between.
ATTUNE_DEVICE int lane_index() {
  int lane;
  asm volatile("mov.u32 %0, %%laneid;" : "=r"(lane));
  return lane;
}

// O and dO of the tile that this warp or another one prepares next but a few: a warp has few loads under way, so that
// each had better find its line in L2.
template <int kHeadDimV, int kBlockM>
ATTUNE_DEVICE void prefetch_place(const BackwardParams& params, int at) {
  constexpr int kLines = (2 * kHeadDimV + 127) / 128, kLineElements = 64;
  if (at >= params.pairs * params.tiles_of_pair) return;
  const auto [pair, batch, head, m, index] = ordered_tile_at(at, params);
  const int rows = min(kBlockM, params.seqlen_q - m * kBlockM);
  const uint16_t* const o = params.o + batch * params.o_batch + head * params.o_head;
  const uint16_t* const d_o = params.d_o + batch * params.do_batch + head * params.do_head;
#pragma unroll 1
  for (int i = lane_index(); i < rows * kLines; i += 32) {
    const int64_t row = m * kBlockM + i / kLines;
    prefetch_l2(o + row * params.o_row + i % kLines * kLineElements);
    prefetch_l2(d_o + row * params.do_row + i % kLines * kLineElements);
  }
}

// By one warp. kStored, kRing: as in prepare_tile().
template <typename Element, int kHeadDimV, int kBlockM, int kBlockN, int kDqFloats, bool kCausal, bool kStored,
          bool kRing, int kAtOnce>
ATTUNE_DEVICE void prepare_place(const BackwardParams& params, int at) {
  prefetch_place<kHeadDimV, kBlockM>(params, at + (kRing ? 1 : 2) * params.ahead);  // one warp an SM, or two
  const int lane = lane_index();
  const auto [pair, batch, head, m, index] = ordered_tile_at(at, params);
  if (kRing ? pair < params.slots : !kStored || key_blocks_of<kBlockM, kBlockN, kCausal>(m, params) == 0)
    zero_sums<kDqFloats, 32>(params.dq_sums + static_cast<int64_t>(index) * kDqFloats, lane);
  prepare_rows<Element, kHeadDimV, kBlockM, 32, kAtOnce>(params, index, batch, head, m, lane);
  fence_proxy_async_all();  // bulk copies read the rows' values and add to the sums
  __syncwarp();
  if (lane == 0) st_release(params.ready + index, 1);
}

// A warp's work for the whole kernel. kStored: as in prepare_tile().
template <typename Element, int kHeadDimV, int kBlockM, int kBlockN, int kDqFloats, bool kCausal, bool kStored,
          bool kPersistent, int kAtOnce>
ATTUNE_DEVICE void prepare_ahead(const BackwardParams& params) {
#pragma unroll 1
  while (true) {
    int at = 0;
    if ((threadIdx.x & 31) == 0) at = next_to_prepare<kBlockN, kPersistent>(params);
    at = __shfl_sync(kFullWarp, at, 0);
    if (at >= 0) {
      prepare_place<Element, kHeadDimV, kBlockM, kBlockN, kDqFloats, kCausal, kStored, false, kAtOnce>(params, at);
    } else {
      if (!kPersistent || at == kNoneLeft) return;
      __nanosleep(500);
    }
  }
}

// By whoever reads what was prepared, before it does.
ATTUNE_DEVICE void wait_until_prepared(const BackwardParams& params, int index) {
  while (ld_acquire(params.ready + index) == 0) __nanosleep(20);
}
