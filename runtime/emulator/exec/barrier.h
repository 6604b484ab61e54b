// Named barriers of a block and the barrier of a cluster.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "runtime/emulator/check/clock.h"
#include "runtime/emulator/exec/intrinsics.h"

namespace attune::emulator {

struct Block;
struct Cluster;
struct ThreadContext;

constexpr std::uint32_t kNamedBarriers = 16;

/// bar/barrier.cta with one id. Warps arrive as a whole, when the last of their lanes does.
struct NamedBarrier {
  std::uint32_t expected = 0;  ///< threads; 0: none has arrived yet, or all of the block
  bool all = false;            ///< the count was left out: those of the block that have not exited
  bool reduction = false;
  std::uint32_t arrived = 0;  ///< threads, in whole warps
  std::uint32_t first_site = 0;
  std::uint32_t first_thread = 0;
  std::vector<bool> warps;  ///< that have arrived
  std::vector<ThreadContext*> waiting;
  std::vector<std::uint32_t> pending_lanes;  ///< a warp each: lanes at it, of a warp that is not there as a whole yet
  std::uint32_t count = 0;                   ///< of true predicates
  std::uint32_t predicates = 0;              ///< threads that brought one
  SyncState state;
};
struct NamedBarriers {
  std::array<NamedBarrier, kNamedBarriers> barriers;
};

struct ClusterBarrier {
  std::uint32_t phase = 0;
  std::uint32_t arrived = 0;  ///< threads
  std::vector<ThreadContext*> waiting;
  SyncState arriving, complete;
};

/// After a thread has exited: barriers that waited for it alone complete.
void barrier_exit(ThreadContext* context);

}  // namespace attune::emulator
