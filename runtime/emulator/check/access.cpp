// Checker::access(): who may touch which bytes after whom.
#include <fmt/format.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "runtime/emulator/check/state.h"

namespace attune::emulator {

namespace {

/// A list that has grown to so many records starts over. More than the threads of a block, so that none of the readers
/// of shared memory is forgotten.
constexpr unsigned kMostRecords = 2048;
/// From here on it is quicker to remember what adding a reader to a list gave than to walk it.
constexpr unsigned kLongList = 4;

std::string text_of(const Dim3& index) { return fmt::format("({},{},{})", index.x, index.y, index.z); }

/// What would have made an earlier access of this kind come before.
const char* missing_order(const Record& earlier, bool same_block) {
  switch (earlier.kind) {
    case AgentKind::thread:
      return same_block ? "no barrier or mbarrier orders them"
                        : "the blocks are concurrent, and no fence with an atomic and no cluster barrier orders them";
    case AgentKind::bulk_on_mbarrier: return "no wait for that phase of its mbarrier comes in between";
    case AgentKind::bulk_group: return "no cp.async.bulk.wait_group for it comes in between";
    case AgentKind::bulk_group_read: return "no cp.async.bulk.wait_group.read for it comes in between";
    case AgentKind::wgmma_group: return "no wgmma.wait_group for it comes in between";
    case AgentKind::cp_async_group: return "no cp.async.wait_group for it comes in between";
  }
  return "";
}

}  // namespace

std::string Checker::State::name(const Record& record) const {
  const std::string block = text_of(this->block(record.issuer.block).index);
  const std::string thread = fmt::format("thread {} of block {}", text_of(position(record.issuer).thread), block);
  switch (record.kind) {
    case AgentKind::thread: return thread;
    case AgentKind::bulk_on_mbarrier: return "bulk copy issued by " + thread;
    case AgentKind::bulk_group:
    case AgentKind::bulk_group_read: return fmt::format("bulk copy (group {}) issued by {}", record.epoch, thread);
    case AgentKind::wgmma_group:
      return fmt::format("wgmma group {} of warpgroup {} of block {}", record.epoch, record.issuer.index / 128, block);
    case AgentKind::cp_async_group: return fmt::format("cp.async (group {}) issued by {}", record.epoch, thread);
  }
  return thread;
}

/// One access on its way through the cells.
class AccessWalk {
 public:
  AccessWalk(Checker::State* state, const ShadowRegion& region, const Record& record, const SyncState* known,
             const Checker::State::Thread* self)
      : state_(*state), region_(region), record_(record), known_(known), self_(self) {}

  /// `bytes`: which of the 4 are touched. `offset` is where the access meets the cell.
  void visit(ShadowRegion::Cell* cell, std::uint8_t bytes, std::size_t offset) {
    if (bytes == record_.bytes && *cell == before_ && seen_) {
      *cell = after_;
      return;
    }
    const ShadowRegion::Cell before = *cell;
    record_.bytes = bytes;
    const bool plain_write = record_.write && !record_.atomic;
    check(cell->writes, offset);
    if (record_.write || state_.records[cell->others].any_write) check(cell->others, offset);
    if (plain_write) {
      cell->others = without(cell->others);
      cell->writes = state_.records.push(record_, without(cell->writes));
    } else {
      cell->others = with(cell->others);
    }
    before_ = before;
    after_ = *cell;
    seen_ = true;
  }

 private:
  bool own(Agent agent) const { return self_ && agent == record_.issuer; }
  bool knows(Agent agent, std::uint32_t epoch) const {
    return own(agent) || (self_ ? self_->known : *known_).happened.at(agent) >= epoch;
  }
  bool happened(const Record& earlier) const { return knows(earlier.agent, earlier.epoch); }
  bool visible(const Record& earlier) const {
    const auto space = static_cast<std::size_t>(region_.space());
    if (own(earlier.agent)) return earlier.epoch <= self_->visible[space];
    return (self_ ? self_->known : *known_).async_visible[space].at(earlier.agent) >= earlier.epoch;
  }
  /// Of a read that has happened: whether it cannot be late.
  bool over(const Record& earlier) const {
    return earlier.load == 0 || visible(earlier) ||
           std::ranges::any_of(state_.loads.uses(earlier.load),
                               [this](const Loads::Use& use) { return knows(use.thread, use.epoch); });
  }

  void check(std::uint32_t list, std::size_t offset) {
    for (std::uint32_t id = list; id; id = state_.records[id].rest) {
      const Record& earlier = state_.records[id];
      if (!(earlier.bytes & record_.bytes) || (!earlier.write && !record_.write) || (earlier.atomic && record_.atomic))
        continue;
      if (!happened(earlier)) {
        report(FindingKind::race, id, offset);
      } else if (record_.proxy == Proxy::async && earlier.proxy == Proxy::generic) {
        if (earlier.write && !visible(earlier)) report(FindingKind::proxy_race, id, offset);
        if (!earlier.write && !over(earlier)) report(FindingKind::late_load, id, offset);
      }
    }
  }

  void report(FindingKind kind, std::uint32_t id, std::size_t offset) {
    // Once an access: a tile that meets the same instruction in a thousand cells is one fault.
    const Record& earlier = state_.records[id];
    const std::pair key(kind, earlier.site);
    if (std::ranges::find(reported_, key) != reported_.end()) return;
    reported_.push_back(key);
    if (state_.findings.count(kind, record_.site, earlier.site)) return;
    const auto verb = [](const Record& r, bool past) {
      if (!r.write) return past ? "read" : "reads";
      if (r.atomic) return past ? "updated atomically" : "updates atomically";
      return past ? "wrote" : "writes";
    };
    std::string text = fmt::format("{} {} {} at offset {:#x} ({}), which {} ", state_.name(record_),
                                   verb(record_, false), region_.name(), offset, offset, state_.name(earlier));
    if (kind == FindingKind::proxy_race) {
      text +=
          "wrote through the generic proxy: no fence.proxy.async follows that write before this access of the async "
          "proxy";
    } else if (kind == FindingKind::late_load) {
      text +=
          "read: no use of what that load brought and no fence.proxy.async comes before the release that orders them, "
          "which can overtake the load";
    } else {
      const bool same_block = earlier.issuer.block == record_.issuer.block;
      text += fmt::format("{}: {}", verb(earlier, true), missing_order(earlier, same_block));
    }
    state_.findings.add(kind, record_.site, state_.position(record_.issuer), std::move(text), earlier.site,
                        state_.position(earlier.issuer));
  }

  /// The list without what the present access covers entirely.
  std::uint32_t without(std::uint32_t list) {
    if (record_.bytes == 0xf || !list) return 0;
    kept_.clear();
    for (std::uint32_t id = list; id; id = state_.records[id].rest) {
      if (state_.records[id].bytes & ~record_.bytes) kept_.push_back(id);
    }
    return rebuilt(0);
  }

  /// The list and the present read or atomic write. Earlier records that happen before it need not be kept where
  /// whatever conflicts with them conflicts with it as well.
  std::uint32_t with(std::uint32_t list) {
    if (!list) return state_.records.push(record_, 0);
    const Record& first = state_.records[list];
    if (same(first)) return list;
    const bool remember = first.depth > kLongList && !first.any_write && !record_.write;
    std::uint32_t key = 0;
    if (remember) {
      key = state_.records.push(record_, 0);
      if (const std::uint32_t result = state_.records.remembered(list, key)) return result;
    }
    kept_.clear();
    bool all = true;
    std::uint32_t result = 0;
    for (std::uint32_t id = list; id && !result; id = state_.records[id].rest) {
      const Record& earlier = state_.records[id];
      if (same(earlier)) result = list;
      const bool covered = !(earlier.bytes & ~record_.bytes) && (!earlier.write || record_.write) &&
                           (earlier.atomic || !record_.atomic) && happened(earlier) && over(earlier);
      if (covered) {
        all = false;
      } else {
        kept_.push_back(id);
      }
    }
    if (!result) {
      const bool too_many = kept_.size() >= kMostRecords;
      result = state_.records.push(record_, too_many ? 0 : all ? list : rebuilt(0));
    }
    if (remember) state_.records.remember(list, key, result);
    return result;
  }

  /// Whether it says of the same agent and moment at least what the present access would.
  bool same(const Record& earlier) const {
    return earlier.agent == record_.agent && earlier.epoch == record_.epoch && !(record_.bytes & ~earlier.bytes) &&
           (earlier.write || !record_.write) && (!earlier.atomic || record_.atomic) &&
           (record_.load == 0 || record_.load == earlier.load);
  }

  std::uint32_t rebuilt(std::uint32_t rest) {
    for (auto id = kept_.rbegin(); id != kept_.rend(); ++id) {
      const Record record = state_.records[*id];
      rest = state_.records.push(record, rest);
    }
    return rest;
  }

  Checker::State& state_;
  const ShadowRegion& region_;
  Record record_;
  const SyncState* known_;
  const Checker::State::Thread* self_;
  bool seen_ = false;
  ShadowRegion::Cell before_, after_;
  std::vector<std::uint32_t> kept_;
  std::vector<std::pair<FindingKind, std::uint32_t>> reported_;
};

void Checker::access(ShadowRegion* region, std::size_t offset, std::size_t bytes, const Access& access,
                     const SyncState* known) {
  if (bytes == 0) return;
  State& state = *state_;
  state.adopt(region, this);
  Record record{.agent = access.agent,
                .issuer = access.issuer,
                .epoch = access.epoch,
                .site = access.site,
                .load = access.load,
                .kind = AgentKind::thread,
                .proxy = access.proxy,
                .write = access.write,
                .atomic = access.atomic};
  const State::Block& home = state.block(access.agent.block);
  if (access.agent.index < home.threads) {
    record.epoch = state.thread(access.agent).epoch;
  } else {
    record.kind = home.agents.at(access.agent.index - home.threads);
  }

  if (!access.write || access.updates) {
    const std::size_t first = region->first_unwritten(offset, bytes);
    if (first < offset + bytes && !state.findings.count(FindingKind::uninitialised_read, access.site, 0)) {
      state.findings.add(FindingKind::uninitialised_read, access.site, state.position(access.issuer),
                         fmt::format("{} reads {} bytes of {} at offset {:#x} ({}), but nothing was ever written at "
                                     "offset {:#x} ({})",
                                     state.name(record), bytes, region->name(), offset, offset, first, first),
                         0, std::nullopt);
    }
  }
  if (access.write) region->mark_written(offset, bytes);

  AccessWalk walk(&state, *region, record, known, known ? nullptr : &state.thread(access.issuer));
  const std::size_t end = offset + bytes;
  for (std::size_t at = offset; at < end;) {
    ShadowRegion::Page& page = region->pages_[at / ShadowRegion::kPageBytes];
    if (!page.cells) page.cells = std::make_unique<ShadowRegion::Cells>();
    const std::size_t stop = std::min(end, (at / ShadowRegion::kPageBytes + 1) * ShadowRegion::kPageBytes);
    while (at < stop) {
      const std::size_t in_cell = at % 4, count = std::min(4 - in_cell, stop - at);
      const auto mask = static_cast<std::uint8_t>(((1u << count) - 1) << in_cell);
      walk.visit(&(*page.cells)[at % ShadowRegion::kPageBytes / 4], mask, at);
      at += count;
    }
  }
  if (state.records.crowded()) state.collect_records();
}

}  // namespace attune::emulator
