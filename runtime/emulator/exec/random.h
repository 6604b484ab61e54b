// The dice of the scheduler: reproducible from the seed of a launch.
#pragma once

#include <cstdint>

namespace attune::emulator {

/// xorshift64*, seeded so that nearby seeds give unrelated streams.
class Random {
 public:
  explicit Random(std::uint64_t seed) : state_(mix(seed + 0x9E3779B97F4A7C15)) {}

  std::uint64_t next() {
    state_ ^= state_ >> 12;
    state_ ^= state_ << 25;
    state_ ^= state_ >> 27;
    return state_ * 0x2545F4914F6CDD1D;
  }
  /// Below `bound`, which is not 0.
  std::uint32_t below(std::uint32_t bound) { return static_cast<std::uint32_t>((next() >> 32) * bound >> 32); }

  static std::uint64_t mix(std::uint64_t value) {
    value = (value ^ value >> 30) * 0xBF58476D1CE4E5B9;
    value = (value ^ value >> 27) * 0x94D049BB133111EB;
    value ^= value >> 31;
    return value ? value : 1;
  }

 private:
  std::uint64_t state_;
};

}  // namespace attune::emulator
