// cp.async.bulk and cp.reduce.async.bulk, contiguous, and bulk groups.
#include "runtime/emulator/exec/bulk.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <utility>

namespace attune::emulator {
namespace {

/// Addresses and sizes of contiguous copies are multiples of this.
constexpr std::uint32_t kBulkAlignment = 16;

/// To shared memory, completing on an mbarrier there.
class BulkLoad final : public BulkOperation {
 public:
  BulkLoad(ThreadContext* context, const Location& source, const BulkDestination& destination, std::uint32_t bytes,
           const std::optional<Reduction>& reduce, std::uint32_t site)
      : BulkOperation(context, site), source_(source), destination_(destination), bytes_(bytes), reduce_(reduce) {
    if (leaves_block()) source_.block->sends = true;
  }

 protected:
  void run() override {
    const char* what = reduce_ ? "cp.reduce.async.bulk" : "cp.async.bulk";
    Agent agent;
    std::uint32_t epoch = 0;
    if (!agent_of(destination_.signal, what, &agent, &epoch)) return;
    if (leaves_block()) {
      const Mbarrier* mbarrier = destination_.signal.block->mbarriers.find(destination_.signal.offset);
      source_.block->outgoing.push_back({mbarrier, agent, epoch, issue().context(), issue().site()});
    }
    check_mbarrier_overwrite(issue().context(), destination_.location, bytes_, issue().site());
    issue().read(source_, bytes_, agent, epoch);
    if (reduce_) {
      issue().update(destination_.location, bytes_, agent, epoch);
      (*reduce_)(destination_.location.host, source_.host, bytes_);
    } else {
      issue().write(destination_.location, bytes_, agent, epoch);
      std::memmove(destination_.location.host, source_.host, bytes_);
    }
    mbarrier_complete_tx(issue().context(), destination_.signal.block, destination_.signal.offset, bytes_,
                         issue().site());
  }

 private:
  bool leaves_block() const { return source_.block != nullptr && source_.block != destination_.signal.block; }

  Location source_;
  BulkDestination destination_;
  std::uint32_t bytes_;
  std::optional<Reduction> reduce_;
};

class BulkStore final : public BulkOperation {
 public:
  BulkStore(ThreadContext* context, const Location& source, const Location& destination, std::uint32_t bytes,
            const std::optional<Reduction>& reduce, std::uint32_t site)
      : BulkOperation(context, site),
        source_(source),
        destination_(destination),
        bytes_(bytes),
        reduce_(reduce),
        reading_(BulkGroups::of(context).reading),
        complete_(BulkGroups::of(context).complete),
        epoch_(BulkGroups::of(context).groups.epoch()) {}

 protected:
  void run() override {
    issue().read(source_, bytes_, reading_, epoch_);
    if (reduce_) {
      issue().update(destination_, bytes_, complete_, epoch_);
      (*reduce_)(destination_.host, source_.host, bytes_);
    } else {
      issue().write(destination_, bytes_, complete_, epoch_);
      std::memcpy(destination_.host, source_.host, bytes_);
    }
  }

 private:
  Location source_, destination_;
  std::uint32_t bytes_;
  std::optional<Reduction> reduce_;
  Agent reading_, complete_;
  std::uint32_t epoch_;
};

void contiguous_copy(ThreadContext* context, const BulkInfo& info, const BulkOperands& operands, std::uint32_t site) {
  if (operands.bytes % kBulkAlignment != 0 || operands.bytes > UINT32_MAX) {
    context->grid().add(
        FindingKind::bad_operand, context, site,
        fmt::format("cp.async.bulk: size of {} bytes (allowed: multiples of {})", operands.bytes, kBulkAlignment));
    return;
  }
  const std::optional<Reduction> reduce = find_reduction(info.reduce, info.reduce_type);
  if (info.reduce != BulkInfo::Reduce::none && !reduce) {
    context->grid().add(FindingKind::bad_operand, context, site,
                        fmt::format("cp.reduce.async.bulk: .{} of this type does not exist", reduce_name(info.reduce)));
    return;
  }
  const auto bytes = static_cast<std::uint32_t>(operands.bytes);
  constexpr const char* kSource = "source of cp.async.bulk";
  constexpr const char* kDestination = "destination of cp.async.bulk";
  const bool from_global =
      info.direction == BulkInfo::Direction::global_to_shared || info.direction == BulkInfo::Direction::prefetch;
  Location source;
  if (!check_alignment(context, operands.source, kBulkAlignment, kSource, site) ||
      !locate(context, from_global ? AddressSpace::global : AddressSpace::shared, operands.source, bytes,
              AccessKind::read, kSource, site, &source)) {
    return;
  }
  switch (info.direction) {
    case BulkInfo::Direction::prefetch: return;
    case BulkInfo::Direction::shared_to_global: {
      Location destination;
      if (!check_alignment(context, operands.destination, kBulkAlignment, kDestination, site) ||
          !locate(context, AddressSpace::global, operands.destination, bytes, AccessKind::write, kDestination, site,
                  &destination)) {
        return;
      }
      submit_bulk(context, std::make_shared<BulkStore>(context, source, destination, bytes, reduce, site), true, site);
      return;
    }
    case BulkInfo::Direction::global_to_shared:
    case BulkInfo::Direction::shared_to_shared_cluster:
      for (const BulkDestination& destination :
           bulk_destinations(context, info, operands, bytes, kBulkAlignment, site)) {
        submit_bulk(context, std::make_shared<BulkLoad>(context, source, destination, bytes, reduce, site), false,
                    site);
      }
      return;
  }
}

}  // namespace

BulkGroups& BulkGroups::of(ThreadContext* context) {
  std::unique_ptr<Extension>& slot = context->extensions[static_cast<std::size_t>(ExtensionSlot::bulk)];
  if (!slot) {
    auto made = std::make_unique<BulkGroups>();
    if (Checker* checker = context->checker()) {
      made->reading = checker->new_agent(context->block->serial, AgentKind::bulk_group_read);
      made->complete = checker->new_agent(context->block->serial, AgentKind::bulk_group);
    }
    slot = std::move(made);
  }
  return static_cast<BulkGroups&>(*slot);
}

void BulkGroups::thread_exits(ThreadContext* thread, std::uint32_t site) {
  const std::size_t unread = groups.not_waited_for();
  if (unread == 0) return;
  thread->grid().add(FindingKind::bulk_leak, thread, site,
                     fmt::format("the thread exits while {} of its bulk groups may still read shared memory: no "
                                 "cp.async.bulk.wait_group covers them",
                                 unread),
                     thread, last_site);
}

bool BulkOperation::agent_of(const BulkSignal& signal, const char* what, Agent* agent, std::uint32_t* epoch) const {
  Mbarrier* mbarrier = signal.block->mbarriers.find(signal.offset);
  if (mbarrier == nullptr || !mbarrier->valid) {
    issue().grid().add(FindingKind::mbarrier_misuse, issue().context(), issue().site(),
                       fmt::format("{}: the mbarrier at shared address {:#x} of block {} of the cluster is not valid",
                                   what, signal.offset, signal.block->rank));
    return false;
  }
  if (issue().context()->checker() != nullptr && !mbarrier->announced) {
    issue().grid().add(FindingKind::proxy_race, issue().context(), issue().site(),
                       fmt::format("{}: the mbarrier at shared address {:#x} of block {} of the cluster is not "
                                   "announced to the async proxy: neither fence.mbarrier_init nor fence.proxy.async "
                                   "follows its mbarrier.init",
                                   what, signal.offset, signal.block->rank),
                       &signal.block->threads[mbarrier->initialiser], mbarrier->init_site);
  }
  *agent = mbarrier_agent(mbarrier);
  *epoch = mbarrier->epoch();
  mbarrier->copier = issue().context();
  mbarrier->copy_site = issue().site();
  mbarrier->copy_epoch = *epoch;
  return true;
}

void report_unawaited_copies(const Block& block) {
  for (const Mbarrier* mbarrier : block.mbarriers.not_waited_for()) {
    block.grid->add(FindingKind::bulk_leak, mbarrier->copier, mbarrier->copy_site,
                    fmt::format("block {} of the cluster may end while this copy still writes its shared memory: none "
                                "of its threads waits for the phase that it completes of the mbarrier at shared "
                                "address {:#x}",
                                block.rank, mbarrier->offset),
                    &block.threads[mbarrier->initialiser], mbarrier->init_site);
  }
  if (block.grid->checker() == nullptr) return;
  for (const OutgoingCopy& copy : block.outgoing) {
    if (block.known_at_exit.at(copy.agent) >= copy.epoch) continue;
    const Mbarrier& mbarrier = *copy.mbarrier;
    block.grid->add(FindingKind::bulk_leak, copy.issuer, copy.site,
                    fmt::format("block {} of the cluster may end while this copy still reads its shared memory: none "
                                "of its threads learns of the phase that it completes of the mbarrier at shared "
                                "address {:#x} of block {} of the cluster",
                                block.rank, mbarrier.offset, mbarrier.block->rank),
                    &mbarrier.block->threads[mbarrier.initialiser], mbarrier.init_site);
  }
}

void submit_bulk(ThreadContext* context, std::shared_ptr<BulkOperation> operation, bool in_group, std::uint32_t site) {
  context->grid().async().submit(operation);
  if (!in_group) return;
  BulkGroups& groups = BulkGroups::of(context);
  groups.last_site = site;
  groups.groups.add(std::move(operation));
}

std::vector<BulkDestination> bulk_destinations(ThreadContext* context, const BulkInfo& info,
                                               const BulkOperands& operands, std::size_t bytes, std::uint32_t alignment,
                                               std::uint32_t site) {
  constexpr const char* kDestination = "destination of cp.async.bulk";
  const AddressSpace space = info.destination_space;
  std::vector<BulkDestination> all;
  BulkDestination first;
  if (!check_alignment(context, operands.destination, alignment, kDestination, site) ||
      !locate(context, space, operands.destination, bytes, AccessKind::write, kDestination, site, &first.location)) {
    return all;
  }
  const Mbarrier* mbarrier = find_mbarrier(context, space, operands.mbarrier, "mbarrier of cp.async.bulk", site);
  if (mbarrier == nullptr) return all;
  first.signal = {mbarrier->block, mbarrier->offset};
  if (!info.multicast) {
    if (first.signal.block != first.location.block) {
      context->grid().add(FindingKind::bad_operand, context, site,
                          fmt::format("cp.async.bulk: the destination lies in block {} of the cluster, the mbarrier in "
                                      "block {}",
                                      first.location.block->rank, first.signal.block->rank));
      return all;
    }
    all.push_back(first);
    return all;
  }
  const std::vector<Block*>& blocks = context->block->cluster->blocks;
  const auto mask = static_cast<std::uint32_t>(operands.mask & 0xFFFF);
  if (mask == 0 || mask >> blocks.size() != 0) {
    context->grid().add(
        FindingKind::bad_operand, context, site,
        fmt::format("cp.async.bulk: multicast mask {:#06x} in a cluster of {} blocks", mask, blocks.size()));
    return all;
  }
  for (Block* block : blocks) {
    if ((mask >> block->rank & 1) == 0) continue;
    // At the same offsets as in the block that the operands name.
    Location location = first.location;
    location.block = block;
    location.host = block->shared + location.offset;
    location.region = block->shared_region;
    all.push_back({location, {block, first.signal.offset}});
  }
  return all;
}

extern "C" {

void att_bulk_copy(ThreadContext* context, const BulkInfo* info, const BulkOperands* operands, std::uint32_t site) {
  if (info->rank != 0) {
    tensor_copy(context, *info, *operands, site);
  } else {
    contiguous_copy(context, *info, *operands, site);
  }
}

void att_bulk_commit(ThreadContext* context, std::uint32_t) { BulkGroups::of(context).groups.commit(); }

void att_bulk_wait(ThreadContext* context, std::uint32_t pending, std::uint32_t read_only, std::uint32_t) {
  BulkGroups& groups = BulkGroups::of(context);
  const std::uint32_t complete = groups.groups.wait(&context->grid().async(), pending, read_only != 0);
  Checker* checker = context->checker();
  if (checker == nullptr || complete == 0) return;
  checker->learn(context->agent(), groups.reading, complete);
  if (read_only == 0) checker->learn(context->agent(), groups.complete, complete);
}

}  // extern "C"

}  // namespace attune::emulator
