#include "runtime/emulator/exec/report_text.h"

#include <fmt/format.h>

#include <cstddef>

#include "runtime/emulator/exec/thread.h"

namespace attune::emulator {

namespace {

struct Range {
  std::uint32_t first, last;
};

std::vector<Range> ranges_of(const std::vector<std::uint32_t>& values) {
  std::vector<Range> ranges;
  for (const std::uint32_t value : values) {
    if (!ranges.empty() && ranges.back().last + 1 == value) {
      ranges.back().last = value;
    } else {
      ranges.push_back({value, value});
    }
  }
  return ranges;
}

std::string list_of(const std::vector<Range>& ranges) {
  constexpr std::size_t kMost = 8;
  std::string text;
  for (std::size_t i = 0; i < ranges.size() && i < kMost; ++i) {
    if (i) text += ", ";
    text += ranges[i].first == ranges[i].last ? fmt::format("{}", ranges[i].first)
                                              : fmt::format("{}-{}", ranges[i].first, ranges[i].last);
  }
  if (ranges.size() > kMost) text += ", ...";
  return text;
}

}  // namespace

std::string thread_ranges(const std::vector<std::uint32_t>& threads) {
  if (threads.empty()) return "no thread";
  if (threads.size() == 1) return fmt::format("thread {} (warp {})", threads.front(), threads.front() / kWarpSize);
  std::vector<std::uint32_t> warps;
  bool whole = threads.size() % kWarpSize == 0;
  for (std::size_t i = 0; i < threads.size(); ++i) {
    const std::uint32_t warp = threads[i] / kWarpSize;
    if (warps.empty() || warps.back() != warp) {
      whole &= i % kWarpSize == 0;
      warps.push_back(warp);
    }
  }
  whole &= warps.size() * kWarpSize == threads.size();
  std::string text = "threads " + list_of(ranges_of(threads));
  if (whole || warps.size() == 1)
    text += fmt::format(" (warp{} {})", warps.size() == 1 ? "" : "s", list_of(ranges_of(warps)));
  return text;
}

}  // namespace attune::emulator
