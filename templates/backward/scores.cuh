// needs: types.cuh element.cuh ptx/math.cuh ptx/matrix.cuh ptx/float_vector.cuh ptx/matrix_transposed.cuh
// The elementwise part of a step on transposed scores: rows are keys, columns are queries. A thread holds two rows, 8
// apart, of columns 8 i + {0, 1}.

// A warp's 16 of 64 rows as a left operand in registers: 64-column chunks, `chunk_bytes` apart, rows of 128 bytes,
// swizzled.
template <int kSteps>
ATTUNE_DEVICE void load_rows(uint32_t (&registers)[4 * kSteps], uint32_t buffer, uint32_t chunk_bytes, int warp,
                             int lane) {
  const int row = warp * 16 + (lane & 15);
#pragma unroll
  for (int k = 0; k < kSteps; k++)
    ldmatrix_x4(buffer + k / 4 * chunk_bytes + row * 128 + ((((2 * k) % 8 + (lane >> 4)) ^ (row & 7)) << 4),
                registers[4 * k], registers[4 * k + 1], registers[4 * k + 2], registers[4 * k + 3]);
}

// LSE or delta of this thread's columns, from its first column's address on.
template <int kSize>
ATTUNE_DEVICE void load_statistics(float2 (&values)[kSize], uint32_t address) {
#pragma unroll
  for (int i = 0; i < kSize; i++) values[i] = ld_shared_v2(address + 32 * i);
}

// -inf where the key lies beyond the last one that the query sees: column + limit is its distance.
template <int kSize>
ATTUNE_DEVICE void mask_queries(float (&s)[kSize], int limit) {
#pragma unroll
  for (int i = 0; i < kSize / 4; i++) {
    if (limit > 8 * i) s[4 * i] = -infinity();
    if (limit > 8 * i + 1) s[4 * i + 1] = -infinity();
    if (limit + 8 > 8 * i) s[4 * i + 2] = -infinity();
    if (limit + 8 > 8 * i + 1) s[4 * i + 3] = -infinity();
  }
}

// -inf in this thread's rows from key `keys` on.
template <int kSize>
ATTUNE_DEVICE void mask_keys(float (&s)[kSize], int row, int keys) {
#pragma unroll
  for (int i = 0; i < kSize / 4; i++) {
    if (row >= keys) s[4 * i] = s[4 * i + 1] = -infinity();
    if (row + 8 >= keys) s[4 * i + 2] = s[4 * i + 3] = -infinity();
  }
}

ATTUNE_DEVICE void exponentials(float& a, float& b, float& c, float& d, float2 shift, float scale_log2) {
  a = ex2_approx(fmaf(a, scale_log2, shift.x));
  b = ex2_approx(fmaf(b, scale_log2, shift.y));
  c = ex2_approx(fmaf(c, scale_log2, shift.x));
  d = ex2_approx(fmaf(d, scale_log2, shift.y));
}

// S becomes P. The shifts come from shared memory, or from registers.
template <int kSize>
ATTUNE_DEVICE void probabilities(float (&s)[kSize], uint32_t shifts, float scale_log2) {
#pragma unroll
  for (int i = 0; i < kSize / 4; i++)
    exponentials(s[4 * i], s[4 * i + 1], s[4 * i + 2], s[4 * i + 3], ld_shared_v2(shifts + 32 * i), scale_log2);
}
template <int kSize>
ATTUNE_DEVICE void probabilities(float (&s)[kSize], const float2 (&shifts)[kSize / 4], float scale_log2) {
#pragma unroll
  for (int i = 0; i < kSize / 4; i++)
    exponentials(s[4 * i], s[4 * i + 1], s[4 * i + 2], s[4 * i + 3], shifts[i], scale_log2);
}

template <typename Element, int kSize, int kPacked>
ATTUNE_DEVICE void pack(const float (&p)[kSize], uint32_t (&packed)[kPacked]) {
  static_assert(kPacked == kSize / 2);
#pragma unroll
  for (int i = 0; i < kPacked; i++) packed[i] = Element::pack(p[2 * i], p[2 * i + 1]);
}

template <typename Element>
ATTUNE_DEVICE void gradients_of(const float* p, const float* dp, float2 delta, uint32_t& upper, uint32_t& lower) {
  upper = Element::pack(p[0] * (dp[0] - delta.x), p[1] * (dp[1] - delta.y));
  lower = Element::pack(p[2] * (dp[2] - delta.x), p[3] * (dp[3] - delta.y));
}

// dS = P (dP - delta), packed.
template <typename Element, int kSize, int kPacked>
ATTUNE_DEVICE void score_gradients(const float (&p)[kSize], const float (&dp)[kSize], uint32_t deltas,
                                   uint32_t (&ds)[kPacked]) {
#pragma unroll
  for (int i = 0; i < kSize / 4; i++)
    gradients_of<Element>(p + 4 * i, dp + 4 * i, ld_shared_v2(deltas + 32 * i), ds[2 * i], ds[2 * i + 1]);
}
template <typename Element, int kSize, int kPacked>
ATTUNE_DEVICE void score_gradients(const float (&p)[kSize], const float (&dp)[kSize], const float2 (&deltas)[kSize / 4],
                                   uint32_t (&ds)[kPacked]) {
#pragma unroll
  for (int i = 0; i < kSize / 4; i++) gradients_of<Element>(p + 4 * i, dp + 4 * i, deltas[i], ds[2 * i], ds[2 * i + 1]);
}

// Into rows of queries (64 keys, 128 bytes, swizzled): this lane's address for 8x8 tiles of 16 keys and 16 queries. A
// warp has keys 16 warp to 16 warp + 15.
ATTUNE_DEVICE uint32_t transposed_address(uint32_t buffer, int warp, int lane) {
  const int tile = lane >> 3, row = lane & 7;
  return buffer + (tile >> 1) * 1024 + row * 128 + (((2 * warp + (tile & 1)) ^ row) << 4);
}
template <int kPacked>
ATTUNE_DEVICE void store_transposed(const uint32_t (&packed)[kPacked], uint32_t address) {
#pragma unroll
  for (int k = 0; k < kPacked / 4; k++)
    stmatrix_x4_trans(address + 2048 * k, packed[4 * k], packed[4 * k + 1], packed[4 * k + 2], packed[4 * k + 3]);
}

// A warpgroup's accumulators of dQ, fragment order: four floats a thread side by side.
template <int kSize>
ATTUNE_DEVICE void stage_dq(const float (&dq)[kSize], uint32_t address) {
#pragma unroll
  for (int i = 0; i < kSize / 4; i++)
    st_shared_v4(address + 2048 * i, dq[4 * i], dq[4 * i + 1], dq[4 * i + 2], dq[4 * i + 3]);
}
template <int kSize>
ATTUNE_DEVICE void add_dq(const float (&dq)[kSize], float* sums) {
#pragma unroll
  for (int i = 0; i < kSize / 4; i++)
    red_global_add_v4(sums + 512 * i, dq[4 * i], dq[4 * i + 1], dq[4 * i + 2], dq[4 * i + 3]);
}
