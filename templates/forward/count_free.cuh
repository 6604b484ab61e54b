// needs: types.cuh forward/failures.cuh

// A warp's speculation failed for a block of keys. All lanes count: choosing one of them would be another branch.
ATTUNE_DEVICE void count_failure() { atomicAdd(&tally, kLaneFailure); }
