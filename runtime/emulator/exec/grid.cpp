#include "runtime/emulator/exec/grid.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <chrono>
#include <cstdlib>
#include <utility>

#include "base/error.h"
#include "runtime/emulator/exec/bulk.h"
#include "runtime/emulator/exec/deadlock.h"
#include "runtime/emulator/exec/guard.h"

namespace attune::emulator {

namespace {

/// Instructions that a thread may execute, in loops, before the others get a turn.
constexpr std::int32_t kFuel = 16384;
/// With a seed it is less, and differs: a turn may end in every loop.
constexpr std::uint32_t kLeastFuel = 32, kMostFuel = 4096;
/// With a seed, so many mbarrier.try_wait that could wait return false instead.
constexpr std::uint32_t kSpuriousTimeOuts = 8;
/// When only spinning threads are left, one asynchronous operation is run in so many rounds.
constexpr std::uint32_t kSpinRounds = 8;
/// How often waits are ended without progress before they count as a deadlock.
constexpr std::uint32_t kVainTimeOuts = 64;

std::uint64_t count_of(const Dim3& dim) { return std::uint64_t{dim.x} * dim.y * dim.z; }

Dim3 index_of(std::uint64_t linear, const Dim3& dim) {
  return {static_cast<unsigned>(linear % dim.x), static_cast<unsigned>(linear / dim.x % dim.y),
          static_cast<unsigned>(linear / dim.x / dim.y)};
}

void run_kernel(void* argument) {
  auto* thread = static_cast<ThreadContext*>(argument);
  Grid& grid = thread->grid();
  guarded(thread, [&] {
    grid.plan().kernel->entry(thread);
    grid.exit_thread(thread, thread->wait.site);
  });
}

}  // namespace

Checker* ThreadContext::checker() const { return grid().checker(); }

void Extension::thread_exits(ThreadContext*, std::uint32_t) {}

Grid::Grid(LaunchPlan plan)
    : plan_(std::move(plan)),
      checks_(plan_.image->checks),
      findings_(*plan_.image, plan_.options.max_findings),
      async_(plan_.options.seed),
      random_(plan_.options.seed),
      clusters_(count_of(plan_.options.grid) / count_of(plan_.options.cluster)) {
  const std::uint64_t size = count_of(plan_.options.cluster);
  const std::uint64_t wanted = (static_cast<std::uint64_t>(plan_.options.resident_blocks) + size - 1) / size;
  for (std::uint64_t i = 0; i < std::min(wanted, clusters_); ++i) {
    auto place = std::make_unique<Place>();
    for (std::uint64_t rank = 0; rank < size; ++rank)
      place->blocks.push_back(std::make_unique<Resident>(plan_, checks_));
    places_.push_back(std::move(place));
  }
}

Grid::~Grid() = default;

Report Grid::run() {
  const auto begin = std::chrono::steady_clock::now();
  start_clusters();
  while (!stopped_) {
    if (plan_.options.stop.stop_requested()) attune::fail(ErrorCode::interrupted, "interrupted");
    if (ThreadContext* thread = next_thread()) {
      run_thread(thread);
      if (ended_.empty()) continue;
      for (Cluster* cluster : ended_) retire(cluster);
      ended_.clear();
      start_clusters();
    } else if (!async_.run_one()) {
      if (active_clusters_ == 0) break;
      if (time_out_waits()) continue;
      report_deadlock();
      break;
    }
  }
  if (error_) std::rethrow_exception(std::exchange(error_, nullptr));
  Report report;
  report.findings = findings_.take_findings();
  report.output = std::move(output_);
  report.instructions = instructions_;
  report.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  return report;
}

void Grid::start_clusters() {
  for (const std::unique_ptr<Place>& place : places_) {
    if (!place->used && started_clusters_ < clusters_) start_cluster(place.get());
  }
}

void Grid::start_cluster(Place* place) {
  const Dim3 size = plan_.options.cluster, grid = plan_.options.grid;
  const Dim3 cluster = index_of(started_clusters_, {grid.x / size.x, grid.y / size.y, grid.z / size.z});
  place->used = true;
  place->cluster.index = cluster;
  for (std::uint32_t rank = 0; rank < place->blocks.size(); ++rank) {
    Resident& resident = *place->blocks[rank];
    const auto serial = static_cast<std::uint32_t>(started_clusters_ * place->blocks.size() + rank);
    const Dim3 inner = index_of(rank, size);
    const Dim3 index{cluster.x * size.x + inner.x, cluster.y * size.y + inner.y, cluster.z * size.z + inner.z};
    resident.start(this, &place->cluster, serial, index, rank, run_kernel);
    Block& block = resident.block();
    place->cluster.blocks.push_back(&block);
    findings_.begin_block(serial, index, plan_.options.block, static_cast<int>(block.thread_count));
    for (Warp& warp : block.warps) enqueue(&warp);
  }
  ++started_clusters_;
  ++active_clusters_;
}

void Grid::retire(Cluster* cluster) {
  for (const Block* block : cluster->blocks) async_.finish_block(block);
  for (const Block* block : cluster->blocks) report_unawaited_copies(*block);
  for (const Block* block : cluster->blocks) findings_.end_block(block->serial);
  std::erase_if(queue_, [&](const Warp* warp) { return warp->block->cluster == cluster; });
  const auto place = std::find_if(places_.begin(), places_.end(),
                                  [&](const std::unique_ptr<Place>& each) { return &each->cluster == cluster; });
  for (const std::unique_ptr<Resident>& resident : (*place)->blocks) resident->clear();
  (*place)->cluster = Cluster();
  (*place)->used = false;
  --active_clusters_;
}

void Grid::enqueue(Warp* warp) {
  if (warp->queued) return;
  warp->queued = true;
  queue_.push_back(warp);
}

ThreadContext* Grid::next_thread() {
  const bool seeded = plan_.options.seed != 0;
  if (seeded) async_.run_some();
  while (!queue_.empty()) {
    if (seeded) std::swap(queue_.front(), queue_[random_.below(static_cast<std::uint32_t>(queue_.size()))]);
    Warp* warp = queue_.front();
    if (warp->ready == 0) release_active_mask(warp);
    if (warp->ready == 0) {
      queue_.pop_front();
      warp->ready = std::exchange(warp->yielded, 0);
      if (warp->ready == 0) {
        warp->queued = false;
      } else {
        queue_.push_back(warp);
        if (seeded && random_.below(kSpinRounds) == 0) async_.run_one();
      }
      continue;
    }
    std::uint32_t lanes = warp->ready;
    if (seeded) {
      for (std::uint32_t skip = random_.below(static_cast<std::uint32_t>(std::popcount(lanes))); skip; --skip)
        lanes &= lanes - 1;
    }
    const int lane = std::countr_zero(lanes);
    warp->ready &= ~(1u << lane);
    return &warp->threads[lane];
  }
  return nullptr;
}

std::int32_t Grid::new_fuel() {
  if (plan_.options.seed == 0) return kFuel;
  return static_cast<std::int32_t>(kLeastFuel + random_.below(kMostFuel - kLeastFuel));
}

void Grid::run_thread(ThreadContext* thread) {
  running_ = thread;
  thread->fuel = new_fuel();
  thread->fibre.resume();
  running_ = nullptr;
  instructions_ += thread->instructions - thread->counted;
  thread->counted = thread->instructions;
  if (instructions_ > plan_.options.instruction_limit && !stopped_) {
    add(FindingKind::no_progress, thread, thread->wait.site,
        fmt::format("the limit of {} instructions was reached ({} of {} blocks have started)",
                    plan_.options.instruction_limit, started_clusters_ * count_of(plan_.options.cluster),
                    count_of(plan_.options.grid)));
    stopped_ = true;
  }
}

bool Grid::wait_times_out() { return plan_.options.seed != 0 && random_.below(kSpuriousTimeOuts) == 0; }

void Grid::add(FindingKind kind, const ThreadContext* thread, std::uint32_t site, std::string message) {
  findings_.add(kind, thread->agent(), site, std::move(message));
  if (findings_.full()) stopped_ = true;
}

void Grid::add(FindingKind kind, const ThreadContext* thread, std::uint32_t site, std::string message,
               const ThreadContext* other, std::uint32_t other_site) {
  findings_.add(kind, thread->agent(), site, std::move(message), other->agent(), other_site);
  if (findings_.full()) stopped_ = true;
}

void Grid::block_thread(ThreadContext* thread) {
  if (thread->wait.kind != Wait::Kind::none) thread->fibre.suspend(false);
}

void Grid::wake(ThreadContext* thread) {
  if (thread->wait.kind == Wait::Kind::none) return;
  thread->wait.kind = Wait::Kind::none;
  if (thread == running_) return;
  thread->warp->ready |= 1u << thread->lane;
  enqueue(thread->warp);
}

void Grid::yield(ThreadContext* thread) {
  thread->warp->yielded |= 1u << thread->lane;
  enqueue(thread->warp);
  thread->fibre.suspend(false);
}

void Grid::stop(ThreadContext* thread) {
  stopped_ = true;
  thread->fibre.suspend(true);
  std::abort();  // a fibre that was left for good is never resumed
}

void Grid::fail(ThreadContext* thread, std::exception_ptr error) {
  error_ = std::move(error);
  stop(thread);
}

void Grid::exit_thread(ThreadContext* thread, std::uint32_t site) {
  for (Extensions* extensions : {&thread->extensions, &thread->warpgroup().extensions}) {
    for (const std::unique_ptr<Extension>& extension : *extensions) {
      if (extension) extension->thread_exits(thread, site);
    }
  }
  Block* block = thread->block;
  if (Checker* checker = thread->checker(); checker && block->sends)
    block->known_at_exit.join(checker->knowledge(thread->agent()).happened);
  thread->exited = true;
  thread->warp->exited |= 1u << thread->lane;
  --block->live;
  progress();
  barrier_exit(thread);
  rendezvous_exit(thread);
  const std::vector<Block*>& blocks = block->cluster->blocks;
  if (std::all_of(blocks.begin(), blocks.end(), [](const Block* each) { return each->live == 0; }))
    ended_.push_back(block->cluster);
  thread->fibre.suspend(true);
  std::abort();
}

bool Grid::time_out_waits() {
  if (progress_ != progress_at_time_out_) {
    progress_at_time_out_ = progress_;
    vain_time_outs_ = 0;
  }
  if (vain_time_outs_++ >= kVainTimeOuts) return false;
  bool any = false;
  for (const Block* block : resident_blocks()) {
    for (std::uint32_t i = 0; i < block->thread_count; ++i) {
      ThreadContext& thread = block->threads[i];
      if (thread.wait.kind != Wait::Kind::mbarrier) continue;
      thread.timed_out = true;
      thread.wait.mbarrier->waiting.clear();
      wake(&thread);
      any = true;
    }
  }
  return any;
}

std::vector<Block*> Grid::resident_blocks() const {
  std::vector<Block*> blocks;
  for (const std::unique_ptr<Place>& place : places_)
    blocks.insert(blocks.end(), place->cluster.blocks.begin(), place->cluster.blocks.end());
  return blocks;
}

void Grid::report_deadlock() {
  const std::vector<Block*> blocks = resident_blocks();
  const std::vector<WaitGroup> groups = waiting_groups(blocks);
  if (groups.empty()) return;
  for (const Block* block : blocks) {
    report_incomplete(block);
    for (const RegisterRequest& request : block->registers.waiting) {
      add(FindingKind::register_pool, &block->threads[request.warpgroup * kWarpgroupSize], request.site,
          fmt::format("setmaxnreg.inc {} is never granted: it {}", request.count, register_shortage(*block, request)));
    }
  }
  const std::uint64_t not_started = (clusters_ - started_clusters_) * count_of(plan_.options.cluster);
  const WaitGroup& first = groups.front();
  add(FindingKind::deadlock, &first.block->threads[first.threads.front()], first.wait.site,
      deadlock_text(plan_, blocks, groups, not_started));
}

}  // namespace attune::emulator
