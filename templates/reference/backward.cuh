// needs: types.cuh element.cuh reference/reduce.cuh
// Gradients of attention by the definition, one thread block a row, float64 throughout. LSE and delta are computed anew
// from Q, K, V and dO, so nothing is shared with the kernels that it judges except the rounding of the element type.
// Rounded like those kernels, and with delta from O, it has the error that none of them can do without. With LSE given,
// too, it costs little to compute a few rows only.

struct ReferenceBackwardParams {
  const uint16_t* q;
  const uint16_t* k;
  const uint16_t* v;
  const uint16_t* d_o;
  const uint16_t* o;   // delta comes from it; null: from dP, unrounded
  const float* lse;    // [batch, heads, seqlen_q]; null: computed from Q and K. Needs o
  const float* d_lse;  // [batch, heads, seqlen_q]; null: zeros
  double* statistics;  // [batch, heads, seqlen_q, 2]: LSE and delta
  uint16_t* d_q;       // null: not written
  uint16_t* d_k;
  uint16_t* d_v;
  double* dq_exact;  // [batch, heads, rows of the grid, head_dim]; null: not written
  double* dk_exact;  // [batch, heads_kv, rows of the grid, head_dim]
  double* dv_exact;  // [batch, heads_kv, rows of the grid, head_dim_v]
  int64_t q_batch, q_head, q_row;
  int64_t k_batch, k_head, k_row;
  int64_t v_batch, v_head, v_row;
  int64_t do_batch, do_head, do_row;
  int64_t o_batch, o_head, o_row;
  int64_t dq_batch, dq_head, dq_row;
  int64_t dk_batch, dk_head, dk_row;
  int64_t dv_batch, dv_head, dv_row;
  double scale;
  int32_t seqlen_q, seqlen_k, heads, heads_kv;
  int32_t row_first, row_step, key_first, key_step;
  int32_t rounded, unused;  // 1: P and dS are rounded before the products that they go into
};
static_assert(sizeof(ReferenceBackwardParams) == 352, "the host passes 352 bytes");

template <typename Element, int kCount>
__device__ double dot(const double* a, const uint16_t* b) {
  double sum = 0;
  for (int d = 0; d < kCount; d++) sum += a[d] * Element::to_float(b[d]);
  return sum;
}

template <typename Element, int kCount>
__device__ void load_row(double* row, const uint16_t* from) {
  for (int d = threadIdx.x; d < kCount; d += kReferenceThreads) row[d] = Element::to_float(from[d]);
}

// This thread's columns of a gradient's row: threadIdx.x and threadIdx.x + 128.
template <typename Element, int kCount>
__device__ void store_row(const double (&column)[2], double factor, uint16_t* rounded, double* exact) {
  for (int c = 0; c < 2; c++) {
    const int d = threadIdx.x + c * kReferenceThreads;
    if (d >= kCount) continue;
    const double value = column[c] * factor;
    if (rounded != nullptr) rounded[d] = static_cast<uint16_t>(Element::pack(static_cast<float>(value), 0.f));
    if (exact != nullptr) exact[d] = value;
  }
}

template <typename Element>
__device__ double rounded(double value) {
  return Element::to_float(static_cast<uint16_t>(Element::pack(static_cast<float>(value), 0.f)));
}

// One query row: LSE = log(sum_j e^s_j), delta = sum_j P_j dP_j - dLSE, dQ = scale sum_j P_j (dP_j - delta) K_j.
template <typename Element, int kHeadDim, int kHeadDimV, bool kCausal>
__device__ void reference_backward_rows(const ReferenceBackwardParams& params) {
  __shared__ double scratch[kReferenceThreads];
  __shared__ double query[kHeadDim], d_out[kHeadDimV];
  __shared__ double weights[kReferenceThreads];
  const int row = params.row_first + blockIdx.x * params.row_step;
  const int head = blockIdx.y, batch = blockIdx.z, kv_head = head / (params.heads / params.heads_kv);
  if (row >= params.seqlen_q) return;
  const uint16_t* const k = params.k + batch * params.k_batch + kv_head * params.k_head;
  const uint16_t* const v = params.v + batch * params.v_batch + kv_head * params.v_head;
  load_row<Element, kHeadDim>(query, params.q + batch * params.q_batch + head * params.q_head + row * params.q_row);
  load_row<Element, kHeadDimV>(d_out,
                               params.d_o + batch * params.do_batch + head * params.do_head + row * params.do_row);
  __syncthreads();

  int64_t keys = params.seqlen_k;
  if (kCausal) {
    const int64_t visible = static_cast<int64_t>(row) + 1 + params.seqlen_k - params.seqlen_q;
    keys = visible < 0 ? 0 : visible < keys ? visible : keys;
  }
  const auto score = [&](int64_t key) { return params.scale * dot<Element, kHeadDim>(query, k + key * params.k_row); };
  const int64_t index = (static_cast<int64_t>(batch) * params.heads + head) * params.seqlen_q + row;
  double lse = -infinity(), delta = 0;
  if (keys > 0 && params.lse != nullptr) {
    lse = params.lse[index];
  } else if (keys > 0) {
    double largest = -infinity();
    for (int64_t key = threadIdx.x; key < keys; key += kReferenceThreads) {
      const double x = score(key);
      if (!(x <= largest)) largest = x;  // NaN is kept
    }
    largest = reduce_block(largest, scratch, Larger{});
    double sum = 0, weighted = 0;
    for (int64_t key = threadIdx.x; key < keys; key += kReferenceThreads) {
      const double weight = exp(score(key) - largest);
      sum += weight;
      weighted += weight * dot<Element, kHeadDimV>(d_out, v + key * params.v_row);
    }
    sum = reduce_block(sum, scratch, Plus{});
    delta = reduce_block(weighted, scratch, Plus{}) / sum;
    lse = largest + log(sum);
  }
  if (keys > 0 && params.o != nullptr)
    delta =
        dot<Element, kHeadDimV>(d_out, params.o + batch * params.o_batch + head * params.o_head + row * params.o_row);
  if (keys > 0 && params.d_lse != nullptr) delta -= params.d_lse[index];
  if (threadIdx.x == 0) {
    params.statistics[2 * index] = lse;
    params.statistics[2 * index + 1] = delta;
  }
  if (params.d_q == nullptr && params.dq_exact == nullptr) return;

  double column[2] = {0, 0};
  for (int64_t start = 0; start < keys; start += kReferenceThreads) {
    const int64_t key = start + threadIdx.x;
    if (key < keys) {
      const double ds = exp(score(key) - lse) * (dot<Element, kHeadDimV>(d_out, v + key * params.v_row) - delta);
      weights[threadIdx.x] = params.rounded ? rounded<Element>(ds) : ds;
    }
    __syncthreads();
    const int count = keys - start < kReferenceThreads ? static_cast<int>(keys - start) : kReferenceThreads;
    for (int c = 0; c < 2; c++) {
      const int d = threadIdx.x + c * kReferenceThreads;
      if (d >= kHeadDim) continue;
      for (int j = 0; j < count; j++) column[c] += weights[j] * Element::to_float(k[(start + j) * params.k_row + d]);
    }
    __syncthreads();
  }
  uint16_t* rounded = nullptr;
  if (params.d_q != nullptr)
    rounded = params.d_q + batch * params.dq_batch + head * params.dq_head + row * params.dq_row;
  double* exact = nullptr;
  if (params.dq_exact != nullptr)
    exact = params.dq_exact + ((static_cast<int64_t>(batch) * params.heads + head) * gridDim.x + blockIdx.x) * kHeadDim;
  store_row<Element, kHeadDim>(column, params.scale, rounded, exact);
}

// One key row: dV = sum_i P_i dO_i and dK = scale sum_i P_i (dP_i - delta_i) Q_i over the rows i of every query head
// that reads it.
template <typename Element, int kHeadDim, int kHeadDimV, bool kCausal>
__device__ void reference_backward_keys(const ReferenceBackwardParams& params) {
  __shared__ double key[kHeadDim], value[kHeadDimV];
  __shared__ double probability[kReferenceThreads], gradient[kReferenceThreads];
  const int row = params.key_first + blockIdx.x * params.key_step;
  const int kv_head = blockIdx.y, batch = blockIdx.z, group = params.heads / params.heads_kv;
  if (row >= params.seqlen_k) return;
  load_row<Element, kHeadDim>(key, params.k + batch * params.k_batch + kv_head * params.k_head + row * params.k_row);
  load_row<Element, kHeadDimV>(value, params.v + batch * params.v_batch + kv_head * params.v_head + row * params.v_row);
  __syncthreads();

  int64_t first = 0;
  if (kCausal) {
    first = static_cast<int64_t>(row) - params.seqlen_k + params.seqlen_q;
    if (first < 0) first = 0;
  }
  double dk[2] = {0, 0}, dv[2] = {0, 0};
  for (int head = kv_head * group; head < (kv_head + 1) * group; head++) {
    const uint16_t* const q = params.q + batch * params.q_batch + head * params.q_head;
    const uint16_t* const d_o = params.d_o + batch * params.do_batch + head * params.do_head;
    const double* const statistics =
        params.statistics + 2 * (static_cast<int64_t>(batch) * params.heads + head) * params.seqlen_q;
    for (int64_t start = first; start < params.seqlen_q; start += kReferenceThreads) {
      const int64_t query = start + threadIdx.x;
      if (query < params.seqlen_q) {
        const double p =
            exp(params.scale * dot<Element, kHeadDim>(key, q + query * params.q_row) - statistics[2 * query]);
        const double ds = p * (dot<Element, kHeadDimV>(value, d_o + query * params.do_row) - statistics[2 * query + 1]);
        probability[threadIdx.x] = params.rounded ? rounded<Element>(p) : p;
        gradient[threadIdx.x] = params.rounded ? rounded<Element>(ds) : ds;
      }
      __syncthreads();
      const int64_t left = params.seqlen_q - start;
      const int count = left < kReferenceThreads ? static_cast<int>(left) : kReferenceThreads;
      for (int c = 0; c < 2; c++) {
        const int d = threadIdx.x + c * kReferenceThreads;
        if (d < kHeadDim)
          for (int i = 0; i < count; i++) dk[c] += gradient[i] * Element::to_float(q[(start + i) * params.q_row + d]);
        if (d < kHeadDimV)
          for (int i = 0; i < count; i++)
            dv[c] += probability[i] * Element::to_float(d_o[(start + i) * params.do_row + d]);
      }
      __syncthreads();
    }
  }
  const int64_t index = (static_cast<int64_t>(batch) * params.heads_kv + kv_head) * gridDim.x + blockIdx.x;
  store_row<Element, kHeadDim>(
      dk, params.scale,
      params.d_k != nullptr ? params.d_k + batch * params.dk_batch + kv_head * params.dk_head + row * params.dk_row
                            : nullptr,
      params.dk_exact != nullptr ? params.dk_exact + index * kHeadDim : nullptr);
  store_row<Element, kHeadDimV>(
      dv, 1.0,
      params.d_v != nullptr ? params.d_v + batch * params.dv_batch + kv_head * params.dv_head + row * params.dv_row
                            : nullptr,
      params.dv_exact != nullptr ? params.dv_exact + index * kHeadDimV : nullptr);
}
