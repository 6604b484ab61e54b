// needs: types.cuh forward/params.cuh
// How often speculation failed. Counted in shared memory at an address that is a constant, by whoever takes the failing
// path: the loop over the blocks of keys has no register for it.

// Of this thread block: the warps that are done, fewer than 16, and above them each lane's failures.
__shared__ uint32_t tally;
constexpr uint32_t kLaneFailure = 16, kFailure = 32 * kLaneFailure;

// A warp's speculation failed for a block of keys. All lanes count: choosing one of them would be another branch.
ATTUNE_DEVICE void count_failure() { atomicAdd(&tally, kLaneFailure); }

// Every consumer warp when it is done; the last of them adds the thread block's to all. (Beyond 2^23 failures of a
// thread block the count begins anew.)
template <uint32_t kWarps>
ATTUNE_DEVICE void add_failures(const ForwardParams& params) {
  static_assert(kWarps < kLaneFailure);
  if ((threadIdx.x & 31) != 0) return;
  const uint32_t before = atomicAdd(&tally, 1u);
  if (before % kLaneFailure == kWarps - 1 && before >= kFailure && params.failures != nullptr)
    atomicAdd(params.failures, before / kFailure);
}
