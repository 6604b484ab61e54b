#include "runtime/emulator/exec/barrier.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <string>
#include <utility>

#include "runtime/emulator/check/checker.h"
#include "runtime/emulator/exec/grid.h"
#include "runtime/emulator/exec/memory.h"
#include "runtime/emulator/exec/report_text.h"
#include "runtime/emulator/exec/thread.h"

namespace attune::emulator {

namespace {

/// What one lane brings to bar/barrier.cta.
struct Arrival {
  BarrierMode mode;
  std::uint32_t id, threads;
  bool predicate;
  std::uint32_t site;
  std::uint32_t result = 0;
};

bool is_reduction(BarrierMode mode) { return mode != BarrierMode::sync && mode != BarrierMode::arrive; }

const char* mode_name(BarrierMode mode) {
  switch (mode) {
    case BarrierMode::sync: return "bar.sync";
    case BarrierMode::arrive: return "bar.arrive";
    case BarrierMode::red_popc: return "bar.red.popc";
    case BarrierMode::red_and: return "bar.red.and";
    case BarrierMode::red_or: return "bar.red.or";
  }
  return "";
}

Arrival& arrival_of(ThreadContext* thread) { return *static_cast<Arrival*>(thread->rendezvous.operand); }

void misuse(ThreadContext* thread, const Arrival& arrival, const std::string& text) {
  thread->grid().add(FindingKind::barrier_misuse, thread, arrival.site,
                     fmt::format("{} {}, {}: {}", mode_name(arrival.mode), arrival.id, arrival.threads, text));
}

void misuse(ThreadContext* thread, const Arrival& arrival, const std::string& text, const ThreadContext* other,
            std::uint32_t other_site) {
  thread->grid().add(FindingKind::barrier_misuse, thread, arrival.site,
                     fmt::format("{} {}, {}: {}", mode_name(arrival.mode), arrival.id, arrival.threads, text), other,
                     other_site);
}

std::uint32_t live_warp_threads(const Block& block) {
  std::uint32_t threads = 0;
  for (const Warp& warp : block.warps) threads += warp.live() ? kWarpSize : 0;
  return threads;
}

std::uint32_t whole_warps(std::uint32_t threads) { return (threads + kWarpSize - 1) / kWarpSize * kWarpSize; }

/// How many threads the barrier waits for now.
std::uint32_t expected_now(const Block& block, const NamedBarrier& barrier) {
  return barrier.all ? live_warp_threads(block) : barrier.expected;
}

std::uint32_t result_of(BarrierMode mode, const NamedBarrier& barrier) {
  switch (mode) {
    case BarrierMode::red_popc: return barrier.count;
    case BarrierMode::red_and: return barrier.count == barrier.predicates;
    case BarrierMode::red_or: return barrier.count != 0;
    default: return 0;
  }
}

void leave(ThreadContext* thread, const NamedBarrier& barrier) {
  Arrival& arrival = arrival_of(thread);
  arrival.result = result_of(arrival.mode, barrier);
  if (Checker* checker = thread->checker()) checker->acquire(thread->agent(), barrier.state);
}

void reset(NamedBarrier* barrier) {
  barrier->arrived = 0;
  barrier->count = barrier->predicates = 0;
  barrier->warps.clear();
  barrier->waiting.clear();
  barrier->state.clear();
}

bool complete_if_full(Block* block, NamedBarrier* barrier) {
  if (barrier->arrived == 0 || barrier->arrived < expected_now(*block, *barrier)) return false;
  for (ThreadContext* thread : barrier->waiting) {
    leave(thread, *barrier);
    block->grid->wake(thread);
  }
  block->grid->progress();
  reset(barrier);
  return true;
}

/// The operands that are wrong by themselves.
bool check_operands(ThreadContext* thread, const Arrival& arrival) {
  const std::uint32_t most = whole_warps(thread->block->thread_count);
  if (arrival.id >= kNamedBarriers) {
    misuse(thread, arrival, fmt::format("there are {} barriers", kNamedBarriers));
  } else if (arrival.threads % kWarpSize != 0) {
    misuse(thread, arrival, "the thread count is not a multiple of the warp size");
  } else if (arrival.threads == 0 && arrival.mode == BarrierMode::arrive) {
    misuse(thread, arrival, "bar.arrive needs a thread count");
  } else if (arrival.threads > most) {
    misuse(thread, arrival, fmt::format("the block has {} threads", thread->block->thread_count));
  } else {
    return true;
  }
  return false;
}

/// Operands against those of the threads that are there already.
bool check_agreement(ThreadContext* thread, const Arrival& arrival, const NamedBarrier& barrier) {
  const Block& block = *thread->block;
  const ThreadContext* first = &block.threads[barrier.first_thread];
  const std::uint32_t threads = arrival.threads ? arrival.threads : whole_warps(block.thread_count);
  const std::uint32_t expected = barrier.all ? whole_warps(block.thread_count) : barrier.expected;
  if (threads != expected) {
    misuse(thread, arrival, fmt::format("the barrier was begun for {} threads", expected), first, barrier.first_site);
    return false;
  }
  if (is_reduction(arrival.mode) != barrier.reduction) {
    misuse(thread, arrival, "bar.red and bar.sync or bar.arrive meet in one barrier", first, barrier.first_site);
  }
  if (barrier.warps[thread->warp->index]) {
    misuse(thread, arrival,
           fmt::format("warp {} arrives once more before the barrier has completed ({} of {} threads are there)",
                       thread->warp->index, barrier.arrived, expected_now(block, barrier)),
           first, barrier.first_site);
    return false;
  }
  return true;
}

/// The warp arrives, with these lanes of it. Whether they go on at once: bar.arrive does, the others where that
/// completes the barrier.
bool arrive(Warp* warp, std::uint32_t lanes) {
  Block* block = warp->block;
  ThreadContext* first = &warp->threads[std::countr_zero(lanes)];
  const Arrival& arrival = arrival_of(first);
  NamedBarrier& barrier = block->barriers.barriers[arrival.id];
  if (barrier.arrived == 0) {
    barrier.warps.assign(block->warps.size(), false);
    barrier.all = arrival.threads == 0;
    barrier.expected = arrival.threads;
    barrier.reduction = is_reduction(arrival.mode);
    barrier.first_site = arrival.site;
    barrier.first_thread = first->index;
  } else if (!check_agreement(first, arrival, barrier)) {
    return true;
  }
  barrier.warps[warp->index] = true;
  barrier.arrived += kWarpSize;
  Checker* checker = first->checker();
  bool all_go_on = true;
  for (std::uint32_t rest = lanes; rest; rest &= rest - 1) {
    ThreadContext* thread = &warp->threads[std::countr_zero(rest)];
    const Arrival& own = arrival_of(thread);
    if (own.mode != BarrierMode::arrive) finish_loads(thread);
    if (checker) checker->release(thread->agent(), &barrier.state);
    if (own.mode == BarrierMode::arrive) continue;
    all_go_on = false;
    barrier.predicates += is_reduction(own.mode);
    barrier.count += is_reduction(own.mode) && own.predicate;
    thread->wait = {.kind = Wait::Kind::named_barrier, .site = own.site, .id = own.id, .what = mode_name(own.mode)};
    barrier.waiting.push_back(thread);
  }
  return complete_if_full(block, &barrier) || all_go_on;
}

bool arrive_aligned(Gathering& gathering) {
  const std::uint32_t lanes = gathering.lanes[0];
  ThreadContext* first = gathering.thread(static_cast<std::uint32_t>(std::countr_zero(lanes)));
  const Arrival& arrival = arrival_of(first);
  for (std::uint32_t rest = lanes; rest; rest &= rest - 1) {
    const auto* own = gathering.operand<Arrival>(static_cast<std::uint32_t>(std::countr_zero(rest)));
    if (own->id != arrival.id || own->threads != arrival.threads) {
      misuse(first, arrival, fmt::format("another lane of the warp names barrier {}, {}", own->id, own->threads));
      return true;
    }
  }
  if (!check_operands(first, arrival)) return true;
  return arrive(first->warp, lanes);
}

/// The lanes that have come one by one arrive as a warp; wakes those that go on. Whether `context`, one of them, does.
bool arrive_together(Warp* warp, std::uint32_t lanes, const ThreadContext* context) {
  const bool all_go_on = arrive(warp, lanes);
  bool goes_on = false;
  for (std::uint32_t rest = lanes; rest; rest &= rest - 1) {
    ThreadContext* thread = &warp->threads[std::countr_zero(rest)];
    if (!all_go_on && arrival_of(thread).mode != BarrierMode::arrive) continue;
    if (thread == context) {
      goes_on = true;
    } else {
      thread->grid().wake(thread);
    }
  }
  return goes_on;
}

/// Without .aligned. All lanes of a warp that have not exited must come before it counts; bar.arrive waits for them,
/// too.
void arrive_alone(ThreadContext* context, Arrival* arrival) {
  if (!check_operands(context, *arrival)) return;
  Warp* warp = context->warp;
  NamedBarrier& barrier = context->block->barriers.barriers[arrival->id];
  if (barrier.pending_lanes.empty()) barrier.pending_lanes.assign(context->block->warps.size(), 0);
  std::uint32_t& pending = barrier.pending_lanes[warp->index];
  pending |= 1u << context->lane;
  context->rendezvous.operand = arrival;
  context->wait = {
      .kind = Wait::Kind::named_barrier, .site = arrival->site, .id = arrival->id, .what = mode_name(arrival->mode)};
  if (pending == warp->live() && arrive_together(warp, std::exchange(pending, 0), context)) {
    context->wait.kind = Wait::Kind::none;
    return;
  }
  context->grid().block_thread(context);
}

void cluster_complete_if_full(Cluster* cluster) {
  ClusterBarrier& barrier = cluster->barrier;
  std::uint32_t live = 0;
  for (const Block* block : cluster->blocks) live += block->live;
  if (barrier.arrived == 0 || barrier.arrived < live) return;
  ++barrier.phase;
  barrier.arrived = 0;
  barrier.complete = barrier.arriving;
  Grid& grid = *cluster->blocks.front()->grid;
  grid.progress();
  for (ThreadContext* thread : barrier.waiting) grid.wake(thread);
  barrier.waiting.clear();
}

/// What barrier.cluster's lanes bring.
struct ClusterArrival {
  Semantics semantics;
  std::uint32_t site;
};

void cluster_arrive(ThreadContext* context, const ClusterArrival& arrival) {
  ClusterBarrier& barrier = context->block->cluster->barrier;
  if (context->cluster_arrived) {
    context->grid().add(FindingKind::barrier_misuse, context, arrival.site,
                        "barrier.cluster.arrive twice without barrier.cluster.wait in between");
    return;
  }
  context->cluster_arrived = true;
  context->cluster_phase = barrier.phase;
  if (Checker* checker = context->checker(); checker && arrival.semantics != Semantics::relaxed)
    checker->release(context->agent(), &barrier.arriving);
  ++barrier.arrived;
  cluster_complete_if_full(context->block->cluster);
}

bool cluster_arrive_aligned(Gathering& gathering) {
  for (std::uint32_t rest = gathering.lanes[0]; rest; rest &= rest - 1) {
    const auto lane = static_cast<std::uint32_t>(std::countr_zero(rest));
    cluster_arrive(gathering.thread(lane), *gathering.operand<ClusterArrival>(lane));
  }
  return true;
}

}  // namespace

void barrier_exit(ThreadContext* context) {
  Warp* warp = context->warp;
  for (NamedBarrier& barrier : context->block->barriers.barriers) {
    if (!barrier.pending_lanes.empty()) {
      std::uint32_t& pending = barrier.pending_lanes[warp->index];
      if (pending && pending == warp->live()) arrive_together(warp, std::exchange(pending, 0), context);
    }
    if (warp->live() == 0 && barrier.all) complete_if_full(context->block, &barrier);
  }
  Cluster* cluster = context->block->cluster;
  if (context->cluster_arrived && context->cluster_phase == cluster->barrier.phase) --cluster->barrier.arrived;
  cluster_complete_if_full(cluster);
}

extern "C" {

std::uint32_t att_barrier(ThreadContext* context, BarrierMode mode, std::uint32_t id, std::uint32_t threads,
                          std::uint32_t predicate, std::uint32_t aligned, std::uint32_t site) {
  Arrival arrival{mode, id, threads, predicate != 0, site};
  if (aligned) {
    gather_warp(context, mode_name(mode), site, &arrival, arrive_aligned, true);
  } else {
    arrive_alone(context, &arrival);
  }
  return arrival.result;
}

void att_cluster_arrive(ThreadContext* context, Semantics semantics, std::uint32_t aligned, std::uint32_t site) {
  ClusterArrival arrival{semantics, site};
  if (aligned) {
    gather_warp(context, "barrier.cluster.arrive", site, &arrival, cluster_arrive_aligned, true);
  } else {
    cluster_arrive(context, arrival);
  }
}

void att_cluster_wait(ThreadContext* context, Semantics semantics, std::uint32_t, std::uint32_t site) {
  ClusterBarrier& barrier = context->block->cluster->barrier;
  if (!context->cluster_arrived) {
    context->grid().add(FindingKind::barrier_misuse, context, site,
                        "barrier.cluster.wait without barrier.cluster.arrive before");
    return;
  }
  while (barrier.phase == context->cluster_phase) {
    context->wait = {.kind = Wait::Kind::cluster_barrier, .site = site, .what = "barrier.cluster.wait"};
    barrier.waiting.push_back(context);
    context->grid().block_thread(context);
  }
  context->cluster_arrived = false;
  if (Checker* checker = context->checker(); checker && semantics != Semantics::relaxed)
    checker->acquire(context->agent(), barrier.complete);
}

}  // extern "C"

}  // namespace attune::emulator
