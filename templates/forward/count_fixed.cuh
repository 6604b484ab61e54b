// needs: types.cuh ptx/shared.cuh forward/failures.cuh

// A warp's speculation failed for a block of keys. All lanes count, and the compiler moves nothing past it.
ATTUNE_DEVICE void count_failure() {
  asm volatile("red.relaxed.cta.shared::cta.add.u32 [%0], %1;" ::"r"(shared_address(&tally)), "n"(kLaneFailure)
               : "memory");
}
