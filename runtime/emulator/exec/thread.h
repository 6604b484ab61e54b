// The state of a running grid: threads (one fibre each), warps, warpgroups, blocks, clusters. Internal to exec/ and
// check/.
//
// Everything runs in one OS thread. A thread keeps running until it waits (block_thread() of grid.h), so code between
// two waits needs no locks. A fibre that waits may never be resumed, because the launch ended: functions hold nothing
// that a destructor must free across a wait, and nothing is thrown through translated code (guard.h).
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "runtime/emulator/check/shadow.h"
#include "runtime/emulator/exec/barrier.h"
#include "runtime/emulator/exec/code.h"
#include "runtime/emulator/exec/fibre.h"
#include "runtime/emulator/exec/intrinsics.h"
#include "runtime/emulator/exec/mbarrier.h"
#include "runtime/emulator/exec/registers.h"
#include "runtime/emulator/exec/rendezvous.h"

namespace attune::emulator {

class Checker;
class Grid;
struct Block;
struct Cluster;
struct Warp;
struct Warpgroup;

constexpr int kWarpSize = 32;
constexpr int kWarpgroupSize = 128;

/// State of one register slot, as translated code tests it before it touches the slot.
enum SlotState : std::uint8_t {
  kSlotFree = 0,
  kSlotWritten = 1,  ///< by ordinary code since the last wgmma.fence; set by translated code on each write
  kSlotRead = 2,     ///< a pending wgmma reads it (A operand): writing is a hazard
  kSlotBusy = 4,     ///< a pending wgmma writes it: reading and writing are hazards
};

/// What a thread waits for, for the deadlock report.
struct Wait {
  enum class Kind : std::uint8_t {
    none,           ///< it can run
    rendezvous,     ///< the other lanes at an instruction
    active_mask,    ///< the other lanes of the warp, until they wait or get here
    named_barrier,  ///< id
    cluster_barrier,
    mbarrier,       ///< mbarrier, phase
    register_pool,  ///< id: registers wanted
  };
  Kind kind = Kind::none;
  std::uint32_t site = 0;
  std::uint32_t id = 0;
  const char* what = "";  ///< a literal: the instruction
  Mbarrier* mbarrier = nullptr;
  std::uint32_t phase = 0;
};

/// State that asynchronous instructions keep for a thread or a warpgroup, made when first needed and gone with the
/// block.
class Extension {
 public:
  virtual ~Extension() = default;
  /// A thread of it ends; findings about what it left behind are due.
  virtual void thread_exits(ThreadContext* thread, std::uint32_t site);
};
enum class ExtensionSlot : std::uint8_t { copies, bulk, wgmma, count };
using Extensions = std::array<std::unique_ptr<Extension>, static_cast<std::size_t>(ExtensionSlot::count)>;

/// One CUDA thread. The first members are read and written by translated code at these very offsets (static_asserted);
/// the rest is exec/'s own.
struct ThreadContext {
  std::uint32_t* slots = nullptr;            ///< 0: register slots
  std::uint8_t* slot_states = nullptr;       ///< 8: one SlotState each
  const std::uint8_t* parameters = nullptr;  ///< 16: the launch's parameter buffer
  std::int32_t fuel = 0;        ///< 24: translated code subtracts the instructions of a block of code at its end when
                                ///< it branches backwards, and calls att_yield when the result is negative
  std::uint32_t local_top = 0;  ///< 28: bytes of the local frame in use by the functions that run now
  std::uint64_t instructions = 0;  ///< 32: PTX instructions executed; added to by translated code for each basic block
  std::uint32_t unused_loads = 0;  ///< 40: that may be late; translated code asks before what may be their first use

  std::uint64_t counted = 0;  ///< of those, how many are in the grid's total
  Block* block = nullptr;
  Warp* warp = nullptr;
  std::uint32_t index = 0;  ///< linear in the block; also the index of its agent
  std::uint32_t lane = 0;
  Dim3 position{0, 0, 0};  ///< %tid
  std::uint8_t* local = nullptr;
  std::uint8_t* local_written = nullptr;  ///< one byte a byte; null where checks are off
  bool exited = false;
  bool cluster_arrived = false;  ///< between barrier.cluster.arrive and .wait
  std::uint32_t cluster_phase = 0;
  std::uint32_t failed_waits = 0;  ///< mbarrier.test_wait in a row that have returned false
  bool timed_out = false;          ///< of a wait that was ended without its event
  Fibre fibre;
  Wait wait;
  RendezvousLane rendezvous;
  Extensions extensions;

  Agent agent() const;
  Grid& grid() const;
  Warpgroup& warpgroup() const;
  /// Null where checks are off.
  Checker* checker() const;
};

struct Warp {
  Block* block = nullptr;
  std::uint32_t index = 0;
  std::uint32_t present = 0;  ///< lanes that exist
  std::uint32_t exited = 0;
  std::uint32_t ready = 0;    ///< lanes that can run now
  std::uint32_t yielded = 0;  ///< lanes that can run, once every other one has had its turn
  bool queued = false;
  std::uint32_t at_active_mask = 0;  ///< lanes that wait in activemask
  std::uint32_t active_mask = 0;     ///< its result for those that were let go last
  Rendezvous rendezvous;
  ThreadContext* threads = nullptr;  ///< of lane 0

  std::uint32_t live() const { return present & ~exited; }
};

/// No lane of the warp can run: those that stand at one activemask go on together.
void release_active_mask(Warp* warp);

/// Four warps, from a multiple of 4; the last one of a block may have fewer.
struct Warpgroup {
  Block* block = nullptr;
  std::uint32_t index = 0;
  std::uint32_t registers = 0;  ///< a thread's
  Rendezvous rendezvous;
  Extensions extensions;
};

struct Block {
  Grid* grid = nullptr;
  Cluster* cluster = nullptr;
  std::uint32_t serial = 0;               ///< in the launch; also the number of its agents
  Dim3 index{0, 0, 0};                    ///< %ctaid
  std::uint32_t rank = 0;                 ///< in the cluster
  std::uint8_t* shared = nullptr;         ///< of shared address 0; the first kSharedReserved bytes are not for use
  std::uint32_t shared_bytes = 0;         ///< with them
  ShadowRegion* shared_region = nullptr;  ///< offsets are shared addresses; null where checks are off
  Mbarriers mbarriers;
  NamedBarriers barriers;
  ThreadContext* threads = nullptr;
  std::uint32_t thread_count = 0;
  std::uint32_t live = 0;  ///< threads that have not exited
  std::vector<Warp> warps;
  std::vector<Warpgroup> warpgroups;
  RegisterPool registers;
  bool sends = false;  ///< copies of its shared memory to other blocks' have been issued
  std::vector<OutgoingCopy> outgoing;
  Clock known_at_exit;  ///< to those of its threads that have exited since
};

/// Blocks that are resident together and see each other's shared memory; one block where there are no clusters.
struct Cluster {
  Dim3 index{0, 0, 0};
  std::vector<Block*> blocks;  ///< by rank
  ClusterBarrier barrier;
};

inline Grid& ThreadContext::grid() const { return *block->grid; }
inline Agent ThreadContext::agent() const { return {block->serial, index}; }
inline Warpgroup& ThreadContext::warpgroup() const { return block->warpgroups[index / kWarpgroupSize]; }

}  // namespace attune::emulator
