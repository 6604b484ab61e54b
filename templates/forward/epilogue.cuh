// needs: forward/softmax.cuh ptx/matrix.cuh ptx/bulk_tensor.cuh ptx/barrier.cuh ptx/global.cuh ptx/quad.cuh
// Output of one tile: O normalised, rounded and staged through shared memory for a TMA store; LSE written directly.

// 128-byte swizzle: the 16-byte unit `unit` of row `row`, within a chunk of `rows` rows of 128 bytes.
ATTUNE_DEVICE uint32_t swizzled(int rows, int row, int unit) {
  return (unit / 8) * (rows * 128) + row * 128 + (((unit % 8) ^ (row & 7)) << 4);
}

// Stages the accumulator fragment (64 rows of a warpgroup, or 16 of a warp) as 64-column chunks of kRows rows: kChunks
// of them from kFirst on. `row` is the row this lane addresses. A row without keys (sum 0) gives exact zeros, whatever
// V held.
template <typename Element, int kHeadDim, int kRows, int kFirst, int kChunks, int kSize>
ATTUNE_DEVICE void stage_output(const float (&o)[kSize], uint32_t buffer, int row, int lane, float sum0, float sum1) {
  const float inverse0 = sum0 > 0.f ? rcp_approx(sum0) : 0.f, inverse1 = sum1 > 0.f ? rcp_approx(sum1) : 0.f;
#pragma unroll
  for (int k = 4 * kFirst; k < 4 * (kFirst + kChunks) && k < (kHeadDim + 15) / 16; k++) {
    constexpr bool kOdd = kHeadDim % 16 != 0;
    const bool half = kOdd && k == kHeadDim / 16;  // the last 8 columns have no right neighbour
    stmatrix_x4(buffer + swizzled(kRows, row, 2 * (k - 4 * kFirst) + (lane >> 4)),
                Element::pack(o[8 * k] * inverse0, o[8 * k + 1] * inverse0),
                Element::pack(o[8 * k + 2] * inverse1, o[8 * k + 3] * inverse1),
                half ? 0u : Element::pack(o[(8 * k + 4) % kSize] * inverse0, o[(8 * k + 5) % kSize] * inverse0),
                half ? 0u : Element::pack(o[(8 * k + 6) % kSize] * inverse1, o[(8 * k + 7) % kSize] * inverse1));
  }
}

template <int kHeadDim, int kRows, int kFirst, int kChunks>
ATTUNE_DEVICE void store_output(const TensorMap* map, uint32_t buffer, int row, int head, int batch) {
#pragma unroll
  for (int chunk = kFirst; chunk < kFirst + kChunks && chunk < (kHeadDim + 63) / 64; chunk++)
    bulk_tensor_store(map, buffer + (chunk - kFirst) * (kRows * 128), chunk * 64, row, head, batch);
  bulk_commit_group();
}

// O straight from the accumulator fragment to global memory. Four lanes hold 8 neighbouring columns in pieces of 4
// bytes; where the head dim allows they trade pieces, so that each lane writes 16 bytes of its own group of 8 columns.
template <typename Element, int kHeadDim, int kSize>
ATTUNE_DEVICE void write_output(const float (&o)[kSize], uint16_t* head, int64_t row_stride, int row, int seqlen_q,
                                int lane, float sum0, float sum1) {
  const float inverse0 = sum0 > 0.f ? rcp_approx(sum0) : 0.f, inverse1 = sum1 > 0.f ? rcp_approx(sum1) : 0.f;
  const int quad = lane & 3;
#pragma unroll
  for (int half = 0; half < 2; half++) {
    uint16_t* const out = head + (row + 8 * half) * row_stride;
    const bool inside = row + 8 * half < seqlen_q;
    const float inverse = half ? inverse1 : inverse0;
    constexpr int kTraded = kHeadDim / 32 * 4;  // groups of 8 columns that trade, four at a time
#pragma unroll
    for (int i = 0; i < kTraded; i += 4) {
      uint32_t x[4];
#pragma unroll
      for (int g = 0; g < 4; g++)
        x[g] = Element::pack(o[4 * (i + g) + 2 * half] * inverse, o[4 * (i + g) + 2 * half + 1] * inverse);
      trade_in_quad(x, lane);
      if (inside) st_global_v4(out + 8 * (i + quad), x[0], x[1], x[2], x[3]);
    }
#pragma unroll
    for (int i = kTraded; i < kHeadDim / 8; i++)
      if (inside)
        st_global(out + 8 * i + 2 * quad,
                  Element::pack(o[4 * i + 2 * half] * inverse, o[4 * i + 2 * half + 1] * inverse));
  }
}

// LSE = ln(2) (reference in units of log2 + log2(sum)), -inf for a row without keys. `row` is this thread's first row.
// The reference is scaled and rounded as the exponentials' shift was.
ATTUNE_DEVICE float lse_of(float reference, float sum, float scale_log2) {
  constexpr float kLn2 = 0.693147180559945f;
  return sum > 0.f ? (__fmul_rn(reference, scale_log2) + lg2_approx(sum)) * kLn2 : -infinity();
}

ATTUNE_DEVICE void store_lse(float* lse, int row, int seqlen_q, float scale_log2, const float (&reference)[2],
                             float sum0, float sum1) {
  if (row < seqlen_q) lse[row] = lse_of(reference[0], sum0, scale_log2);
  if (row + 8 < seqlen_q) lse[row + 8] = lse_of(reference[1], sum1, scale_log2);
}
