// cp.async: copies of 4, 8 or 16 bytes from global to shared memory, through the generic proxy.
#include <fmt/format.h>

#include <cstring>
#include <memory>
#include <utility>

#include "runtime/emulator/exec/async.h"
#include "runtime/emulator/exec/async_access.h"
#include "runtime/emulator/exec/operation_groups.h"

namespace attune::emulator {
namespace {

/// Of one thread.
class Copies final : public Extension {
 public:
  OperationGroups groups;
  Agent agent;  ///< epochs: those of the groups

  static Copies& of(ThreadContext* context) {
    std::unique_ptr<Extension>& slot = context->extensions[static_cast<std::size_t>(ExtensionSlot::copies)];
    if (!slot) {
      auto made = std::make_unique<Copies>();
      if (Checker* checker = context->checker()) {
        made->agent = checker->new_agent(context->block->serial, AgentKind::cp_async_group);
      }
      slot = std::move(made);
    }
    return static_cast<Copies&>(*slot);
  }
};

class Copy final : public AsyncOperation {
 public:
  Copy(ThreadContext* context, const Location& shared, const Location& global, std::uint32_t bytes,
       std::uint32_t source_bytes, std::uint32_t site)
      : AsyncOperation(context->block),
        issue_(context, site, Proxy::generic),
        shared_(shared),
        global_(global),
        bytes_(bytes),
        source_bytes_(source_bytes),
        agent_(Copies::of(context).agent),
        epoch_(Copies::of(context).groups.epoch()) {}

 protected:
  void run() override {
    issue_.read(global_, source_bytes_, agent_, epoch_);
    issue_.write(shared_, bytes_, agent_, epoch_);
    check_mbarrier_overwrite(issue_.context(), shared_, bytes_, issue_.site());
    if (source_bytes_ != 0) std::memcpy(shared_.host, global_.host, source_bytes_);
    std::memset(shared_.host + source_bytes_, 0, bytes_ - source_bytes_);
  }

 private:
  AsyncIssue issue_;
  Location shared_, global_;
  std::uint32_t bytes_, source_bytes_;
  Agent agent_;
  std::uint32_t epoch_;
};

/// cp.async.mbarrier.arrive: arrives once the thread's copies up to now are complete.
class Arrival final : public AsyncOperation {
 public:
  Arrival(ThreadContext* context, const Mbarrier& mbarrier, const SyncState& known, std::uint32_t site)
      : AsyncOperation(context->block),
        context_(context),
        block_(mbarrier.block),
        offset_(mbarrier.offset),
        known_(known),
        site_(site) {}

 protected:
  void run() override { mbarrier_arrive_async(context_, block_, offset_, 1, &known_, site_); }

 private:
  ThreadContext* context_;
  Block* block_;
  std::uint32_t offset_;
  SyncState known_;
  std::uint32_t site_;
};

}  // namespace

extern "C" {

void att_cp_async(ThreadContext* context, std::uint64_t shared, std::uint64_t global, std::uint32_t bytes,
                  std::uint32_t source_bytes, std::uint32_t site) {
  Grid& grid = context->grid();
  if (source_bytes > bytes) {
    grid.add(FindingKind::bad_operand, context, site,
             fmt::format("cp.async: source size {} exceeds the copy's {} bytes", source_bytes, bytes));
    return;
  }
  Location to, from;
  if (!check_alignment(context, shared, bytes, "destination of cp.async", site) ||
      !locate(context, AddressSpace::shared, shared, bytes, AccessKind::write, "destination of cp.async", site, &to)) {
    return;
  }
  if (source_bytes != 0 && (!check_alignment(context, global, bytes, "source of cp.async", site) ||
                            !locate(context, AddressSpace::global, global, source_bytes, AccessKind::read,
                                    "source of cp.async", site, &from))) {
    return;
  }
  auto copy = std::make_shared<Copy>(context, to, from, bytes, source_bytes, site);
  grid.async().submit(copy);
  Copies::of(context).groups.add(std::move(copy));
}

void att_cp_async_commit(ThreadContext* context, std::uint32_t) { Copies::of(context).groups.commit(); }

void att_cp_async_wait(ThreadContext* context, std::uint32_t pending, std::uint32_t) {
  Copies& copies = Copies::of(context);
  if (pending == ~0u) {
    // wait_all: as if what is open had been committed, and then of everything.
    copies.groups.commit();
    pending = 0;
  }
  const std::uint32_t complete = copies.groups.wait(&context->grid().async(), pending);
  Checker* checker = context->checker();
  if (checker && complete != 0) checker->learn(context->agent(), copies.agent, complete);
}

void att_mbarrier_arrive_on_copies(ThreadContext* context, std::uint64_t address, std::uint32_t no_increment,
                                   std::uint32_t site) {
  Mbarrier* mbarrier = find_mbarrier(context, AddressSpace::shared, address, "cp.async.mbarrier.arrive", site);
  if (mbarrier == nullptr) return;
  if (no_increment == 0) mbarrier_add_pending(mbarrier, 1);
  Copies& copies = Copies::of(context);
  SyncState known;
  const std::uint32_t epoch = copies.groups.end_epoch();
  if (context->checker()) known.happened.set(copies.agent, epoch);
  auto arrival = std::make_shared<Arrival>(context, *mbarrier, known, site);
  arrival->after = copies.groups.unfinished();
  context->grid().async().submit(std::move(arrival));
}

}  // extern "C"

}  // namespace attune::emulator
