// Inclusive scan of 256 numbers a block.
extern "C" __global__ void __launch_bounds__(256) scan(const int* x, int* sums) {
  __shared__ int totals[8];
  const int i = blockIdx.x * 256 + threadIdx.x, lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  int sum = x[i];
  for (int step = 1; step < 32; step *= 2) {
    const int before = __shfl_up_sync(0xffffffff, sum, step);
    if (lane >= step) sum += before;
  }
  if (lane == 31) totals[warp] = sum;
  __syncthreads();
  if (warp == 0 && lane < 8) {
    int total = totals[lane];
    for (int step = 1; step < 8; step *= 2) {
      const int before = __shfl_up_sync(0xff, total, step);
      if (lane >= step) total += before;
    }
    totals[lane] = total;
  }
  __syncthreads();
  sums[i] = sum + (warp > 0 ? totals[warp - 1] : 0);
}
