#include "cli/emulator/argument_bytes.h"

#include <charconv>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>

#include "base/error.h"
#include "cli/files.h"
#include "runtime/element.h"

namespace attune::cli {
namespace {

constexpr const char* kRandomTypes = "f16, bf16, f32, f64";

template <typename T>
Bytes bytes_of(T value) {
  Bytes bytes(sizeof value);
  std::memcpy(bytes.data(), &value, sizeof value);
  return bytes;
}

// "12", "-12", "0xc". Nothing if it is no integer or does not fit.
template <typename T>
std::optional<T> integer(std::string_view text) {
  const bool negative = text.starts_with('-');
  if (negative) text.remove_prefix(1);
  const bool hexadecimal = text.starts_with("0x");
  if (hexadecimal) text.remove_prefix(2);
  std::uint64_t magnitude = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), magnitude, hexadecimal ? 16 : 10);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  const auto most = static_cast<std::uint64_t>(std::numeric_limits<T>::max());
  if (magnitude > most + (negative && std::is_signed_v<T> ? 1 : 0) || (negative && !std::is_signed_v<T>))
    return std::nullopt;
  return static_cast<T>(negative ? 0 - magnitude : magnitude);
}

template <typename T>
std::optional<T> floating(std::string_view text) {
  T value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return value;
}

template <typename T>
Bytes integer_bytes(std::string_view text) {
  const std::optional<T> value = integer<T>(text);
  if (!value)
    fail(ErrorCode::invalid_argument, "'{}' is not an integer in range (allowed: {} to {}, 0x... too)", text,
         std::numeric_limits<T>::min(), std::numeric_limits<T>::max());
  return bytes_of(*value);
}

template <typename T>
Bytes floating_bytes(std::string_view text) {
  const std::optional<T> value = floating<T>(text);
  if (!value) fail(ErrorCode::invalid_argument, "'{}' is not a number in range (allowed: 1.5, -2e-3, inf, ...)", text);
  return bytes_of(*value);
}

Bytes element_bytes(DType dtype, std::string_view text) {
  const float most = runtime::to_float(dtype, dtype == DType::bf16 ? 0x7f7f : 0x7bff);
  const std::optional<float> value = floating<float>(text);
  if (!value || !(std::fabs(*value) <= most))
    fail(ErrorCode::invalid_argument, "'{}' is not a number in range (allowed: {} to {})", text, -most, most);
  return bytes_of(runtime::to_element(dtype, *value));
}

// Normal, of mean 0 and standard deviation 1.
template <typename Convert>
Bytes random_values(std::size_t bytes, std::uint64_t seed, const Convert& convert) {
  using T = decltype(convert(0.0));
  if (bytes % sizeof(T) != 0)
    fail(ErrorCode::invalid_argument, "{} bytes are not a whole number of elements of {}", bytes, sizeof(T));
  std::mt19937_64 random(seed);
  std::normal_distribution<double> normal;
  Bytes all(bytes);
  for (std::size_t at = 0; at < bytes; at += sizeof(T)) {
    const T value = convert(normal(random));
    std::memcpy(all.data() + at, &value, sizeof value);
  }
  return all;
}

Bytes random_contents(std::size_t bytes, std::string_view text, std::uint64_t seed) {
  const std::size_t colon = text.find(':');
  const std::string_view type = text.substr(0, colon);
  if (colon != std::string_view::npos) {
    const std::optional<std::uint64_t> given = integer<std::uint64_t>(text.substr(colon + 1));
    if (!given)
      fail(ErrorCode::invalid_argument, "seed: '{}' is not an integer (allowed: 0 to 2^64 - 1)",
           text.substr(colon + 1));
    seed = *given;
  }
  const auto element = [](DType dtype) {
    return [dtype](double value) { return runtime::to_element(dtype, static_cast<float>(value)); };
  };
  if (type == "f16") return random_values(bytes, seed, element(DType::fp16));
  if (type == "bf16") return random_values(bytes, seed, element(DType::bf16));
  if (type == "f32") return random_values(bytes, seed, [](double value) { return static_cast<float>(value); });
  if (type == "f64") return random_values(bytes, seed, [](double value) { return value; });
  fail(ErrorCode::invalid_argument, "random: type '{}' is unknown (allowed: {})", type, kRandomTypes);
}

}  // namespace

Bytes read_bytes(const std::string& path) {
  const std::string text = read_file(path);
  if (text.empty()) fail(ErrorCode::invalid_argument, "{} is empty (allowed: 1 byte and more)", path);
  return Bytes(text.begin(), text.end());
}

std::optional<Bytes> number_bytes(std::string_view type, std::string_view text) {
  if (type == "i8") return integer_bytes<std::int8_t>(text);
  if (type == "u8") return integer_bytes<std::uint8_t>(text);
  if (type == "i16") return integer_bytes<std::int16_t>(text);
  if (type == "u16") return integer_bytes<std::uint16_t>(text);
  if (type == "i32") return integer_bytes<std::int32_t>(text);
  if (type == "u32") return integer_bytes<std::uint32_t>(text);
  if (type == "i64") return integer_bytes<std::int64_t>(text);
  if (type == "u64") return integer_bytes<std::uint64_t>(text);
  if (type == "f16") return element_bytes(DType::fp16, text);
  if (type == "bf16") return element_bytes(DType::bf16, text);
  if (type == "f32") return floating_bytes<float>(text);
  if (type == "f64") return floating_bytes<double>(text);
  return std::nullopt;
}

Bytes buffer_bytes(std::size_t bytes, std::string_view text, std::uint64_t seed) {
  constexpr std::string_view kRandom = "random:";
  if (text == "zero") return Bytes(bytes);
  if (text.starts_with(kRandom)) return random_contents(bytes, text.substr(kRandom.size()), seed);
  fail(ErrorCode::invalid_argument, "contents '{}' are unknown (allowed: zero, random:TYPE, random:TYPE:SEED)", text);
}

}  // namespace attune::cli
