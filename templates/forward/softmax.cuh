// needs: types.cuh element.cuh ptx/math.cuh
// Softmax pieces over the accumulator fragment of m64nNk16: a thread holds two rows (r and r + 8), and of each group of
// 8 columns the pair 2 * (lane % 4), + 1: s[4 i], s[4 i + 1] of row r and s[4 i + 2], s[4 i + 3] of row r + 8.

// Columns above the limits become -inf. Limits are relative to this thread's first column.
template <int kWidth, int kSize>
ATTUNE_DEVICE void mask_columns(float (&s)[kSize], int limit0, int limit1) {
#pragma unroll
  for (int i = 0; i < kWidth / 8; i++) {
#pragma unroll
    for (int e = 0; e < 2; e++) {
      if (8 * i + e > limit0) s[4 * i + e] = -infinity();
      if (8 * i + e > limit1) s[4 * i + 2 + e] = -infinity();
    }
  }
}

ATTUNE_DEVICE float quad_max(float x) {
  x = fmaxf(x, __shfl_xor_sync(kFullWarp, x, 1));
  return fmaxf(x, __shfl_xor_sync(kFullWarp, x, 2));
}

ATTUNE_DEVICE float quad_sum(float x) {
  x += __shfl_xor_sync(kFullWarp, x, 1);
  return x + __shfl_xor_sync(kFullWarp, x, 2);
}

// Maximum of this thread's columns; two chains a row, since the dependent chain is what costs.
template <int kWidth, int kSize>
ATTUNE_DEVICE void thread_max(const float (&s)[kSize], float& max0, float& max1) {
  float a0 = fmaxf(s[0], s[1]), a1 = fmaxf(s[2], s[3]);
  float b0 = fmaxf(s[4], s[5]), b1 = fmaxf(s[6], s[7]);
#pragma unroll
  for (int i = 2; i + 1 < kWidth / 8; i += 2) {
    a0 = fmaxf(a0, fmaxf(s[4 * i], s[4 * i + 1]));
    a1 = fmaxf(a1, fmaxf(s[4 * i + 2], s[4 * i + 3]));
    b0 = fmaxf(b0, fmaxf(s[4 * i + 4], s[4 * i + 5]));
    b1 = fmaxf(b1, fmaxf(s[4 * i + 6], s[4 * i + 7]));
  }
  max0 = fmaxf(a0, b0);
  max1 = fmaxf(a1, b1);
}

// Row state: reference (raw score units), partial sum of this thread's columns, correction of the last step.
struct RowState {
  float reference[2];
  float sum[2];
  float correction[2];
};

// s <- 2^(scale s - reference), sums kept; the running maximum is the reference. kGuard: a row may hold no key yet.
template <int kWidth, bool kFirst, bool kGuard, int kSize>
ATTUNE_DEVICE void online_softmax(float (&s)[kSize], RowState& row, float scale_log2) {
  float max0, max1;
  thread_max<kWidth>(s, max0, max1);
  if (!kFirst) {
    max0 = fmaxf(max0, row.reference[0]);
    max1 = fmaxf(max1, row.reference[1]);
  }
  max0 = quad_max(max0);
  max1 = quad_max(max1);
  if (kFirst) {
    row.correction[0] = row.correction[1] = 1.f;
  } else {
    row.correction[0] = ex2_approx((row.reference[0] - max0) * scale_log2);
    row.correction[1] = ex2_approx((row.reference[1] - max1) * scale_log2);
  }
  row.reference[0] = max0;
  row.reference[1] = max1;
  float shift0 = max0 * scale_log2, shift1 = max1 * scale_log2;
  if (kGuard) {  // -inf minus -inf is NaN: such a row keeps sum 0
    if (max0 == -infinity()) {
      shift0 = 0.f;
      row.correction[0] = 1.f;
    }
    if (max1 == -infinity()) {
      shift1 = 0.f;
      row.correction[1] = 1.f;
    }
  }
  float sum0 = 0.f, sum1 = 0.f, odd0 = 0.f, odd1 = 0.f;
#pragma unroll
  for (int i = 0; i < kWidth / 8; i++) {
#pragma unroll
    for (int e = 0; e < 4; e++) s[4 * i + e] = ex2_approx(fmaf(s[4 * i + e], scale_log2, e < 2 ? -shift0 : -shift1));
    sum0 += s[4 * i];
    odd0 += s[4 * i + 1];
    sum1 += s[4 * i + 2];
    odd1 += s[4 * i + 3];
  }
  sum0 += odd0;
  sum1 += odd1;
  row.sum[0] = kFirst ? sum0 : fmaf(row.sum[0], row.correction[0], sum0);
  row.sum[1] = kFirst ? sum1 : fmaf(row.sum[1], row.correction[1], sum1);
}

// P in the A-operand fragment; registers beyond kWidth become 0, so that a product of full width adds nothing there.
template <typename Element, int kWidth, int kSize, int kPacked>
ATTUNE_DEVICE void convert_p(const float (&s)[kSize], uint32_t (&p)[kPacked]) {
#pragma unroll
  for (int i = 0; i < kWidth / 4; i++) p[i] = Element::pack(s[2 * i], s[2 * i + 1]);
#pragma unroll
  for (int i = kWidth / 4; i < kPacked; i++) p[i] = 0u;
}

template <int kSize>
ATTUNE_DEVICE void rescale(float (&o)[kSize], float factor0, float factor1) {
#pragma unroll
  for (int i = 0; i < kSize / 4; i++) {
    o[4 * i] *= factor0;
    o[4 * i + 1] *= factor0;
    o[4 * i + 2] *= factor1;
    o[4 * i + 3] *= factor1;
  }
}
