// Instructions that exchange values between the lanes of a warp.

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cstdint>

#include "runtime/emulator/check/checker.h"
#include "runtime/emulator/exec/grid.h"
#include "runtime/emulator/exec/thread.h"

namespace attune::emulator {

namespace {

/// Keys by which gather_masked() tells instructions apart: one of these, and the qualifiers.
enum class Collective : std::uint32_t { shuffle = 1, vote, match, redux, elect, sync };

std::uint32_t key_of(Collective collective, std::uint32_t qualifiers) {
  return static_cast<std::uint32_t>(collective) << 16 | qualifiers;
}

/// Calls `function(lane)` for each lane that takes part.
template <typename Function>
void for_each_lane(const Gathering& gathering, Function function) {
  for (std::uint32_t rest = gathering.lanes[0]; rest; rest &= rest - 1)
    function(static_cast<std::uint32_t>(std::countr_zero(rest)));
}

struct Shuffle {
  ShuffleMode mode;
  std::uint32_t value, lane, clamp;
  std::uint64_t result;
};

const char* shuffle_name(ShuffleMode mode) {
  switch (mode) {
    case ShuffleMode::up: return "shfl.sync.up";
    case ShuffleMode::down: return "shfl.sync.down";
    case ShuffleMode::bfly: return "shfl.sync.bfly";
    case ShuffleMode::idx: return "shfl.sync.idx";
  }
  return "";
}

/// The lane that is read; `in_range` is the predicate.
std::uint32_t shuffle_source(const Shuffle& shuffle, std::uint32_t lane, bool* in_range) {
  const std::uint32_t by = shuffle.lane & 31;
  const std::uint32_t segment = shuffle.clamp >> 8 & 31;
  const std::uint32_t low = lane & segment;
  const std::uint32_t high = low | (shuffle.clamp & 31 & ~segment);
  std::uint32_t source = lane;
  switch (shuffle.mode) {
    case ShuffleMode::up:
      source = lane - by;
      *in_range = static_cast<std::int32_t>(source) >= static_cast<std::int32_t>(high);
      break;
    case ShuffleMode::down:
      source = lane + by;
      *in_range = source <= high;
      break;
    case ShuffleMode::bfly:
      source = lane ^ by;
      *in_range = source <= high;
      break;
    case ShuffleMode::idx:
      source = low | (by & ~segment);
      *in_range = source <= high;
      break;
  }
  return *in_range ? source : lane;
}

bool perform_shuffle(Gathering& gathering) {
  for_each_lane(gathering, [&](std::uint32_t lane) {
    auto* own = gathering.operand<Shuffle>(lane);
    bool in_range = false;
    const std::uint32_t source = shuffle_source(*own, lane, &in_range);
    const auto* other = source < kWarpSize ? gathering.operand<Shuffle>(source) : nullptr;
    if (!other) {
      ThreadContext* thread = gathering.thread(lane);
      thread->grid().add(
          FindingKind::divergence, thread, gathering.site,
          fmt::format("{}: lane {} reads lane {}, which does not take part", shuffle_name(own->mode), lane, source));
      other = own;
    }
    own->result = std::uint64_t{in_range} << 32 | other->value;
  });
  return true;
}

struct Vote {
  VoteMode mode;
  bool predicate;
  std::uint32_t result;
};

bool perform_vote(Gathering& gathering) {
  std::uint32_t ballot = 0;
  for_each_lane(gathering,
                [&](std::uint32_t lane) { ballot |= std::uint32_t{gathering.operand<Vote>(lane)->predicate} << lane; });
  const std::uint32_t all = gathering.lanes[0];
  for_each_lane(gathering, [&](std::uint32_t lane) {
    auto* own = gathering.operand<Vote>(lane);
    switch (own->mode) {
      case VoteMode::all: own->result = ballot == all; break;
      case VoteMode::any: own->result = ballot != 0; break;
      case VoteMode::uni: own->result = ballot == all || ballot == 0; break;
      case VoteMode::ballot: own->result = ballot; break;
    }
  });
  return true;
}

struct Match {
  bool all;
  std::uint64_t value;
  std::uint64_t result;
};

bool perform_match(Gathering& gathering) {
  for_each_lane(gathering, [&](std::uint32_t lane) {
    auto* own = gathering.operand<Match>(lane);
    std::uint32_t equal = 0;
    for_each_lane(gathering, [&](std::uint32_t other) {
      equal |= std::uint32_t{gathering.operand<Match>(other)->value == own->value} << other;
    });
    if (!own->all) {
      own->result = equal;
    } else {
      own->result = equal == gathering.lanes[0] ? std::uint64_t{1} << 32 | equal : 0;
    }
  });
  return true;
}

struct Redux {
  ReduxOp op;
  std::uint32_t value, result;
};

std::uint32_t reduce(ReduxOp op, std::uint32_t a, std::uint32_t b) {
  const auto x = static_cast<std::int32_t>(a), y = static_cast<std::int32_t>(b);
  switch (op) {
    case ReduxOp::add_u32:
    case ReduxOp::add_s32: return a + b;
    case ReduxOp::min_u32: return std::min(a, b);
    case ReduxOp::max_u32: return std::max(a, b);
    case ReduxOp::min_s32: return static_cast<std::uint32_t>(std::min(x, y));
    case ReduxOp::max_s32: return static_cast<std::uint32_t>(std::max(x, y));
    case ReduxOp::bit_and: return a & b;
    case ReduxOp::bit_or: return a | b;
    case ReduxOp::bit_xor: return a ^ b;
  }
  return a;
}

bool perform_redux(Gathering& gathering) {
  const auto first = static_cast<std::uint32_t>(std::countr_zero(gathering.lanes[0]));
  std::uint32_t total = gathering.operand<Redux>(first)->value;
  for_each_lane(gathering, [&](std::uint32_t lane) {
    const auto* own = gathering.operand<Redux>(lane);
    if (lane != first) total = reduce(own->op, total, own->value);
  });
  for_each_lane(gathering, [&](std::uint32_t lane) { gathering.operand<Redux>(lane)->result = total; });
  return true;
}

/// Any lane of the mask may be elected, and it is always the same one; which one depends on the launch's seed.
bool perform_elect(Gathering& gathering) {
  const std::uint32_t lanes = gathering.lanes[0];
  const std::uint64_t seed = gathering.threads->grid().plan().options.seed;
  std::uint32_t rest = lanes;
  if (seed != 0) {
    const auto count = static_cast<std::uint32_t>(std::popcount(lanes));
    for (auto skip = static_cast<std::uint32_t>(Random::mix(seed ^ std::uint64_t{lanes} << 32) % count); skip; --skip)
      rest &= rest - 1;
  }
  const auto leader = static_cast<std::uint32_t>(std::countr_zero(rest));
  for_each_lane(gathering, [&](std::uint32_t lane) {
    *gathering.operand<std::uint64_t>(lane) = std::uint64_t{lane == leader} << 32 | leader;
  });
  return true;
}

bool perform_sync(Gathering& gathering) {
  Checker* checker = gathering.threads->checker();
  if (!checker) return true;
  SyncState state;
  for_each_lane(gathering, [&](std::uint32_t lane) { checker->release(gathering.thread(lane)->agent(), &state); });
  for_each_lane(gathering, [&](std::uint32_t lane) { checker->acquire(gathering.thread(lane)->agent(), state); });
  return true;
}

}  // namespace

void release_active_mask(Warp* warp) {
  if (!warp->at_active_mask) return;
  const std::uint32_t site = warp->threads[std::countr_zero(warp->at_active_mask)].wait.site;
  std::uint32_t lanes = 0;
  for (std::uint32_t rest = warp->at_active_mask; rest; rest &= rest - 1) {
    const int lane = std::countr_zero(rest);
    if (warp->threads[lane].wait.site == site) lanes |= 1u << lane;
  }
  warp->active_mask = lanes;
  warp->at_active_mask &= ~lanes;
  for (std::uint32_t rest = lanes; rest; rest &= rest - 1)
    warp->block->grid->wake(&warp->threads[std::countr_zero(rest)]);
}

extern "C" {

std::uint64_t att_shfl(ThreadContext* context, ShuffleMode mode, std::uint32_t value, std::uint32_t lane,
                       std::uint32_t clamp, std::uint32_t mask, std::uint32_t site) {
  Shuffle shuffle{mode, value, lane, clamp, 0};
  gather_masked(context, shuffle_name(mode), key_of(Collective::shuffle, static_cast<std::uint32_t>(mode)), mask, site,
                &shuffle, perform_shuffle);
  return shuffle.result;
}

std::uint32_t att_vote(ThreadContext* context, VoteMode mode, std::uint32_t predicate, std::uint32_t mask,
                       std::uint32_t site) {
  Vote vote{mode, predicate != 0, 0};
  gather_masked(context, "vote.sync", key_of(Collective::vote, static_cast<std::uint32_t>(mode)), mask, site, &vote,
                perform_vote);
  return vote.result;
}

std::uint64_t att_match(ThreadContext* context, std::uint32_t all, std::uint32_t bits, std::uint64_t value,
                        std::uint32_t mask, std::uint32_t site) {
  Match match{all != 0, bits == 32 ? value & 0xFFFFFFFF : value, 0};
  gather_masked(context, "match.sync", key_of(Collective::match, (all ? 1 : 0) | bits << 1), mask, site, &match,
                perform_match);
  return match.result;
}

std::uint32_t att_redux(ThreadContext* context, ReduxOp op, std::uint32_t value, std::uint32_t mask,
                        std::uint32_t site) {
  Redux redux{op, value, 0};
  gather_masked(context, "redux.sync", key_of(Collective::redux, static_cast<std::uint32_t>(op)), mask, site, &redux,
                perform_redux);
  return redux.result;
}

std::uint32_t att_activemask(ThreadContext* context, std::uint32_t site) {
  context->wait = {.kind = Wait::Kind::active_mask, .site = site, .what = "activemask"};
  context->warp->at_active_mask |= 1u << context->lane;
  context->grid().block_thread(context);
  return context->warp->active_mask;
}

std::uint64_t att_elect(ThreadContext* context, std::uint32_t mask, std::uint32_t site) {
  std::uint64_t result = 0;
  gather_masked(context, "elect.sync", key_of(Collective::elect, 0), mask, site, &result, perform_elect);
  return result;
}

void att_warp_sync(ThreadContext* context, std::uint32_t mask, std::uint32_t site) {
  gather_masked(context, "bar.warp.sync", key_of(Collective::sync, 0), mask, site, nullptr, perform_sync);
}

}  // extern "C"

}  // namespace attune::emulator
