// A table in constant memory whose entries name the next entry, weights beside it, and a pointer to both.
struct Entry {
  int next;
  float weight;
};
__constant__ Entry table[8] = {{3, 0.5f}, {7, 1.5f}, {0, 2.5f}, {5, 3.5f}, {1, 4.5f}, {2, 5.5f}, {4, 6.5f}, {6, 7.5f}};
__constant__ const Entry* start = &table[0];
__device__ float scale[2] = {1.0f, -2.0f};

extern "C" __global__ void const_table(float* out, int steps) {
  const Entry* entry = start + threadIdx.x % 8;
  float sum = 0;
  for (int i = 0; i < steps; ++i) {
    sum += entry->weight * scale[i % 2];
    entry = &table[entry->next];
  }
  out[threadIdx.x] = sum;
}
