// Blocks of a grid. 4 blocks of 64 threads.

extern "C" __global__ void kernel(const float* in, float* out, unsigned* flags) {
  __shared__ float partial[64];
  __shared__ bool last;
  const unsigned thread = threadIdx.x;

  // Each block sums its values, the last one to finish sums the blocks.
  partial[thread] = in[blockIdx.x * 64 + thread];
  __syncthreads();
  if (thread == 0) {
    float sum = 0.f;
    for (int i = 0; i < 64; i++) sum += partial[i];
    out[blockIdx.x] = sum;
#if FAULT != 1
    __threadfence();
#endif
#if FAULT == 2
    last = flags[0]++ == gridDim.x - 1;
#else
    last = atomicAdd(flags, 1u) == gridDim.x - 1;
#endif
#if FAULT != 1
    __threadfence();
#endif
  }
  __syncthreads();
  if (last && thread == 0) {
    float sum = 0.f;
    for (unsigned i = 0; i < gridDim.x; i++) sum += out[i];
    out[gridDim.x] = sum;
  }

  // The first block's answer, for which all wait. (All blocks are resident.)
  if (thread == 0) {
    if (blockIdx.x == 0) {
      out[16] = 1.f;
#if FAULT != 3
      __threadfence();
      atomicExch(flags + 1, 1u);
#endif
    }
#if FAULT == 4
    while (*(flags + 1) == 0u) asm volatile("" ::: "memory");
#else
    while (atomicAdd(flags + 1, 0u) == 0u) {}
#endif
    __threadfence();
    if (out[16] != 1.f) __trap();
  }
#if FAULT == 5
  if (thread == 1 && blockIdx.x == 1) __trap();
#endif
}
