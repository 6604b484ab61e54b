#include "runtime/emulator/check/clock.h"

#include <algorithm>

namespace attune::emulator {

const Clock::Part* Clock::find(std::uint32_t block) const {
  const auto found = std::ranges::lower_bound(parts_, block, {}, &Part::block);
  return found != parts_.end() && found->block == block ? &*found : nullptr;
}

std::vector<Clock::Part>::iterator Clock::place(std::uint32_t block) {
  return std::ranges::lower_bound(parts_, block, {}, &Part::block);
}

void Clock::set(Agent agent, std::uint32_t epoch) {
  auto part = place(agent.block);
  if (part == parts_.end() || part->block != agent.block) {
    if (epoch == 0) return;
    part = parts_.insert(part, {agent.block, std::make_shared<std::vector<std::uint32_t>>(), nullptr});
  }
  const std::size_t index = agent.index;
  if (index < part->epochs->size() && (*part->epochs)[index] >= epoch) return;
  if (part->epochs.use_count() > 1) {
    part->base = part->epochs;
    part->epochs = std::make_shared<std::vector<std::uint32_t>>(*part->epochs);
  }
  if (index >= part->epochs->size()) part->epochs->resize(index + 1);
  (*part->epochs)[index] = epoch;
}

bool Clock::shares(const Clock& other) const {
  return std::ranges::equal(parts_, other.parts_,
                            [](const Part& a, const Part& b) { return a.block == b.block && a.epochs == b.epochs; });
}

void Clock::join(const Clock& other) {
  if (&other == this) return;
  if (parts_.empty()) {
    parts_ = other.parts_;
    return;
  }
  auto mine = parts_.begin();
  for (const Part& theirs : other.parts_) {
    mine =
        std::lower_bound(mine, parts_.end(), theirs.block, [](const Part& p, std::uint32_t b) { return p.block < b; });
    if (mine != parts_.end() && mine->block == theirs.block) {
      join(&*mine, theirs);
    } else {
      mine = parts_.insert(mine, theirs);
    }
  }
}

void Clock::join(Part* mine, const Part& theirs) {
  if (mine->epochs == theirs.epochs || mine->base == theirs.epochs) return;
  if (theirs.base == mine->epochs) {
    *mine = Part(theirs);
    return;
  }
  const std::vector<std::uint32_t>& a = *mine->epochs;
  const std::vector<std::uint32_t>& b = *theirs.epochs;
  const std::size_t common = std::min(a.size(), b.size());
  bool less = false, more = false;  // of mine, somewhere
  for (std::size_t i = 0; i < common; ++i) {
    less |= a[i] < b[i];
    more |= a[i] > b[i];
  }
  less |= b.size() > a.size();
  more |= a.size() > b.size();
  if (!less) {
    mine->base = theirs.epochs;
    return;
  }
  if (!more) {
    // Taking theirs, rather than writing it into mine, keeps the threads of a block on one vector. What mine was is the
    // better base: threads that have not joined yet hold that.
    const Part old = std::move(*mine);
    *mine = theirs;
    mine->base = old.epochs;
    return;
  }
  if (mine->epochs.use_count() > 1) mine->epochs = std::make_shared<std::vector<std::uint32_t>>(a);
  std::vector<std::uint32_t>& joined = *mine->epochs;
  joined.resize(std::max(joined.size(), b.size()));
  for (std::size_t i = 0; i < b.size(); ++i) joined[i] = std::max(joined[i], b[i]);
  mine->base = theirs.epochs;
}

}  // namespace attune::emulator
