// needs: types.cuh ptx/turn.cuh backward/prepare.cuh
// Query tiles prepared in the main kernel, by warps that have nothing else to do, a little ahead of the blocks of keys
// that visit them: what that reads comes while the matrix units work, and the zeros are still in L2 when they are added
// to.
//
// Nobody waits for ever: tiles are handed out in the order in which blocks of keys visit them, every thread block hands
// out to its own warps until those that it visits itself are taken, and who prepares a tile waits for nobody.

// The next tile's place in the order, or how many there are: nothing is left to do. By one thread.
template <int kBlockN, bool kPersistent>
ATTUNE_DEVICE int next_to_prepare(const BackwardParams& params) {
  const int blocks = params.tiles_n * params.pairs, tiles = params.pairs * params.tiles_of_pair;
  const int per_section = params.section * params.tiles_n;
  while (true) {
    const int block = kPersistent ? static_cast<int>(ld_relaxed(params.ticket)) : static_cast<int>(blockIdx.x);
    const int section = min(block + params.ahead, blocks - 1) / per_section;
    const int wanted = min((section + 1) * params.section, params.pairs) * params.tiles_of_pair;
    if (static_cast<int>(ld_relaxed(params.ticket + 2)) < wanted) return atomicAdd(params.ticket + 2, 1u);
    if (!kPersistent || wanted == tiles) return tiles;
    __nanosleep(500);
  }
}

// A warp's work for the whole kernel. kStored: as in prepare_tile().
template <typename Element, int kHeadDimV, int kBlockM, int kBlockN, int kDqFloats, bool kCausal, bool kStored,
          bool kPersistent, int kAtOnce>
ATTUNE_DEVICE void prepare_ahead(const BackwardParams& params) {
  const int lane = threadIdx.x & 31, tiles = params.pairs * params.tiles_of_pair;
#pragma unroll 1
  while (true) {
    int at = 0;
    if (lane == 0) at = next_to_prepare<kBlockN, kPersistent>(params);
    at = __shfl_sync(kFullWarp, at, 0);
    if (at >= tiles) return;
    const auto [pair, batch, head, m, index] = ordered_tile_at(at, params);
    if (!kStored || key_blocks_of<kBlockM, kBlockN, kCausal>(m, params) == 0)
      zero_sums<kDqFloats, 32>(params.dq_sums + static_cast<int64_t>(index) * kDqFloats, lane);
    prepare_rows<Element, kHeadDimV, kBlockM, 32, kAtOnce>(params, index, batch, head, m, lane);
    fence_proxy_async_all();  // bulk copies read the rows' values and add to the sums
    __syncwarp();
    if (lane == 0) st_release(params.ready + index, 1);
  }
}

// By the thread that loads a tile, before it does.
ATTUNE_DEVICE void wait_until_prepared(const BackwardParams& params, const QueryTile& tile) {
  while (ld_acquire(params.ready + tile.index) == 0) __nanosleep(20);
}
