// Writing a pack: all of it, or nothing.
#include <fcntl.h>
#include <fmt/format.h>
#include <stdio.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <set>

#include "base/error.h"
#include "base/sha256.h"
#include "runtime/pack.h"
#include "runtime/pack_files.h"

namespace attune {
namespace {

using namespace pack_files;
namespace fs = std::filesystem;

std::string random_suffix() {
  std::uint64_t number = 0;
  while (getrandom(&number, sizeof number, 0) != static_cast<ssize_t>(sizeof number)) {
  }
  return fmt::format("{:016x}", number);
}

// Deletes the files of a pack and then the folder. Whatever else may be in it stays.
void remove_pack(const std::string& path) {
  std::error_code ignored;
  try {
    const Folder folder = open_folder(path, true);
    for (const std::string& name : list_folder(folder)) {
      if (name == kManifestName || !digest_of_name(name).empty()) unlinkat(*folder, name.c_str(), 0);
    }
  } catch (const Error&) {
    // What cannot be opened cannot be cleared; the folder then stays behind under its temporary name.
  }
  fs::remove(path, ignored);
}

class TemporaryPack {
 public:
  explicit TemporaryPack(std::string path) : path_(std::move(path)) {
    if (mkdir(path_.c_str(), 0700) != 0) fail(ErrorCode::io, "{}: {}", path_, std::strerror(errno));
  }
  ~TemporaryPack() { remove_pack(path_); }
  TemporaryPack(const TemporaryPack&) = delete;
  TemporaryPack& operator=(const TemporaryPack&) = delete;
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

enum class Target { absent, replaceable };

// Decides by what is there, not by what it is called: a wrong argument must not cost anybody a folder.
Target look_at(const std::string& directory) {
  struct stat info{};
  if (lstat(directory.c_str(), &info) != 0) {
    if (errno == ENOENT) return Target::absent;
    fail(ErrorCode::io, "{}: {}", directory, std::strerror(errno));
  }
  if (!S_ISDIR(info.st_mode)) fail(ErrorCode::pack, "{}: exists and is not a folder", directory);
  const std::vector<std::string> names = list_folder(open_folder(directory, true));
  const bool has_manifest = std::find(names.begin(), names.end(), kManifestName) != names.end();
  if (!has_manifest && !names.empty()) {
    fail(ErrorCode::pack, "{}: exists, is not empty and is not a pack: nothing is overwritten", directory);
  }
  for (const std::string& name : names) {
    if (name == kManifestName || !digest_of_name(name).empty()) continue;
    fail(ErrorCode::pack, "{}: holds {}, which is no part of a pack: nothing is overwritten", directory, shown(name));
  }
  return Target::replaceable;
}

void move_into_place(const std::string& from, const std::string& to, Target target) {
  if (target == Target::absent) {
    // Fails if a folder with something in it has appeared meanwhile.
    if (rename(from.c_str(), to.c_str()) == 0) return;
    fail(ErrorCode::io, "{}: {}", to, std::strerror(errno));
  }
  // The old pack then has the temporary name, and goes the way of all temporary packs.
  if (renameat2(AT_FDCWD, from.c_str(), AT_FDCWD, to.c_str(), RENAME_EXCHANGE) == 0) return;
  if (errno != EINVAL && errno != ENOSYS) fail(ErrorCode::io, "{}: {}", to, std::strerror(errno));
  // A file system that cannot exchange: for a moment there is no pack of this name.
  const std::string old = from + ".old";
  if (rename(to.c_str(), old.c_str()) != 0) fail(ErrorCode::io, "{}: {}", to, std::strerror(errno));
  if (rename(from.c_str(), to.c_str()) != 0) {
    const int error = errno;
    rename(old.c_str(), to.c_str());
    fail(ErrorCode::io, "{}: {}", to, std::strerror(error));
  }
  remove_pack(old);
}

void synchronise_folder(const std::string& path) {
  const int folder = open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (folder < 0) return;
  fsync(folder);
  close(folder);
}

}  // namespace

void write_pack(const std::string& directory, const Manifest& manifest,
                const std::map<std::string, std::string>& cubins) {
  const std::string text = to_json(manifest);
  std::set<std::string> digests;
  for (const PackEntry& entry : manifest.entries) {
    const auto found = cubins.find(entry.cubin_sha256);
    if (found == cubins.end()) fail(ErrorCode::pack, "{}: its cubin was not given", cubin_name(entry.cubin_sha256));
    if (!digests.insert(entry.cubin_sha256).second) continue;
    if (found->second.size() != entry.cubin_bytes || sha256_hex(found->second) != entry.cubin_sha256) {
      fail(ErrorCode::pack, "{}: the cubin given has {} bytes or a digest that differs from the manifest's",
           cubin_name(entry.cubin_sha256), found->second.size());
    }
  }
  fs::path target_path = fs::path(directory).lexically_normal();
  if (!target_path.has_filename()) target_path = target_path.parent_path();  // a slash at the end
  if (!target_path.has_filename() || target_path.filename() == "." || target_path.filename() == "..") {
    fail(ErrorCode::pack, "{}: is not a name for a pack", shown(directory));
  }
  const std::string target = target_path.string();
  const std::string parent = target_path.has_parent_path() ? target_path.parent_path().string() : ".";
  const Target state = look_at(target);
  const TemporaryPack temporary(fmt::format("{}/.{}.{}", parent, target_path.filename().string(), random_suffix()));
  {
    const Folder folder = open_folder(temporary.path(), false);
    for (const std::string& digest : digests) write_file(folder, cubin_name(digest), cubins.at(digest));
    write_file(folder, kManifestName, text);
    fsync(*folder);
  }
  move_into_place(temporary.path(), target, state);
  synchronise_folder(parent);
}

}  // namespace attune
