// mbarrier objects. The true state is kept beside shared memory; the object's 8 bytes hold a readable image of it.
#pragma once

#include <cstdint>
#include <memory>
#include <unordered_map>
#include <vector>

#include "runtime/emulator/check/clock.h"
#include "runtime/emulator/exec/intrinsics.h"

namespace attune::emulator {

struct Block;
struct ThreadContext;

constexpr std::uint32_t kMbarrierBytes = 8;
constexpr std::uint32_t kMbarrierMaxCount = (1u << 20) - 1;
constexpr std::int64_t kMbarrierMaxTx = (1 << 20) - 1;

struct Mbarrier {
  Block* block = nullptr;
  std::uint32_t offset = 0;    ///< shared address in its block
  bool valid = false;          ///< between init and inval
  bool announced = false;      ///< to the async proxy, by a fence after the init
  std::uint32_t phase = 0;     ///< completed phases
  std::uint32_t expected = 0;  ///< arrivals of the next phase
  std::uint32_t pending = 0;   ///< arrivals that are missing in this phase
  std::int64_t tx = 0;         ///< bytes that are outstanding in this phase
  std::uint32_t init_site = 0;
  std::uint32_t initialiser = 0;  ///< thread
  std::uint32_t init_epoch = 0;   ///< of that thread
  /// Of the bulk copies that complete on it. Its epoch in this phase is epoch(); never goes back, whatever init does.
  Agent agent;
  bool has_agent = false;
  std::uint32_t epoch_base = 1;
  /// The last of those copies, and its epoch; 0: there was none.
  const ThreadContext* copier = nullptr;
  std::uint32_t copy_site = 0;
  std::uint32_t copy_epoch = 0;
  std::uint32_t awaited = 0;  ///< the last epoch that a thread has seen complete
  SyncState arriving;         ///< what the arrivals up to now have released
  SyncState complete;         ///< the same when the last phase completed
  std::vector<ThreadContext*> waiting;

  std::uint32_t epoch() const { return epoch_base + phase; }
};

/// A bulk copy from one block's shared memory to another's.
struct OutgoingCopy {
  const Mbarrier* mbarrier = nullptr;  ///< in the other block, which completes with it
  Agent agent;                         ///< of that mbarrier's copies
  std::uint32_t epoch = 0;
  const ThreadContext* issuer = nullptr;
  std::uint32_t site = 0;
};

/// The mbarriers of one block.
class Mbarriers {
 public:
  /// Null if there is none, valid or not.
  Mbarrier* find(std::uint32_t offset) const;
  Mbarrier* make(Block* block, std::uint32_t offset);
  /// Whether a valid object lies in this range; cheap where there is none.
  Mbarrier* overlapping(std::uint32_t offset, std::size_t bytes) const;
  void mark(const Mbarrier& mbarrier, bool valid);
  /// fence.mbarrier_init of this thread, which announces what it has initialised.
  void announce(std::uint32_t initialiser);
  /// fence.proxy.async of a thread. Which inits it knows of is not looked at: that is a race of its own if it does not.
  void announce_all();
  /// By address: those whose last bulk copy no thread has seen complete.
  std::vector<const Mbarrier*> not_waited_for() const;

 private:
  std::vector<std::uint64_t> granules_;  ///< a bit for 8 bytes: holds a valid object
  int valid_ = 0;                        ///< how many do
  std::unordered_map<std::uint32_t, std::unique_ptr<Mbarrier>> objects_;
};

/// The valid mbarrier at an address; null after a finding. `what` names the operation in it.
Mbarrier* find_mbarrier(ThreadContext* context, AddressSpace space, std::uint64_t address, const char* what,
                        std::uint32_t site);

// For asynchronous agents. Those that complete later than they are issued keep block and offset of the mbarrier, and
// look it up again: it may be gone by then.

/// The agent of bulk copies that complete on it; made when first asked for. Where checks are off it means nothing.
Agent mbarrier_agent(Mbarrier* mbarrier);
/// `bytes` have been transferred. `issuer` and `site` are those of the copy.
void mbarrier_complete_tx(ThreadContext* issuer, Block* block, std::uint32_t offset, std::int64_t bytes,
                          std::uint32_t site);
/// One arrival by an asynchronous agent; `known`: what it releases, or null.
void mbarrier_arrive_async(ThreadContext* issuer, Block* block, std::uint32_t offset, std::uint32_t count,
                           const SyncState* known, std::uint32_t site);
/// Takes an arrival more into account in this phase (cp.async.mbarrier.arrive without .noinc).
void mbarrier_add_pending(Mbarrier* mbarrier, std::uint32_t count);

}  // namespace attune::emulator
