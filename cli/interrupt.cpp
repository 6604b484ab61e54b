#include "cli/interrupt.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "base/error.h"
#include "cli/exit_code.h"

namespace attune::cli {
namespace {

constexpr char kSignal = 's', kQuit = 'q';

// A signal handler may call next to nothing, so it only wakes the thread that does the rest.
std::atomic<int> g_wake{-1};

void handle(int) {
  const int saved = errno;
  const ssize_t written = write(g_wake.load(), &kSignal, 1);
  static_cast<void>(written);  // a full pipe holds enough wake-ups
  errno = saved;
}

}  // namespace

Interrupt::Interrupt(std::function<void()> on_stop) : on_stop_(std::move(on_stop)) {
  if (pipe2(pipe_, O_CLOEXEC) != 0) fail(ErrorCode::internal, "pipe2: {}", std::strerror(errno));
  g_wake = pipe_[1];
  watcher_ = std::thread([this] { watch(); });
  struct sigaction action{};
  action.sa_handler = handle;
  action.sa_flags = SA_RESTART;
  sigaction(SIGINT, &action, &old_int_);
  sigaction(SIGTERM, &action, &old_term_);
}

Interrupt::~Interrupt() {
  sigaction(SIGINT, &old_int_, nullptr);
  sigaction(SIGTERM, &old_term_, nullptr);
  const ssize_t written = write(pipe_[1], &kQuit, 1);
  static_cast<void>(written);
  watcher_.join();
  close(pipe_[0]);
  close(pipe_[1]);
}

void Interrupt::watch() {
  for (;;) {
    char what = kQuit;
    const ssize_t got = read(pipe_[0], &what, 1);
    if (got < 0 && errno == EINTR) continue;
    if (got != 1 || what == kQuit) return;
    if (stop_.stop_requested()) _exit(static_cast<int>(ExitCode::interrupted));
    stop_.request_stop();
    if (on_stop_) on_stop_();
  }
}

}  // namespace attune::cli
