// needs: types.cuh
// Reductions over the thread block of a reference kernel.

constexpr int kReferenceThreads = 128;

template <typename Combine>
__device__ double reduce_block(double value, double* scratch, Combine combine) {
  scratch[threadIdx.x] = value;
  __syncthreads();
  for (int half = kReferenceThreads / 2; half > 0; half /= 2) {
    if (threadIdx.x < half) scratch[threadIdx.x] = combine(scratch[threadIdx.x], scratch[threadIdx.x + half]);
    __syncthreads();
  }
  const double result = scratch[0];
  __syncthreads();
  return result;
}

struct Larger {
  __device__ double operator()(double a, double b) const { return a > b ? a : b; }
};
struct Plus {
  __device__ double operator()(double a, double b) const { return a + b; }
};
