// FlashAttention-3's forward kernels behind a C function, for timing them beside attune in one process without the
// extension module of one PyTorch. Compiled against a checkout of FlashAttention by build_fa3.sh, once for each head
// dim (FA3_HEAD_DIM), with the tiles and schedules that its own dispatch picks.
#include <cuda_runtime.h>

#include <cmath>
#include <cstdint>

#include "flash_fwd_launch_template.h"

#define FA3_JOIN(name, dim) name##dim
#define FA3_NAME(name, dim) FA3_JOIN(name, dim)

/// bf16 Q, K, V and O as [batch, seqlen, heads, head_dim] without gaps, LSE as [batch, heads, seqlen_q] float32. Equal
/// lengths if causal. `counter`: 4 bytes of device memory, which are set to zero on `stream` before the launch, as
/// FlashAttention's own binding does. 0, or a cudaError_t.
extern "C" int FA3_NAME(fa3_forward_, FA3_HEAD_DIM)(const void* q, const void* k, const void* v, void* o, float* lse,
                                                   int* counter, int batch, int seqlen_q, int seqlen_k, int heads,
                                                   int heads_kv, int causal, cudaStream_t stream) {
  int device = 0, sms = 0;
  if (const cudaError_t status = cudaGetDevice(&device)) return status;
  if (const cudaError_t status = cudaDeviceGetAttribute(&sms, cudaDevAttrMultiProcessorCount, device)) return status;
  constexpr int kDim = FA3_HEAD_DIM;
  Flash_fwd_params p = {};
  p.is_bf16 = true;
  p.q_ptr = const_cast<void*>(q);
  p.k_ptr = const_cast<void*>(k);
  p.v_ptr = const_cast<void*>(v);
  p.o_ptr = o;
  p.softmax_lse_ptr = lse;
  p.q_head_stride = p.k_head_stride = p.v_head_stride = p.o_head_stride = kDim;
  p.v_dim_stride = 1;
  p.q_row_stride = p.o_row_stride = std::int64_t{kDim} * heads;
  p.k_row_stride = p.v_row_stride = std::int64_t{kDim} * heads_kv;
  p.q_batch_stride = p.o_batch_stride = p.q_row_stride * seqlen_q;
  p.k_batch_stride = p.v_batch_stride = p.k_row_stride * seqlen_k;
  const auto rounded = [](int n) { return (n + 127) / 128 * 128; };
  p.b = batch;
  p.h = heads;
  p.h_k = heads_kv;
  p.seqlen_q = seqlen_q;
  p.seqlen_k = seqlen_k;
  p.seqlen_q_rounded = rounded(seqlen_q);
  p.seqlen_k_rounded = rounded(seqlen_k);
  p.d = p.d_rounded = p.dv = p.dv_rounded = kDim;
  p.scale_softmax = 1 / std::sqrt(static_cast<float>(kDim));
  p.p_dropout = p.rp_dropout = 1;
  p.p_dropout_in_uint8_t = 255;
  p.is_causal = causal != 0;
  p.window_size_left = seqlen_k - 1;
  p.window_size_right = causal ? 0 : seqlen_q - 1;
  p.arch = 90;
  p.num_sm = sms;
  p.num_splits = 1;
  if (causal) {
    if (const cudaError_t status = cudaMemsetAsync(counter, 0, sizeof *counter, stream)) return status;
    p.tile_count_semaphore = counter;
  }
  run_mha_fwd_<90, cutlass::bfloat16_t, kDim, kDim, false, false, false, false>(p, stream);
  return cudaGetLastError();
}
