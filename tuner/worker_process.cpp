#include "tuner/worker_process.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cmath>
#include <cstring>
#include <thread>

#include "base/error.h"
#include "base/spawn.h"
#include "tuner/protocol.h"

extern char** environ;

namespace attune::tuner {
namespace {

constexpr std::size_t kComplaints = 2048;
constexpr double kPoll = 0.02;    // how soon a stop is noticed
constexpr double kPatience = 10;  // for the end of a process that was killed

double now() { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); }

// Closes what it holds unless that was released.
class Descriptor {
 public:
  explicit Descriptor(int fd) : fd_(fd) {}
  ~Descriptor() {
    if (fd_ >= 0) close(fd_);
  }
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  int get() const { return fd_; }
  int release() { return std::exchange(fd_, -1); }

 private:
  int fd_;
};

// The child starts with no signal blocked and none ignored, whatever this thread does with them.
class Attributes {
 public:
  Attributes() {
    posix_spawnattr_init(&attributes_);
    sigset_t none, all;
    sigemptyset(&none);
    sigfillset(&all);
    posix_spawnattr_setsigmask(&attributes_, &none);
    posix_spawnattr_setsigdefault(&attributes_, &all);
    posix_spawnattr_setflags(&attributes_, POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF);
  }
  ~Attributes() { posix_spawnattr_destroy(&attributes_); }
  Attributes(const Attributes&) = delete;
  Attributes& operator=(const Attributes&) = delete;
  const posix_spawnattr_t* get() const { return &attributes_; }

 private:
  posix_spawnattr_t attributes_;
};

std::string describe(int status) {
  if (WIFEXITED(status)) return fmt::format("exit status {}", WEXITSTATUS(status));
  if (WIFSIGNALED(status)) return fmt::format("signal {} ({})", WTERMSIG(status), strsignal(WTERMSIG(status)));
  return fmt::format("wait status {}", status);
}

}  // namespace

WorkerProcess::WorkerProcess(const std::string& path, const std::vector<std::string>& arguments) {
  int sockets[2], errors[2];
  if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, sockets) != 0)
    fail(ErrorCode::io, "socketpair: {}", std::strerror(errno));
  Descriptor ours(sockets[0]), theirs(sockets[1]);
  if (pipe2(errors, O_CLOEXEC) != 0) fail(ErrorCode::io, "pipe2: {}", std::strerror(errno));
  Descriptor our_errors(errors[0]), their_errors(errors[1]);
  for (const int fd : {ours.get(), our_errors.get()}) fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) | O_NONBLOCK);

  SpawnFileActions actions;
  posix_spawn_file_actions_adddup2(actions.get(), theirs.get(), STDIN_FILENO);
  posix_spawn_file_actions_adddup2(actions.get(), theirs.get(), STDOUT_FILENO);
  posix_spawn_file_actions_adddup2(actions.get(), their_errors.get(), STDERR_FILENO);
  posix_spawn_file_actions_addclosefrom_np(actions.get(), STDERR_FILENO + 1);
  const Attributes attributes;

  std::vector<std::string> words{path};
  words.insert(words.end(), arguments.begin(), arguments.end());
  words.insert(words.end(), {"--parent", std::to_string(getpid())});
  std::vector<char*> argv;
  for (std::string& word : words) argv.push_back(word.data());
  argv.push_back(nullptr);
  const int error = posix_spawn(&pid_, path.c_str(), actions.get(), attributes.get(), argv.data(), environ);
  if (error != 0) {
    pid_ = -1;
    fail(ErrorCode::io, "worker: {} cannot be started: {}", path, std::strerror(error));
  }
  socket_ = ours.release();
  stderr_ = our_errors.release();
}

WorkerProcess::~WorkerProcess() {
  kill();
  close(socket_);
  close(stderr_);
}

WorkerProcess::Status WorkerProcess::wait_for(short events, double deadline, const std::stop_token& stop) {
  for (;;) {
    if (stop.stop_requested()) return Status::stopped;
    const double left = deadline - now();
    if (left <= 0) return Status::timeout;
    pollfd fds[2] = {{socket_, events, 0}, {stderr_, POLLIN, 0}};
    const int ready = poll(fds, 2, static_cast<int>(std::ceil(std::min(left, kPoll) * 1e3)));
    if (ready < 0 && errno != EINTR) return Status::closed;
    if (ready <= 0) continue;
    if (fds[1].revents != 0) drain_stderr();
    if (fds[0].revents != 0) return Status::ok;
  }
}

WorkerProcess::Status WorkerProcess::send(std::string_view line, double seconds, const std::stop_token& stop) {
  const double deadline = now() + seconds;
  while (!line.empty()) {
    const ssize_t sent = ::send(socket_, line.data(), line.size(), MSG_NOSIGNAL);
    if (sent >= 0) {
      line.remove_prefix(static_cast<std::size_t>(sent));
    } else if (errno == EAGAIN) {
      if (const Status status = wait_for(POLLOUT, deadline, stop); status != Status::ok) return status;
    } else if (errno != EINTR) {
      return Status::closed;
    }
  }
  return Status::ok;
}

WorkerProcess::Status WorkerProcess::receive(std::string* line, double seconds, const std::stop_token& stop) {
  const double deadline = now() + seconds;
  for (;;) {
    const std::size_t end = buffer_.find('\n', searched_);
    if (end != std::string::npos) {
      line->assign(buffer_, 0, end);
      buffer_.erase(0, end + 1);
      searched_ = 0;
      return Status::ok;
    }
    searched_ = buffer_.size();
    if (searched_ > kLongestLine) return Status::garbage;
    char chunk[65536];
    const ssize_t got = recv(socket_, chunk, sizeof chunk, 0);
    if (got > 0) {
      buffer_.append(chunk, static_cast<std::size_t>(got));
    } else if (got == 0 || (errno != EAGAIN && errno != EINTR)) {
      return Status::closed;
    } else if (const Status status = wait_for(POLLIN, deadline, stop); status != Status::ok) {
      return status;
    }
  }
}

void WorkerProcess::drain_stderr() {
  char chunk[4096];
  for (;;) {
    const ssize_t got = read(stderr_, chunk, sizeof chunk);
    if (got < 0 && errno == EINTR) continue;
    if (got == 0) {
      // Closed: poll would report it again and again.
      close(stderr_);
      stderr_ = -1;
    }
    if (got <= 0) return;
    complaints_.append(chunk, static_cast<std::size_t>(got));
    if (complaints_.size() > kComplaints) complaints_.erase(0, complaints_.size() - kComplaints);
  }
}

void WorkerProcess::reap(double seconds) {
  const double deadline = now() + seconds;
  while (pid_ > 0 && !status_) {
    int status = 0;
    const pid_t got = waitpid(pid_, &status, WNOHANG);
    if (got == pid_ || (got < 0 && errno == ECHILD)) {
      status_ = got == pid_ ? status : 0;
      return;
    }
    if (now() >= deadline) return;
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }
}

void WorkerProcess::kill() {
  reap(0);
  if (status_ || pid_ <= 0) return;
  ::kill(pid_, SIGKILL);
  reap(kPatience);
}

std::string WorkerProcess::obituary() {
  reap(0.5);
  const bool killed = !status_;
  kill();
  if (stderr_ >= 0) drain_stderr();
  std::string text = killed || !status_ ? "it closed its output without ending" : describe(*status_);
  std::string last = complaints_;
  while (!last.empty() && std::isspace(static_cast<unsigned char>(last.back())) != 0) last.pop_back();
  if (!last.empty()) text += ": " + last;
  return text;
}

}  // namespace attune::tuner
