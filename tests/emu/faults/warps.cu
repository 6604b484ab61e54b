// Lanes of a warp. 64 threads, one block.
extern "C" __global__ void kernel(const float* in, float* out, unsigned* flags) {
  __shared__ float exchange[64];
  const unsigned thread = threadIdx.x, lane = thread & 31;

  // Neighbours exchange through shared memory.
  exchange[thread] = in[thread];
#if FAULT != 1
  __syncwarp();
#endif
  float value = exchange[thread ^ 1];

  // A sum over the warp. The upper half of the second warp has no work.
  if (thread >= 48) return;
  const unsigned mask = FAULT != 2 && thread >= 32 ? 0x0000ffffu : 0xffffffffu;
  value += __shfl_xor_sync(mask, value, 8);
#if FAULT == 2
  value += __shfl_xor_sync(mask, value, 16);
#else
  if (thread < 32) value += __shfl_xor_sync(mask, value, 16);
#endif

  // A vote of the lower half of each warp, in which each lane names itself.
  if (lane < 16) {
#if FAULT == 3
    if (__any_sync(0x00007fffu, value > 0.f)) value += 1.f;
#else
    if (__any_sync(0x0000ffffu, value > 0.f)) value += 1.f;
#endif
  }
  out[thread] = value;
}
