#include "runtime/emulator/check/checker.h"

#include <algorithm>
#include <utility>

#include "base/error.h"
#include "runtime/emulator/check/state.h"

namespace attune::emulator {

Checker::State::Block& Checker::State::block(std::uint32_t serial) {
  if (serial >= blocks.size() || blocks[serial].threads == 0)
    fail(ErrorCode::internal, "checker: block {} was never begun", serial);
  return blocks[serial];
}

Checker::State::Thread& Checker::State::thread(Agent agent) {
  Block& home = block(agent.block);
  if (agent.index >= home.live.size())
    fail(ErrorCode::internal, "checker: agent {} of block {} is not a running thread", agent.index, agent.block);
  return home.live[agent.index];
}

ThreadPosition Checker::State::position(Agent agent) const {
  const Block& home = block(agent.block);
  const unsigned i = agent.index < home.threads ? agent.index : 0;
  return {home.index, {i % home.dim.x, i / home.dim.x % home.dim.y, i / home.dim.x / home.dim.y}};
}

Checker::Checker(const ProgramImage& image, int max_findings) : state_(std::make_unique<State>(image, max_findings)) {}

Checker::~Checker() {
  for (ShadowRegion* region : state_->regions) region->checker_ = nullptr;
}

// -- blocks and agents ----------------------------------------------------------------------------------

void Checker::begin_block(std::uint32_t block, Dim3 index, Dim3 dim, int threads) {
  if (block >= state_->blocks.size()) state_->blocks.resize(block + 1);
  State::Block& home = state_->blocks[block];
  home.index = index;
  home.dim = dim;
  home.threads = static_cast<std::uint32_t>(threads);
  home.live.resize(home.threads);
}

void Checker::end_block(std::uint32_t block) { state_->block(block).live = {}; }

Agent Checker::new_agent(std::uint32_t block, AgentKind kind) {
  State::Block& home = state_->block(block);
  home.agents.push_back(kind);
  return {block, home.threads + static_cast<std::uint32_t>(home.agents.size()) - 1};
}

std::uint32_t Checker::epoch(Agent thread) const { return state_->thread(thread).epoch; }

bool Checker::knows(Agent thread, Agent other, std::uint32_t epoch) const {
  return thread == other || state_->thread(thread).known.happened.at(other) >= epoch;
}

ThreadPosition Checker::position(Agent thread) const { return state_->position(thread); }

// -- synchronisation ------------------------------------------------------------------------------------

void Checker::release(Agent thread, SyncState* state) {
  State::Thread& t = state_->thread(thread);
  state->join(t.known);
  state->happened.set(thread, t.epoch);
  for (std::size_t i = 0; i < kProxySpaces; ++i) state->async_visible[i].set(thread, t.visible[i]);
  ++t.epoch;
}

void Checker::acquire(Agent thread, const SyncState& state) { state_->thread(thread).known.join(state); }

void Checker::learn(Agent thread, Agent async, std::uint32_t epoch) {
  Clock& clock = state_->thread(thread).known.happened;
  if (clock.at(async) >= epoch) return;
  auto& last = state_->learned;
  if (last.async == async && last.epoch == epoch && last.before.shares(clock)) {
    clock = last.after;
    return;
  }
  last.before = clock;
  clock.set(async, epoch);
  last.after = clock;
  last.async = async;
  last.epoch = epoch;
}

void Checker::fence_async(Agent thread, std::optional<ProxySpace> space) {
  State::Thread& t = state_->thread(thread);
  for (std::size_t i = 0; i < kProxySpaces; ++i) {
    if (space && i != static_cast<std::size_t>(*space)) continue;
    t.known.async_visible[i] = t.known.happened;
    t.visible[i] = t.epoch;
  }
  ++t.epoch;
}

std::shared_ptr<const SyncState> Checker::snapshot(Agent thread) {
  auto state = std::make_shared<SyncState>();
  release(thread, state.get());
  return state;
}

const SyncState& Checker::knowledge(Agent thread) const { return state_->thread(thread).known; }

bool Checker::same_knowledge(Agent one, Agent other) const {
  const SyncState& a = knowledge(one);
  const SyncState& b = knowledge(other);
  return a.happened.shares(b.happened) && std::ranges::equal(a.async_visible, b.async_visible, &Clock::shares);
}

void Checker::fence(Agent thread) {
  State::Thread& t = state_->thread(thread);
  t.known.join(t.heard);
  t.heard.clear();
  t.at_fence.clear();
  release(thread, &t.at_fence);
}

void Checker::atomic_access(Agent thread, ShadowRegion* region, std::size_t offset, bool reads, bool writes,
                            bool acquires, bool releases) {
  state_->adopt(region, this);
  State::Thread& t = state_->thread(thread);
  auto found = region->released_.find(offset);
  if (reads && found != region->released_.end()) (acquires ? t.known : t.heard).join(found->second);
  if (!writes) return;
  if (found == region->released_.end()) {
    if (!releases && t.at_fence.happened.empty()) return;
    found = region->released_.try_emplace(offset).first;
  }
  // A store begins a new release sequence; an atomic operation goes on with the one that it found.
  if (!reads) found->second.clear();
  if (releases) {
    release(thread, &found->second);
  } else {
    found->second.join(t.at_fence);
  }
}

// -- loads that may be late ---------------------------------------------------------------------------------

std::uint32_t Checker::begin_load() { return state_->loads.begin(); }

std::uint32_t Checker::fill(Agent thread, std::uint32_t site, std::uint32_t load) {
  use(thread, site);
  std::vector<State::UnusedLoad>& unused = state_->thread(thread).unused;
  unused.push_back({site, load});
  return static_cast<std::uint32_t>(unused.size());
}

std::uint32_t Checker::use(Agent thread, std::uint32_t site) {
  State::Thread& t = state_->thread(thread);
  const auto found = std::ranges::find(t.unused, site, &State::UnusedLoad::site);
  if (found != t.unused.end()) {
    state_->loads.use(found->load, {thread, t.epoch});
    t.unused.erase(found);
  }
  return static_cast<std::uint32_t>(t.unused.size());
}

void Checker::finish_loads(Agent thread) {
  State::Thread& t = state_->thread(thread);
  for (const State::UnusedLoad& unused : t.unused) state_->loads.use(unused.load, {thread, t.epoch});
  t.unused.clear();
}

// -- regions --------------------------------------------------------------------------------------------

void Checker::State::adopt(ShadowRegion* region, Checker* self) {
  if (region->checker_ == self) return;
  if (region->checker_) region->checker_->leave(region);
  for (ShadowRegion::Page& page : region->pages_) page.cells.reset();
  region->released_.clear();
  regions.push_back(region);  // first, as it may throw: the checker's end must find whoever points at it
  region->checker_ = self;
}

void Checker::leave(ShadowRegion* region) {
  std::erase(state_->regions, region);
  region->checker_ = nullptr;
}

void Checker::State::collect_records() {
  for (const ShadowRegion* region : regions) {
    for (const ShadowRegion::Page& page : region->pages_) {
      if (!page.cells) continue;
      for (const ShadowRegion::Cell& cell : *page.cells) {
        records.mark(cell.writes);
        records.mark(cell.others);
      }
    }
  }
  std::vector<bool> held(loads.size());
  records.sweep(&held);
  for (const Block& block : blocks) {
    for (const Thread& thread : block.live) {
      for (const UnusedLoad& unused : thread.unused) held[unused.load] = true;
    }
  }
  loads.keep(held);
}

// -- findings -------------------------------------------------------------------------------------------

void Checker::add(FindingKind kind, Agent thread, std::uint32_t site, std::string message, std::optional<Agent> other,
                  std::uint32_t other_site) {
  std::optional<ThreadPosition> other_position;
  if (other) other_position = state_->position(*other);
  state_->findings.add(kind, site, state_->position(thread), std::move(message), other_site, other_position);
}

bool Checker::full() const { return state_->findings.full(); }

std::vector<Finding> Checker::take_findings() { return state_->findings.take(); }

}  // namespace attune::emulator
