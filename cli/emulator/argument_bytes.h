// The bytes that texts of the command line stand for: numbers as kernels take them, and what fills a buffer.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace attune::cli {

// All throw Error(invalid_argument) for a text that is not allowed.

using Bytes = std::vector<std::uint8_t>;

/// "i8", "u8", ..., "i64", "u64", "f16", "bf16", "f32" or "f64" and a value; nothing for another type.
std::optional<Bytes> number_bytes(std::string_view type, std::string_view text);
/// "zero", "random:f32", "random:f32:7". Random numbers are normally distributed with mean 0 and standard deviation 1;
/// `seed` is theirs where the text has none.
Bytes buffer_bytes(std::size_t bytes, std::string_view text, std::uint64_t seed);
/// A file's, of which there is at least one. Throws what read_file() throws.
Bytes read_bytes(const std::string& path);

}  // namespace attune::cli
