// needs: types.cuh element.cuh ptx/float_vector.cuh backward/params.cuh backward/tile.cuh backward/finish.cuh
// dK and dV where the query heads of a KV head are divided among blocks of keys: each leaves its part in float32, as
// fragments, and the kernel after the main one adds these up, always in the same order.

// The same keys of the real KV head, which has K and V.
ATTUNE_DEVICE KeyBlock keys_of(KeyBlock block, const BackwardParams& params) {
  block.head /= params.parts;
  return block;
}

// Floats of a warpgroup's part: dV and then dK of 64 keys.
constexpr int floats_of_part(int head_dim, int head_dim_v) { return 64 * (head_dim + head_dim_v); }

// A warpgroup's part of block of keys n of a pair.
template <int kHeadDim, int kHeadDimV>
ATTUNE_DEVICE float* part_of(const BackwardParams& params, int pair, int n, int warpgroup) {
  const int64_t at = (static_cast<int64_t>(pair) * params.tiles_n + n) * 2 + warpgroup;
  return params.dkv_parts + at * floats_of_part(kHeadDim, kHeadDimV);
}

// Straight from the accumulators, a warp's 512 bytes side by side. `out` is this thread's place.
template <int kSize>
ATTUNE_DEVICE void write_part(const float (&x)[kSize], float* out) {
#pragma unroll
  for (int i = 0; i < kSize / 4; i++) st_global_v4(out + 512 * i, x[4 * i], x[4 * i + 1], x[4 * i + 2], x[4 * i + 3]);
}

// 64 keys of dV, or of dK: the sum of `parts`, `stride` floats apart, in a tile. Each half of the thread block takes
// every other group of 8 columns.
template <typename Element, int kColumns>
ATTUNE_DEVICE void add_parts(const float* first, int64_t stride, int parts, uint16_t* tile, float scale) {
  constexpr int kGroups = kColumns / 8, kPitch = pitch_of(kColumns);
  constexpr int kAtOnce = 4;  // groups whose loads are under way together: more registers would be fewer thread blocks
  const int thread = threadIdx.x % 128;
  uint16_t* const own = tile + (thread / 32 * 16 + thread % 32 / 4) * kPitch + thread % 4 * 2;
  first += 4 * thread;
#pragma unroll 1
  for (int group = threadIdx.x / 128; group < kGroups; group += 2 * kAtOnce) {
    float4 sums[kAtOnce] = {};
#pragma unroll 2
    for (int part = 0; part < parts; part++) {
      float4 x[kAtOnce];
#pragma unroll
      for (int i = 0; i < kAtOnce; i++)
        if (group + 2 * i < kGroups)
          x[i] = *reinterpret_cast<const float4*>(first + part * stride + (group + 2 * i) * 512);
#pragma unroll
      for (int i = 0; i < kAtOnce; i++)
        if (group + 2 * i < kGroups)
          sums[i] = make_float4(sums[i].x + x[i].x, sums[i].y + x[i].y, sums[i].z + x[i].z, sums[i].w + x[i].w);
    }
#pragma unroll
    for (int i = 0; i < kAtOnce; i++)
      if (group + 2 * i < kGroups) put_fragment<Element, kPitch>(own + 8 * (group + 2 * i), sums[i], scale);
  }
}

// By a thread block: dV or dK of a warpgroup's 64 keys. `rows` is shared memory for them.
template <typename Element, int kHeadDim, int kHeadDimV, int kBlockN>
ATTUNE_DEVICE void finish_keys(const BackwardParams& params, uint16_t* rows, int index) {
  const bool of_dk = index % 2 != 0;
  const int warpgroup = index / 2 % 2, of_pairs = index / 4, heads_kv = params.heads_kv / params.parts;
  const int pair = of_pairs / params.tiles_n, n = of_pairs - pair * params.tiles_n;  // of real KV heads
  const int64_t batch = pair / heads_kv, head = pair - batch * heads_kv;
  const int key = n * kBlockN + 64 * warpgroup, left = params.seqlen_k - key;
  if (left <= 0) return;
  const float* const first = part_of<kHeadDim, kHeadDimV>(params, pair * params.parts, n, warpgroup);
  const int64_t stride = static_cast<int64_t>(params.tiles_n) * 2 * floats_of_part(kHeadDim, kHeadDimV);
  if (of_dk) {
    add_parts<Element, kHeadDim>(first + 64 * kHeadDimV, stride, params.parts, rows, params.scale);
    __syncthreads();
    const int64_t out = batch * params.dk_batch + head * params.dk_head + key * params.dk_row;
    store_tile<kHeadDim, 64, pitch_of(kHeadDim)>(rows, params.d_k + out, params.dk_row, left);
  } else {
    add_parts<Element, kHeadDimV>(first, stride, params.parts, rows, 1.f);
    __syncthreads();
    const int64_t out = batch * params.dv_batch + head * params.dv_head + key * params.dv_row;
    store_tile<kHeadDimV, 64, pitch_of(kHeadDimV)>(rows, params.d_v + out, params.dv_row, left);
  }
}
