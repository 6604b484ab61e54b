// Reading and writing the files of a pack's folder by descriptor, so that no name can lead out of it.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace attune::pack_files {

inline constexpr const char* kManifestName = "manifest.json";

/// An open folder; closed with the last copy.
using Folder = std::shared_ptr<const int>;

bool is_digest(std::string_view text);
/// Error(pack) unless `digest` is one.
std::string cubin_name(std::string_view digest);
/// "<digest>.cubin" -> digest; empty for any other name.
std::string digest_of_name(std::string_view name);

/// A text from a file for a message: quoted, control characters escaped, cut off when long.
std::string shown(std::string_view text);

/// Error(pack) if there is no folder of this name; unless `allow_foreign`, also if others may write it.
Folder open_folder(const std::string& path, bool allow_foreign);

/// The bytes of a regular file in the folder. Error(pack) for links, devices and the like, for files that are missing,
/// larger than `limit` or writable by others (unless `allow_foreign`); Error(io) if the system refuses to read.
std::string read_file(const Folder& folder, const std::string& name, std::uint64_t limit, bool allow_foreign);

/// Names of everything in the folder, sorted, without "." and "..".
std::vector<std::string> list_folder(const Folder& folder);

/// Makes the file, 0600, and synchronises it. Error(io).
void write_file(const Folder& folder, const std::string& name, std::string_view bytes);

}  // namespace attune::pack_files
