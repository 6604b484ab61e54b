// Canonical "key=value,key=value" text: one way to print and one way to parse it, for Problem, Config and KernelSpec.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace attune {

using Fields = std::vector<std::pair<std::string, std::string>>;

/// Splits "a=1,b=2". `what` names the argument in errors. Empty text gives no fields; a part without '=', an empty key
/// or a key given twice throws Error(invalid_argument).
Fields parse_fields(std::string_view what, std::string_view text);
std::string join_fields(const Fields& fields);

/// Decimal integer in [low, high]; throws Error(invalid_argument) naming `what`, the text and the range.
std::int64_t parse_int(std::string_view what, std::string_view text, std::int64_t low, std::int64_t high);
/// "0"/"1"/"false"/"true"; throws likewise.
bool parse_bool(std::string_view what, std::string_view text);

}  // namespace attune
