// Sums of rows: shuffles within a warp, shared memory between warps.
extern "C" __global__ void __launch_bounds__(128) block_reduce(const float* x, float* sums, int columns) {
  __shared__ float parts[4];
  const float* row = x + static_cast<long long>(blockIdx.x) * columns;
  float sum = 0;
  for (int i = threadIdx.x; i < columns; i += 128) sum += row[i];
#pragma unroll
  for (int step = 16; step > 0; step /= 2) sum += __shfl_down_sync(0xffffffff, sum, step);
  if (threadIdx.x % 32 == 0) parts[threadIdx.x / 32] = sum;
  __syncthreads();
  if (threadIdx.x < 4) {
    sum = parts[threadIdx.x];
    sum += __shfl_xor_sync(0xf, sum, 2);
    sum += __shfl_xor_sync(0xf, sum, 1);
    if (threadIdx.x == 0) sums[blockIdx.x] = sum;
  }
}
