// What the host hands a forward kernel.
#include <doctest/doctest.h>

#include <cstdint>
#include <random>

#include "codegen/kernel_spec.h"

using namespace attune;
using namespace attune::codegen;

namespace {

// As templates/forward/params.cuh does it.
std::uint32_t divided(std::uint32_t n, Divisor by) {
  return (n + static_cast<std::uint32_t>(std::uint64_t{n} * by.multiplier >> 32)) >> by.shift;
}

}  // namespace

TEST_CASE("divisors divide") {
  constexpr std::uint32_t kMost = (1u << 31) - 1;
  std::mt19937 random(7);
  const auto check = [&](std::uint32_t d) {
    CAPTURE(d);
    const Divisor by = divisor(d);
    const std::uint32_t multiple = kMost / d * d;
    for (const std::uint32_t n : {0u, 1u, d - 1, d, d < kMost ? d + 1 : d, multiple - 1, multiple, kMost - 1, kMost})
      if (n / d != divided(n, by)) FAIL_CHECK(n);
    for (int i = 0; i < 100; i++) {
      const std::uint32_t n = random() & kMost;
      if (n / d != divided(n, by)) FAIL_CHECK(n);
    }
  };
  for (std::uint32_t d = 1; d < 5000; d++) check(d);
  for (std::uint32_t power = 1; power < 31; power++)
    for (const std::uint32_t d : {(1u << power) - 1, 1u << power, (1u << power) + 1}) check(d);
  for (int i = 0; i < 5000; i++) check((random() & kMost) | 1);
  check(kMost);
  CHECK(divided(kMost, divisor(0)) == kMost);
}

TEST_CASE("a forward kernel's parameters follow from the problem") {
  const Problem problem{.heads = 12, .heads_kv = 4, .batch = 3, .seqlen_q = 1000, .seqlen_k = 77};
  const ForwardParams params = forward_params(problem, 192, 8);
  CHECK(params.seqlen_q == 1000);
  CHECK(params.seqlen_k == 77);
  CHECK(params.heads == 12);
  CHECK(params.group == 3);
  CHECK(params.tiles_m == 6);
  CHECK(params.head_count == 36);
  CHECK(params.total_tiles == 216);
  CHECK(params.section == 8);
  CHECK(divided(215, params.by_tiles_m) == 35);
  CHECK(divided(35, params.by_heads) == 2);
  CHECK(divided(11, params.by_group) == 3);
}
