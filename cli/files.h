// Reading and writing whole files.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace attune::cli {

/// Throws Error(not_found) if there is no such file, Error(io) if it cannot be read, is a folder or has more than
/// `limit` bytes.
std::string read_file(const std::string& path, std::uint64_t limit = 1ull << 30);

/// Writes beside the file and renames, so that no reader sees half of it; devices and pipes are written to directly.
/// Throws Error(io).
void write_file(const std::string& path, std::string_view bytes);

}  // namespace attune::cli
