#pragma once

#include <string_view>

namespace attune {

/// Without spaces at either end, and without the carriage return of a foreign line end.
inline std::string_view trimmed(std::string_view text) {
  while (!text.empty() && text.front() == ' ') text.remove_prefix(1);
  while (!text.empty() && (text.back() == ' ' || text.back() == '\r')) text.remove_suffix(1);
  return text;
}

}  // namespace attune
