// The 16-bit element types on the host.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>

#include <attune/problem.h>

namespace attune::runtime {

/// A NaN in either type: what an element that nobody wrote holds.
inline constexpr std::uint16_t kPoisonElement = 0x7fc1;

inline float to_float(DType dtype, std::uint16_t bits) {
  if (dtype == DType::bf16) return std::bit_cast<float>(static_cast<std::uint32_t>(bits) << 16);
  const int exponent = bits >> 10 & 31, fraction = bits & 1023;
  float magnitude = 0;
  if (exponent == 31) {
    magnitude = fraction != 0 ? std::numeric_limits<float>::quiet_NaN() : std::numeric_limits<float>::infinity();
  } else if (exponent == 0) {
    magnitude = std::ldexp(static_cast<float>(fraction), -24);
  } else {
    magnitude = std::ldexp(static_cast<float>(fraction + 1024), exponent - 25);
  }
  return (bits & 0x8000) != 0 ? -magnitude : magnitude;
}

/// Rounded to nearest even. `value` is a number within the type's range.
inline std::uint16_t to_element(DType dtype, float value) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  if (dtype == DType::bf16) return static_cast<std::uint16_t>((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
  const auto sign = static_cast<std::uint16_t>(bits >> 16 & 0x8000);
  const float magnitude = std::fabs(value);
  if (magnitude < 0x1p-14f) return static_cast<std::uint16_t>(sign | std::lrint(magnitude * 0x1p24f));
  int exponent = 0;
  const float fraction = std::frexp(magnitude, &exponent);   // in [0.5, 1)
  const long mantissa = std::lrint(fraction * 2048) - 1024;  // 1024 carries into the exponent, as it should
  return static_cast<std::uint16_t>(sign | (((exponent + 14) << 10) + mantissa));
}

}  // namespace attune::runtime
