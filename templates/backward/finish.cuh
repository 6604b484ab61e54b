// needs: types.cuh element.cuh ptx/global.cuh backward/params.cuh
// After the main kernel: dQ from its sums, scaled, rounded and put in rows. A thread block a query tile.

constexpr int kFinishThreads = 256;

// Where a warpgroup's 64 accumulator rows of `width` columns lie in dQ's tile.
struct DqPart {
  int row, column, width;
  bool transposed;  // accumulator rows are dQ's columns
};

// Four floats of a thread's accumulators, two columns of two rows 8 apart, rounded into a tile of `kPitch` elements a
// row.
template <typename Element, int kPitch>
ATTUNE_DEVICE void put_fragment(uint16_t* to, float4 x, float scale) {
  *reinterpret_cast<uint32_t*>(to) = Element::pack(x.x * scale, x.y * scale);
  *reinterpret_cast<uint32_t*>(to + 8 * kPitch) = Element::pack(x.z * scale, x.w * scale);
}

// The tile's first `rows` rows go out, 16 bytes a thread.
template <int kColumns, int kRows, int kPitch>
ATTUNE_DEVICE void store_tile(const uint16_t* tile, uint16_t* out, int64_t row_stride, int rows) {
  for (int i = threadIdx.x; i < kRows * (kColumns / 8); i += kFinishThreads) {
    const int row = i / (kColumns / 8), unit = i % (kColumns / 8);
    if (row >= rows) continue;
    const uint4 x = *reinterpret_cast<const uint4*>(tile + row * kPitch + 8 * unit);
    st_global_v4(out + row * row_stride + 8 * unit, x.x, x.y, x.z, x.w);
  }
}

// One warpgroup's part of the sums, four floats a thread at a time, into a tile of `kPitch` elements a row.
template <typename Element, int kHeadDim, int kPitch>
ATTUNE_DEVICE void convert_part(const float* sums, uint16_t* tile, DqPart part, float scale, int thread) {
  const int row = thread / 32 * 16 + thread % 32 / 4;
  for (int i = 0; i < part.width / 8; i++) {
    const float4 x = *reinterpret_cast<const float4*>(sums + (i * 128 + thread) * 4);
    const int column = 8 * i + thread % 4 * 2;
    if (part.transposed) {
      const uint32_t upper = Element::pack(x.x * scale, x.y * scale), lower = Element::pack(x.z * scale, x.w * scale);
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
      put_fragment<Element, kPitch>(tile + (part.row + row) * kPitch + part.column + column, x, scale);
    }
  }
}

// Elements from row to row in shared memory: rows start in different banks.
constexpr int pitch_of(int columns) { return columns + 8; }

// `rows` is shared memory for the tile.
template <typename Element, int kHeadDim, int kBlockM>
ATTUNE_DEVICE void finish_tile(const BackwardParams& params, uint16_t* rows, DqPart first, DqPart second) {
  constexpr int kPitch = pitch_of(kHeadDim);
  const int64_t tile = blockIdx.x;
  const int64_t pair = tile / params.tiles_m;
  const int m = static_cast<int>(tile - pair * params.tiles_m);
  const int64_t batch = pair / params.heads, head = pair - batch * params.heads;
  const int floats = 64 * (first.width + second.width);
  const bool is_first = threadIdx.x < 128;
  convert_part<Element, kHeadDim, kPitch>(params.dq_sums + tile * floats + (is_first ? 0 : 64 * first.width), rows,
                                          is_first ? first : second, params.scale, threadIdx.x % 128);
  __syncthreads();
  const int64_t out = batch * params.dq_batch + head * params.dq_head + m * kBlockM * params.dq_row;
  store_tile<kHeadDim, kBlockM, kPitch>(rows, params.d_q + out, params.dq_row, params.seqlen_q - m * kBlockM);
}
