// needs: types.cuh ptx/shared.cuh ptx/float_vector.cuh
// Accumulators handed from a thread of one warpgroup to the same thread of the other: four floats at a time, so that a
// warp writes and reads 512 bytes side by side.

template <int kSize>
ATTUNE_DEVICE void store_fragments(const float (&x)[kSize], uint32_t address) {
#pragma unroll
  for (int i = 0; i < kSize / 4; i++)
    st_shared_v4(address + 2048 * i, x[4 * i], x[4 * i + 1], x[4 * i + 2], x[4 * i + 3]);
}

template <int kSize>
ATTUNE_DEVICE void load_fragments(float (&x)[kSize], uint32_t address) {
#pragma unroll
  for (int i = 0; i < kSize / 4; i++)
    ld_shared_v4(address + 2048 * i, x[4 * i], x[4 * i + 1], x[4 * i + 2], x[4 * i + 3]);
}
