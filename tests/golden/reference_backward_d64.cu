// attune reference backward  sm_90a  bf16  d64  |  float64 accumulation, one thread block a row
// spec: arch=sm_90a,dtype=bf16,head_dim=64,head_dim_v=64,causal=0,edge=none,tail=0,family=reference_backward
// reproduce: attune emit --spec arch=sm_90a,dtype=bf16,head_dim=64,head_dim_v=64,causal=0,edge=none,tail=0,family=reference_backward

#line 295 "kernel.cu"
extern "C" __global__ void __launch_bounds__(kReferenceThreads) attune_reference_backward_rows(const ReferenceBackwardParams params) {
  reference_backward_rows<Bf16, 64, 64, false>(params);
}

extern "C" __global__ void __launch_bounds__(kReferenceThreads) attune_reference_backward_keys(const ReferenceBackwardParams params) {
  reference_backward_keys<Bf16, 64, 64, false>(params);
}
