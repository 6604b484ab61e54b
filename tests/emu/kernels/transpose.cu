// 32x32 tiles through shared memory, 32x8 threads a block.
extern "C" __global__ void __launch_bounds__(256) transpose(const float* in, float* out, int rows, int columns) {
  __shared__ float tile[32][33];
  const int column = blockIdx.x * 32 + threadIdx.x;
  for (int y = threadIdx.y; y < 32; y += 8) {
    const int row = blockIdx.y * 32 + y;
    if (row < rows && column < columns) tile[y][threadIdx.x] = in[row * columns + column];
  }
  __syncthreads();
  const int row = blockIdx.y * 32 + threadIdx.x;
  for (int y = threadIdx.y; y < 32; y += 8) {
    const int out_row = blockIdx.x * 32 + y;
    if (out_row < columns && row < rows) out[out_row * rows + row] = tile[threadIdx.x][y];
  }
}
