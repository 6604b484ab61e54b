// needs: types.cuh ptx/prefetch.cuh ptx/turn.cuh backward/tile.cuh backward/prepare.cuh
// Query tiles prepared in the main kernel, by warps that have little else to do, a little ahead of the blocks of keys
// that visit them: what that reads comes while the matrix units work.
//
// Nobody waits for ever: tiles are handed out in the order in which blocks of keys visit them, some warp takes more
// until those of all blocks of keys that have started are taken, and who prepares a tile waits for nobody. (A thread
// block asks for those of its own index's section, or of what the ticket says. With a ring a warp leaves once
// all tiles to be finished are taken; those who have one go on preparing until it is complete.)

constexpr int kNoneYet = -1, kNoneLeft = -2;

// The place of the next tile to prepare, or one of these. By one thread.
template <bool kPersistent>
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

// A query tile, by a warp, 32 rows at a time: each lane gets one row's sum, so that what else a row needs is loaded
// once for all of them. kAtOnce: passes whose loads are under way together. What is cheap is found anew where it is
// needed: some producers have 40 registers a thread.
template <typename Element, int kHeadDimV, int kBlockM, int kAtOnce>
ATTUNE_DEVICE void prepare_rows_alone(const BackwardParams& params, const OrderedTile& tile) {
  constexpr int kLanes = lanes_of_row(kHeadDimV), kRows = 32 / kLanes, kTogether = kAtOnce < kLanes ? kAtOnce : kLanes;
  const int lane = lane_index() % kLanes, group = lane_index() / kLanes;
  const int64_t row = tile.m * kBlockM + group;
  const uint16_t* o =
      params.o + tile.batch * params.o_batch + tile.head * params.o_head + row * params.o_row + 8 * lane;
  const uint16_t* d_o =
      params.d_o + tile.batch * params.do_batch + tile.head * params.do_head + row * params.do_row + 8 * lane;
  int left = params.seqlen_q - static_cast<int>(row);  // rows from this lane's next one on
#pragma unroll 1
  for (int first = 0; first < kBlockM; first += 32) {
    float own_sum = 0;
#pragma unroll 1
    for (int pass = 0; pass < kLanes; pass += kTogether) {
      uint4 x[kTogether], y[kTogether];
#pragma unroll
      for (int i = 0; i < kTogether; i++) {
        x[i] = y[i] = make_uint4(0, 0, 0, 0);
        if (i * kRows < left && 8 * lane < kHeadDimV) {
          x[i] = *reinterpret_cast<const uint4*>(o + i * kRows * params.o_row);
          y[i] = *reinterpret_cast<const uint4*>(d_o + i * kRows * params.do_row);
        }
      }
      o += kTogether * kRows * params.o_row;
      d_o += kTogether * kRows * params.do_row;
      left -= kTogether * kRows;
#pragma unroll
      for (int i = 0; i < kTogether; i++) {
        float sum = dot_of_units<Element>(x[i], y[i]);
#pragma unroll
        for (int distance = kLanes / 2; distance > 0; distance /= 2) sum += __shfl_xor_sync(kFullWarp, sum, distance);
        if (lane == pass + i) own_sum = sum;
      }
    }
    const int in_tile = first + lane_index() % kLanes * kRows + lane_index() / kLanes;
    if (in_tile >= kBlockM) continue;
    const int of_heads = tile.index / params.tiles_m,
              own = (tile.index - of_heads * params.tiles_m) * kBlockM + in_tile;
    const int64_t of_lse = static_cast<int64_t>(of_heads) * params.seqlen_q + own;
    const float lse = own < params.seqlen_q ? params.lse[of_lse] : -infinity();
    const float d_lse = own < params.seqlen_q && params.d_lse != nullptr ? params.d_lse[of_lse] : 0.f;
    store_statistics(params, static_cast<int64_t>(tile.index) * kBlockM + in_tile, lse, d_lse, own_sum);
  }
}

// By one warp. kRing: it is the only one of its thread block that does this, else there are two.
template <typename Element, int kHeadDimV, int kBlockM, bool kRing, int kAtOnce>
ATTUNE_DEVICE void prepare_place(const BackwardParams& params, int at) {
  prefetch_place<kHeadDimV, kBlockM>(params, at + (kRing ? 1 : 2) * params.ahead);
  asm volatile("" : "+r"(at));  // what the prefetch found for its tile is of no use, and would take registers
  const OrderedTile tile = ordered_tile_at(at, params);
  prepare_rows_alone<Element, kHeadDimV, kBlockM, kAtOnce>(params, tile);
  fence_proxy_async_all();  // bulk copies read the rows' values
  __syncwarp();
  if (lane_index() == 0) {
    st_release(params.ready + tile.index, 1);
    red_release_add(params.ready + params.pairs * params.tiles_of_pair + tile.pair, 1);
  }
}

// A warp's work for the whole kernel.
template <typename Element, int kHeadDimV, int kBlockM, bool kPersistent, int kAtOnce>
ATTUNE_DEVICE void prepare_ahead(const BackwardParams& params) {
#pragma unroll 1
  while (true) {
    int at = 0;
    if ((threadIdx.x & 31) == 0) at = next_to_prepare<kPersistent>(params);
    at = __shfl_sync(kFullWarp, at, 0);
    if (at >= 0) {
      prepare_place<Element, kHeadDimV, kBlockM, false, kAtOnce>(params, at);
    } else {
      if (!kPersistent || at == kNoneLeft) return;
      __nanosleep(500);
    }
  }
}

// Whether all tiles of a pair are there, so that nobody has to look at each: usual where these warps are ahead.
ATTUNE_DEVICE bool all_prepared(const BackwardParams& params, int pair) {
  return ld_acquire(params.ready + params.pairs * params.tiles_of_pair + pair) ==
         static_cast<uint32_t>(params.tiles_of_pair);
}

// By whoever reads what was prepared, before it does.
ATTUNE_DEVICE void wait_until_prepared(const BackwardParams& params, int index) {
  while (ld_acquire(params.ready + index) == 0) __nanosleep(20);
}
