// A child process that speaks the protocol, and how to get rid of it.
#pragma once

#include <sys/types.h>

#include <optional>
#include <stop_token>
#include <string>
#include <string_view>
#include <vector>

namespace attune::tuner {

/// Not thread-safe. The thread that makes it must live as long as it does: the child dies with that thread.
class WorkerProcess {
 public:
  /// Spawns `path` (posix_spawn: this process may have initialised CUDA) with these arguments and "--parent <pid>".
  /// Throws Error(io).
  WorkerProcess(const std::string& path, const std::vector<std::string>& arguments);
  /// Kills it if it still runs.
  ~WorkerProcess();
  WorkerProcess(const WorkerProcess&) = delete;
  WorkerProcess& operator=(const WorkerProcess&) = delete;

  enum class Status {
    ok,
    timeout,  ///< nothing for so long
    closed,   ///< it has ended, or closed its side
    stopped,  ///< a stop was requested
    garbage,  ///< a line beyond kLongestLine
  };

  /// Sends one line (with its newline).
  Status send(std::string_view line, double seconds, const std::stop_token& stop);
  /// Waits for one line.
  Status receive(std::string* line, double seconds, const std::stop_token& stop);

  /// Kills it and waits for its end, but not for long: a device may take its time to let go of a process.
  void kill();
  /// How it ended, with the last that it said on stderr: "signal 11 (Segmentation fault): ...". Waits for the end for a
  /// moment, then kills.
  std::string obituary();

  pid_t pid() const { return pid_; }

 private:
  Status wait_for(short events, double deadline, const std::stop_token& stop);
  void drain_stderr();
  void reap(double seconds);

  pid_t pid_ = -1;
  int socket_ = -1;
  int stderr_ = -1;
  std::optional<int> status_;  // of waitpid
  std::string buffer_;
  std::size_t searched_ = 0;
  std::string complaints_;  // the tail of its stderr
};

}  // namespace attune::tuner
