#include "cli/emulator/kernel_arguments.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <string_view>

#include "base/error.h"
#include "cli/files.h"
#include "cli/problem_flags.h"
#include "runtime/cpu/element.h"

namespace attune::cli {
namespace {

constexpr const char* kForms =
    "buf:BYTES, buf:BYTES=zero, buf:BYTES=random:TYPE[:SEED], buf:@FILE, bytes:@FILE, TYPE:VALUE with TYPE i8, u8, "
    "i16, "
    "u16, i32, u32, i64, u64, f16, bf16, f32 or f64";
constexpr const char* kRandomTypes = "f16, bf16, f32, f64";
// NaN in every format: what a launch that reads it shows in its results, too.
constexpr int kUnwritten = 0xFF;

template <typename T>
Bytes bytes_of(T value) {
  Bytes bytes(sizeof value);
  std::memcpy(bytes.data(), &value, sizeof value);
  return bytes;
}

std::string file_after_at(std::string_view text) { return std::string(text.substr(1)); }

Bytes read_bytes(const std::string& path) {
  const std::string text = read_file(path);
  return Bytes(text.begin(), text.end());
}

// -- numbers

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

std::optional<Bytes> number(std::string_view type, std::string_view text) {
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

// -- buffers

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

void fill_buffer(KernelArgument& argument, std::string_view text, std::uint64_t seed) {
  if (text.starts_with('@')) {
    argument.contents = read_bytes(file_after_at(text));
    argument.buffer_bytes = argument.contents->size();
    if (argument.buffer_bytes == 0)
      fail(ErrorCode::invalid_argument, "{} is empty (allowed: 1 byte and more)", file_after_at(text));
    return;
  }
  const std::size_t equals = text.find('=');
  argument.buffer_bytes = static_cast<std::size_t>(parse_bytes("BYTES", std::string(text.substr(0, equals))));
  if (argument.buffer_bytes == 0)
    fail(ErrorCode::invalid_argument, "BYTES: 0 (allowed: 1 and more; a null pointer is u64:0)");
  const std::size_t room = emulator::MachineOptions().memory_limit;
  if (argument.buffer_bytes > room)
    fail(ErrorCode::invalid_argument, "BYTES: {} (allowed: 1 to {})", argument.buffer_bytes, room);
  if (equals == std::string_view::npos) return;
  const std::string_view contents = text.substr(equals + 1);
  constexpr std::string_view kRandom = "random:";
  if (contents == "zero") {
    argument.contents = Bytes(argument.buffer_bytes);
  } else if (contents.starts_with(kRandom)) {
    argument.contents = random_contents(argument.buffer_bytes, contents.substr(kRandom.size()), seed);
  } else {
    fail(ErrorCode::invalid_argument, "contents '{}' are unknown (allowed: zero, random:TYPE, random:TYPE:SEED)",
         contents);
  }
}

KernelArgument parse(std::size_t index, const std::string& text) {
  KernelArgument argument{.text = text};
  const std::size_t colon = text.find(':');
  const std::string_view type = std::string_view(text).substr(0, colon);
  const std::string_view rest = colon == std::string::npos ? "" : std::string_view(text).substr(colon + 1);
  if (colon != std::string::npos) {
    if (type == "buf") {
      fill_buffer(argument, rest, index);
      argument.value = Bytes(sizeof(void*));
      return argument;
    }
    if (type == "bytes" && rest.starts_with('@')) {
      argument.value = read_bytes(file_after_at(rest));
      return argument;
    }
    if (std::optional<Bytes> value = number(type, rest)) {
      argument.value = *std::move(value);
      return argument;
    }
  }
  fail(ErrorCode::invalid_argument, "'{}' is no argument (allowed: {})", text, kForms);
}

void require_parameters(const emulator::KernelInfo& kernel, const std::vector<KernelArgument>& arguments) {
  if (arguments.size() != kernel.parameter_bytes.size()) {
    std::string sizes;
    for (const std::size_t bytes : kernel.parameter_bytes) sizes += (sizes.empty() ? "" : ", ") + std::to_string(bytes);
    fail(ErrorCode::invalid_argument, "arg: given {} times, but {} has {} parameters{}", arguments.size(), kernel.name,
         kernel.parameter_bytes.size(), sizes.empty() ? "" : fmt::format(" (bytes: {})", sizes));
  }
  for (std::size_t i = 0; i < arguments.size(); ++i) {
    if (arguments[i].value.size() == kernel.parameter_bytes[i]) continue;
    fail(ErrorCode::invalid_argument, "arg {}: '{}' has {} bytes, but parameter {} of {} has {}", i, arguments[i].text,
         arguments[i].value.size(), i, kernel.name, kernel.parameter_bytes[i]);
  }
}

}  // namespace

KernelArgument parse_kernel_argument(std::size_t index, const std::string& text) {
  try {
    return parse(index, text);
  } catch (const Error& error) {
    fail(error.code(), "arg {}: {}", index, error.what());
  }
}

KernelArguments::KernelArguments(emulator::Machine& machine, const emulator::KernelInfo& kernel,
                                 std::vector<KernelArgument> arguments)
    : machine_(machine), all_(std::move(arguments)) {
  require_parameters(kernel, all_);
  for (std::size_t i = 0; i < all_.size(); ++i) {
    KernelArgument& argument = all_[i];
    if (argument.buffer_bytes > 0) {
      try {
        argument.value = bytes_of(machine_.allocate(argument.buffer_bytes));
      } catch (const Error& error) {
        fail(error.code(), "arg {}: {}", i, error.what());
      }
    }
    addresses_.push_back(argument.value.data());
  }
}

void* KernelArguments::memory(const KernelArgument& argument) const {
  void* address = nullptr;
  std::memcpy(&address, argument.value.data(), sizeof address);
  return address;
}

void KernelArguments::reset() {
  for (const KernelArgument& argument : all_) {
    if (argument.buffer_bytes == 0) continue;
    if (argument.contents) {
      std::memcpy(memory(argument), argument.contents->data(), argument.buffer_bytes);
    } else {
      std::memset(memory(argument), kUnwritten, argument.buffer_bytes);
    }
    machine_.mark_written(memory(argument), argument.buffer_bytes, argument.contents.has_value());
  }
}

std::string_view KernelArguments::contents(std::size_t index) const {
  return {static_cast<const char*>(memory(all_.at(index))), all_.at(index).buffer_bytes};
}

}  // namespace attune::cli
