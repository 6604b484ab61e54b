// Another program, run to its end with this one's terminal.
#pragma once

#include <string>
#include <vector>

namespace attune::cli {

struct ChildResult {
  int status = 0;            ///< its exit status, if it ended by itself
  int signal = 0;            ///< the signal that ended it, else 0
  bool interrupted = false;  ///< SIGINT or SIGTERM came while it ran, and was passed on
};

/// Starts words[0], found as a shell finds it, with the other words, and waits for it. Its stdout is this process's, or
/// stderr. Throws Error(not_found) if there is no such program, Error(io) if it cannot be started.
enum class ChildStdout { same, to_stderr };
ChildResult run_child(const std::vector<std::string>& words, ChildStdout out);

}  // namespace attune::cli
