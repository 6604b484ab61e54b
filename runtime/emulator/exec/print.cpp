// vprintf and failed assertions.

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <string>
#include <string_view>

#include "runtime/emulator/check/checker.h"
#include "runtime/emulator/exec/grid.h"
#include "runtime/emulator/exec/memory.h"
#include "runtime/emulator/exec/thread.h"

namespace attune::emulator {

namespace {

constexpr std::size_t kMaxString = 4096;
constexpr std::int64_t kMaxField = 512;  ///< of one number, whatever width it asks for
constexpr int kMaxArguments = 32;

/// A zero-terminated string in memory that the thread may read.
std::string read_string(ThreadContext* context, std::uint64_t address, const char* what, std::uint32_t site) {
  std::string text;
  while (text.size() < kMaxString) {
    Location location;
    if (!locate(context, AddressSpace::generic, address + text.size(), 1, AccessKind::read, what, site, &location))
      break;
    const char c = static_cast<char>(*location.host);
    if (c == 0) break;
    text += c;
  }
  return text;
}

/// The packed arguments: each aligned to its size.
class Arguments {
 public:
  Arguments(ThreadContext* context, std::uint64_t address, std::uint32_t site)
      : context_(context), address_(address), site_(site) {}

  std::uint64_t take(std::size_t bytes) {
    offset_ = (offset_ + bytes - 1) / bytes * bytes;
    Location location;
    std::uint64_t value = 0;
    if (locate(context_, AddressSpace::generic, address_ + offset_, bytes, AccessKind::read, "argument of printf",
               site_, &location)) {
      std::memcpy(&value, location.host, bytes);
    }
    offset_ += bytes;
    return value;
  }

 private:
  ThreadContext* context_;
  std::uint64_t address_;
  std::size_t offset_ = 0;
  std::uint32_t site_;
};

/// One conversion specification: "%-8.3lld".
struct Specification {
  std::string flags;  ///< with width and precision
  std::size_t integer_bytes = 4;
  char conversion = 0;
};

std::size_t parse(std::string_view format, std::size_t at, Arguments* arguments, Specification* specification) {
  constexpr std::string_view kDigits = "0123456789", kFlags = "-+ #.";
  // No field is longer than kMaxField, so no wider one is worth the time of making it.
  const auto add_number = [&](std::int64_t number) {
    specification->flags += fmt::format("{}", std::clamp<std::int64_t>(number, 1 - kMaxField, kMaxField - 1));
  };
  for (; at < format.size(); ++at) {
    const char c = format[at];
    if (kDigits.find(c) != std::string_view::npos) {
      const std::size_t end = std::min(format.find_first_not_of(kDigits, at), format.size());
      if (c == '0') specification->flags += c;  // a flag, too
      std::int64_t number = 0;
      for (std::size_t i = at; i < end; ++i)
        number = std::min<std::int64_t>(10 * number + (format[i] - '0'), kMaxField);
      if (number > 0 || specification->flags.ends_with('.')) add_number(number);
      at = end - 1;
    } else if (kFlags.find(c) != std::string_view::npos) {
      specification->flags += c;
    } else if (c == '*') {
      add_number(static_cast<std::int32_t>(arguments->take(4)));
    } else if (c == 'l' || c == 'j' || c == 'z' || c == 't') {
      specification->integer_bytes = 8;
    } else if (c != 'h' && c != 'L') {
      specification->conversion = c;
      return at + 1;
    }
  }
  return at;
}

template <typename T>
std::string formatted(const Specification& specification, const char* length, T value) {
  const std::string format = "%" + specification.flags + length + specification.conversion;
  std::string text(static_cast<std::size_t>(kMaxField), '\0');
  // The format is made of known pieces; the compiler cannot see that.
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wformat-nonliteral"
  const int written = std::snprintf(text.data(), text.size(), format.c_str(), value);
#pragma GCC diagnostic pop
  text.resize(written < 0 ? 0 : static_cast<std::size_t>(std::min<std::int64_t>(written, kMaxField - 1)));
  return text;
}

std::string convert(ThreadContext* context, const Specification& specification, Arguments* arguments,
                    std::uint32_t site) {
  switch (specification.conversion) {
    case 'd':
    case 'i': {
      const std::uint64_t bits = arguments->take(specification.integer_bytes);
      const auto value = specification.integer_bytes == 8 ? static_cast<long long>(bits)
                                                          : static_cast<long long>(static_cast<std::int32_t>(bits));
      return formatted(specification, "ll", value);
    }
    case 'u':
    case 'x':
    case 'X':
    case 'o':
      return formatted(specification, "ll",
                       static_cast<unsigned long long>(arguments->take(specification.integer_bytes)));
    case 'c': return formatted(specification, "", static_cast<int>(arguments->take(4)));
    case 'p': return formatted(specification, "", reinterpret_cast<void*>(arguments->take(8)));
    case 's':
      return formatted(specification, "", read_string(context, arguments->take(8), "string of printf", site).c_str());
    case 'e':
    case 'E':
    case 'f':
    case 'F':
    case 'g':
    case 'G':
    case 'a':
    case 'A': return formatted(specification, "", std::bit_cast<double>(arguments->take(8)));
    default: return "";
  }
}

}  // namespace

extern "C" {

std::uint32_t att_vprintf(ThreadContext* context, std::uint64_t format_address, std::uint64_t arguments_address,
                          std::uint32_t site) {
  const std::string format = read_string(context, format_address, "format of printf", site);
  Arguments arguments(context, arguments_address, site);
  std::string& output = context->grid().output();
  std::uint32_t count = 0;
  for (std::size_t i = 0; i < format.size();) {
    if (format[i] != '%') {
      output += format[i++];
      continue;
    }
    Specification specification;
    i = parse(format, i + 1, &arguments, &specification);
    if (specification.conversion == '%') {
      output += '%';
    } else if (++count <= kMaxArguments) {
      output += convert(context, specification, &arguments, site);
    }
  }
  return count;
}

void att_assert_fail(ThreadContext* context, std::uint64_t message, std::uint64_t file, std::uint32_t line,
                     std::uint64_t function, std::uint32_t site) {
  Grid& grid = context->grid();
  {
    const std::string text = fmt::format(
        "assertion `{}` failed in {} ({}:{})", read_string(context, message, "assertion", site),
        read_string(context, function, "assertion", site), read_string(context, file, "assertion", site), line);
    grid.output() += text + "\n";
    grid.add(FindingKind::trap, context, site, text);
  }
  // The fibre never comes back to free what it holds.
  grid.stop(context);
}

}  // extern "C"

}  // namespace attune::emulator
