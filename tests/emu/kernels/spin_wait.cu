// Two warps that hand data to each other through shared memory and wait by looking: one way with release and acquire,
// the other with volatile accesses and fences.
extern "C" __global__ void __launch_bounds__(64) spin_wait(const int* x, int* out, int rounds) {
  __shared__ int there[32], back[32];
  __shared__ int sent;
  __shared__ volatile int answered;
  const int lane = threadIdx.x % 32;
  if (threadIdx.x == 0) {
    sent = 0;
    answered = 0;
  }
  __syncthreads();
  const unsigned sent_address = static_cast<unsigned>(__cvta_generic_to_shared(&sent));
  if (threadIdx.x < 32) {
    int value = x[lane];
    for (int round = 1; round <= rounds; ++round) {
      there[lane] = value;
      __syncwarp();
      if (lane == 0) asm volatile("st.release.cta.shared.b32 [%0], %1;" ::"r"(sent_address), "r"(round) : "memory");
      while (answered < round) {
      }
      __threadfence_block();
      value = back[31 - lane];
      __syncwarp();
    }
    out[lane] = value;
  } else {
    for (int round = 1; round <= rounds; ++round) {
      int seen;
      do {
        asm volatile("ld.acquire.cta.shared.b32 %0, [%1];" : "=r"(seen) : "r"(sent_address) : "memory");
      } while (seen < round);
      back[lane] = there[lane] + lane;
      __syncwarp();
      if (lane == 0) {
        __threadfence_block();
        answered = round;
      }
    }
  }
}
