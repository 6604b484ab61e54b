// One sum a cluster of four blocks: block 0 reads what the others have in their shared memory.
extern "C" __global__ void __cluster_dims__(4, 1, 1) __launch_bounds__(64)
    cluster_reduce(const float* x, float* sums, int count) {
  __shared__ float parts[64];
  unsigned rank;
  asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  float sum = 0;
  for (int i = blockIdx.x * 64 + threadIdx.x; i < count; i += gridDim.x * 64) sum += x[i];
  parts[threadIdx.x] = sum;
  asm volatile("barrier.cluster.arrive.release.aligned;\nbarrier.cluster.wait.acquire.aligned;" ::: "memory");
  if (rank == 0) {
    const unsigned mine = static_cast<unsigned>(__cvta_generic_to_shared(&parts[threadIdx.x]));
    for (int other = 1; other < 4; ++other) {
      unsigned theirs;
      float value;
      asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(theirs) : "r"(mine), "r"(other));
      asm volatile("ld.shared::cluster.f32 %0, [%1];" : "=f"(value) : "r"(theirs) : "memory");
      sum += value;
    }
    for (int step = 16; step > 0; step /= 2) sum += __shfl_xor_sync(0xffffffff, sum, step);
    if (threadIdx.x % 32 == 0) parts[threadIdx.x / 32] = sum;
    __syncthreads();
    if (threadIdx.x == 0) sums[blockIdx.x / 4] = parts[0] + parts[1];
  }
  // The others keep their shared memory until it has been read.
  asm volatile("barrier.cluster.arrive.aligned;\nbarrier.cluster.wait.aligned;" ::: "memory");
}
