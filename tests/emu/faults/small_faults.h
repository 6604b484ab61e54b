// Faults planted in small kernels: the files beside this one, compiled with and without FAULT.
#pragma once

#include <vector>

#include "tests/emu/faults/fault.h"

namespace attune::emulator {

/// A small kernel takes 1024 floats to read, 1024 unwritten ones and 16 words of zero.
struct SmallKernel {
  std::string file;
  unsigned grid, block, cluster;
};

inline const std::vector<SmallKernel>& small_kernels() {
  static const std::vector<SmallKernel> kernels{
      {"warps", 1, 64, 1},   {"block", 1, 128, 1},  {"grid", 4, 64, 1},
      {"copies", 1, 128, 1}, {"cluster", 2, 64, 2}, {"products", 1, 128, 1},
  };
  return kernels;
}

inline const std::vector<SmallFault>& small_faults() {
  using enum FindingKind;
  static const std::vector<SmallFault> faults{
      {"no __syncwarp", "warps", 1, {race, "no barrier or mbarrier orders them", "shared"}},
      {"shuffle with exited lanes", "warps", 2, {divergence, "does not take part", "shfl"}},
      {"vote without oneself", "warps", 3, {divergence, "not in its own member mask", "vote"}},
      {"no __syncthreads in a reduction", "block", 1, {race, "no barrier or mbarrier orders them", "shared"}},
      {"tail of a shared array unwritten", "block", 2, {uninitialised_read, "shared memory", "ld.shared"}},
      {"vector load off its alignment", "block", 3, {misaligned, "16", "ld.global"}},
      {"global load one element too far", "block", 4, {out_of_bounds, "allocation of 4096 bytes", "ld.global"}},
      {"local array one element too far", "block", 5, {out_of_bounds, "local", "ld.local"}},
      {"global memory that nobody wrote", "block", 6, {uninitialised_read, "allocation of 4096 bytes", "ld.global"}},
      {"bar.sync by every other lane", "block", 7, {divergence, "bar.sync waits for", "bar.sync"}},
      {"barrier for 100 threads", "block", 8, {barrier_misuse, "multiple of the warp size", "bar.sync"}},
      {"grid reduction without __threadfence", "grid", 1, {race, "the blocks are concurrent", "ld.global"}},
      {"ticket without atomics", "grid", 2, {race, "the blocks are concurrent", "global"}},
      {"spin that never ends", "grid", 3, {no_progress, "limit of 20000000 instructions", ""}},
      {"plain loads as a spin", "grid", 4, {race, "updated atomically", "ld.global"}},
      {"trap", "grid", 5, {trap, "", "trap"}},
      {"cp.async never waited for", "copies", 1, {race, "no cp.async.wait_group", "ld.shared", Seeds::others}},
      {"cp.async waited for one group too few",
       "copies",
       2,
       {race, "no cp.async.wait_group", "ld.shared", Seeds::others}},
      {"cp.async of other threads without barrier", "copies", 3, {race, "cp.async", "ld.shared"}},
      {"mbarrier never initialised", "copies", 4, {mbarrier_misuse, "never initialised", "mbarrier"}},
      {"mbarrier waits for two arrivals", "copies", 5, {deadlock, "1 of 2", "mbarrier.try_wait"}},
      {"mbarrier used before its init is known",
       "copies",
       6,
       {race, "nothing orders it after mbarrier.init", "mbarrier", Seeds::others}},
      {"bulk copy of 2040 bytes", "copies", 7, {bad_operand, "multiples of 16", "cp.async.bulk"}},
      {"bulk copy beyond its source", "copies", 8, {out_of_bounds, "source of cp.async.bulk", "cp.async.bulk"}},
      {"bulk copy never waited for", "copies", 9, {race, "no wait for that phase", "ld.shared", Seeds::others}},
      {"bulk copy waited for with the wrong parity", "copies", 10, {race, "bulk copy", "", Seeds::others}},
      {"bulk store without fence.proxy.async", "copies", 11, {proxy_race, "generic proxy", "cp.async.bulk"}},
      {"bulk store without barrier", "copies", 12, {race, "no barrier or mbarrier orders them", "cp.async.bulk"}},
      {"bulk store from 4 bytes on", "copies", 13, {misaligned, "16", "cp.async.bulk"}},
      {"staging buffer reused too early",
       "copies",
       14,
       {race, "no cp.async.bulk.wait_group.read", "st.shared", Seeds::others}},
      {"exit before the last bulk store has read", "copies", 15, {bulk_leak, "exits while", ""}, 256},
      {"exit before the last bulk load has arrived", "copies", 19, {bulk_leak, "may end while", "cp.async.bulk"}},
      {"tile given back before its loads are over",
       "copies",
       20,
       {late_load, "no use of what that load brought", "cp.async.bulk"}},
      {"bulk store read back before it is complete",
       "copies",
       16,
       {race, "no cp.async.bulk.wait_group for it", "ld.global"}},
      {"mbarrier not announced to the async proxy",
       "copies",
       18,
       {proxy_race, "neither fence.mbarrier_init", "cp.async.bulk"}},
      {"more arrivals than the mbarrier has", "copies", 17, {mbarrier_misuse, "2 arrivals", "mbarrier.arrive"}},
      {"relaxed arrival at the cluster barrier",
       "cluster",
       1,
       {race, "the blocks are concurrent", "ld.shared::cluster"}},
      {"remote read without cluster barrier", "cluster", 2, {race, "the blocks are concurrent", "ld.shared::cluster"}},
      {"block exits while its peer reads", "cluster", 3, {out_of_bounds, "exited", "", Seeds::some}},
      {"shared memory written while the peer reads", "cluster", 4, {race, "the blocks are concurrent", "st.shared"}},
      {"operand not fenced to the async proxy", "products", 1, {proxy_race, "generic proxy", "wgmma.mma_async"}},
      {"descriptor beyond shared memory", "products", 2, {out_of_bounds, "descriptor of B", "wgmma.mma_async"}},
      {"no wgmma.fence before the first product", "products", 3, {register_hazard, "wgmma.fence", "wgmma.mma_async"}},
      {"product never committed", "products", 4, {register_hazard, "accumulates into it: no wgmma.wait_group", "mov"}},
      {"A registers overwritten too early",
       "products",
       5,
       {register_hazard, "written while a pending wgmma.mma_async reads it", "mov.b32"}},
      {"accumulator written too early",
       "products",
       6,
       {register_hazard, "written while a pending wgmma.mma_async accumulates", "mov.f32"}},
      {"accumulator read too early",
       "products",
       7,
       {register_hazard, "read while a pending wgmma.mma_async accumulates", "mov.f32"}},
      {"setmaxnreg by one warp of four", "products", 8, {divergence, "do not take part", "setmaxnreg"}},
  };
  return faults;
}

}  // namespace attune::emulator
