// needs: types.cuh
// cp.async.bulk.* and cp.reduce.async.bulk.*: copies of bytes that lie one behind the other (addresses and sizes are
// multiples of 16), and boxes asked for ahead of time.

ATTUNE_DEVICE void bulk_load(uint32_t destination, const void* source, int bytes, uint32_t barrier) {
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(destination),
      "l"(source), "r"(bytes), "r"(barrier)
      : "memory");
}

// Adds float32 numbers in shared memory to those in global memory.
ATTUNE_DEVICE void bulk_reduce_add(float* destination, uint32_t source, int bytes, uint64_t policy) {
  asm volatile("cp.reduce.async.bulk.global.shared::cta.bulk_group.L2::cache_hint.add.f32 [%0], [%1], %2, %3;" ::"l"(
                   destination),
               "r"(source), "r"(bytes), "l"(policy)
               : "memory");
}

ATTUNE_DEVICE void bulk_store(void* destination, uint32_t source, int bytes, uint64_t policy) {
  asm volatile("cp.async.bulk.global.shared::cta.bulk_group.L2::cache_hint [%0], [%1], %2, %3;" ::"l"(destination),
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

// Asks for a 4-D box in L2.
ATTUNE_DEVICE void bulk_tensor_prefetch(const TensorMap* map, int column, int row, int head, int batch) {
  asm volatile("cp.async.bulk.prefetch.tensor.4d.L2.global.tile [%0, {%1, %2, %3, %4}];" ::"l"(map), "r"(column),
               "r"(row), "r"(head), "r"(batch)
               : "memory");
}
