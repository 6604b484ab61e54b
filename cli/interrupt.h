// SIGINT and SIGTERM as a request to stop, for commands that have something to bring to an end first.
#pragma once

#include <signal.h>

#include <atomic>
#include <functional>
#include <stop_token>
#include <thread>

namespace attune::cli {

/// While it lives, the first signal requests a stop and calls `on_stop`; a second one ends the process at once with
/// status 130. One at a time in a process.
class Interrupt {
 public:
  explicit Interrupt(std::function<void()> on_stop = {});
  ~Interrupt();
  Interrupt(const Interrupt&) = delete;
  Interrupt& operator=(const Interrupt&) = delete;

  std::stop_token token() const { return stop_.get_token(); }
  bool requested() const { return stop_.stop_requested(); }

 private:
  void watch();

  std::function<void()> on_stop_;
  std::stop_source stop_;
  int pipe_[2] = {-1, -1};
  struct sigaction old_int_{}, old_term_{};
  std::thread watcher_;
};

}  // namespace attune::cli
