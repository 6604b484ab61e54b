// needs: types.cuh
// cp.async.bulk.* and cp.reduce.async.bulk.*: copies of bytes that lie one behind the other. Addresses and sizes are
// multiples of 16.

ATTUNE_DEVICE void bulk_load(uint32_t destination, const void* source, int bytes, uint32_t barrier) {
  asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(
                   destination),
               "l"(source), "r"(bytes), "r"(barrier)
               : "memory");
}

// Adds float32 numbers in shared memory to those in global memory.
ATTUNE_DEVICE void bulk_reduce_add(float* destination, uint32_t source, int bytes, uint64_t policy) {
  asm volatile(
      "cp.reduce.async.bulk.global.shared::cta.bulk_group.L2::cache_hint.add.f32 [%0], [%1], %2, %3;" ::"l"(destination),
      "r"(source), "r"(bytes), "l"(policy)
      : "memory");
}

// Waits until all but the newest `kPending` groups of this thread have read their source.
template <int kPending>
ATTUNE_DEVICE void bulk_wait_group_read() {
  asm volatile("cp.async.bulk.wait_group.read %0;" ::"n"(kPending) : "memory");
}

// Waits until all groups of this thread have completed: what they wrote is there.
ATTUNE_DEVICE void bulk_wait_group() { asm volatile("cp.async.bulk.wait_group 0;" ::: "memory"); }
