// math_helpers.h: f32 and f64.
#include <bit>
#include <cfenv>
#include <cmath>
#include <limits>
#include <numbers>

#include "runtime/emulator/exec/formats.h"
#include "runtime/emulator/translate/math_helpers.h"

namespace attune::emulator {
namespace {

constexpr float kNan32 = std::bit_cast<float>(0x7FFFFFFFu);
constexpr double kNan64 = std::numeric_limits<double>::quiet_NaN();

int host_mode(Rounding rounding) {
  switch (rounding) {
    case Rounding::toward_zero: return FE_TOWARDZERO;
    case Rounding::down: return FE_DOWNWARD;
    case Rounding::up: return FE_UPWARD;
    default: return FE_TONEAREST;
  }
}

/// The volatile operands keep the compiler from computing before the mode is set, or after it is set back.
template <typename T>
T rounded(T a_value, T b_value, T c_value, std::uint32_t word) {
  volatile T a = a_value, b = b_value, c = c_value;
  volatile T result = 0;
  const int before = std::fegetround();
  std::fesetround(host_mode(static_cast<Rounding>(word >> 8)));
  switch (static_cast<RoundedOp>(word & 0xFF)) {
    case RoundedOp::add: result = a + b; break;
    case RoundedOp::sub: result = a - b; break;
    case RoundedOp::mul: result = a * b; break;
    case RoundedOp::fma: result = std::fma(a, b, c); break;
    case RoundedOp::div: result = a / b; break;
    case RoundedOp::sqrt: result = std::sqrt(a); break;
  }
  std::fesetround(before);
  return result;
}

template <typename T>
T min_max(T a, T b, std::uint32_t word, T nan) {
  const bool maximum = word & 1, propagate_nan = word & 2, xorsign_abs = word & 4;
  const bool negative = xorsign_abs && std::signbit(a) != std::signbit(b);
  if (xorsign_abs) {
    a = std::fabs(a);
    b = std::fabs(b);
  }
  T result;
  if (std::isnan(a) || std::isnan(b)) {
    if (propagate_nan || (std::isnan(a) && std::isnan(b))) return nan;
    result = std::isnan(a) ? b : a;
  } else if (a == b) {
    result = std::signbit(a) == maximum ? b : a;  // of +0 and -0 the greater or the lesser
  } else {
    result = (a > b) == maximum ? a : b;
  }
  return negative ? -result : result;
}

template <typename T>
std::uint32_t test(T a, std::uint32_t property) {
  switch (static_cast<TestProperty>(property)) {
    case TestProperty::finite: return std::isfinite(a);
    case TestProperty::infinite: return std::isinf(a);
    case TestProperty::number: return !std::isnan(a);
    case TestProperty::not_a_number: return std::isnan(a);
    case TestProperty::normal: return std::isnormal(a);
    case TestProperty::subnormal: return std::fpclassify(a) == FP_SUBNORMAL;
  }
  return 0;
}

/// The angle of which sin.approx and cos.approx compute: in turns it is a float, rounded toward zero and flushed, so
/// that large angles lose what lies behind the point.
double reduced_angle(float a) {
  constexpr float kTurnsPerRadian = 0x1.45f306p-3f;
  const float turns = truncate_to_float(double{a} * double{kTurnsPerRadian});
  const float flushed = std::fpclassify(turns) == FP_SUBNORMAL ? std::copysign(0.0f, a) : turns;
  return 2 * std::numbers::pi * (double{flushed} - std::nearbyint(double{flushed}));
}

}  // namespace

extern "C" {

float att_f32_rounded(float a, float b, float c, std::uint32_t word) { return rounded(a, b, c, word); }
double att_f64_rounded(double a, double b, double c, std::uint32_t word) { return rounded(a, b, c, word); }
float att_f32_fma(float a, float b, float c) { return std::fma(a, b, c); }
double att_f64_fma(double a, double b, double c) { return std::fma(a, b, c); }

float att_f32_min(float a, float b) {
  if (a < b) return a;
  if (b < a) return b;
  return min_max(a, b, min_max_word({}), kNan32);
}

float att_f32_max(float a, float b) {
  if (a > b) return a;
  if (b > a) return b;
  return min_max(a, b, min_max_word({.maximum = true}), kNan32);
}

float att_f32_min_max(float a, float b, std::uint32_t word) { return min_max(a, b, word, kNan32); }
double att_f64_min_max(double a, double b, std::uint32_t word) { return min_max(a, b, word, kNan64); }

float att_f32_saturate(float a) { return a >= 1 ? 1.0f : a > 0 ? a : 0.0f; }
double att_f64_saturate(double a) { return a >= 1 ? 1.0 : a > 0 ? a : 0.0; }

float att_f32_ex2(float a) { return std::exp2(a); }
float att_f32_lg2(float a) { return a < 0 ? kNan32 : std::log2(a); }
float att_f32_sin(float a) { return std::isfinite(a) ? static_cast<float>(std::sin(reduced_angle(a))) : kNan32; }
float att_f32_cos(float a) { return std::isfinite(a) ? static_cast<float>(std::cos(reduced_angle(a))) : kNan32; }
float att_f32_tanh(float a) { return std::tanh(a); }
float att_f32_rsqrt(float a) { return a < 0 ? kNan32 : static_cast<float>(1 / std::sqrt(static_cast<double>(a))); }
double att_f64_rsqrt(double a) { return a < 0 ? kNan64 : 1 / std::sqrt(a); }

double att_f64_coarse(double a, std::uint32_t square_root) {
  constexpr std::uint64_t kUpper = 0xFFFFFFFF00000000;
  const auto upper = [](double value) { return std::bit_cast<double>(std::bit_cast<std::uint64_t>(value) & kUpper); };
  const auto flush = [](double value) {
    return std::fpclassify(value) == FP_SUBNORMAL ? std::copysign(0.0, value) : value;
  };
  const double operand = flush(upper(a));
  if (std::isnan(operand)) return kNan64;
  return flush(upper(square_root ? att_f64_rsqrt(operand) : 1 / operand));
}

std::uint32_t att_f32_test(float a, std::uint32_t property) { return test(a, property); }
std::uint32_t att_f64_test(double a, std::uint32_t property) { return test(a, property); }

}  // extern "C"

}  // namespace attune::emulator
