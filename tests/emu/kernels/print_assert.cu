// Some output, and an assertion on every element.
extern "C" __global__ void print_assert(const int* x, int limit) {
  const int value = x[threadIdx.x];
  if (threadIdx.x % 16 == 3) {
    printf("thread %d of %u: %5.2f|%-4d|%s|%c|%x|%lld|%%\n", threadIdx.x, blockDim.x, value * 0.5, value, "text", 'c',
           value, 1ll << 40);
  }
  if (!(value < limit)) __assertfail("value < limit", "print_assert.cu", 8, "print_assert", 1);
}
