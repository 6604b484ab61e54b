#include "runtime/emulator/exec/rendezvous.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <string>
#include <utility>

#include "runtime/emulator/exec/grid.h"
#include "runtime/emulator/exec/report_text.h"
#include "runtime/emulator/exec/thread.h"

namespace attune::emulator {

namespace {

using Lanes = std::array<std::uint32_t, 4>;

bool any(const Lanes& lanes) { return (lanes[0] | lanes[1] | lanes[2] | lanes[3]) != 0; }

Lanes without(const Lanes& lanes, const Lanes& others) {
  Lanes result;
  for (std::size_t i = 0; i < lanes.size(); ++i) result[i] = lanes[i] & ~others[i];
  return result;
}

/// The group of lanes in which an instruction is executed together: a warp, or the warps of a warpgroup.
struct Group {
  Rendezvous* rendezvous;
  Warp* warps;
  std::uint32_t count;

  ThreadContext* threads() const { return warps->threads; }
  std::uint32_t lane_of(const ThreadContext* context) const { return context->index - threads()->index; }
  Lanes exited() const {
    Lanes lanes;
    for (std::uint32_t i = 0; i < lanes.size(); ++i) lanes[i] = i < count ? ~warps[i].live() : ~0u;
    return lanes;
  }
};

Group warp_group(ThreadContext* context) { return {&context->warp->rendezvous, context->warp, 1}; }

Group warpgroup_group(ThreadContext* context) {
  Warpgroup& group = context->warpgroup();
  const std::uint32_t first = group.index * 4;
  const auto warps = static_cast<std::uint32_t>(context->block->warps.size());
  return {&group.rendezvous, &context->block->warps[first], std::min(4u, warps - first)};
}

std::string lanes_text(const Group& group, const Lanes& lanes) {
  std::vector<std::uint32_t> threads;
  for (std::uint32_t lane = 0; lane < 128; ++lane) {
    if (lanes[lane / 32] >> lane % 32 & 1) threads.push_back(group.threads()->index + lane);
  }
  return thread_ranges(threads);
}

/// Takes the lanes out of the list and does the work. `last` runs now; the others are woken if they go on. Whether
/// `last` goes on, too.
bool complete(const Group& group, std::size_t index, ThreadContext* last) {
  const OpenRendezvous open = group.rendezvous->open[index];
  group.rendezvous->open.erase(group.rendezvous->open.begin() + static_cast<std::ptrdiff_t>(index));
  Gathering gathering{group.threads(), group.count == 1 ? 32u : 128u, open.site, open.arrived};
  Grid& grid = last->grid();
  grid.progress();
  if (!open.perform(gathering)) return false;
  for (std::uint32_t warp = 0; warp < group.count; ++warp) {
    for (std::uint32_t lanes = open.arrived[warp]; lanes; lanes &= lanes - 1) {
      ThreadContext* thread = gathering.thread(warp * 32 + static_cast<std::uint32_t>(std::countr_zero(lanes)));
      if (thread != last) grid.wake(thread);
    }
  }
  return true;
}

void report_missing(const Group& group, const OpenRendezvous& open, const Lanes& missing, ThreadContext* thread) {
  thread->grid().add(
      FindingKind::divergence, thread, open.site,
      fmt::format("{}: {} do not take part: they have exited or do not exist", open.what, lanes_text(group, missing)));
}

/// Whether all that it waits for are there; finds lanes that cannot come any more.
bool satisfied(const Group& group, OpenRendezvous* open, ThreadContext* thread) {
  const Lanes missing = without(open->wanted, open->arrived);
  if (any(without(missing, group.exited()))) return false;
  if (any(missing) && !open->exited_allowed) report_missing(group, *open, missing, thread);
  return true;
}

/// Two instructions that wait for each other's lanes never go on.
void find_conflict(const Group& group, const Group& others, const OpenRendezvous& open, ThreadContext* context) {
  const std::uint32_t shift = context->index - others.threads()->index;
  for (const OpenRendezvous& other : others.rendezvous->open) {
    if (&other == &open || !(other.wanted[shift / 32] >> shift % 32 & 1) ||
        (other.arrived[shift / 32] >> shift % 32 & 1))
      continue;
    // Lanes that are there and are wanted here.
    for (std::uint32_t warp = 0; warp < others.count; ++warp) {
      const std::uint32_t own = others.warps[warp].index - group.warps->index;
      if (own >= group.count) continue;
      const std::uint32_t both = other.arrived[warp] & open.wanted[own] & ~open.arrived[own];
      if (!both) continue;
      ThreadContext* first = &others.warps[warp].threads[std::countr_zero(both)];
      Lanes lanes{};
      lanes[own] = both;
      context->grid().add(FindingKind::divergence, context, open.site,
                          fmt::format("{} waits for {}, which wait for this thread at {}", open.what,
                                      lanes_text(group, lanes), other.what),
                          first, other.site);
      return;
    }
  }
}

void gather(ThreadContext* context, const Group& group, OpenRendezvous&& request, void* operand) {
  const std::uint32_t lane = group.lane_of(context);
  context->rendezvous.operand = operand;
  std::vector<OpenRendezvous>& list = group.rendezvous->open;
  std::size_t index = 0;
  while (index < list.size() && !(list[index].key == request.key && list[index].wanted == request.wanted &&
                                  list[index].perform == request.perform)) {
    ++index;
  }
  if (index == list.size()) list.push_back(std::move(request));
  OpenRendezvous& open = list[index];
  open.arrived[lane / 32] |= 1u << lane % 32;
  context->wait = {.kind = Wait::Kind::rendezvous, .site = open.site, .what = open.what};
  if (satisfied(group, &open, context)) {
    if (complete(group, index, context)) {
      context->wait.kind = Wait::Kind::none;
      return;
    }
  } else {
    const Group warp = warp_group(context), warpgroup = warpgroup_group(context);
    find_conflict(group, warp, open, context);
    find_conflict(group, warpgroup, open, context);
  }
  context->grid().block_thread(context);
}

}  // namespace

ThreadContext* Gathering::thread(std::uint32_t lane) const { return threads + lane; }

void* Gathering::operand_of(std::uint32_t lane) const { return has(lane) ? threads[lane].rendezvous.operand : nullptr; }

void gather_masked(ThreadContext* context, const char* what, std::uint32_t key, std::uint32_t mask, std::uint32_t site,
                   void* operand, Perform perform) {
  const std::uint32_t own = 1u << context->lane;
  if (!(mask & own)) {
    context->grid().add(FindingKind::divergence, context, site,
                        fmt::format("{}: lane {} is not in its own member mask {:#010x}", what, context->lane, mask));
    mask |= own;
  }
  gather(context, warp_group(context),
         {.what = what,
          .key = key,
          .wanted = {mask},
          .arrived = {},
          .site = site,
          .exited_allowed = true,
          .perform = perform},
         operand);
}

void gather_warp(ThreadContext* context, const char* what, std::uint32_t site, void* operand, Perform perform,
                 bool exited_allowed) {
  const std::uint32_t wanted = exited_allowed ? context->warp->present : ~0u;
  gather(context, warp_group(context),
         {.what = what,
          .key = site,
          .wanted = {wanted},
          .arrived = {},
          .site = site,
          .exited_allowed = exited_allowed,
          .perform = perform},
         operand);
}

void gather_warpgroup(ThreadContext* context, const char* what, std::uint32_t site, void* operand, Perform perform) {
  gather(context, warpgroup_group(context),
         {.what = what,
          .key = site,
          .wanted = {~0u, ~0u, ~0u, ~0u},
          .arrived = {},
          .site = site,
          .exited_allowed = false,
          .perform = perform},
         operand);
}

void rendezvous_exit(ThreadContext* context) {
  for (const Group& group : {warp_group(context), warpgroup_group(context)}) {
    std::vector<OpenRendezvous>& list = group.rendezvous->open;
    for (std::size_t i = 0; i < list.size();) {
      if (satisfied(group, &list[i], context)) {
        complete(group, i, context);
      } else {
        ++i;
      }
    }
  }
}

std::string rendezvous_text(const ThreadContext* context) {
  auto* thread = const_cast<ThreadContext*>(context);
  for (const Group& group : {warp_group(thread), warpgroup_group(thread)}) {
    const std::uint32_t lane = group.lane_of(context);
    for (const OpenRendezvous& open : group.rendezvous->open) {
      if (open.arrived[lane / 32] >> lane % 32 & 1) {
        const Lanes missing = without(without(open.wanted, open.arrived), group.exited());
        return fmt::format("{} with {}", open.what, lanes_text(group, missing));
      }
    }
  }
  return context->wait.what;
}

void report_incomplete(const Block* block) {
  std::vector<Group> groups;
  for (const Warp& warp : block->warps) groups.push_back(warp_group(warp.threads));
  for (const Warpgroup& group : block->warpgroups)
    groups.push_back(warpgroup_group(&block->threads[group.index * 128]));
  for (const Group& group : groups) {
    for (const OpenRendezvous& open : group.rendezvous->open) {
      const Gathering there{group.threads(), 0, open.site, open.arrived};
      std::uint32_t first = 0;
      while (!there.has(first)) ++first;
      const Lanes missing = without(without(open.wanted, open.arrived), group.exited());
      block->grid->add(FindingKind::divergence, there.thread(first), open.site,
                       fmt::format("{}: {} never take part", open.what, lanes_text(group, missing)));
    }
  }
}

}  // namespace attune::emulator
