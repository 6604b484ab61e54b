// needs: types.cuh element.cuh ptx/global.cuh backward/params.cuh
// After the main kernel: dQ from its sums, scaled, rounded and put in rows. A block a query tile.

constexpr int kFinishThreads = 256;

// Where a warpgroup's 64 accumulator rows of `width` columns lie in dQ's tile.
struct DqPart {
  int row, column, width;
  bool transposed;  // accumulator rows are dQ's columns
};

// One warpgroup's part of the sums, four floats a thread at a time, into a tile of `kPitch` elements a row.
template <typename Element, int kHeadDim, int kPitch>
ATTUNE_DEVICE void convert_part(const float* sums, uint16_t* tile, DqPart part, float scale, int thread) {
  const int row = thread / 32 * 16 + thread % 32 / 4;
  for (int i = 0; i < part.width / 8; i++) {
    const float4 x = *reinterpret_cast<const float4*>(sums + (i * 128 + thread) * 4);
    const uint32_t upper = Element::pack(x.x * scale, x.y * scale), lower = Element::pack(x.z * scale, x.w * scale);
    const int column = 8 * i + thread % 4 * 2;
    if (part.transposed) {
      uint16_t* const to = tile + (part.row + column) * kPitch + part.column + row;
      if (part.column + row < kHeadDim) {
        to[0] = static_cast<uint16_t>(upper);
        to[kPitch] = static_cast<uint16_t>(upper >> 16);
      }
      if (part.column + row + 8 < kHeadDim) {
        to[8] = static_cast<uint16_t>(lower);
        to[kPitch + 8] = static_cast<uint16_t>(lower >> 16);
      }
    } else if (part.column + column < kHeadDim) {
      uint16_t* const to = tile + (part.row + row) * kPitch + part.column + column;
      *reinterpret_cast<uint32_t*>(to) = upper;
      *reinterpret_cast<uint32_t*>(to + 8 * kPitch) = lower;
    }
  }
}

template <typename Element, int kHeadDim, int kBlockM>
ATTUNE_DEVICE void finish_tile(const BackwardParams& params, DqPart first, DqPart second) {
  constexpr int kPitch = kHeadDim + 8;  // rows start in different banks
  __shared__ __align__(16) uint16_t rows[kBlockM * kPitch];
  const int64_t tile = blockIdx.x;
  const int64_t pair = tile / params.tiles_m;
  const int m = static_cast<int>(tile - pair * params.tiles_m);
  const int64_t batch = pair / params.heads, head = pair - batch * params.heads;
  const int floats = 64 * (first.width + second.width);
  const bool is_first = threadIdx.x < 128;
  convert_part<Element, kHeadDim, kPitch>(params.dq_sums + tile * floats + (is_first ? 0 : 64 * first.width), rows,
                                          is_first ? first : second, params.scale, threadIdx.x % 128);
  __syncthreads();
  for (int i = threadIdx.x; i < kBlockM * (kHeadDim / 8); i += kFinishThreads) {
    const int row = i / (kHeadDim / 8), unit = i % (kHeadDim / 8);
    if (m * kBlockM + row >= params.seqlen_q) continue;
    const uint4 x = *reinterpret_cast<const uint4*>(rows + row * kPitch + 8 * unit);
    st_global_v4(
        params.d_q + batch * params.dq_batch + head * params.dq_head + (m * kBlockM + row) * params.dq_row + 8 * unit,
        x.x, x.y, x.z, x.w);
  }
}
