// needs: types.cuh element.cuh ptx/math.cuh forward/softmax.cuh forward/failures.cuh
// Speculative softmax: the exponentials use a reference fixed beforehand, so there is no row maximum, no shuffle and no
// rescale of O in the common case. The row sums, which are needed anyway, prove afterwards that the reference served:
// a sum outside the element type's window (or NaN) sends the warp down the exact path, from S, which is still intact.
// So does a row that one key dominates: with the row maximum as reference its P is exactly 1, with any other it is
// rounded, and the rounding error would be O's. Failures are counted.

// Share of a row's sum from which on one key dominates it: less in a tile's first block, where looking costs little.
constexpr float kFirstDominance = 0.5f;
constexpr float kDominance = 0.875f;
constexpr float kSuspicion = kDominance / (1.f - kDominance);

// p <- 2^(scale s - shift) packed, and this thread's sums.
template <typename Element, int kWidth, int kSize, int kPacked>
ATTUNE_DEVICE void exponentials(const float (&s)[kSize], uint32_t (&p)[kPacked], float scale_log2, float shift0,
                                float shift1, float& sum0, float& sum1) {
  float odd0 = 0.f, odd1 = 0.f;
#pragma unroll
  for (int i = 0; i < kWidth / 8; i++) {
    float e[4];
#pragma unroll
    for (int k = 0; k < 4; k++) e[k] = ex2_approx(fmaf(s[4 * i + k], scale_log2, k < 2 ? -shift0 : -shift1));
    p[2 * i] = Element::pack(e[0], e[1]);
    p[2 * i + 1] = Element::pack(e[2], e[3]);
    if (i == 0) {
      sum0 = e[0];
      odd0 = e[1];
      sum1 = e[2];
      odd1 = e[3];
    } else {
      sum0 += e[0];
      odd0 += e[1];
      sum1 += e[2];
      odd1 += e[3];
    }
  }
  sum0 += odd0;
  sum1 += odd1;
}

template <int kWidth, int kPacked>
ATTUNE_DEVICE void clear_beyond(uint32_t (&p)[kPacked]) {
#pragma unroll
  for (int i = kWidth / 4; i < kPacked; i++) p[i] = 0u;
}

template <typename Element>
ATTUNE_DEVICE float larger_of(uint32_t packed) {
  return fmaxf(Element::to_float(static_cast<uint16_t>(packed)),
               Element::to_float(static_cast<uint16_t>(packed >> 16)));
}

// Whether one key holds more than `share` of one of this thread's rows, whose sums so far are given.
template <typename Element, int kWidth, int kPacked>
ATTUNE_DEVICE bool dominated(const uint32_t (&p)[kPacked], float sum0, float sum1, float share) {
  uint32_t peak0 = p[0], peak1 = p[1];
#pragma unroll
  for (int i = 1; i < kWidth / 8; i++) {
    peak0 = Element::max2(peak0, p[2 * i]);
    peak1 = Element::max2(peak1, p[2 * i + 1]);
  }
  return larger_of<Element>(peak0) > share * sum0 || larger_of<Element>(peak1) > share * sum1;
}

// First block of a tile on the exact path: the reference is this block's row maximum.
template <typename Element, int kWidth, int kSize, int kPacked>
ATTUNE_DEVICE void first_block_by_max(const float (&s)[kSize], uint32_t (&p)[kPacked], RowState& row,
                                      float scale_log2) {
  float max0, max1;
  thread_max<kWidth>(s, max0, max1);
  max0 = quad_max(max0);
  max1 = quad_max(max1);
  row.reference[0] = max0;
  row.reference[1] = max1;
  const float shift0 = max0 == -infinity() ? 0.f : max0 * scale_log2;
  const float shift1 = max1 == -infinity() ? 0.f : max1 * scale_log2;
  exponentials<Element, kWidth>(s, p, scale_log2, shift0, shift1, row.sum[0], row.sum[1]);
}

// First block with reference 0; true if it served every row of this warp. A key that holds more than kFirstDominance of
// its row gives one of the row's four threads as much of the sum. kManyKeys: that is rare among ordinary scores, so the
// largest P is looked for only then; where rows see few keys it is not.
template <typename Element, int kWidth, bool kManyKeys, int kSize, int kPacked>
ATTUNE_DEVICE bool first_block_by_zero(const float (&s)[kSize], uint32_t (&p)[kPacked], RowState& row,
                                       float scale_log2) {
  exponentials<Element, kWidth>(s, p, scale_log2, 0.f, 0.f, row.sum[0], row.sum[1]);
  row.reference[0] = row.reference[1] = 0.f;
  const float sum0 = quad_sum(row.sum[0]), sum1 = quad_sum(row.sum[1]);
  const bool outside = !(sum0 <= Element::kWindowHigh && sum1 <= Element::kWindowHigh && sum0 >= Element::kWindowLow &&
                         sum1 >= Element::kWindowLow);
  if (kManyKeys) {
    const bool suspect = row.sum[0] > kFirstDominance * sum0 || row.sum[1] > kFirstDominance * sum1;
    if (!__any_sync(kFullWarp, outside || suspect)) return true;
  }
  const bool failed = __any_sync(kFullWarp, outside || dominated<Element, kWidth>(p, sum0, sum1, kFirstDominance));
  if (failed) count_failure();
  return !failed;
}

// A later block on the exact path: new running maximum as the reference, sums and O rescaled.
template <typename Element, int kWidth, int kSize, int kPacked, int kOutput>
ATTUNE_DEVICE void next_block_by_max(const float (&s)[kSize], uint32_t (&p)[kPacked], float (&o)[kOutput],
                                     RowState& row, float scale_log2, float& sum0, float& sum1) {
  float max0, max1;
  thread_max<kWidth>(s, max0, max1);
  max0 = quad_max(fmaxf(max0, row.reference[0]));
  max1 = quad_max(fmaxf(max1, row.reference[1]));
  const float shift0 = max0 == -infinity() ? 0.f : max0 * scale_log2;
  const float shift1 = max1 == -infinity() ? 0.f : max1 * scale_log2;
  // The products are rounded as the earlier blocks' shifts were: fused, they would not cancel.
  const float factor0 = max0 == -infinity() ? 1.f : ex2_approx(__fmul_rn(row.reference[0], scale_log2) - shift0);
  const float factor1 = max1 == -infinity() ? 1.f : ex2_approx(__fmul_rn(row.reference[1], scale_log2) - shift1);
  exponentials<Element, kWidth>(s, p, scale_log2, shift0, shift1, sum0, sum1);
  row.sum[0] *= factor0;
  row.sum[1] *= factor1;
  row.reference[0] = max0;
  row.reference[1] = max1;
  rescale(o, factor0, factor1);
}

// A later block: speculate on the running reference.
template <typename Element, int kWidth, int kSize, int kPacked, int kOutput>
ATTUNE_DEVICE void next_block(const float (&s)[kSize], uint32_t (&p)[kPacked], float (&o)[kOutput], RowState& row,
                              float scale_log2) {
  float sum0, sum1;
  exponentials<Element, kWidth>(s, p, scale_log2, row.reference[0] * scale_log2, row.reference[1] * scale_log2, sum0,
                                sum1);
  // A key that dominates its row makes its block dominate what this thread has summed before.
  const bool suspect = !(sum0 + sum1 <= Element::kWindowHigh) ||
                       fmaxf(fmaf(row.sum[0], -kSuspicion, sum0), fmaf(row.sum[1], -kSuspicion, sum1)) > 0.f;
  if (__builtin_expect(__any_sync(kFullWarp, suspect), 0)) {
    if (__any_sync(kFullWarp, !(sum0 + sum1 <= Element::kWindowHigh) ||
                                  dominated<Element, kWidth>(p, row.sum[0] + sum0, row.sum[1] + sum1, kDominance))) {
      count_failure();
      next_block_by_max<Element, kWidth>(s, p, o, row, scale_log2, sum0, sum1);
    }
  }
  row.sum[0] += sum0;
  row.sum[1] += sum1;
}

// A later block that is masked: always the exact path, since a row may not have seen a key yet.
template <typename Element, int kWidth, int kSize, int kPacked, int kOutput>
ATTUNE_DEVICE void next_block_masked(const float (&s)[kSize], uint32_t (&p)[kPacked], float (&o)[kOutput],
                                     RowState& row, float scale_log2) {
  float sum0, sum1;
  next_block_by_max<Element, kWidth>(s, p, o, row, scale_log2, sum0, sum1);
  row.sum[0] += sum0;
  row.sum[1] += sum1;
}
