// needs: types.cuh
// Thread blocks of a cluster: barrier.cluster, arrivals at each other's mbarriers, loads for all of them.

ATTUNE_DEVICE int cluster_rank() {
  int rank;
  asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  return rank;
}

// All threads of all thread blocks of the cluster.
ATTUNE_DEVICE void cluster_sync() {
  asm volatile("barrier.cluster.arrive.aligned;\nbarrier.cluster.wait.aligned;" ::: "memory");
}

// What lies at this address of shared memory in the thread block of this rank.
ATTUNE_DEVICE uint32_t address_at(uint32_t address, int rank) {
  uint32_t there;
  asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(there) : "r"(address), "r"(rank));
  return there;
}

// One arrival at the barrier that lies at this address in the thread block of this rank. Not .release.cluster, before
// which ptxas has the thread wait until all its accesses are seen by the whole GPU (MEMBAR.ALL.GPU): what this arrival
// lets happen is that a buffer is written again, which this thread has read, and those reads are complete.
ATTUNE_DEVICE void mbarrier_arrive_at(uint32_t barrier, int rank) {
  asm volatile("mbarrier.arrive.shared::cluster.b64 _, [%0];" ::"r"(address_at(barrier, rank)) : "memory");
}

// As bulk_tensor_load(), to the same addresses of all thread blocks whose bit is set, and with the bytes announced at
// each one's barrier.
ATTUNE_DEVICE void bulk_tensor_load_to(uint16_t blocks, uint32_t destination, const TensorMap* map, uint32_t barrier,
                                       int column, int row, int head, int batch, uint64_t policy) {
  asm volatile(
      "cp.async.bulk.tensor.4d.shared::cluster.global.tile.mbarrier::complete_tx::bytes.multicast::cluster"
      ".L2::cache_hint [%0], [%1, {%2, %3, %4, %5}], [%6], %7, %8;" ::"r"(destination),
      "l"(map), "r"(column), "r"(row), "r"(head), "r"(batch), "r"(barrier), "h"(blocks), "l"(policy)
      : "memory");
}

// Copies a multiple of 16 bytes of this thread block's shared memory to that of another one, and counts them at a
// barrier there. Both addresses as of address_at().
ATTUNE_DEVICE void bulk_copy_at(uint32_t destination, uint32_t source, int bytes, uint32_t barrier) {
  asm volatile(
      "cp.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(destination),
      "r"(source), "r"(bytes), "r"(barrier)
      : "memory");
}
