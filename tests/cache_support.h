// What the cache's and the packs' tests share: temporary folders, processes, a system to play with.
#pragma once

#include <doctest/doctest.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <sched.h>
#include <sys/mount.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iterator>
#include <string>
#include <vector>

#include "base/sha256.h"
#include "cache/store.h"

namespace attune::test {

/// In memory where that is possible: nothing here depends on a real disk, and waiting for one to synchronise takes most
/// of the time otherwise.
class TemporaryFolder {
 public:
  TemporaryFolder() {
    const bool shared_memory = access("/dev/shm", W_OK | X_OK) == 0;
    const std::filesystem::path parent = shared_memory ? "/dev/shm" : std::filesystem::temp_directory_path();
    std::string name = (parent / "attune-test-XXXXXX").string();
    REQUIRE(mkdtemp(name.data()) != nullptr);
    path_ = name;
  }
  ~TemporaryFolder() {
    std::error_code error;
    std::filesystem::remove_all(path_, error);
  }
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;
  const std::string& path() const { return path_; }
  std::string operator/(const std::string& name) const { return path_ + "/" + name; }

 private:
  std::string path_;
};

inline std::string read_bytes(const std::string& file) {
  std::ifstream stream(file, std::ios::binary);
  return {std::istreambuf_iterator<char>(stream), std::istreambuf_iterator<char>()};
}

inline void write_bytes(const std::string& file, const std::string& bytes) {
  std::ofstream stream(file, std::ios::binary | std::ios::trunc);
  stream << bytes;
}

/// A key for a test: the digest of its name.
inline std::string key_of(const std::string& name) { return sha256_hex(name); }

/// Bytes that differ from page to page and do not compress to a pattern.
inline std::string blob_of(const std::string& name, std::size_t size) {
  std::string bytes;
  for (std::size_t i = 0; bytes.size() < size; ++i) bytes += sha256_hex(name + std::to_string(i));
  bytes.resize(size);
  return bytes;
}

/// Runs `work` in a child that ends with its result and runs no destructors of ours.
inline pid_t start_process(const std::function<int()>& work) {
  std::fflush(nullptr);
  const pid_t pid = fork();
  if (pid == 0) {
    int result = 125;
    try {
      result = work();
    } catch (const std::exception& error) {
      std::fprintf(stderr, "child: %s\n", error.what());
    }
    _exit(result);
  }
  return pid;
}

/// Exit status, or 1000 + signal.
inline int wait_for(pid_t pid) {
  int status = 0;
  while (waitpid(pid, &status, 0) < 0 && errno == EINTR) {
  }
  return WIFEXITED(status) ? WEXITSTATUS(status) : 1000 + WTERMSIG(status);
}

/// A child cannot use doctest's checks: it returns the number of the first expectation that failed.
class Expectations {
 public:
  void operator()(bool condition, const char* what) {
    ++count_;
    if (condition || failed_ != 0) return;
    failed_ = count_;
    std::fprintf(stderr, "child: expectation %d failed: %s\n", count_, what);
  }
  int result() const { return failed_; }

 private:
  int count_ = 0;
  int failed_ = 0;
};

/// A file system of its own in a mount namespace of its own, for the calling process only. False without the right to.
inline bool mount_small_disk(const std::string& folder, const std::string& options) {
  return unshare(CLONE_NEWNS) == 0 && mount("none", "/", nullptr, MS_REC | MS_PRIVATE, nullptr) == 0 &&
         mount("tmpfs", folder.c_str(), "tmpfs", 0, options.c_str()) == 0;
}

/// Whether this process may mount. If not, the message says aloud what is not tested.
inline bool can_mount(const char* what) {
  TemporaryFolder folder;
  const pid_t child = start_process([&] { return mount_small_disk(folder.path(), "size=64k") ? 0 : 1; });
  const bool can = wait_for(child) == 0;
  if (!can) MESSAGE("SKIPPED: ", std::string(what), " is NOT tested: it takes root, or the right to mount a tmpfs");
  return can;
}

class FakeSystem : public cache::System {
 public:
  std::int64_t now_ms() override { return time; }
  bool is_network_file_system(const std::string&) override { return network; }

  std::int64_t time = 1'700'000'000'000;
  bool network = false;
};

struct Warnings {
  std::vector<std::string> messages;
  std::function<void(const std::string&)> callback() {
    return [this](const std::string& message) { messages.push_back(message); };
  }
};

inline cache::Options options_for(const std::string& directory) {
  cache::Options options;
  options.directory = directory;
  return options;
}

inline cache::Trial trial_of(const std::string& plan, const std::string& config, double median, double spread = 0) {
  cache::Trial trial;
  trial.plan_key = key_of(plan);
  trial.problem = plan;
  trial.config = config;
  trial.build_key = key_of(config);
  trial.device = "device";
  trial.environment = "driver=1";
  trial.regime = "burst";
  trial.session = "session";
  trial.samples = {median, median};
  trial.median = median;
  trial.low = median - spread;
  trial.high = median + spread;
  return trial;
}

}  // namespace attune::test
