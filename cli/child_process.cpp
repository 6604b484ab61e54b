#include "cli/child_process.h"

#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "base/error.h"
#include "base/spawn.h"
#include "cli/interrupt.h"

extern char** environ;

namespace attune::cli {
namespace {

pid_t spawn(std::vector<std::string> words, ChildStdout out) {
  SpawnFileActions actions;
  if (out == ChildStdout::to_stderr) posix_spawn_file_actions_adddup2(actions.get(), STDERR_FILENO, STDOUT_FILENO);
  std::vector<char*> argv;
  for (std::string& word : words) argv.push_back(word.data());
  argv.push_back(nullptr);
  pid_t pid = -1;
  const int error = posix_spawnp(&pid, argv.front(), actions.get(), nullptr, argv.data(), environ);
  if (error == ENOENT) fail(ErrorCode::not_found, "{}: was not found", words.front());
  if (error != 0) fail(ErrorCode::io, "{}: cannot be started: {}", words.front(), std::strerror(error));
  return pid;
}

}  // namespace

ChildResult run_child(const std::vector<std::string>& words, ChildStdout out) {
  const pid_t pid = spawn(words, out);
  ChildResult result;
  {
    // The child stays a zombie until the signals are as before, so its number is nobody else's.
    const Interrupt interrupt([pid] { kill(pid, SIGINT); });
    siginfo_t ignored{};
    while (waitid(P_PID, static_cast<id_t>(pid), &ignored, WEXITED | WNOWAIT) != 0 && errno == EINTR) {
    }
    result.interrupted = interrupt.requested();
  }
  int status = 0;
  while (waitpid(pid, &status, 0) < 0) {
    if (errno != EINTR) fail(ErrorCode::io, "{}: waitpid: {}", words.front(), std::strerror(errno));
  }
  if (WIFSIGNALED(status)) result.signal = WTERMSIG(status);
  if (WIFEXITED(status)) result.status = WEXITSTATUS(status);
  return result;
}

}  // namespace attune::cli
