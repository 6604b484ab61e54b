// needs: types.cuh
// cp.async.bulk.tensor.*: TMA copies of 4-D boxes (column, row, head, batch).

// L2 cache policies as createpolicy encodes them (fractional, all of the accesses).
constexpr uint64_t kEvictFirst = 0x12F0000000000000ull;
constexpr uint64_t kEvictLast = 0x14F0000000000000ull;

ATTUNE_DEVICE void bulk_tensor_load(uint32_t destination, const TensorMap* map, uint32_t barrier, int column, int row,
                                    int head, int batch, uint64_t policy) {
  asm volatile(
      "cp.async.bulk.tensor.4d.shared::cluster.global.tile.mbarrier::complete_tx::bytes.L2::cache_hint "
      "[%0], [%1, {%2, %3, %4, %5}], [%6], %7;" ::"r"(destination),
      "l"(map), "r"(column), "r"(row), "r"(head), "r"(batch), "r"(barrier), "l"(policy)
      : "memory");
}

// Rows and columns outside the tensor are not written.
ATTUNE_DEVICE void bulk_tensor_store(const TensorMap* map, uint32_t source, int column, int row, int head, int batch) {
  asm volatile("cp.async.bulk.tensor.4d.global.shared::cta.tile.bulk_group [%0, {%2, %3, %4, %5}], [%1];" ::"l"(map),
               "r"(source), "r"(column), "r"(row), "r"(head), "r"(batch)
               : "memory");
}

ATTUNE_DEVICE void bulk_commit_group() { asm volatile("cp.async.bulk.commit_group;" ::: "memory"); }

// Waits until this thread's stores have read their source (the buffer may be written again).
ATTUNE_DEVICE void bulk_wait_group_read() { asm volatile("cp.async.bulk.wait_group.read 0;" ::: "memory"); }

ATTUNE_DEVICE void prefetch_tensormap(const TensorMap* map) {
  asm volatile("prefetch.tensormap [%0];" ::"l"(map) : "memory");
}
