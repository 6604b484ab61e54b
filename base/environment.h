#pragma once

#include <cstdlib>
#include <optional>
#include <string>

namespace attune {

/// The value of an environment variable; nothing if it is unset or empty.
inline std::optional<std::string> environment_variable(const char* name) {
  const char* const value = std::getenv(name);
  if (value == nullptr || *value == '\0') return std::nullopt;
  return value;
}

}  // namespace attune
