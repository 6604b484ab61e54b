// Internal helpers around attune::Error.
#pragma once

#include <fmt/format.h>

#include <attune/error.h>
#include <utility>

namespace attune {

/// Throws Error(code, formatted message).
template <typename... Args>
[[noreturn]] void fail(ErrorCode code, fmt::format_string<Args...> text, Args&&... args) {
  throw Error(code, fmt::format(text, std::forward<Args>(args)...));
}

}  // namespace attune
