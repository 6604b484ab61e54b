#include "base/fields.h"

#include <charconv>

#include "base/error.h"

namespace attune {

Fields parse_fields(std::string_view what, std::string_view text) {
  Fields fields;
  while (!text.empty()) {
    const std::size_t comma = text.find(',');
    const std::string_view part = text.substr(0, comma);
    text = comma == std::string_view::npos ? std::string_view() : text.substr(comma + 1);
    const std::size_t equals = part.find('=');
    if (equals == std::string_view::npos || equals == 0)
      fail(ErrorCode::invalid_argument, "{}: '{}' is not key=value (allowed: key=value,key=value,...)", what, part);
    std::string key(part.substr(0, equals));
    for (const auto& [other, value] : fields)
      if (other == key) fail(ErrorCode::invalid_argument, "{}: key '{}' is given twice", what, key);
    fields.emplace_back(std::move(key), std::string(part.substr(equals + 1)));
  }
  return fields;
}

std::string join_fields(const Fields& fields) {
  std::string text;
  for (const auto& [key, value] : fields) {
    if (!text.empty()) text += ',';
    text += key;
    text += '=';
    text += value;
  }
  return text;
}

std::int64_t parse_int(std::string_view what, std::string_view text, std::int64_t low, std::int64_t high) {
  std::int64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size())
    fail(ErrorCode::invalid_argument, "{}: '{}' is not an integer (allowed: {} to {})", what, text, low, high);
  if (value < low || value > high)
    fail(ErrorCode::invalid_argument, "{}: {} is out of range (allowed: {} to {})", what, value, low, high);
  return value;
}

bool parse_bool(std::string_view what, std::string_view text) {
  if (text == "1" || text == "true") return true;
  if (text == "0" || text == "false") return false;
  fail(ErrorCode::invalid_argument, "{}: '{}' is not a truth value (allowed: 0, 1)", what, text);
}

}  // namespace attune
