#include "runtime/emulator/exec/deadlock.h"

#include <fmt/format.h>

#include <algorithm>

#include "runtime/emulator/exec/grid.h"
#include "runtime/emulator/exec/report_text.h"

namespace attune::emulator {

namespace {

constexpr std::size_t kMostGroups = 16;

bool same(const Wait& a, const Wait& b) {
  return a.kind == b.kind && a.site == b.site && a.id == b.id && a.mbarrier == b.mbarrier && a.phase == b.phase;
}

std::string block_text(const Block& block) {
  return fmt::format("block ({},{},{})", block.index.x, block.index.y, block.index.z);
}

std::string site_text(const ProgramImage& image, std::uint32_t site) {
  if (site >= image.sites.size()) return "";
  const SourcePosition at = image.position(site);
  if (at.file.empty()) return fmt::format(" [PTX line {}]", at.ptx_line);
  if (at.inlined_file.empty()) return fmt::format(" [{}:{}]", at.file, at.line);
  return fmt::format(" [{}:{} inlined at {}:{}]", at.file, at.line, at.inlined_file, at.inlined_line);
}

std::string missing_warps(const Block& block, const NamedBarrier& barrier) {
  std::vector<std::uint32_t> threads;
  for (std::uint32_t i = 0; i < block.thread_count; ++i) {
    const std::uint32_t warp = i / kWarpSize;
    if (!block.threads[i].exited && (warp >= barrier.warps.size() || !barrier.warps[warp])) threads.push_back(i);
  }
  return thread_ranges(threads);
}

std::string named_barrier_text(const WaitGroup& group) {
  const NamedBarrier& barrier = group.block->barriers.barriers[group.wait.id];
  const bool pending = !barrier.pending_lanes.empty() && barrier.pending_lanes[group.threads.front() / kWarpSize] != 0;
  if (pending) return fmt::format("the other lanes of the warp to come to named barrier {}", group.wait.id);
  std::string text = fmt::format("named barrier {}: ", group.wait.id);
  if (!barrier.all) return text + fmt::format("{} of {} threads have arrived", barrier.arrived, barrier.expected);
  return text + fmt::format("{} are missing", missing_warps(*group.block, barrier));
}

std::string cluster_text(const Cluster& cluster) {
  std::uint32_t live = 0;
  for (const Block* block : cluster.blocks) live += block->live;
  return fmt::format("the cluster's barrier: {} of {} threads have arrived", cluster.barrier.arrived, live);
}

std::string mbarrier_text(const WaitGroup& group) {
  const Mbarrier& mbarrier = *group.wait.mbarrier;
  std::string text =
      fmt::format("the mbarrier at shared address {:#x} (offset {}), phase {} (parity {}): ", mbarrier.offset,
                  mbarrier.offset - kSharedReserved, group.wait.phase, group.wait.phase & 1);
  if (mbarrier.pending == 0) {
    text += "all arrivals are there";
  } else {
    text += fmt::format("{} of {} arrivals are missing", mbarrier.pending, mbarrier.expected);
  }
  return text + fmt::format(", {} bytes are outstanding", mbarrier.tx);
}

std::string register_text(const WaitGroup& group) {
  const Block& block = *group.block;
  for (const RegisterRequest& request : block.registers.waiting) {
    if (request.warpgroup == group.threads.front() / kWarpgroupSize)
      return fmt::format("setmaxnreg.inc {}, which {}", request.count, register_shortage(block, request));
  }
  return "registers";
}

std::string group_text(const WaitGroup& group) {
  switch (group.wait.kind) {
    case Wait::Kind::none: return "nothing";
    case Wait::Kind::rendezvous: return rendezvous_text(&group.block->threads[group.threads.front()]);
    case Wait::Kind::active_mask: return group.wait.what;
    case Wait::Kind::named_barrier: return named_barrier_text(group);
    case Wait::Kind::cluster_barrier: return cluster_text(*group.block->cluster);
    case Wait::Kind::mbarrier: return mbarrier_text(group);
    case Wait::Kind::register_pool: return register_text(group);
  }
  return "";
}

}  // namespace

std::vector<WaitGroup> waiting_groups(const std::vector<Block*>& blocks) {
  std::vector<WaitGroup> groups;
  for (Block* block : blocks) {
    const std::size_t first = groups.size();
    for (std::uint32_t i = 0; i < block->thread_count; ++i) {
      const ThreadContext& thread = block->threads[i];
      if (thread.exited) continue;
      auto group = std::find_if(groups.begin() + static_cast<std::ptrdiff_t>(first), groups.end(),
                                [&](const WaitGroup& other) { return same(other.wait, thread.wait); });
      if (group == groups.end()) group = groups.insert(groups.end(), {block, thread.wait, {}});
      group->threads.push_back(i);
    }
  }
  return groups;
}

std::string deadlock_text(const LaunchPlan& plan, const std::vector<Block*>& blocks,
                          const std::vector<WaitGroup>& groups, std::uint64_t not_started) {
  std::string text = "no thread can go on: ";
  const Block* block = nullptr;
  for (std::size_t i = 0; i < groups.size() && i < kMostGroups; ++i) {
    if (i) text += "; ";
    if (blocks.size() > 1 && groups[i].block != block) text += block_text(*groups[i].block) + ": ";
    block = groups[i].block;
    text +=
        fmt::format("{} wait{} for {}{}", thread_ranges(groups[i].threads), groups[i].threads.size() == 1 ? "s" : "",
                    group_text(groups[i]), site_text(*plan.image, groups[i].wait.site));
  }
  if (groups.size() > kMostGroups) text += fmt::format("; and {} more groups", groups.size() - kMostGroups);
  std::uint64_t exited = 0;
  for (const Block* each : blocks) exited += each->thread_count - each->live;
  if (exited) text += fmt::format("; {} threads have exited", exited);
  if (not_started) {
    text +=
        fmt::format("; {} blocks have not started (resident_blocks is {})", not_started, plan.options.resident_blocks);
  }
  return text;
}

}  // namespace attune::emulator
