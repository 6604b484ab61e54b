// needs: types.cuh element.cuh reference/reduce.cuh
// Attention by the definition, one thread block a row, float64 throughout. Slow on purpose: nothing here is shared with
// the kernels that it judges except the rounding of the element type.

struct ReferenceParams {
  const uint16_t* q;
  const uint16_t* k;
  const uint16_t* v;
  uint16_t* o;      // null: not written
  float* lse;       // [batch, heads, seqlen_q]; null: not written
  double* o_exact;  // [batch, heads, rows, head_dim_v]; null: not written
  int64_t q_batch, q_head, q_row;
  int64_t k_batch, k_head, k_row;
  int64_t v_batch, v_head, v_row;
  int64_t o_batch, o_head, o_row;
  double scale;
  int32_t seqlen_q, seqlen_k, heads, group;
  int32_t row_first, row_step;
};
static_assert(sizeof(ReferenceParams) == 176, "the host passes 176 bytes");

template <typename Element, int kHeadDim, int kHeadDimV, bool kCausal>
__device__ void reference_forward(const ReferenceParams& params) {
  __shared__ double scratch[kReferenceThreads];
  __shared__ double query[kHeadDim];
  __shared__ double weights[kReferenceThreads];
  const int row = params.row_first + blockIdx.x * params.row_step;
  const int head = blockIdx.y, batch = blockIdx.z, kv_head = head / params.group;
  if (row >= params.seqlen_q) return;
  const int64_t q_start = batch * params.q_batch + head * params.q_head + row * params.q_row;
  const int64_t k_start = batch * params.k_batch + kv_head * params.k_head;
  const int64_t v_start = batch * params.v_batch + kv_head * params.v_head;
  for (int d = threadIdx.x; d < kHeadDim; d += kReferenceThreads)
    query[d] = Element::to_float(params.q[q_start + d]) * params.scale;
  __syncthreads();

  int64_t keys = params.seqlen_k;
  if (kCausal) {
    const int64_t visible = static_cast<int64_t>(row) + 1 + params.seqlen_k - params.seqlen_q;
    keys = visible < 0 ? 0 : visible < keys ? visible : keys;
  }
  const auto score = [&](int64_t key) {
    double dot = 0;
    for (int d = 0; d < kHeadDim; d++) dot += query[d] * Element::to_float(params.k[k_start + key * params.k_row + d]);
    return dot;
  };
  double largest = -infinity();
  for (int64_t key = threadIdx.x; key < keys; key += kReferenceThreads) {
    const double x = score(key);
    if (!(x <= largest)) largest = x;  // NaN is kept
  }
  largest = reduce_block(largest, scratch, Larger{});

  // Each thread owns output columns threadIdx.x and threadIdx.x + 128; the weights of 128 keys at a time are shared.
  double sum = 0, column[2] = {0, 0};
  for (int64_t start = 0; start < keys; start += kReferenceThreads) {
    const int64_t key = start + threadIdx.x;
    const double weight = key < keys ? exp(score(key) - largest) : 0.0;
    sum += weight;
    weights[threadIdx.x] = weight;
    __syncthreads();
    const int count = keys - start < kReferenceThreads ? static_cast<int>(keys - start) : kReferenceThreads;
    for (int c = 0; c < 2; c++) {
      const int d = threadIdx.x + c * kReferenceThreads;
      if (d >= kHeadDimV) continue;
      for (int j = 0; j < count; j++)
        column[c] += weights[j] * Element::to_float(params.v[v_start + (start + j) * params.v_row + d]);
    }
    __syncthreads();
  }
  sum = reduce_block(sum, scratch, Plus{});

  for (int c = 0; c < 2; c++) {
    const int d = threadIdx.x + c * kReferenceThreads;
    if (d >= kHeadDimV) continue;
    const double value = keys > 0 ? column[c] / sum : 0.0;
    if (params.o != nullptr)
      params.o[batch * params.o_batch + head * params.o_head + row * params.o_row + d] =
          static_cast<uint16_t>(Element::pack(static_cast<float>(value), 0.f));
    if (params.o_exact != nullptr)
      params.o_exact[((static_cast<int64_t>(batch) * params.heads + head) * gridDim.x + blockIdx.x) * kHeadDimV + d] =
          value;
  }
  if (threadIdx.x == 0 && params.lse != nullptr)
    params.lse[(static_cast<int64_t>(batch) * params.heads + head) * params.seqlen_q + row] =
        keys > 0 ? static_cast<float>(largest + log(sum)) : -infinity();
}
