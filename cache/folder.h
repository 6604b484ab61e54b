// The folder of the cache: making it, and whether it and what lies in it can be trusted.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <string>

#include "cache/database.h"

namespace attune::cache {

/// Why a file or folder is not to be trusted with native code; empty if it is: owned by this user or root, and
/// writable by nobody else.
std::string distrust(const std::string& path);

/// Makes the folder and its parents, 0700. Throws Fault.
void make_folder(const std::string& path);
bool may_write(const std::string& path);
/// Makes an empty file, 0600, unless there is one. Throws Fault. Does not open an existing file: closing it would drop
/// this process's locks on it.
void make_file(const std::string& path);
/// 0 if there is nothing of this name.
ino_t inode_of(const std::string& path);
/// 0 if there is nothing of this name.
std::int64_t size_of(const std::string& path);
/// By errno. Throws Fault.
[[noreturn]] void raise_errno(int error, const std::string& what);

/// Orders what happens to the name of the database file between processes: held shared while a file is opened,
/// exclusive while one is made or set aside. The file that carries the lock is never deleted.
class FolderLock {
 public:
  enum class Mode { shared, exclusive };

  /// The file to lock is made if there is none and the folder is `writable`. Exclusive: throws Fault if there is none,
  /// or if it takes longer than `timeout`. Shared: nothing is held then, since a good database should be found also
  /// beside somebody who hangs. Where the file system has no locks, none is held.
  FolderLock(const std::string& directory, Mode mode, bool writable, std::chrono::milliseconds timeout);
  ~FolderLock();
  FolderLock(const FolderLock&) = delete;
  FolderLock& operator=(const FolderLock&) = delete;

 private:
  int file_ = -1;
};

}  // namespace attune::cache
