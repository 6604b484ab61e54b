#include "runtime/pack_files.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "base/error.h"

namespace attune::pack_files {
namespace {

constexpr std::string_view kCubinSuffix = ".cubin";

class Descriptor {
 public:
  explicit Descriptor(int number) : number_(number) {}
  ~Descriptor() {
    if (number_ >= 0) close(number_);
  }
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  int get() const { return number_; }

 private:
  int number_;
};

void check_trust(int descriptor, const std::string& name) {
  struct stat info{};
  if (fstat(descriptor, &info) != 0) fail(ErrorCode::io, "{}: {}", name, std::strerror(errno));
  if (info.st_uid != geteuid() && info.st_uid != 0) {
    fail(ErrorCode::pack,
         "{}: belongs to user {}, and this program runs as user {} (allowed: own files and root's, unless files of "
         "others are asked for)",
         name, info.st_uid, geteuid());
  }
  if ((info.st_mode & (S_IWGRP | S_IWOTH)) != 0) {
    fail(ErrorCode::pack, "{}: writable by group or others (run chmod go-w, unless files of others are asked for)",
         name);
  }
}

}  // namespace

bool is_digest(std::string_view text) {
  return text.size() == 64 &&
         std::all_of(text.begin(), text.end(), [](char c) { return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f'); });
}

std::string cubin_name(std::string_view digest) {
  if (!is_digest(digest)) {
    fail(ErrorCode::pack, "cubin_sha256: {} is not a digest (allowed: 64 lower-case hexadecimal digits)",
         shown(digest));
  }
  return std::string(digest).append(kCubinSuffix);
}

std::string digest_of_name(std::string_view name) {
  if (!name.ends_with(kCubinSuffix)) return {};
  name.remove_suffix(kCubinSuffix.size());
  return is_digest(name) ? std::string(name) : std::string();
}

std::string shown(std::string_view text) {
  constexpr std::size_t kLongest = 100;
  std::string result = "'";
  for (const char c : text.substr(0, kLongest)) {
    const auto byte = static_cast<unsigned char>(c);
    if (byte < 0x20 || byte == 0x7f) {
      result += fmt::format("\\x{:02x}", byte);
    } else {
      result += c;
    }
  }
  return result + (text.size() > kLongest ? "...'" : "'");
}

Folder open_folder(const std::string& path, bool allow_foreign) {
  const int number = open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (number < 0) fail(ErrorCode::pack, "{}: cannot be opened as a folder: {}", path, std::strerror(errno));
  Folder folder(new int(number), [](const int* descriptor) {
    close(*descriptor);
    delete descriptor;
  });
  if (!allow_foreign) check_trust(number, path);
  return folder;
}

std::string read_file(const Folder& folder, const std::string& name, std::uint64_t limit, bool allow_foreign) {
  // Neither follows a link nor waits for the other end of a pipe.
  const Descriptor file(openat(*folder, name.c_str(), O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC));
  if (file.get() < 0) {
    if (errno == ELOOP) fail(ErrorCode::pack, "{}: is a symbolic link", name);
    if (errno == ENOENT) fail(ErrorCode::pack, "{}: is missing", name);
    fail(ErrorCode::io, "{}: {}", name, std::strerror(errno));
  }
  struct stat info{};
  if (fstat(file.get(), &info) != 0) fail(ErrorCode::io, "{}: {}", name, std::strerror(errno));
  if (!S_ISREG(info.st_mode)) fail(ErrorCode::pack, "{}: is not a regular file", name);
  if (!allow_foreign) check_trust(file.get(), name);
  const auto size = static_cast<std::uint64_t>(info.st_size);
  if (size > limit) fail(ErrorCode::pack, "{}: has {} bytes (allowed: at most {})", name, size, limit);
  std::string bytes(size, '\0');
  std::size_t have = 0;
  while (have < bytes.size()) {
    const ssize_t got = read(file.get(), bytes.data() + have, bytes.size() - have);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) fail(ErrorCode::io, "{}: {}", name, std::strerror(errno));
    if (got == 0) fail(ErrorCode::pack, "{}: became shorter while it was read", name);
    have += static_cast<std::size_t>(got);
  }
  return bytes;
}

std::vector<std::string> list_folder(const Folder& folder) {
  // A descriptor of its own, because reading moves it.
  const int number = openat(*folder, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  DIR* const stream = number < 0 ? nullptr : fdopendir(number);
  if (stream == nullptr) {
    const int error = errno;
    if (number >= 0) close(number);
    fail(ErrorCode::io, "the folder cannot be listed: {}", std::strerror(error));
  }
  std::vector<std::string> names;
  while (const dirent* entry = readdir(stream)) {
    const std::string name = entry->d_name;
    if (name != "." && name != "..") names.push_back(name);
  }
  closedir(stream);
  std::sort(names.begin(), names.end());
  return names;
}

void write_file(const Folder& folder, const std::string& name, std::string_view bytes) {
  const Descriptor file(openat(*folder, name.c_str(), O_CREAT | O_EXCL | O_WRONLY | O_NOFOLLOW | O_CLOEXEC, 0600));
  if (file.get() < 0) fail(ErrorCode::io, "{}: {}", name, std::strerror(errno));
  while (!bytes.empty()) {
    const ssize_t put = write(file.get(), bytes.data(), bytes.size());
    if (put < 0 && errno == EINTR) continue;
    if (put < 0) fail(ErrorCode::io, "{}: {}", name, std::strerror(errno));
    bytes.remove_prefix(static_cast<std::size_t>(put));
  }
  if (fsync(file.get()) != 0) fail(ErrorCode::io, "{}: {}", name, std::strerror(errno));
}

}  // namespace attune::pack_files
