// Both blocks of a cluster get the same tile of 32 rows of 16 floats, of which each loads one half for both.
struct alignas(64) TensorMap {
  unsigned long long opaque[16];
};

constexpr int kRows = 32, kColumns = 16, kTileBytes = kRows * kColumns * 4;

extern "C" __global__ void __launch_bounds__(64) multicast(const __grid_constant__ TensorMap map, float* out) {
  __shared__ __align__(128) float tile[kRows][kColumns];
  __shared__ __align__(8) unsigned long long barrier_storage;
  const unsigned barrier = static_cast<unsigned>(__cvta_generic_to_shared(&barrier_storage));
  unsigned rank;
  asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  if (threadIdx.x == 0) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(barrier));
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(kTileBytes) : "memory");
  }
  asm volatile("barrier.cluster.arrive.release.aligned;\nbarrier.cluster.wait.acquire.aligned;" ::: "memory");
  if (threadIdx.x == 0) {
    asm volatile(
        "cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes.multicast::cluster "
        "[%0], [%1, {%2, %3}], [%4], %5;" ::"r"(
            static_cast<unsigned>(__cvta_generic_to_shared(&tile[rank * kRows / 2][0]))),
        "l"(&map), "r"(0), "r"(blockIdx.x / 2 * kRows + rank * kRows / 2), "r"(barrier),
        "h"(static_cast<unsigned short>(3))
        : "memory");
  }
  asm volatile(
      "{\n"
      ".reg .pred done;\n"
      "WAIT: mbarrier.try_wait.parity.shared::cta.b64 done, [%0], 0;\n"
      "@!done bra WAIT;\n"
      "}" ::"r"(barrier)
      : "memory");
  for (int i = threadIdx.x; i < kRows * kColumns; i += 64) {
    out[blockIdx.x * kRows * kColumns + i] = tile[i / kColumns][i % kColumns] + rank;
  }
  asm volatile("barrier.cluster.arrive.aligned;\nbarrier.cluster.wait.aligned;" ::: "memory");
}
