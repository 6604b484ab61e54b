// Access records: who accessed some bytes of a 4-byte cell, in lists that cells share. Equal lists are one list, so
// that a cell is two numbers, and that a whole tile that one bulk copy wrote, or a matrix that the same hundred threads
// read, costs a few records rather than a few a cell.
#pragma once

#include <cstdint>
#include <vector>

#include "runtime/emulator/check/checker.h"

namespace attune::emulator {

struct Record {
  Agent agent;
  Agent issuer;
  std::uint32_t epoch = 0;
  std::uint32_t site = 0;
  std::uint32_t load = 0;  ///< of a read that may be late
  AgentKind kind{};
  Proxy proxy{};
  std::uint8_t bytes = 0xf;  ///< which of the cell's 4, a bit each
  bool write = false;
  bool atomic = false;
  bool any_write = false;   ///< itself or one further down
  std::uint16_t depth = 0;  ///< records of the list from here on
  std::uint32_t rest = 0;   ///< the list without this record
  bool operator==(const Record&) const = default;
};

class Records {
 public:
  Records();
  const Record& operator[](std::uint32_t id) const { return records_[id]; }
  /// The list that begins with `record` and goes on with `rest`.
  std::uint32_t push(Record record, std::uint32_t rest);
  /// What join(list, record) gave before, or 0. Only for lists where the answer cannot depend on the moment.
  std::uint32_t remembered(std::uint32_t list, std::uint32_t record) const;
  void remember(std::uint32_t list, std::uint32_t record, std::uint32_t result);

  /// Whether it is time to look for lists that no cell holds any more: mark() all that are held, then sweep(), which
  /// sets the flags of the loads that are left.
  bool crowded() const { return live_ >= limit_; }
  void mark(std::uint32_t list);
  void sweep(std::vector<bool>* loads);

 private:
  struct Transition {
    std::uint32_t list = 0, record = 0, result = 0;
  };
  static std::size_t hash(const Record& record);
  void link(std::uint32_t id);

  std::vector<Record> records_;         ///< 0 is nobody
  std::vector<std::uint32_t> next_;     ///< of each, in its bucket or in the free list
  std::vector<std::uint32_t> buckets_;  ///< a power of two
  std::vector<bool> marked_;
  std::vector<Transition> transitions_;
  std::uint32_t free_ = 0;
  std::size_t live_ = 0, limit_;
};

}  // namespace attune::emulator
