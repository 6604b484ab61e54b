// needs: types.cuh element.cuh ptx/matrix.cuh ptx/bulk_tensor.cuh ptx/barrier.cuh ptx/shared.cuh
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
