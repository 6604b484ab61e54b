// needs: types.cuh element.cuh ptx/barrier.cuh ptx/matrix.cuh ptx/bulk_tensor.cuh ptx/bulk.cuh ptx/mbarrier.cuh ptx/shared.cuh ptx/turn.cuh backward/tile.cuh backward/ahead.cuh
// The sums of dQ as a ring of slots that stays in L2: a (sequence, KV head) pair has the slot pair % slots, with all
// query tiles of its group. Blocks of keys count what they have added to a tile. A warp of each thread block finishes
// tiles, in the order in which they become complete: dQ leaves, and zeros are left for the next pair, if there is one
// and its first additions are no stores.
//
// Nobody waits for ever: whoever adds to a pair waits for one of an earlier section, whose blocks of keys, handed out
// in order, wait for none of this section; and tiles are handed out to those who finish them in the order of the
// sections, so that the first one which is not finished is complete or becomes so. Thread blocks that do not run hold
// nothing.

// Query tiles before the first one of the pair that began this turn of the ring: where in the ring a tile lies follows
// from its index.
ATTUNE_DEVICE int tiles_before_ring(int pair, const BackwardParams& params) {
  return (pair - pair % params.slots) * params.tiles_of_pair;
}

// By one thread, before it adds to a pair's sums or reads them: the slot's pair before is finished.
ATTUNE_DEVICE void wait_for_slot(int pair, const BackwardParams& params) {
  if (pair < params.slots) return;
  while (ld_acquire(params.finished + pair - params.slots) != static_cast<uint32_t>(params.tiles_of_pair)) {
  }
  fence_proxy_async_all();
}

// 64 rows of up to 64 columns, by one warp: sums in fragment order (64 rows of 8 columns are 2 KB) become a chunk of
// 128-byte rows, swizzled.
template <typename Element>
ATTUNE_DEVICE void convert_sums(uint32_t sums, uint32_t rows, int groups, float scale, int lane) {
  sums += 16 * lane;
  rows += (lane & 15) * 128 + (((lane >> 4) ^ (lane & 7)) << 4);
#pragma unroll 1
  for (int i = 0; i < groups; i += 2) {
    const uint32_t from = sums + i * 2048, to = rows ^ (i << 4);
    const int next = i + 1 < groups ? 2048 : 0;  // beyond an odd number of groups lies nothing of the tensor
#pragma unroll
    for (int strip = 0; strip < 4; strip += 2) {
      int x[2][8];  // loads first
#pragma unroll
      for (int s = 0; s < 2; s++) {
        ld_shared_v4(from + (strip + s) * 512, x[s][0], x[s][1], x[s][2], x[s][3]);
        ld_shared_v4(from + (strip + s) * 512 + next, x[s][4], x[s][5], x[s][6], x[s][7]);
      }
#pragma unroll
      for (int s = 0; s < 2; s++) {
        uint32_t packed[4];
#pragma unroll
        for (int j = 0; j < 4; j++)
          packed[j] = Element::pack(__int_as_float(x[s][2 * j]) * scale, __int_as_float(x[s][2 * j + 1]) * scale);
        stmatrix_x4(to + (strip + s) * 2048, packed[0], packed[1], packed[2], packed[3]);
      }
    }
  }
}

// By a warp, at least one tile, if any is wanted, and until the tile at this place is complete.
template <typename Element, int kHeadDimV, int kBlockM, int kBlockN, bool kCausal, int kAtOnce>
ATTUNE_DEVICE void prepare_until_complete(const BackwardParams& params, int at) {
#pragma unroll 1
  while (true) {
    int place = 0, complete = 0;
    asm volatile("" : "+r"(at));  // what follows from it is found anew: it would need registers meanwhile
    if ((threadIdx.x & 31) == 0) {
      place = next_to_prepare<true>(params);
      const OrderedTile tile = ordered_tile_at(at, params);
      const auto wanted = static_cast<uint32_t>(key_blocks_of<kBlockM, kBlockN, kCausal>(tile.m, params));
      complete =
          wanted > 0 ? ld_acquire(params.turns + tile.index) == wanted : ld_acquire(params.ready + tile.index) != 0;
    }
    place = __shfl_sync(kFullWarp, place, 0);
    if (place >= 0) prepare_place<Element, kHeadDimV, kBlockM, true, kAtOnce>(params, place);
    if (__shfl_sync(kFullWarp, complete, 0)) return;
    if (place < 0) __nanosleep(100);
  }
}

// A warp's work for the whole kernel. `sums` are 16 KB, `rows` 8 KB of shared memory, `full` is a barrier of one
// arrival.
//
// kInside: it prepares tiles, too, one before each that it finishes and as many as are wanted while it waits, kAtOnce
// rows of each lane together.
template <typename Element, int kHeadDim, int kHeadDimV, int kBlockM, int kBlockN, bool kCausal, bool kDescending,
          bool kStored, bool kInside, int kAtOnce>
ATTUNE_DEVICE void finish_tiles(const TensorMap* map_dq, const BackwardParams& params, uint32_t sums, uint32_t rows,
                                uint32_t full) {
  // A tile of 64 rows is the columns of one warpgroup behind those of the other; of 128 rows, each has 64.
  constexpr int kColumns = kBlockM == 64 ? (kHeadDim + 63) / 64 * 64 : kHeadDim;
  constexpr int kChunks = (kColumns + 63) / 64, kPieces = kBlockM / 64 * kChunks;
  const int lane = threadIdx.x & 31;
  const int tiles = params.pairs * params.tiles_of_pair;
  int phase = 0, next = 0;
  if (lane == 0 && !kInside) next = atomicAdd(params.ticket + 1, 1u);
#pragma unroll 1
  while (true) {
    int at = kInside ? 0 : next;
    if (lane == 0 && kInside) at = atomicAdd(params.ticket + 1, 1u);
    at = __shfl_sync(kFullWarp, at, 0);
    if (at >= tiles) break;
    // Early, so that the answer is there when it is needed; where there is other work meanwhile, a register matters
    // more.
    if (lane == 0 && !kInside) next = atomicAdd(params.ticket + 1, 1u);
    if (kInside) {
      prepare_until_complete<Element, kHeadDimV, kBlockM, kBlockN, kCausal, kAtOnce>(params, at);
      asm volatile("" : "+r"(at));  // as there
    }
    const auto [pair, batch, head, m, index] = ordered_tile_at<kDescending>(at, params);
    float* const tile =
        params.dq_sums + static_cast<int64_t>(index - tiles_before_ring(pair, params)) * (kBlockM * kColumns);
    const auto load = [&](int piece) {
      const int floats = piece / kChunks * 64 * kColumns + piece % kChunks * 4096;
      const int bytes = kColumns % 64 == 0 ? 16384 : min(64, kColumns - piece % kChunks * 64) * 256;
      mbarrier_arrive_expect_tx(full, bytes);
      bulk_load(sums, tile + floats, bytes, full);
    };
    const auto wanted = static_cast<uint32_t>(key_blocks_of<kBlockM, kBlockN, kCausal>(m, params));
    const int pieces = kStored && wanted == 0 ? 0 : kPieces;  // where nothing was stored, dQ is zero by now
    if (lane == 0 && pieces > 0) {
      if (wanted == 0) wait_for_slot(pair, params);  // rows that see no key: dQ is the zeros of the slot
      while (ld_acquire(params.turns + index) != wanted) __nanosleep(100);
      fence_proxy_async_all();
      load(0);
    }
#pragma unroll 1
    for (int piece = 0; piece < pieces; piece++) {
      const int chunk = piece % kChunks, upper = piece / kChunks;
      const int groups = kColumns % 64 == 0 ? 8 : min(8, kColumns / 8 - 8 * chunk);
      mbarrier_wait(full, phase);
      phase ^= 1;
      if (lane == 0) bulk_wait_group_read<0>();  // the piece before has left
      __syncwarp();
      convert_sums<Element>(sums, rows, groups, params.scale, lane);
      fence_proxy_async();
      __syncwarp();
      if (lane == 0) {
        if (piece + 1 < kPieces) load(piece + 1);
        bulk_tensor_store(map_dq, rows, chunk * 64, m * kBlockM + upper * 64, head, batch);
        bulk_commit_group();
      }
      if (kStored || pair + params.slots >= params.pairs) continue;  // nobody adds to zeros here any more
      float4* const zeroed = reinterpret_cast<float4*>(tile + upper * 64 * kColumns + chunk * 4096) + lane;
#pragma unroll 8
      for (int i = 0; i < groups * 4; i++) zeroed[32 * i] = make_float4(0.f, 0.f, 0.f, 0.f);
    }
    __syncwarp();
    if (lane == 0) red_release_add(params.finished + pair, 1);
  }
  if (lane == 0) bulk_wait_group_read<0>();  // shared memory must outlive the store's reads
}
