// Vector clocks.
#include <doctest/doctest.h>

#include <algorithm>
#include <cstdint>
#include <vector>

#include "runtime/emulator/check/clock.h"

using namespace attune::emulator;

TEST_CASE("clocks keep the maximum of each agent") {
  Clock a, b;
  CHECK(a.at({3, 7}) == 0);
  a.set({3, 7}, 5);
  a.set({3, 7}, 2);
  a.set({1, 0}, 9);
  b.set({3, 2}, 4);
  b.set({3, 7}, 3);
  b.set({2, 1}, 1);
  a.join(b);
  CHECK(a.at({3, 7}) == 5);
  CHECK(a.at({3, 2}) == 4);
  CHECK(a.at({1, 0}) == 9);
  CHECK(a.at({2, 1}) == 1);
  CHECK(a.at({2, 0}) == 0);
  CHECK(b.at({3, 7}) == 3);
  CHECK(b.at({1, 0}) == 0);
}

TEST_CASE("copies of clocks share their epochs and part when one changes") {
  Clock a;
  a.set({0, 1}, 1);
  Clock b = a, c = a;
  CHECK(a.shares(b));
  b.set({0, 2}, 2);
  CHECK_FALSE(a.shares(b));
  CHECK(a.at({0, 2}) == 0);
  c.join(b);  // b came from what c is: taken over as it stands
  CHECK(c.shares(b));
  a.set({0, 3}, 3);
  c.join(a);
  CHECK(c.at({0, 2}) == 2);
  CHECK(c.at({0, 3}) == 3);
  CHECK(b.at({0, 3}) == 0);
  b.join(c);
  CHECK(b.at({0, 3}) == 3);
  b.clear();
  CHECK(b.empty());
}

TEST_CASE("clocks agree with plain maxima whatever is joined with what") {
  constexpr std::size_t kClocks = 6, kAgents = 12;
  std::vector<Clock> clocks(kClocks);
  std::vector<std::vector<std::uint32_t>> plain(kClocks, std::vector<std::uint32_t>(kAgents));
  std::uint32_t random = 12345;
  const auto below = [&](std::uint32_t bound) {
    random = random * 1664525 + 1013904223;
    return (random >> 8) % bound;
  };
  for (int step = 0; step < 20000; ++step) {
    const std::size_t i = below(kClocks), j = below(kClocks);
    switch (below(8)) {
      case 0:
        clocks[i] = clocks[j];
        plain[i] = plain[j];
        break;
      case 1:
      case 2:
      case 3: {
        const std::uint32_t agent = below(kAgents), epoch = below(1000);
        clocks[i].set({agent % 3, agent / 3}, epoch);
        plain[i][agent] = std::max(plain[i][agent], epoch);
        break;
      }
      case 4:
        if (below(40) == 0) {
          clocks[i].clear();
          std::ranges::fill(plain[i], 0);
        }
        break;
      default:
        clocks[i].join(clocks[j]);
        for (std::size_t k = 0; k < kAgents; ++k) plain[i][k] = std::max(plain[i][k], plain[j][k]);
    }
    bool equal = true;
    for (std::uint32_t k = 0; k < kAgents; ++k) equal = equal && clocks[i].at({k % 3, k / 3}) == plain[i][k];
    REQUIRE(equal);
  }
}
