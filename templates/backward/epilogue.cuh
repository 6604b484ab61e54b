// needs: types.cuh element.cuh ptx/matrix.cuh ptx/bulk_tensor.cuh ptx/barrier.cuh ptx/shared.cuh ptx/global.cuh ptx/quad.cuh
// dK and dV of a warpgroup: rounded, staged as 64-column chunks and stored by TMA, which leaves out rows beyond
// seqlen_k.

// 64 accumulator rows of kColumns columns. `chunk_bytes` lie between the chunks; rows of 128 bytes, swizzled.
template <typename Element, int kColumns, int kSize>
ATTUNE_DEVICE void stage_gradient(const float (&x)[kSize], uint32_t buffer, uint32_t chunk_bytes, int warp, int lane,
                                  float factor) {
  const int row = warp * 16 + (lane & 15);
#pragma unroll
  for (int k = 0; k < (kColumns + 15) / 16; k++) {
    const bool half = 16 * k + 8 == kColumns;  // the last 8 columns have no right neighbour
    stmatrix_x4(buffer + k / 4 * chunk_bytes + row * 128 + (((2 * k % 8 + (lane >> 4)) ^ (row & 7)) << 4),
                Element::pack(x[8 * k] * factor, x[8 * k + 1] * factor),
                Element::pack(x[8 * k + 2] * factor, x[8 * k + 3] * factor),
                half ? 0u : Element::pack(x[(8 * k + 4) % kSize] * factor, x[(8 * k + 5) % kSize] * factor),
                half ? 0u : Element::pack(x[(8 * k + 6) % kSize] * factor, x[(8 * k + 7) % kSize] * factor));
  }
}

template <int kColumns>
ATTUNE_DEVICE void store_gradient(const TensorMap* map, uint32_t buffer, uint32_t chunk_bytes, int column, int row,
                                  int head, int batch) {
#pragma unroll
  for (int chunk = 0; chunk < (kColumns + 63) / 64; chunk++)
    bulk_tensor_store(map, buffer + chunk * chunk_bytes, column + chunk * 64, row, head, batch);
  bulk_commit_group();
}

// The same rows straight from the accumulators to global memory: no buffer to wait for. `row` is this thread's first
// one of the tensor's, the other one is 8 further; rows from `rows` on stay.
template <typename Element, int kColumns, int kSize>
ATTUNE_DEVICE void write_gradient(const float (&x)[kSize], uint16_t* head, int64_t row_stride, int row, int rows,
                                  int lane, float factor) {
#pragma unroll
  for (int half = 0; half < 2; half++) {
    uint16_t* const out = head + (row + 8 * half) * row_stride;
    const bool inside = row + 8 * half < rows;
    constexpr int kTraded = kColumns / 32 * 4;  // groups of 8 columns that trade, four at a time
#pragma unroll
    for (int i = 0; i < kTraded; i += 4) {
      uint32_t packed[4];
#pragma unroll
      for (int g = 0; g < 4; g++)
        packed[g] = Element::pack(x[4 * (i + g) + 2 * half] * factor, x[4 * (i + g) + 2 * half + 1] * factor);
      trade_in_quad(packed, lane);
      if (inside) st_global_v4(out + 8 * (i + (lane & 3)), packed[0], packed[1], packed[2], packed[3]);
    }
#pragma unroll
    for (int i = kTraded; i < kColumns / 8; i++)
      if (inside)
        st_global(out + 8 * i + 2 * (lane & 3),
                  Element::pack(x[4 * i + 2 * half] * factor, x[4 * i + 2 * half + 1] * factor));
  }
}

// Where there are no queries: zeros for all of this block's rows, by all threads of the block.
template <int kChunks, int kRows>
ATTUNE_DEVICE void store_zeros(const TensorMap* map, uint32_t buffer, int row, int head, int batch) {
  for (int i = threadIdx.x; i < 64 * 128 / 16; i += blockDim.x) st_shared_v4(buffer + 16 * i, 0, 0, 0, 0);
  fence_proxy_async();
  __syncthreads();
  if (threadIdx.x == 0) {
    for (int chunk = 0; chunk < kChunks; chunk++)
      for (int part = 0; part < kRows; part += 64) bulk_tensor_store(map, buffer, chunk * 64, row + part, head, batch);
    bulk_commit_group();
    bulk_wait_group_read();
  }
  __syncthreads();
}
