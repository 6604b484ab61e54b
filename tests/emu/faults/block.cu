// Threads of a block, their shared, local and global memory. 128 threads, one block.

extern "C" __global__ void kernel(const float* in, float* out, unsigned* flags) {
  __shared__ __align__(16) float partial[132];
  const int thread = threadIdx.x;

  // Sum of all threads' values by halving.
  partial[thread] = in[thread];
  __syncthreads();
#pragma unroll 1
  for (int half = 64; half > 0; half /= 2) {
    if (thread < half) partial[thread] += partial[thread + half];
#if FAULT != 1
    __syncthreads();
#endif
  }
#if FAULT == 1
  __syncthreads();
#endif
  float value = partial[0];

  // A row of four more than there are threads: the last four have to be filled as well.
  __syncthreads();
  partial[thread] = value;
#if FAULT != 2
  if (thread < 4) partial[128 + thread] = 0.f;
#endif
  __syncthreads();
  value += partial[thread + 4];

  // Vectors of four.
#if FAULT == 3
  const int first = thread % 8 + 1;
#else
  const int first = thread % 8 * 4;
#endif
  const float4 quad = *reinterpret_cast<const float4*>(in + first);
  value += quad.x + quad.y + quad.z + quad.w;

  // The window [thread - 4, thread + 4] of 128 values, cut at the ends.
  float sum = 0.f;
#pragma unroll 1
  for (int i = thread - 4; i <= thread + 4; i++)
#if FAULT == 4
    if (i >= 0 && i <= 1024) sum += in[i + 896];
#else
    if (i >= 0 && i < 128) sum += in[i + 896];
#endif
  value += sum;

  // A small table in local memory.
  float table[4];
#pragma unroll 1
  for (int i = 0; i < 4; i++) table[(i + thread) & 3] = in[i];
#if FAULT == 5
  const int entry = (thread & 3) + (int(flags[0]) + 1);
#else
  const int entry = (thread & 3) + int(flags[0]);
#endif
  value += table[entry];

  // What was written to global memory is read by the thread that wrote it.
  out[thread] = value;
#if FAULT == 6
  value += out[thread + 128];
#else
  value += out[thread];
#endif
  out[thread] = value;

#if FAULT == 7
  if (thread & 1) asm volatile("bar.sync 0;" ::: "memory");
#endif
  const unsigned threads = (FAULT == 8 ? 100 : 128) + flags[0];
  asm volatile("bar.sync 1, %0;" ::"r"(threads) : "memory");
}
