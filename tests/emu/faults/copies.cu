// Asynchronous copies. 128 threads, one block.
typedef unsigned uint32_t;

__device__ __forceinline__ uint32_t address_of(const void* pointer) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(pointer));
}
__device__ __forceinline__ void cp_async(void* to, const void* from) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(address_of(to)), "l"(from) : "memory");
}
__device__ __forceinline__ void wait(uint32_t barrier, int parity) {
  asm volatile(
      "{\n"
      ".reg .pred done;\n"
      "WAIT: mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
      "@!done bra WAIT;\n"
      "}\n" ::"r"(barrier),
      "r"(parity)
      : "memory");
}

extern "C" __global__ void kernel(const float* in, float* out, unsigned* flags) {
  __shared__ __align__(128) float tiles[2][512];
  __shared__ __align__(128) float staging[128];
  __shared__ __align__(8) unsigned long long barrier;
  const unsigned thread = threadIdx.x;

  // Two tiles by cp.async, a group each.
  for (int i = 0; i < 2; i++) {
    cp_async(&tiles[i][thread * 4], in + thread * 4);
    asm volatile("cp.async.commit_group;" ::: "memory");
  }
#if FAULT == 1
#elif FAULT == 2
  asm volatile("cp.async.wait_group 1;" ::: "memory");
#else
  asm volatile("cp.async.wait_group 0;" ::: "memory");
#endif
#if FAULT != 3
  __syncthreads();
#endif
  float value = tiles[1][511 - thread * 4];
  __syncthreads();

  // The first tile again, by a bulk copy that completes on an mbarrier.
  if (thread == 0) {
#if FAULT != 4
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(address_of(&barrier)), "r"(FAULT == 5 ? 2 : 1));
#endif
#if FAULT != 18
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
#endif
  }
#if FAULT != 6
  __syncthreads();
#endif
  if (thread == 0) {
    const int bytes = FAULT == 7 ? 2040 : 2048;
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(address_of(&barrier)), "r"(bytes)
                 : "memory");
    const float* from = FAULT == 8 ? in + 1024 - 256 : in;
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(
                     address_of(&tiles[0][0])),
                 "l"(from), "r"(bytes), "r"(address_of(&barrier))
                 : "memory");
  }
#if FAULT != 9
  wait(address_of(&barrier), FAULT == 10 ? 1 : 0);
#endif
  value += tiles[0][thread * 4];

  // Out again by a bulk copy from the staging buffer, twice.
  for (int i = 0; i < 2; i++) {
    staging[thread] = value + float(i);
#if FAULT != 11
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
#endif
#if FAULT != 12
    __syncthreads();
#endif
    if (thread == 0) {
      asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;" ::"l"(out + 128 * i),
                   "r"(address_of(staging) + (FAULT == 13 ? 4 : 0)), "r"(FAULT == 13 ? 496 : 512)
                   : "memory");
      asm volatile("cp.async.bulk.commit_group;" ::: "memory");
#if FAULT == 14
      if (i == 1) asm volatile("cp.async.bulk.wait_group.read 0;" ::: "memory");
#elif FAULT == 15
      if (i == 0) asm volatile("cp.async.bulk.wait_group.read 0;" ::: "memory");
#else
      asm volatile("cp.async.bulk.wait_group.read 0;" ::: "memory");
#endif
    }
    __syncthreads();
  }

  // What was stored is read back.
  if (thread == 0 && FAULT != 15) {
#if FAULT != 16
    asm volatile("cp.async.bulk.wait_group 0;" ::: "memory");
#endif
    out[512] = out[128];
  }
#if FAULT == 19
  // A tile that nobody will read any more.
  if (thread == 0) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], 2048;" ::"r"(address_of(&barrier)) : "memory");
    asm volatile(
        "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], 2048, [%2];" ::"r"(
            address_of(&tiles[0][0])),
        "l"(in), "r"(address_of(&barrier))
        : "memory");
  }
#endif
#if FAULT == 20
  // The tile once more: given back when it has been read, loaded with other numbers, and only then is used what was read.
  __shared__ __align__(8) unsigned long long empty;
  if (thread == 0) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], 128;" ::"r"(address_of(&empty)));
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
  }
  __syncthreads();
  const float read = tiles[0][thread * 4];
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(address_of(&empty)) : "memory");
  if (thread == 0) {
    wait(address_of(&empty), 0);
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], 2048;" ::"r"(address_of(&barrier)) : "memory");
    asm volatile(
        "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], 2048, [%2];" ::"r"(
            address_of(&tiles[0][0])),
        "l"(in + 512), "r"(address_of(&barrier))
        : "memory");
  }
  wait(address_of(&barrier), 1);
  if (read != float(thread * 4 % 7)) out[512] = -1.f;
#endif
#if FAULT == 17
  if (thread == 0) asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0], 2;" ::"r"(address_of(&barrier)) : "memory");
#endif
}
