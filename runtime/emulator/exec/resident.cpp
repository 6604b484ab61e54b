#include "runtime/emulator/exec/resident.h"

#include <algorithm>
#include <bit>
#include <cstdlib>
#include <cstring>

#include "base/error.h"
#include "runtime/emulator/exec/grid.h"

namespace attune::emulator {

namespace {

/// Room for the runtime's own functions on a thread's stack.
constexpr std::size_t kLeastStack = std::size_t{48} << 10;
constexpr std::size_t kSharedAlignment = 1024;
constexpr std::size_t kLocalAlignment = 16;
/// Not a number in any format, and not an address: what unwritten memory holds.
constexpr int kUnwritten = 0xFF;

std::size_t rounded(std::size_t bytes, std::size_t to) { return (bytes + to - 1) / to * to; }

}  // namespace

AlignedBytes::AlignedBytes(std::size_t bytes, std::size_t alignment) {
  if (bytes == 0) return;
  memory_.reset(static_cast<std::uint8_t*>(std::aligned_alloc(alignment, rounded(bytes, alignment))));
  if (!memory_) fail(ErrorCode::out_of_memory, "{} bytes", bytes);
}

void AlignedBytes::Free::operator()(std::uint8_t* memory) const { std::free(memory); }

Resident::Resident(const LaunchPlan& plan, bool checks)
    : plan_(plan),
      checks_(checks),
      thread_count_(plan.options.block.x * plan.options.block.y * plan.options.block.z),
      slots_(static_cast<std::size_t>(plan.kernel->slots)),
      local_bytes_(rounded(plan.kernel->local_bytes, kLocalAlignment)),
      stacks_(thread_count_, std::max(kLeastStack, plan.kernel->stack_bytes)),
      threads_(std::make_unique<ThreadContext[]>(thread_count_)),
      shared_(plan.shared_bytes, kSharedAlignment),
      local_(local_bytes_ * thread_count_, kLocalAlignment),
      local_written_(checks ? local_bytes_ * thread_count_ : 0, kLocalAlignment),
      slot_memory_(slots_ * thread_count_ * sizeof(std::uint32_t), alignof(std::max_align_t)),
      slot_states_(slots_ * thread_count_, alignof(std::max_align_t)) {}

void Resident::start(Grid* grid, Cluster* cluster, std::uint32_t serial, Dim3 index, std::uint32_t rank,
                     Fibre::Body body) {
  block_.grid = grid;
  block_.cluster = cluster;
  block_.serial = serial;
  block_.index = index;
  block_.rank = rank;
  block_.shared = shared_.data();
  block_.shared_bytes = plan_.shared_bytes;
  std::memset(shared_.data(), kUnwritten, plan_.shared_bytes);
  if (checks_)
    shared_region_ = std::make_unique<ShadowRegion>("shared memory", ProxySpace::shared, plan_.shared_bytes, false);
  block_.shared_region = shared_region_.get();
  block_.threads = threads_.get();
  block_.thread_count = block_.live = thread_count_;
  block_.registers.free = 0;
  if (local_bytes_) {
    std::memset(local_.data(), kUnwritten, local_bytes_ * thread_count_);
    if (checks_) std::memset(local_written_.data(), 0, local_bytes_ * thread_count_);
  }
  if (slots_) {
    std::memset(slot_memory_.data(), 0, slots_ * thread_count_ * sizeof(std::uint32_t));
    std::memset(slot_states_.data(), kSlotFree, slots_ * thread_count_);
  }

  const Dim3 dim = plan_.options.block;
  block_.warps.resize((thread_count_ + kWarpSize - 1) / kWarpSize);
  block_.warpgroups.resize((thread_count_ + kWarpgroupSize - 1) / kWarpgroupSize);
  for (std::uint32_t i = 0; i < block_.warpgroups.size(); ++i) {
    block_.warpgroups[i].block = &block_;
    block_.warpgroups[i].index = i;
    block_.warpgroups[i].registers = plan_.registers_per_thread;
  }
  for (std::uint32_t i = 0; i < block_.warps.size(); ++i) {
    Warp& warp = block_.warps[i];
    warp.block = &block_;
    warp.index = i;
    warp.threads = &threads_[i * kWarpSize];
    const std::uint32_t lanes = std::min<std::uint32_t>(kWarpSize, thread_count_ - i * kWarpSize);
    warp.present = warp.ready = lanes == kWarpSize ? ~0u : (1u << lanes) - 1;
  }
  for (std::uint32_t i = 0; i < thread_count_; ++i) {
    ThreadContext& thread = threads_[i];
    thread.slots = reinterpret_cast<std::uint32_t*>(slot_memory_.data()) + slots_ * i;
    thread.slot_states = slot_states_.data() + slots_ * i;
    thread.parameters = plan_.parameters;
    thread.block = &block_;
    thread.warp = &block_.warps[i / kWarpSize];
    thread.index = i;
    thread.lane = i % kWarpSize;
    thread.position = {i % dim.x, i / dim.x % dim.y, i / dim.x / dim.y};
    thread.local = local_.data() + local_bytes_ * i;
    thread.local_written = checks_ && local_bytes_ ? local_written_.data() + local_bytes_ * i : nullptr;
    thread.fibre.prepare(stacks_.stack(i), stacks_.stack_bytes(), body, &thread);
  }
}

void Resident::clear() {
  block_ = Block();
  shared_region_.reset();
  for (std::uint32_t i = 0; i < thread_count_; ++i) threads_[i] = ThreadContext();
}

}  // namespace attune::emulator
