// Finds races, unwritten reads and missing fences. exec/ tells it every access and every synchronisation; it answers by
// adding findings. It follows happens-before with vector clocks: an access is a race if a conflicting earlier access
// does not happen before it by barriers, mbarriers, fences with atomics, or completion of asynchronous operations.
//
// Agents. Each CUDA thread is an agent. Asynchronous operations belong to agents of their own, so that "issued" and
// "complete" are different things: one agent for each mbarrier (its epoch is the phase that the copy completes), one
// for each warpgroup's wgmma groups, two for each thread's bulk groups (reading and complete separately) and one for
// each thread's cp.async groups. Knowing an agent up to an epoch means that its operations up to there are complete.
// Epochs of asynchronous agents are chosen by exec/, start at 1 and never fall. Operations of one asynchronous agent
// are not ordered among themselves: only who has learned of an epoch comes after it.
//
// Proxies. A second clock of each agent for each state space says up to where generic writes to that space have been
// made visible to the async proxy by fence.proxy.async. An asynchronous access after a generic write must find it in
// both clocks.
//
// Late loads. A read of shared memory counts as the thread's at once, and as over for the async proxy when somebody has
// used what it brought: loads.h.
//
// One Checker serves one launch. Shadow memory (shadow.h) belongs to whoever owns the memory and outlives the launch.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "runtime/emulator/check/clock.h"
#include "runtime/emulator/check/shadow.h"
#include "runtime/emulator/exec/code.h"

namespace attune::emulator {

/// What the records of an agent are called in findings.
enum class AgentKind : std::uint8_t {
  thread,
  bulk_on_mbarrier,  ///< bulk copies that complete on one mbarrier; epoch: its phases, counted from 1
  bulk_group,        ///< bulk groups of one thread, complete; epoch: the group, counted from 1
  bulk_group_read,   ///< the same, as to having read their sources
  wgmma_group,       ///< wgmma groups of one warpgroup; epoch: the group, counted from 1
  cp_async_group,    ///< cp.async groups of one thread, likewise
};

enum class Proxy : std::uint8_t { generic, async };

/// Where an access comes from.
struct Access {
  Agent agent;  ///< whose epoch is recorded: the thread for ordinary accesses, the asynchronous agent otherwise
  std::uint32_t epoch = 0;  ///< of an asynchronous agent; ignored for a thread, whose present one is taken
  Agent issuer;             ///< the thread whose knowledge decides: itself, or who issued the operation
  Proxy proxy = Proxy::generic;
  bool write = false;
  bool atomic = false;   ///< two atomics (or strong accesses) never race
  bool updates = false;  ///< of a write: reads the old value too, as atomic operations other than exchange do
  std::uint32_t site = 0;
  std::uint32_t load = 0;  ///< of a read that may be late: begin_load()
};

class Checker {
 public:
  /// `image` gives positions and outlives the checker. At most `max_findings` distinct findings are kept.
  Checker(const ProgramImage& image, int max_findings);
  ~Checker();

  // -- blocks and agents --------------------------------------------------------------------------------
  /// A block starts with this many threads; they all know what happened before the launch. Agents 0..threads-1.
  void begin_block(std::uint32_t block, Dim3 index, Dim3 dim, int threads);
  /// Its threads and agents do nothing from now on. Later blocks do not happen after it: its accesses stay recorded.
  void end_block(std::uint32_t block);
  Agent new_agent(std::uint32_t block, AgentKind kind);
  /// The current epoch of a thread.
  std::uint32_t epoch(Agent thread) const;
  /// Whether what another thread did in this epoch of its happens before what the thread does now.
  bool knows(Agent thread, Agent other, std::uint32_t epoch) const;
  ThreadPosition position(Agent thread) const;

  // -- synchronisation ----------------------------------------------------------------------------------
  // Copies and joins of a SyncState are cheap: clocks share what is equal.
  /// Adds what the thread knows, itself included, to `state`, and begins the thread's next epoch.
  void release(Agent thread, SyncState* state);
  void acquire(Agent thread, const SyncState& state);
  /// The thread learns that an asynchronous agent is complete up to this epoch. (What completes into a barrier's state
  /// does state.happened.set(agent, epoch).)
  void learn(Agent thread, Agent async, std::uint32_t epoch);
  /// fence.proxy.async: all that the thread knows of becomes visible to the async proxy, as far as it was written to
  /// memory of this state space; nothing: of any.
  void fence_async(Agent thread, std::optional<ProxySpace> space = std::nullopt);
  /// What a thread knows now, to issue an operation with: kept by operations that run later than they are issued.
  /// Begins the thread's next epoch, so that what it does after issuing is not part of it.
  std::shared_ptr<const SyncState> snapshot(Agent thread);
  /// What a thread has learned of others; its own accesses since it last passed them on are not in it.
  const SyncState& knowledge(Agent thread) const;
  /// Whether both have learned the very same; false negatives occur.
  bool same_knowledge(Agent one, Agent other) const;
  /// __threadfence and friends. Relaxed atomics after a fence release what was known at the fence; relaxed reads before
  /// a fence acquire at the fence.
  void fence(Agent thread);
  /// Atomics and strong loads and stores, after their access(): release and acquire through the location. exec/ calls
  /// it in the order of the accesses.
  void atomic_access(Agent thread, ShadowRegion* region, std::size_t offset, bool reads, bool writes, bool acquires,
                     bool releases);

  // -- loads that may be late -----------------------------------------------------------------------------
  /// For Access::load.
  std::uint32_t begin_load();
  /// It fills registers of this thread. A load at the same site that the thread had not used yet is over. This and the
  /// next return how many loads the thread has not used.
  std::uint32_t fill(Agent thread, std::uint32_t site, std::uint32_t load);
  /// The thread uses what the last load at this site brought.
  std::uint32_t use(Agent thread, std::uint32_t site);
  /// It has waited for all of its loads.
  void finish_loads(Agent thread);

  // -- memory -------------------------------------------------------------------------------------------
  /// Checks and records one access. `known` is the issuer's knowledge where that is not its present one. Writes mark
  /// the bytes as written. The range lies in the region.
  void access(ShadowRegion* region, std::size_t offset, std::size_t bytes, const Access& access,
              const SyncState* known = nullptr);

  // -- findings -----------------------------------------------------------------------------------------
  /// Adds one, or counts it if the same kind was found at the same pair of instructions.
  void add(FindingKind kind, Agent thread, std::uint32_t site, std::string message,
           std::optional<Agent> other = std::nullopt, std::uint32_t other_site = 0);
  bool full() const;  ///< as many distinct findings as are kept: the launch should end
  std::vector<Finding> take_findings();

 private:
  friend class ShadowRegion;
  friend class AccessWalk;
  struct State;
  void leave(ShadowRegion* region);  ///< it ends before the checker
  std::unique_ptr<State> state_;
};

}  // namespace attune::emulator
