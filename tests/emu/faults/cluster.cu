// Two blocks of a cluster, 64 threads each, that read and signal each other's shared memory.
typedef unsigned uint32_t;

__device__ __forceinline__ uint32_t address_of(const void* pointer) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(pointer));
}
__device__ __forceinline__ uint32_t peer(uint32_t address, unsigned rank) {
  uint32_t mapped;
  asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(mapped) : "r"(address), "r"(rank));
  return mapped;
}
__device__ __forceinline__ void cluster_sync() {
#if FAULT == 1
  asm volatile("barrier.cluster.arrive.relaxed.aligned;" ::: "memory");
#else
  asm volatile("barrier.cluster.arrive.aligned;" ::: "memory");
#endif
  asm volatile("barrier.cluster.wait.aligned;" ::: "memory");
}

extern "C" __global__ void __cluster_dims__(2, 1, 1) kernel(const float* in, float* out, unsigned* flags) {
  __shared__ float values[64];
  __shared__ __align__(8) unsigned long long barrier;
  const unsigned thread = threadIdx.x, other = (blockIdx.x & 1) ^ 1;

  if (thread == 0) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], 64;" ::"r"(address_of(&barrier)));
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
  }
  values[thread] = in[blockIdx.x * 64 + thread];
#if FAULT == 2
  __syncthreads();
#else
  cluster_sync();
#endif

  float remote;
  asm volatile("ld.shared::cluster.f32 %0, [%1];"
               : "=f"(remote)
               : "r"(peer(address_of(&values[thread]), other))
               : "memory");
  // The peer learns that its values have been read.
  asm volatile("mbarrier.arrive.release.cluster.shared::cluster.b64 _, [%0];" ::"r"(peer(address_of(&barrier), other))
               : "memory");
  out[blockIdx.x * 64 + thread] = remote;

#if FAULT == 3
  if (blockIdx.x == 0) return;
#endif
#if FAULT != 4
  asm volatile(
      "{\n"
      ".reg .pred done;\n"
      "WAIT: mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 done, [%0], 0;\n"
      "@!done bra WAIT;\n"
      "}\n" ::"r"(address_of(&barrier))
      : "memory");
#endif
  values[thread] = remote;
}
