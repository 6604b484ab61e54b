#include "runtime/emulator/exec/mbarrier.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <string>
#include <utility>

#include "runtime/emulator/check/checker.h"
#include "runtime/emulator/exec/grid.h"
#include "runtime/emulator/exec/memory.h"
#include "runtime/emulator/exec/thread.h"

namespace attune::emulator {

namespace {

// A state, as kernels hold it: missing arrivals in bits 0 to 19, arrivals of the next phase in 20 to 39, phase above.
constexpr std::uint32_t kPhaseBits = 24;

std::uint64_t state_of(const Mbarrier& mbarrier) {
  return std::uint64_t{mbarrier.phase} << 40 | std::uint64_t{mbarrier.expected & kMbarrierMaxCount} << 20 |
         (mbarrier.pending & kMbarrierMaxCount);
}

void store_image(const Mbarrier& mbarrier) {
  const std::uint64_t image = state_of(mbarrier);
  std::memcpy(mbarrier.block->shared + mbarrier.offset, &image, sizeof image);
}

void misuse(ThreadContext* context, const Mbarrier& mbarrier, std::uint32_t site, const std::string& text) {
  context->grid().add(
      FindingKind::mbarrier_misuse, context, site,
      fmt::format("mbarrier at shared address {:#x}, phase {}: {}", mbarrier.offset, mbarrier.phase, text),
      &mbarrier.block->threads[mbarrier.initialiser], mbarrier.init_site);
}

/// Where an mbarrier is or could be; null after a finding.
Block* place(ThreadContext* context, AddressSpace space, std::uint64_t address, const char* what, std::uint32_t site,
             std::uint32_t* offset) {
  Location location;
  if (!check_alignment(context, address, kMbarrierBytes, what, site) ||
      !locate(context, space, address, kMbarrierBytes, AccessKind::write, what, site, &location)) {
    return nullptr;
  }
  *offset = static_cast<std::uint32_t>(location.offset);
  return location.block;
}

/// init and inval are ordinary writes to the object's bytes.
void write_object(ThreadContext* context, const Mbarrier& mbarrier, std::uint32_t site) {
  Checker* checker = context->checker();
  if (!checker) return;
  Access access;
  access.agent = access.issuer = context->agent();
  access.write = true;
  access.site = site;
  checker->access(mbarrier.block->shared_region, mbarrier.offset, kMbarrierBytes, access);
}

/// All other operations must come after init.
void check_initialised(ThreadContext* context, const Mbarrier& mbarrier, const char* what, std::uint32_t site) {
  const Checker* checker = context->checker();
  const ThreadContext& initialiser = mbarrier.block->threads[mbarrier.initialiser];
  if (!checker || checker->knows(context->agent(), initialiser.agent(), mbarrier.init_epoch)) return;
  context->grid().add(FindingKind::race, context, site,
                      fmt::format("{}: nothing orders it after mbarrier.init of the object at shared address {:#x}",
                                  what, mbarrier.offset),
                      &initialiser, mbarrier.init_site);
}

void wake_all(Mbarrier* mbarrier) {
  Grid& grid = *mbarrier->block->grid;
  grid.progress();
  for (ThreadContext* thread : mbarrier->waiting) grid.wake(thread);
  mbarrier->waiting.clear();
}

void complete_if_due(Mbarrier* mbarrier) {
  if (mbarrier->pending == 0 && mbarrier->tx == 0) {
    if (mbarrier->has_agent) mbarrier->arriving.happened.set(mbarrier->agent, mbarrier->epoch());
    mbarrier->complete = mbarrier->arriving;
    ++mbarrier->phase;
    mbarrier->pending = mbarrier->expected;
    wake_all(mbarrier);
  }
  store_image(*mbarrier);
}

void add_tx(ThreadContext* context, Mbarrier* mbarrier, std::int64_t bytes, std::uint32_t site) {
  mbarrier->tx += bytes;
  if (mbarrier->tx > kMbarrierMaxTx || mbarrier->tx < -kMbarrierMaxTx) {
    misuse(context, *mbarrier, site,
           fmt::format("{} outstanding bytes; the transaction count goes from -{} to {}", mbarrier->tx, kMbarrierMaxTx,
                       kMbarrierMaxTx));
    mbarrier->tx = mbarrier->tx < 0 ? -kMbarrierMaxTx : kMbarrierMaxTx;
  }
}

void take_arrivals(ThreadContext* context, Mbarrier* mbarrier, std::uint32_t count, std::uint32_t site) {
  if (count > mbarrier->pending) {
    misuse(context, *mbarrier, site,
           fmt::format("{} arrivals where {} are missing of {} ({} bytes outstanding)", count, mbarrier->pending,
                       mbarrier->expected, mbarrier->tx));
    count = mbarrier->pending;
  }
  mbarrier->pending -= count;
}

/// An object that asynchronous agents come back to.
Mbarrier* find_again(ThreadContext* issuer, Block* block, std::uint32_t offset, const char* what, std::uint32_t site) {
  Mbarrier* mbarrier = block->mbarriers.find(offset);
  if (mbarrier && mbarrier->valid) return mbarrier;
  issuer->grid().add(FindingKind::mbarrier_misuse, issuer, site,
                     fmt::format("{}: the mbarrier at shared address {:#x} is not valid any more", what, offset));
  return nullptr;
}

/// Whether the phase that the thread waits for has completed.
bool has_completed(ThreadContext* context, const Mbarrier& mbarrier, const MbarrierWaitInfo& info,
                   std::uint64_t operand, std::uint32_t site) {
  if (info.parity) return (mbarrier.phase & 1) != (operand & 1);
  constexpr std::uint32_t kMask = (1u << kPhaseBits) - 1;
  const auto phase = static_cast<std::uint32_t>(operand >> 40);
  const std::uint32_t behind = (mbarrier.phase - phase) & kMask;
  if (behind > 1) misuse(context, mbarrier, site, fmt::format("waits with a state of phase {}", phase));
  return behind != 0;
}

/// How often in a row a failing test_wait, with nothing else going on, returns before it is taken for a wait.
constexpr std::uint32_t kPatience = 16;

}  // namespace

Mbarrier* Mbarriers::find(std::uint32_t offset) const {
  const auto found = objects_.find(offset);
  return found == objects_.end() ? nullptr : found->second.get();
}

Mbarrier* Mbarriers::make(Block* block, std::uint32_t offset) {
  std::unique_ptr<Mbarrier>& mbarrier = objects_[offset];
  if (!mbarrier) {
    mbarrier = std::make_unique<Mbarrier>();
    mbarrier->block = block;
    mbarrier->offset = offset;
  }
  return mbarrier.get();
}

Mbarrier* Mbarriers::overlapping(std::uint32_t offset, std::size_t bytes) const {
  if (valid_ == 0 || bytes == 0) return nullptr;
  const std::size_t last = (offset + bytes - 1) / kMbarrierBytes;
  for (std::size_t granule = offset / kMbarrierBytes; granule <= last; ++granule) {
    const std::size_t word = granule / 64;
    if (word >= granules_.size()) return nullptr;
    if (granules_[word] >> granule % 64 == 0) {
      granule |= 63;
    } else if (granules_[word] >> granule % 64 & 1) {
      return find(static_cast<std::uint32_t>(granule * kMbarrierBytes));
    }
  }
  return nullptr;
}

void Mbarriers::mark(const Mbarrier& mbarrier, bool valid) {
  const std::size_t granule = mbarrier.offset / kMbarrierBytes;
  if (granules_.size() <= granule / 64) granules_.resize(granule / 64 + 1);
  const std::uint64_t bit = std::uint64_t{1} << granule % 64;
  if (((granules_[granule / 64] & bit) != 0) == valid) return;
  granules_[granule / 64] ^= bit;
  valid_ += valid ? 1 : -1;
}

void Mbarriers::announce(std::uint32_t initialiser) {
  for (auto& [offset, mbarrier] : objects_) mbarrier->announced |= mbarrier->initialiser == initialiser;
}

void Mbarriers::announce_all() {
  for (auto& [offset, mbarrier] : objects_) mbarrier->announced = true;
}

std::vector<const Mbarrier*> Mbarriers::not_waited_for() const {
  std::vector<const Mbarrier*> all;
  for (const auto& [offset, mbarrier] : objects_) {
    if (mbarrier->copy_epoch > mbarrier->awaited) all.push_back(mbarrier.get());
  }
  std::ranges::sort(all, {}, &Mbarrier::offset);
  return all;
}

Mbarrier* find_mbarrier(ThreadContext* context, AddressSpace space, std::uint64_t address, const char* what,
                        std::uint32_t site) {
  std::uint32_t offset = 0;
  Block* block = place(context, space, address, what, site, &offset);
  if (!block) return nullptr;
  Mbarrier* mbarrier = block->mbarriers.find(offset);
  if (mbarrier && mbarrier->valid) return mbarrier;
  context->grid().add(FindingKind::mbarrier_misuse, context, site,
                      fmt::format("{}: the mbarrier at shared address {:#x} {}", what, offset,
                                  mbarrier ? "was invalidated" : "was never initialised"));
  return nullptr;
}

Agent mbarrier_agent(Mbarrier* mbarrier) {
  if (Checker* checker = mbarrier->block->grid->checker(); checker && !mbarrier->has_agent) {
    mbarrier->agent = checker->new_agent(mbarrier->block->serial, AgentKind::bulk_on_mbarrier);
    mbarrier->has_agent = true;
  }
  return mbarrier->agent;
}

void mbarrier_complete_tx(ThreadContext* issuer, Block* block, std::uint32_t offset, std::int64_t bytes,
                          std::uint32_t site) {
  Mbarrier* mbarrier = find_again(issuer, block, offset, "completion of a bulk copy", site);
  if (!mbarrier) return;
  add_tx(issuer, mbarrier, -bytes, site);
  complete_if_due(mbarrier);
}

void mbarrier_arrive_async(ThreadContext* issuer, Block* block, std::uint32_t offset, std::uint32_t count,
                           const SyncState* known, std::uint32_t site) {
  Mbarrier* mbarrier = find_again(issuer, block, offset, "arrival of cp.async operations", site);
  if (!mbarrier) return;
  if (known) mbarrier->arriving.join(*known);
  take_arrivals(issuer, mbarrier, count, site);
  complete_if_due(mbarrier);
}

void mbarrier_add_pending(Mbarrier* mbarrier, std::uint32_t count) {
  mbarrier->pending += count;
  store_image(*mbarrier);
}

extern "C" {

void att_mbarrier_init(ThreadContext* context, std::uint64_t address, std::uint32_t count, std::uint32_t site) {
  std::uint32_t offset = 0;
  Block* block = place(context, AddressSpace::shared, address, "mbarrier.init", site, &offset);
  if (!block) return;
  Mbarrier* mbarrier = block->mbarriers.make(block, offset);
  if (mbarrier->valid) misuse(context, *mbarrier, site, "initialised again without mbarrier.inval");
  mbarrier->epoch_base = mbarrier->epoch() + 1;
  mbarrier->valid = true;
  mbarrier->announced = false;
  mbarrier->phase = 0;
  mbarrier->initialiser = context->index;
  mbarrier->init_site = site;
  if (count == 0 || count > kMbarrierMaxCount) {
    misuse(context, *mbarrier, site, fmt::format("count {} (allowed: 1 to {})", count, kMbarrierMaxCount));
    count = count ? kMbarrierMaxCount : 1;
  }
  mbarrier->expected = mbarrier->pending = count;
  mbarrier->tx = 0;
  mbarrier->arriving.clear();
  mbarrier->complete.clear();
  block->mbarriers.mark(*mbarrier, true);
  write_object(context, *mbarrier, site);
  if (const Checker* checker = context->checker()) mbarrier->init_epoch = checker->epoch(context->agent());
  store_image(*mbarrier);
  wake_all(mbarrier);
}

void att_mbarrier_inval(ThreadContext* context, std::uint64_t address, std::uint32_t site) {
  Mbarrier* mbarrier = find_mbarrier(context, AddressSpace::shared, address, "mbarrier.inval", site);
  if (!mbarrier) return;
  if (!mbarrier->waiting.empty())
    misuse(context, *mbarrier, site, fmt::format("invalidated while {} threads wait", mbarrier->waiting.size()));
  check_initialised(context, *mbarrier, "mbarrier.inval", site);
  write_object(context, *mbarrier, site);
  mbarrier->valid = false;
  mbarrier->block->mbarriers.mark(*mbarrier, false);
  wake_all(mbarrier);
}

std::uint64_t att_mbarrier_arrive(ThreadContext* context, const MbarrierArriveInfo* info, std::uint64_t address,
                                  std::uint32_t count, std::uint32_t tx, std::uint32_t site) {
  Mbarrier* mbarrier = find_mbarrier(context, info->space, address, "mbarrier.arrive", site);
  if (!mbarrier) return 0;
  if (count == 0 || count > kMbarrierMaxCount) {
    misuse(context, *mbarrier, site, fmt::format("arrival count {} (allowed: 1 to {})", count, kMbarrierMaxCount));
    return state_of(*mbarrier);
  }
  const std::uint64_t state = state_of(*mbarrier);
  check_initialised(context, *mbarrier, "mbarrier.arrive", site);
  if (Checker* checker = context->checker(); checker && info->semantics != Semantics::relaxed)
    checker->release(context->agent(), &mbarrier->arriving);
  if (info->expect_tx) add_tx(context, mbarrier, tx, site);
  if (info->drop) {
    if (count > mbarrier->expected) {
      misuse(context, *mbarrier, site, fmt::format("drops {} of {} arrivals", count, mbarrier->expected));
    }
    mbarrier->expected -= std::min(count, mbarrier->expected);
  }
  take_arrivals(context, mbarrier, count, site);
  if (info->no_complete && mbarrier->pending == 0 && mbarrier->tx == 0)
    misuse(context, *mbarrier, site, "an arrival with .noComplete completes the phase");
  context->grid().progress();
  complete_if_due(mbarrier);
  return state;
}

void att_mbarrier_tx(ThreadContext* context, AddressSpace space, std::uint64_t address, std::int32_t tx,
                     std::uint32_t site) {
  const char* what = tx < 0 ? "mbarrier.complete_tx" : "mbarrier.expect_tx";
  Mbarrier* mbarrier = find_mbarrier(context, space, address, what, site);
  if (!mbarrier) return;
  check_initialised(context, *mbarrier, what, site);
  add_tx(context, mbarrier, tx, site);
  context->grid().progress();
  // Expected bytes never complete a phase: an arrival is still to come.
  if (tx < 0) {
    complete_if_due(mbarrier);
  } else {
    store_image(*mbarrier);
  }
}

std::uint32_t att_mbarrier_wait(ThreadContext* context, const MbarrierWaitInfo* info, std::uint64_t address,
                                std::uint64_t operand, std::uint32_t site) {
  const char* what = info->try_wait ? "mbarrier.try_wait" : "mbarrier.test_wait";
  Grid& grid = context->grid();
  bool first = true;
  for (;;) {
    // It may have been invalidated in between.
    Mbarrier* mbarrier = find_mbarrier(context, AddressSpace::shared, address, what, site);
    if (!mbarrier) return 1;
    if (first) check_initialised(context, *mbarrier, what, site);
    if (has_completed(context, *mbarrier, *info, operand, site)) {
      if (Checker* checker = context->checker(); checker && info->semantics != Semantics::relaxed)
        checker->acquire(context->agent(), mbarrier->complete);
      // Parity 1 passes before the first phase has completed.
      if (mbarrier->phase > 0) mbarrier->awaited = mbarrier->epoch() - 1;
      context->failed_waits = 0;
      return 1;
    }
    if (!first && context->timed_out) return 0;
    const bool returns = info->try_wait ? grid.wait_times_out() : context->failed_waits < kPatience;
    if (first && returns) {
      ++context->failed_waits;
      grid.yield(context);
      return 0;
    }
    first = false;
    context->wait = {
        .kind = Wait::Kind::mbarrier, .site = site, .what = what, .mbarrier = mbarrier, .phase = mbarrier->phase};
    context->timed_out = false;
    mbarrier->waiting.push_back(context);
    grid.block_thread(context);
  }
}

std::uint32_t att_mbarrier_pending_count(std::uint64_t state) {
  return static_cast<std::uint32_t>(state) & kMbarrierMaxCount;
}

}  // extern "C"

}  // namespace attune::emulator
