// wgmma: matrix products of a warpgroup that run beside it.
//
// The accumulators and register operands are slots of the threads' slot files. An operation reads and writes them when
// it runs; from its issue until the thread has waited for its group, the slots' states say so, and translated code
// finds who touches them.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <deque>
#include <memory>
#include <string>
#include <utility>

#include "runtime/emulator/check/checker.h"
#include "runtime/emulator/exec/async.h"
#include "runtime/emulator/exec/grid.h"
#include "runtime/emulator/exec/matrix_layout.h"
#include "runtime/emulator/exec/tensor_core.h"
#include "runtime/emulator/exec/thread.h"
#include "runtime/emulator/exec/wgmma_tile.h"

namespace attune::emulator {
namespace {

constexpr const char* kName = "wgmma.mma_async";
constexpr std::uint32_t kWarps = kWarpgroupSize / kWarpSize;

/// What a thread brings to the instruction.
struct WgmmaCall {
  const WgmmaInfo* info;
  std::uint64_t a, b;
  std::uint32_t scale_d;
  bool operator==(const WgmmaCall&) const = default;
};

class WgmmaOperation;

/// Of one warpgroup.
class WgmmaState final : public Extension {
 public:
  Agent agent;  ///< epochs: groups, counted from 1
  /// Issued and not yet waited for by every thread, in order.
  std::deque<std::shared_ptr<WgmmaOperation>> pending;
  // By lane of the warpgroup.
  std::array<std::uint32_t, kWarpgroupSize> committed{};  ///< groups
  std::array<std::uint32_t, kWarpgroupSize> complete{};   ///< groups that it has waited for
  std::array<bool, kWarpgroupSize> fenced{};              ///< has executed wgmma.fence

  static WgmmaState& of(ThreadContext* context) {
    std::unique_ptr<Extension>& slot = context->warpgroup().extensions[static_cast<std::size_t>(ExtensionSlot::wgmma)];
    if (!slot) {
      auto made = std::make_unique<WgmmaState>();
      if (Checker* checker = context->checker()) {
        made->agent = checker->new_agent(context->block->serial, AgentKind::wgmma_group);
      }
      slot = std::move(made);
    }
    return static_cast<WgmmaState&>(*slot);
  }
  static std::uint32_t lane_of(const ThreadContext* context) { return context->index % kWarpgroupSize; }

  void set_complete(ThreadContext* context, std::uint32_t groups);
  void thread_exits(ThreadContext* thread, std::uint32_t site) override;
};

class WgmmaOperation final : public AsyncOperation {
 public:
  WgmmaOperation(const WgmmaCall& call, const Gathering& gathering, std::uint32_t group, Agent agent)
      : AsyncOperation(gathering.threads->block),
        call_(call),
        threads_(gathering.threads),
        lanes_(gathering.lanes),
        site_(gathering.site),
        group_(group),
        agent_(agent) {
    Checker* checker = threads_->checker();
    if (checker == nullptr) return;
    for (std::uint32_t warp = 1; warp < kWarps; ++warp) {
      same_knowledge_ =
          same_knowledge_ && lanes_[0] != 0 && lanes_[warp] != 0 && checker->same_knowledge(leader(0), leader(warp));
    }
    if (!threads_->grid().seeded()) return;
    if (same_knowledge_) common_ = std::make_shared<SyncState>(checker->knowledge(leader(0)));
    for (std::uint32_t warp = 0; warp < kWarps; ++warp) {
      if (lanes_[warp] != 0) known_[warp] = checker->snapshot(leader(warp));
    }
  }

  const WgmmaInfo& info() const { return *call_.info; }
  std::uint32_t group() const { return group_; }
  std::uint32_t site() const { return site_; }
  std::uint32_t waiting = kWarpgroupSize;  ///< threads that have not waited for its group

 protected:
  void run() override {
    const WgmmaInfo& info = *call_.info;
    if (!info.a_in_registers &&
        !check_operand("A", decode_descriptor(call_.a), info.transpose_a, kWgmmaRows, /*own_rows=*/true)) {
      return;
    }
    if (!check_operand("B", decode_descriptor(call_.b), info.transpose_b, info.n, /*own_rows=*/false)) return;
    WgmmaTile& tile = WgmmaTile::scratch();
    tile.begin(info, threads_->block->shared, threads_, lanes_);
    tile.load_a(call_.a);
    tile.load_b(call_.b);
    tile.load_accumulators(call_.scale_d != 0);
    tile.multiply();
    tile.store_accumulators();
  }

 private:
  /// Finds bad descriptors and tells the checker what is read. False if the operand cannot be read.
  bool check_operand(const char* name, const MatrixDescriptor& descriptor, bool mn_major, std::uint32_t rows,
                     bool own_rows) const;

  /// The thread whose knowledge stands for that of its warp.
  Agent leader(std::uint32_t warp) const { return threads_[warp * kWarpSize].agent(); }

  WgmmaCall call_;
  ThreadContext* threads_;
  std::array<std::uint32_t, kWarps> lanes_;
  std::uint32_t site_, group_;
  Agent agent_;
  bool same_knowledge_ = true;  ///< of the leaders, as to what others did
  // At the issue, where the operation runs later: of each leader, and what all have in common.
  std::array<std::shared_ptr<const SyncState>, kWarps> known_;
  std::shared_ptr<const SyncState> common_;
};

/// Ranges of shared memory in units of chunks, from a set of chunk addresses.
class ChunkRanges {
 public:
  explicit ChunkRanges(const std::vector<std::uint32_t>& addresses) {
    const auto [least, most] = std::ranges::minmax(addresses);
    first_ = least / kChunkBytes;
    bits_.resize(most / kChunkBytes - first_ + 1);
    for (std::uint32_t address : addresses) bits_[address / kChunkBytes - first_] = true;
  }

  template <typename Visit>
  void for_each(const Visit& visit) const {
    for (std::size_t at = 0; at < bits_.size();) {
      if (!bits_[at]) {
        ++at;
        continue;
      }
      const std::size_t begin = at;
      while (at < bits_.size() && bits_[at]) ++at;
      visit((first_ + begin) * kChunkBytes, (at - begin) * kChunkBytes);
    }
  }

 private:
  std::uint32_t first_;
  std::vector<bool> bits_;
};

bool WgmmaOperation::check_operand(const char* name, const MatrixDescriptor& descriptor, bool mn_major,
                                   std::uint32_t rows, bool own_rows) const {
  Grid& grid = threads_->grid();
  const auto complain = [&](FindingKind kind, std::string text) {
    grid.add(kind, threads_, site_, fmt::format("{}: descriptor of {}: {}", kName, name, text));
    return false;
  };
  if (descriptor.reserved_bits) complain(FindingKind::bad_operand, "bits that must be zero are set");
  if (descriptor.base_offset != 0 && descriptor.swizzle == Swizzle::none) {
    complain(FindingKind::bad_operand, "base offset without a swizzle");
  }
  std::vector<std::uint32_t> chunks;
  operand_chunks(descriptor, mn_major, 0, rows, &chunks);
  const Block& block = *threads_->block;
  const auto [least, most] = std::ranges::minmax(chunks);
  if (least < kSharedReserved || most + kChunkBytes > block.shared_bytes) {
    return complain(FindingKind::out_of_bounds,
                    fmt::format("the operand reaches from shared address {:#x} to {:#x}, and the block's memory from "
                                "{:#x} to {:#x}",
                                least, most + kChunkBytes, kSharedReserved, block.shared_bytes));
  }
  Checker* checker = threads_->checker();
  if (checker == nullptr) return true;
  const auto record = [&](std::uint32_t warp, const SyncState* known) {
    Access access;
    access.agent = agent_;
    access.epoch = group_ + 1;
    access.issuer = leader(warp);
    access.proxy = Proxy::async;
    access.site = site_;
    ChunkRanges(chunks).for_each([&](std::size_t offset, std::size_t bytes) {
      checker->access(block.shared_region, offset, bytes, access, known);
    });
  };
  // Each warp reads its own rows of A and all of B, and must know that they have been written.
  if (!own_rows && same_knowledge_) {
    record(0, common_ ? common_.get() : &checker->knowledge(leader(0)));
    return true;
  }
  for (std::uint32_t warp = 0; warp < kWarps; ++warp) {
    if (lanes_[warp] == 0) continue;
    if (own_rows) operand_chunks(descriptor, mn_major, warp * rows / kWarps, rows / kWarps, &chunks);
    record(warp, known_[warp].get());
  }
  return true;
}

// -- issue ----------------------------------------------------------------------------------------------

struct SlotList {
  const std::uint16_t* slots;
  std::size_t count;
  bool operator==(const SlotList& other) const {
    return std::equal(slots, slots + count, other.slots, other.slots + other.count);
  }
  bool contains(std::uint32_t slot) const { return std::find(slots, slots + count, slot) != slots + count; }
  std::uint8_t states(const ThreadContext& thread) const {
    std::uint8_t all = 0;
    for (std::size_t i = 0; i < count; ++i) all |= thread.slot_states[slots[i]];
    return all;
  }
  void add(ThreadContext* thread, SlotState state) const {
    for (std::size_t i = 0; i < count; ++i) thread->slot_states[slots[i]] |= state;
  }
};
SlotList accumulators(const WgmmaInfo& info) { return {info.d_slots, accumulator_words(info)}; }
SlotList a_registers(const WgmmaInfo& info) { return {info.a_slots, info.a_in_registers ? kARegisters : 0}; }

/// Keeps these states alone, of all slots.
void keep_states(ThreadContext* thread, std::uint8_t kept) {
  const auto count = static_cast<std::size_t>(thread->grid().plan().kernel->slots);
  std::size_t i = 0;
  for (const std::uint64_t mask = kept * std::uint64_t{0x0101010101010101}; i + 8 <= count; i += 8) {
    std::uint64_t word;
    std::memcpy(&word, thread->slot_states + i, 8);
    word &= mask;
    std::memcpy(thread->slot_states + i, &word, 8);
  }
  for (; i < count; ++i) thread->slot_states[i] &= kept;
}

void mark_slots(ThreadContext* thread, const WgmmaInfo& info) {
  accumulators(info).add(thread, kSlotBusy);
  a_registers(info).add(thread, kSlotRead);
}

/// Finds register operands that ordinary code has touched without wgmma.fence.
void check_registers(ThreadContext* thread, const WgmmaInfo& info, bool chained, bool fenced, std::uint32_t site) {
  Grid& grid = thread->grid();
  if (!fenced) {
    grid.add(FindingKind::register_hazard, thread, site,
             fmt::format("{}: the thread has executed no wgmma.fence before it", kName));
    return;
  }
  const auto complain = [&](const char* what) {
    grid.add(FindingKind::register_hazard, thread, site,
             fmt::format("{}: {} were written after the thread's last wgmma.fence", kName, what));
  };
  if (!chained && (accumulators(info).states(*thread) & kSlotWritten) != 0) complain("accumulator registers");
  const std::uint8_t a_states = a_registers(info).states(*thread);
  if ((a_states & kSlotWritten) != 0) complain("registers of A");
  if ((a_states & kSlotBusy) != 0) {
    grid.add(FindingKind::register_hazard, thread, site,
             fmt::format("{}: registers of A are accumulators of a wgmma that is still pending", kName));
  }
}

bool issue(Gathering& gathering) {
  std::uint32_t first = 0;
  while (!gathering.has(first)) ++first;
  const WgmmaCall call = *gathering.operand<WgmmaCall>(first);
  ThreadContext* leader = gathering.thread(first);
  Grid& grid = leader->grid();
  WgmmaState& state = WgmmaState::of(leader);
  const WgmmaInfo& info = *call.info;
  const std::uint32_t group = state.committed[first];
  const bool checks = leader->checker() != nullptr;
  // Follow-up products into the same accumulators find them busy already.
  const bool chained = !state.pending.empty() && state.pending.back()->group() == group &&
                       accumulators(info) == accumulators(state.pending.back()->info());

  auto operation = std::make_shared<WgmmaOperation>(call, gathering, group, state.agent);
  for (std::uint32_t lane = first; lane < kWarpgroupSize; ++lane) {
    if (!gathering.has(lane)) {
      --operation->waiting;
      continue;
    }
    ThreadContext* thread = gathering.thread(lane);
    const WgmmaCall& own = *gathering.operand<WgmmaCall>(lane);
    if (own != call) {
      grid.add(
          FindingKind::divergence, thread, gathering.site,
          fmt::format("{}: descriptors {:#x}, {:#x} and scale-d {} where another thread of the warpgroup has {:#x}, "
                      "{:#x} and {}",
                      kName, own.a, own.b, own.scale_d, call.a, call.b, call.scale_d),
          leader, gathering.site);
    }
    if (state.committed[lane] != group) {
      grid.add(FindingKind::divergence, thread, gathering.site,
               fmt::format("{}: the thread has committed {} groups, another of the warpgroup {}", kName,
                           state.committed[lane], group),
               leader, gathering.site);
    }
    if (!checks) continue;
    check_registers(thread, info, chained, state.fenced[lane], gathering.site);
    if (chained) {
      a_registers(info).add(thread, kSlotRead);
    } else {
      mark_slots(thread, info);
    }
  }
  operation->waiting -= first;
  if (!state.pending.empty()) operation->after.push_back(state.pending.back());
  state.pending.push_back(operation);
  grid.async().submit(std::move(operation));
  return true;
}

void WgmmaState::set_complete(ThreadContext* context, std::uint32_t groups) {
  const std::uint32_t lane = lane_of(context);
  const std::uint32_t before = std::exchange(complete[lane], groups);
  AsyncQueue& queue = context->grid().async();
  for (const std::shared_ptr<WgmmaOperation>& operation : pending) {
    if (operation->group() >= groups) break;
    if (operation->group() < before) continue;
    queue.finish(operation.get());
    --operation->waiting;
  }
  if (Checker* checker = context->checker()) {
    checker->learn(context->agent(), agent, groups);
    // What is still pending stays marked.
    keep_states(context, kSlotWritten);
    const WgmmaInfo* last = nullptr;
    for (const std::shared_ptr<WgmmaOperation>& operation : pending) {
      if (operation->group() < groups) continue;
      const WgmmaInfo& info = operation->info();
      if (last == nullptr || !(accumulators(info) == accumulators(*last))) accumulators(info).add(context, kSlotBusy);
      a_registers(info).add(context, kSlotRead);
      last = &info;
    }
  }
  while (!pending.empty() && pending.front()->waiting == 0) pending.pop_front();
}

void WgmmaState::thread_exits(ThreadContext* thread, std::uint32_t site) {
  if (pending.empty() || pending.back()->group() < complete[lane_of(thread)]) return;
  thread->grid().add(FindingKind::register_hazard, thread, site,
                     fmt::format("the thread exits while a {} is pending: no wgmma.wait_group covers it", kName),
                     thread, pending.back()->site());
}

}  // namespace

extern "C" {

void att_wgmma(ThreadContext* context, const WgmmaInfo* info, std::uint64_t a_descriptor, std::uint64_t b_descriptor,
               std::uint32_t scale_d, std::uint32_t site) {
  WgmmaCall call{info, info->a_in_registers ? 0 : a_descriptor, b_descriptor, scale_d != 0 ? 1u : 0u};
  gather_warpgroup(context, kName, site, &call, issue);
}

void att_wgmma_fence(ThreadContext* context, std::uint32_t) {
  if (context->checker() == nullptr) return;
  WgmmaState::of(context).fenced[WgmmaState::lane_of(context)] = true;
  keep_states(context, kSlotRead | kSlotBusy);
}

void att_wgmma_commit(ThreadContext* context, std::uint32_t) {
  ++WgmmaState::of(context).committed[WgmmaState::lane_of(context)];
}

void att_wgmma_wait(ThreadContext* context, std::uint32_t pending, std::uint32_t) {
  WgmmaState& state = WgmmaState::of(context);
  const std::uint32_t lane = WgmmaState::lane_of(context);
  const std::uint32_t committed = state.committed[lane];
  const std::uint32_t groups = committed > pending ? committed - pending : 0;
  if (groups > state.complete[lane]) state.set_complete(context, groups);
}

void att_slot_hazard(ThreadContext* context, std::uint32_t slot, std::uint32_t write, std::uint32_t site) {
  const WgmmaState& state = WgmmaState::of(context);
  const std::uint32_t complete = state.complete[WgmmaState::lane_of(context)];
  for (const std::shared_ptr<WgmmaOperation>& operation : state.pending) {
    if (operation->group() < complete) continue;
    const bool result = accumulators(operation->info()).contains(slot);
    if (!result && (write == 0 || !a_registers(operation->info()).contains(slot))) continue;
    context->grid().add(FindingKind::register_hazard, context, site,
                        fmt::format("a register is {} while a pending {} {} it: no wgmma.wait_group for it comes in "
                                    "between",
                                    write != 0 ? "written" : "read", kName, result ? "accumulates into" : "reads"),
                        context, operation->site());
    return;
  }
}

}  // extern "C"

}  // namespace attune::emulator
