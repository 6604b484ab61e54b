// Names of enumerators in canonical text: arrays of names in the order of the enumerators.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <string_view>

#include "base/error.h"

namespace attune::codegen {

template <typename Enum>
std::string name_of(std::span<const char* const> names, Enum value) {
  return names[static_cast<std::size_t>(value)];
}

template <typename Enum>
Enum value_of(std::span<const char* const> names, std::string_view key, std::string_view text) {
  for (std::size_t i = 0; i < names.size(); i++)
    if (text == names[i]) return static_cast<Enum>(i);
  std::string allowed;
  for (const char* name : names) allowed += (allowed.empty() ? "" : ", ") + std::string(name);
  fail(ErrorCode::invalid_argument, "config {}: '{}' is unknown (allowed: {})", key, text, allowed);
}

inline std::string flag(bool value) { return value ? "1" : "0"; }

}  // namespace attune::codegen
