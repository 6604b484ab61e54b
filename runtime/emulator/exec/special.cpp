// Special registers, fences, and what a thread does to itself.

#include <cstddef>
#include <cstdint>

#include "runtime/emulator/check/checker.h"
#include "runtime/emulator/exec/grid.h"
#include "runtime/emulator/exec/thread.h"

namespace attune::emulator {

// Translated code has these offsets built in.
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Winvalid-offsetof"
static_assert(offsetof(ThreadContext, slots) == 0);
static_assert(offsetof(ThreadContext, slot_states) == 8);
static_assert(offsetof(ThreadContext, parameters) == 16);
static_assert(offsetof(ThreadContext, fuel) == 24);
static_assert(offsetof(ThreadContext, local_top) == 28);
static_assert(offsetof(ThreadContext, instructions) == 32);
#pragma GCC diagnostic pop

namespace {

constexpr std::uint32_t kProcessors = 132;

/// A clock that runs with the instructions of the whole grid: the same in every run with the same seed.
std::uint64_t ticks(const ThreadContext& context) {
  return context.grid().instructions() + context.instructions - context.counted;
}

Dim3 position_in_cluster(const Block& block, const Dim3& cluster) {
  return {block.index.x % cluster.x, block.index.y % cluster.y, block.index.z % cluster.z};
}

}  // namespace

extern "C" {

std::uint64_t att_special(ThreadContext* context, std::uint32_t which) {
  const Block& block = *context->block;
  const LaunchPlan& plan = context->grid().plan();
  const LaunchOptions& options = plan.options;
  const Dim3 in_cluster = position_in_cluster(block, options.cluster);
  const std::uint32_t lane = context->lane;
  const std::uint32_t shared = plan.shared_bytes - kSharedReserved;
  switch (static_cast<SpecialRegister>(which)) {
    case SpecialRegister::tid_x: return context->position.x;
    case SpecialRegister::tid_y: return context->position.y;
    case SpecialRegister::tid_z: return context->position.z;
    case SpecialRegister::ntid_x: return options.block.x;
    case SpecialRegister::ntid_y: return options.block.y;
    case SpecialRegister::ntid_z: return options.block.z;
    case SpecialRegister::ctaid_x: return block.index.x;
    case SpecialRegister::ctaid_y: return block.index.y;
    case SpecialRegister::ctaid_z: return block.index.z;
    case SpecialRegister::nctaid_x: return options.grid.x;
    case SpecialRegister::nctaid_y: return options.grid.y;
    case SpecialRegister::nctaid_z: return options.grid.z;
    case SpecialRegister::laneid: return lane;
    case SpecialRegister::warpid: return context->warp->index;
    case SpecialRegister::nwarpid: return block.warps.size();
    case SpecialRegister::smid: return block.serial % kProcessors;
    case SpecialRegister::nsmid: return kProcessors;
    case SpecialRegister::gridid: return 1;
    case SpecialRegister::warp_size: return kWarpSize;
    case SpecialRegister::lanemask_eq: return 1u << lane;
    case SpecialRegister::lanemask_le: return (2u << lane) - 1;
    case SpecialRegister::lanemask_lt: return (1u << lane) - 1;
    case SpecialRegister::lanemask_ge: return ~0u << lane;
    case SpecialRegister::lanemask_gt: return ~0u - ((2u << lane) - 1);
    case SpecialRegister::clock: return ticks(*context) & 0xFFFFFFFF;
    case SpecialRegister::clock64:
    case SpecialRegister::globaltimer: return ticks(*context);
    case SpecialRegister::globaltimer_lo: return ticks(*context) & 0xFFFFFFFF;
    case SpecialRegister::clock_hi:
    case SpecialRegister::globaltimer_hi: return ticks(*context) >> 32;
    case SpecialRegister::clusterid_x: return block.index.x / options.cluster.x;
    case SpecialRegister::clusterid_y: return block.index.y / options.cluster.y;
    case SpecialRegister::clusterid_z: return block.index.z / options.cluster.z;
    case SpecialRegister::nclusterid_x: return options.grid.x / options.cluster.x;
    case SpecialRegister::nclusterid_y: return options.grid.y / options.cluster.y;
    case SpecialRegister::nclusterid_z: return options.grid.z / options.cluster.z;
    case SpecialRegister::cluster_ctaid_x: return in_cluster.x;
    case SpecialRegister::cluster_ctaid_y: return in_cluster.y;
    case SpecialRegister::cluster_ctaid_z: return in_cluster.z;
    case SpecialRegister::cluster_nctaid_x: return options.cluster.x;
    case SpecialRegister::cluster_nctaid_y: return options.cluster.y;
    case SpecialRegister::cluster_nctaid_z: return options.cluster.z;
    case SpecialRegister::cluster_ctarank: return block.rank;
    case SpecialRegister::cluster_nctarank: return block.cluster->blocks.size();
    case SpecialRegister::is_explicit_cluster: return block.cluster->blocks.size() > 1;
    case SpecialRegister::dynamic_smem_size: return options.dynamic_shared_bytes;
    case SpecialRegister::total_smem_size: return shared;
    case SpecialRegister::aggr_smem_size: return plan.shared_bytes;
    case SpecialRegister::reserved_smem_offset_begin: return 0;
    case SpecialRegister::reserved_smem_offset_end: return kSharedReserved;
    case SpecialRegister::current_graph_exec:
    case SpecialRegister::count: return 0;
  }
  return 0;
}

void att_fence(ThreadContext* context, FenceKind kind, std::uint32_t) {
  Checker* checker = context->checker();
  if (!checker) return;
  switch (kind) {
    case FenceKind::proxy_async:
      context->block->mbarriers.announce_all();
      finish_loads(context);
      checker->fence_async(context->agent());
      break;
    case FenceKind::proxy_async_shared:
      context->block->mbarriers.announce_all();
      finish_loads(context);
      checker->fence_async(context->agent(), ProxySpace::shared);
      break;
    case FenceKind::proxy_async_global: checker->fence_async(context->agent(), ProxySpace::global); break;
    case FenceKind::proxy_alias: break;
    case FenceKind::cta:
    case FenceKind::cluster:
    case FenceKind::gpu:
    case FenceKind::sys:
    case FenceKind::proxy_tensormap: checker->fence(context->agent()); break;
    case FenceKind::mbarrier_init:
      context->block->mbarriers.announce(context->index);
      checker->fence(context->agent());
      break;
  }
}

/// Grids run one after another: what another one may have to finish first has been finished.
void att_griddepcontrol(ThreadContext*, std::uint32_t, std::uint32_t) {}

void att_yield(ThreadContext* context, std::uint32_t site) {
  context->wait.site = site;
  context->grid().yield(context);
}

void att_trap(ThreadContext* context, std::uint32_t site) {
  context->grid().add(FindingKind::trap, context, site, "the kernel executed a trap");
  context->grid().stop(context);
}

void att_exit(ThreadContext* context, std::uint32_t site) { context->grid().exit_thread(context, site); }

}  // extern "C"

}  // namespace attune::emulator
