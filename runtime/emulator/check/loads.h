// Loads that may be late. The hardware carries out a load from shared memory behind what stands in line before it, and
// an arrive does not stand in that line: a thread can tell others that it has read what it has not. Only the use of a
// register that the load fills shows that it is over.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "runtime/emulator/check/clock.h"

namespace attune::emulator {

class Loads {
 public:
  /// A thread whose registers the load fills has used one of them in this epoch of its.
  struct Use {
    Agent thread;
    std::uint32_t epoch = 0;
  };

  /// A load that nobody has used; never 0, which stands for loads that are over at once.
  std::uint32_t begin() {
    if (free_.empty()) {
      uses_.emplace_back();
      return static_cast<std::uint32_t>(uses_.size() - 1);
    }
    const std::uint32_t load = free_.back();
    free_.pop_back();
    return load;
  }
  void use(std::uint32_t load, const Use& use) { uses_[load].push_back(use); }
  /// The first one of each thread.
  const std::vector<Use>& uses(std::uint32_t load) const { return uses_[load]; }

  std::size_t size() const { return uses_.size(); }
  /// Forgets the others; one flag for each.
  void keep(const std::vector<bool>& held) {
    free_.clear();
    for (std::size_t load = 1; load < uses_.size(); ++load) {
      if (held[load]) continue;
      uses_[load].clear();
      free_.push_back(static_cast<std::uint32_t>(load));
    }
  }

 private:
  std::vector<std::vector<Use>> uses_ = std::vector<std::vector<Use>>(1);
  std::vector<std::uint32_t> free_;
};

}  // namespace attune::emulator
