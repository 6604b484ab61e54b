// The sum of everything in one launch: the block that finishes last adds up what all blocks have left in memory.
__device__ unsigned finished;

extern "C" __global__ void __launch_bounds__(128) grid_reduce(const int* x, int* partial, int* result, int count) {
  __shared__ int sums[128];
  __shared__ bool is_last;
  const auto reduce = [&](int value) {
    sums[threadIdx.x] = value;
    __syncthreads();
    for (int half = 64; half > 0; half /= 2) {
      if (threadIdx.x < half) sums[threadIdx.x] += sums[threadIdx.x + half];
      __syncthreads();
    }
    return sums[0];
  };
  int sum = 0;
  for (int i = blockIdx.x * 128 + threadIdx.x; i < count; i += gridDim.x * 128) sum += x[i];
  sum = reduce(sum);
  if (threadIdx.x == 0) {
    partial[blockIdx.x] = sum;
    __threadfence();
    is_last = atomicInc(&finished, gridDim.x - 1) == gridDim.x - 1;  // back to 0 for the next launch
    __threadfence();
  }
  __syncthreads();
  if (is_last) {
    sum = 0;
    for (int i = threadIdx.x; i < gridDim.x; i += 128) sum += partial[i];
    sum = reduce(sum);
    if (threadIdx.x == 0) *result = sum;
  }
}
