// What the cache asks of the operating system, replaceable in tests.
#pragma once

#include <cstdint>
#include <string>

namespace attune::cache {

/// Who holds a lease. Two processes can judge each other's life only if they share boot and pid namespace.
struct ProcessIdentity {
  std::string boot;  ///< boot id and pid namespace of the machine
  std::int64_t pid = 0;
  std::int64_t start = 0;  ///< start time in clock ticks since boot: tells a reused pid from its former owner

  bool operator==(const ProcessIdentity&) const = default;
};

/// Functions are called from any thread and do not throw.
class System {
 public:
  virtual ~System() = default;

  /// Milliseconds since 1970. Stored beside rows; may jump.
  virtual std::int64_t now_ms();
  /// Whether `directory` lies on a file system whose locks and shared memory cannot be trusted (NFS, SMB, FUSE, ...).
  virtual bool is_network_file_system(const std::string& directory);
  virtual ProcessIdentity self();
  /// False only if the process is known to be gone: same boot and pid namespace, and no such pid or another start time.
  virtual bool may_be_alive(const ProcessIdentity& process);
};

/// The real one; lives for ever.
System& real_system();

}  // namespace attune::cache
