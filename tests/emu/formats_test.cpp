// fp16, bf16, fp8 and tf32 against their definitions.
#include <doctest/doctest.h>

#include <bit>
#include <cmath>
#include <limits>
#include <random>

#include "runtime/emulator/exec/formats.h"

using namespace attune::emulator;

namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

/// Value of a finite pattern, from the definition of the format.
template <typename Format>
double value_of(unsigned bits) {
  const unsigned mantissa = bits & ((1u << Format::mantissa_bits) - 1);
  const int field = static_cast<int>(bits >> Format::mantissa_bits & ((1u << Format::exponent_bits) - 1));
  const int bias = (1 << (Format::exponent_bits - 1)) - 1;
  const double fraction = std::ldexp(mantissa, -Format::mantissa_bits);
  const double magnitude = field == 0 ? std::ldexp(fraction, 1 - bias) : std::ldexp(1 + fraction, field - bias);
  return (bits >> (Format::exponent_bits + Format::mantissa_bits) & 1) != 0 ? -magnitude : magnitude;
}

template <typename Format>
void check_all_patterns() {
  const unsigned sign = 1u << (Format::exponent_bits + Format::mantissa_bits);
  for (unsigned magnitude = 0; magnitude <= max_finite<Format>(); ++magnitude) {
    for (unsigned bits : {magnitude, magnitude | sign}) {
      const auto pattern = static_cast<typename Format::Bits>(bits);
      const float decoded = decode<Format>(pattern);
      REQUIRE(double{decoded} == value_of<Format>(bits));
      REQUIRE(std::signbit(decoded) == ((bits & sign) != 0));
      for (Rounding rounding : {Rounding::nearest_even, Rounding::toward_zero, Rounding::down, Rounding::up}) {
        REQUIRE(encode<Format>(double{decoded}, rounding) == pattern);
      }
    }
  }
}

/// Values between neighbours, exactly half-way and right beside it.
template <typename Format>
void check_rounding() {
  for (unsigned bits = 0; bits < max_finite<Format>(); ++bits) {
    const double low = value_of<Format>(bits), high = value_of<Format>(bits + 1), middle = (low + high) / 2;
    const auto lower = static_cast<typename Format::Bits>(bits), upper = static_cast<typename Format::Bits>(bits + 1);
    const auto even = (bits & 1) != 0 ? upper : lower;
    REQUIRE(encode<Format>(middle) == even);
    REQUIRE(encode<Format>(std::nextafter(middle, low)) == lower);
    REQUIRE(encode<Format>(std::nextafter(middle, high)) == upper);
    REQUIRE(encode<Format>(middle, Rounding::nearest_away) == upper);
    REQUIRE(encode<Format>(std::nextafter(high, low), Rounding::toward_zero) == lower);
    REQUIRE(encode<Format>(std::nextafter(low, high), Rounding::up) == upper);
    REQUIRE(encode<Format>(std::nextafter(high, low), Rounding::down) == lower);
    const unsigned sign = 1u << (Format::exponent_bits + Format::mantissa_bits);
    REQUIRE(encode<Format>(-std::nextafter(low, high), Rounding::down) == (upper | sign));
    REQUIRE(encode<Format>(-std::nextafter(high, low), Rounding::up) == (lower | sign));
  }
}

template <typename Format>
void check_overflow() {
  constexpr unsigned kLargest = max_finite<Format>();
  constexpr unsigned kSign = 1u << (Format::exponent_bits + Format::mantissa_bits);
  const double largest = value_of<Format>(kLargest);
  const double step = largest - value_of<Format>(kLargest - 1);
  CHECK(encode<Format>(largest + step / 4) == kLargest);
  CHECK(encode<Format>(largest + step) == kLargest + 1);
  CHECK(encode<Format>(kInfinity) == kLargest + 1);
  CHECK(encode<Format>(-kInfinity) == (kSign | (kLargest + 1)));
  CHECK(encode<Format>(largest * 4, Rounding::toward_zero) == kLargest);
  CHECK(encode<Format>(-largest * 4, Rounding::up) == (kSign | kLargest));
  CHECK(encode<Format>(kInfinity, Rounding::nearest_even, Overflow::saturate) == kLargest);
  CHECK(encode<Format>(-largest * 100, Rounding::nearest_even, Overflow::saturate) == (kSign | kLargest));
  CHECK(encode<Format>(std::nan("")) == Format::nan);
  CHECK(encode<Format>(-std::nan(""), Rounding::nearest_even, Overflow::saturate) == Format::nan);
  CHECK(std::isnan(decode<Format>(Format::nan)));
}

}  // namespace

TEST_CASE("every finite pattern is decoded by definition and encoded to itself") {
  check_all_patterns<Fp16>();
  check_all_patterns<Bf16>();
  check_all_patterns<E4m3>();
  check_all_patterns<E5m2>();
}

TEST_CASE("rounding is right at and beside the middle of all neighbours") {
  check_rounding<Fp16>();
  check_rounding<Bf16>();
  check_rounding<E4m3>();
  check_rounding<E5m2>();
}

TEST_CASE("overflow, saturation, infinities and NaN") {
  check_overflow<Fp16>();
  check_overflow<Bf16>();
  check_overflow<E4m3>();
  check_overflow<E5m2>();
  CHECK(decode<Fp16>(0x7C00) == kInfinity);
  CHECK(decode<Bf16>(0xFF80) == -kInfinity);
  CHECK(decode<E5m2>(0x7C) == kInfinity);
  CHECK(e4m3_to_float(0x7E) == 448.0f);
  CHECK(std::isnan(e4m3_to_float(0xFF)));
  CHECK(fp16_to_float(0x0001) == 0x1p-24f);
}

TEST_CASE("double is rounded once") {
  // Through float this would first become the tie 1 + 2^-11 and then 1.
  CHECK(encode<Fp16>(1 + 0x1p-11 + 0x1p-40) == 0x3C01);
  CHECK(encode<Bf16>(1 + 0x1p-8 + 0x1p-40) == 0x3F81);
}

TEST_CASE("tf32 rounds ties away from zero, carries into the exponent and keeps the sign") {
  CHECK(float_to_tf32(1.0f) == 0x3F800000);
  CHECK(float_to_tf32(std::bit_cast<float>(0x3F801000u)) == 0x3F802000);
  CHECK(float_to_tf32(std::bit_cast<float>(0x3F800FFFu)) == 0x3F800000);
  CHECK(float_to_tf32(std::bit_cast<float>(0xBF801000u)) == 0xBF802000);
  CHECK(float_to_tf32(std::bit_cast<float>(0x3FFFFFFFu)) == 0x40000000);
  CHECK(float_to_tf32(std::bit_cast<float>(0x3F801000u), Rounding::nearest_even) == 0x3F800000);
  CHECK(float_to_tf32(std::numeric_limits<float>::max()) == 0x7F800000);
  CHECK(float_to_tf32(std::numeric_limits<float>::max(), Rounding::nearest_away, Overflow::saturate) == 0x7F7FE000);
  // NaNs lose their end, with an infinity left of some; other roundings give the one NaN.
  CHECK(float_to_tf32(std::bit_cast<float>(0x7FFFFFFFu)) == 0x7FFFE000);
  CHECK(float_to_tf32(std::bit_cast<float>(0xFF800001u)) == 0xFF800000);
  CHECK(float_to_tf32(std::bit_cast<float>(0xFF800001u), Rounding::nearest_even) == 0x7FFFFFFF);
  CHECK(tf32_to_float(0x3F801FFF) == 1.0f);
}

TEST_CASE("truncation to float") {
  std::mt19937_64 random(7);
  for (int i = 0; i < 100'000; ++i) {
    const double value =
        std::ldexp(static_cast<double>(random() >> 11) * 0x1p-53, static_cast<int>(random() % 300) - 160);
    const float truncated = truncate_to_float(-value);
    if (value >= 0x1p128) {
      REQUIRE(truncated == -kInfinity);
      continue;
    }
    REQUIRE(double{truncated} >= -value);
    REQUIRE(double{std::nextafter(truncated, -kInfinity)} < -value);
  }
}
