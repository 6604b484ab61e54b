#include "runtime/emulator/check/records.h"

#include <algorithm>

namespace attune::emulator {

namespace {

constexpr std::size_t kFirstBuckets = std::size_t{1} << 14;
constexpr std::size_t kTransitions = std::size_t{1} << 12;
/// Fewer records than this are never worth looking through all cells.
constexpr std::size_t kLeastLimit = std::size_t{1} << 20;

std::uint64_t mix(std::uint64_t a, std::uint64_t b) {
  std::uint64_t x = (a ^ b) * 0x9e3779b97f4a7c15u;
  return x ^ x >> 29;
}

}  // namespace

Records::Records() : records_(1), next_(1), buckets_(kFirstBuckets), transitions_(kTransitions), limit_(kLeastLimit) {}

std::size_t Records::hash(const Record& r) {
  std::uint64_t x = mix(0, std::uint64_t{r.agent.block} << 32 | r.agent.index);
  x = mix(x, std::uint64_t{r.issuer.index} << 32 | r.epoch);
  x = mix(x, std::uint64_t{r.site} << 32 | r.rest);
  x ^= r.load;
  const unsigned flags = static_cast<unsigned>(r.bytes) | static_cast<unsigned>(r.write) << 4 |
                         static_cast<unsigned>(r.atomic) << 5 | static_cast<unsigned>(r.proxy) << 6;
  return static_cast<std::size_t>(mix(x, flags));
}

void Records::link(std::uint32_t id) {
  std::uint32_t& head = buckets_[hash(records_[id]) & (buckets_.size() - 1)];
  next_[id] = head;
  head = id;
}

std::uint32_t Records::push(Record record, std::uint32_t rest) {
  record.rest = rest;
  record.depth = static_cast<std::uint16_t>(records_[rest].depth + 1);
  record.any_write = record.write || records_[rest].any_write;
  for (std::uint32_t id = buckets_[hash(record) & (buckets_.size() - 1)]; id; id = next_[id]) {
    if (records_[id] == record) return id;
  }
  std::uint32_t id = free_;
  if (id) {
    free_ = next_[id];
    records_[id] = record;
  } else {
    id = static_cast<std::uint32_t>(records_.size());
    records_.push_back(record);
    next_.push_back(0);
  }
  ++live_;
  if (live_ > buckets_.size()) {
    std::vector<std::uint32_t> old(buckets_.size() * 4);
    old.swap(buckets_);
    for (std::uint32_t head : old) {
      while (head) {
        const std::uint32_t following = next_[head];
        link(head);
        head = following;
      }
    }
  }
  link(id);
  return id;
}

std::uint32_t Records::remembered(std::uint32_t list, std::uint32_t record) const {
  const Transition& known = transitions_[mix(list, record) % kTransitions];
  return known.list == list && known.record == record ? known.result : 0;
}

void Records::remember(std::uint32_t list, std::uint32_t record, std::uint32_t result) {
  transitions_[mix(list, record) % kTransitions] = {list, record, result};
}

void Records::mark(std::uint32_t list) {
  marked_.resize(records_.size());
  for (; list && !marked_[list]; list = records_[list].rest) marked_[list] = true;
}

void Records::sweep(std::vector<bool>* loads) {
  marked_.resize(records_.size());
  std::ranges::fill(buckets_, 0);
  std::ranges::fill(transitions_, Transition{});
  free_ = 0;
  live_ = 0;
  for (std::uint32_t id = 1; id < records_.size(); ++id) {
    if (marked_[id]) {
      (*loads)[records_[id].load] = true;
      link(id);
      ++live_;
    } else {
      next_[id] = free_;
      free_ = id;
    }
  }
  marked_.clear();
  limit_ = std::max(kLeastLimit, live_ * 2);
}

}  // namespace attune::emulator
