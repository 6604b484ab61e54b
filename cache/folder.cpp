#include "cache/folder.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <thread>

#include "cache/store.h"

namespace attune::cache {
namespace {

std::string environment_variable(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? std::string() : std::string(value);
}

}  // namespace

std::string default_directory() {
  if (std::string own = environment_variable("ATTUNE_CACHE_DIR"); !own.empty()) return own;
  // The XDG specification has relative paths ignored.
  if (std::string xdg = environment_variable("XDG_CACHE_HOME"); xdg.starts_with('/')) return xdg + "/attune";
  if (std::string home = environment_variable("HOME"); !home.empty()) return home + "/.cache/attune";
  return {};
}

void raise_errno(int error, const std::string& what) {
  FaultKind kind = FaultKind::io;
  if (error == ENOSPC || error == EDQUOT) kind = FaultKind::full;
  if (error == EROFS || error == EACCES || error == EPERM) kind = FaultKind::read_only;
  throw Fault(kind, fmt::format("{}: {}", what, std::strerror(error)));
}

std::string distrust(const std::string& path) {
  struct stat info{};
  if (stat(path.c_str(), &info) != 0) return std::strerror(errno);
  if (info.st_uid != geteuid() && info.st_uid != 0) {
    return fmt::format("it belongs to user {}, not to user {} who runs this program", info.st_uid, geteuid());
  }
  if ((info.st_mode & (S_IWGRP | S_IWOTH)) != 0) {
    return fmt::format("others may write it (mode {:o}); run: chmod go-w '{}'", info.st_mode & 07777, path);
  }
  return {};
}

void make_folder(const std::string& path) {
  struct stat info{};
  if (stat(path.c_str(), &info) == 0) {
    if (!S_ISDIR(info.st_mode)) throw Fault(FaultKind::io, fmt::format("{} is not a folder", path));
    return;
  }
  const std::filesystem::path parent = std::filesystem::path(path).parent_path();
  if (!parent.empty() && parent != path) make_folder(parent);
  if (mkdir(path.c_str(), 0700) != 0 && errno != EEXIST) raise_errno(errno, "cannot make " + path);
}

bool may_write(const std::string& path) { return faccessat(AT_FDCWD, path.c_str(), W_OK | X_OK, AT_EACCESS) == 0; }

void make_file(const std::string& path) {
  const int file = ::open(path.c_str(), O_CREAT | O_EXCL | O_RDWR | O_CLOEXEC, 0600);
  if (file >= 0) {
    close(file);
  } else if (errno != EEXIST) {
    raise_errno(errno, "cannot make " + path);
  }
}

ino_t inode_of(const std::string& path) {
  struct stat info{};
  return stat(path.c_str(), &info) == 0 ? info.st_ino : 0;
}

std::int64_t size_of(const std::string& path) {
  struct stat info{};
  return stat(path.c_str(), &info) == 0 ? info.st_size : 0;
}

FolderLock::FolderLock(const std::string& directory, Mode mode, bool writable, std::chrono::milliseconds timeout) {
  const std::string path = directory + "/cache.lock";
  file_ = ::open(path.c_str(), (writable ? O_CREAT | O_RDWR : O_RDONLY) | O_CLOEXEC | O_NOFOLLOW, 0600);
  if (file_ < 0 && mode == Mode::exclusive) raise_errno(errno, "cannot make " + path);
  if (file_ < 0) return;
  const auto deadline = std::chrono::steady_clock::now() + timeout;
  while (flock(file_, (mode == Mode::shared ? LOCK_SH : LOCK_EX) | LOCK_NB) != 0) {
    if (errno != EWOULDBLOCK && errno != EINTR) return;  // no locks on this file system
    if (std::chrono::steady_clock::now() >= deadline) {
      if (mode == Mode::shared) return;
      close(file_);
      throw Fault(FaultKind::busy, path + " is held by another process");
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }
}

FolderLock::~FolderLock() {
  if (file_ < 0) return;
  flock(file_, LOCK_UN);  // a child of fork() may hold the file open longer
  close(file_);
}

}  // namespace attune::cache
