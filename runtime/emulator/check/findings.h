// The findings of one launch, one entry for each kind and pair of instructions.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include "runtime/emulator/exec/code.h"

namespace attune::emulator {

class Findings {
 public:
  Findings(const ProgramImage& image, int limit)
      : image_(image), limit_(limit > 0 ? static_cast<std::size_t>(limit) : 1) {}

  /// Counts one that is known already: kind, instruction and other instruction.
  bool count(FindingKind kind, std::uint32_t site, std::uint32_t other_site);
  void add(FindingKind kind, std::uint32_t site, const ThreadPosition& thread, std::string message,
           std::uint32_t other_site, const std::optional<ThreadPosition>& other);
  bool full() const { return findings_.size() >= limit_; }
  std::vector<Finding> take();

 private:
  const ProgramImage& image_;
  std::size_t limit_;
  std::vector<Finding> findings_;
  std::map<std::tuple<FindingKind, std::uint32_t, std::uint32_t>, std::size_t> known_;  ///< positions in findings_
};

}  // namespace attune::emulator
