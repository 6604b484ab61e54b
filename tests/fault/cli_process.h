// Runs the built command as its user would.
#pragma once

#include <doctest/doctest.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <vector>

#include "tests/unit/temporary_folder.h"

namespace attune::tests {

struct Finished {
  int status = -1;  ///< exit status; 128 + signal for a death by signal
  std::string out, err;

  nlohmann::json json() const { return nlohmann::json::parse(out); }
};

/// The command beside this test program.
inline std::string cli_path() {
  return (std::filesystem::read_symlink("/proc/self/exe").parent_path() / "attune").string();
}

inline std::string slurp(const std::filesystem::path& file) {
  std::ifstream in(file, std::ios::binary);
  std::ostringstream text;
  text << in.rdbuf();
  return text.str();
}

/// A child whose output goes to files. Killed with the object.
class Cli {
 public:
  /// `environment` replaces variables of this process's own.
  Cli(const std::vector<std::string>& arguments, const std::vector<std::string>& environment = {}) {
    std::vector<std::string> words = arguments;
    words.insert(words.begin(), cli_path());
    std::vector<std::string> variables = environment;
    for (char** v = environ; *v != nullptr; ++v) {
      const std::string variable = *v;
      const std::string name = variable.substr(0, variable.find('=') + 1);
      bool replaced = false;
      for (const std::string& other : environment) replaced = replaced || other.starts_with(name);
      if (!replaced) variables.push_back(variable);
    }
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_addopen(&actions, 0, "/dev/null", O_RDONLY, 0);
    posix_spawn_file_actions_addopen(&actions, 1, (folder_.path() / "out").c_str(), O_WRONLY | O_CREAT, 0600);
    posix_spawn_file_actions_addopen(&actions, 2, (folder_.path() / "err").c_str(), O_WRONLY | O_CREAT, 0600);
    const int error =
        posix_spawn(&pid_, words[0].c_str(), &actions, nullptr, pointers(words).data(), pointers(variables).data());
    posix_spawn_file_actions_destroy(&actions);
    REQUIRE_MESSAGE(error == 0, "cannot run " << words[0]);
  }
  ~Cli() {
    if (pid_ <= 0) return;
    kill(pid_, SIGKILL);
    waitpid(pid_, nullptr, 0);
  }
  Cli(const Cli&) = delete;
  Cli& operator=(const Cli&) = delete;

  void signal(int number) const { REQUIRE(kill(pid_, number) == 0); }
  std::string err_so_far() const { return slurp(folder_.path() / "err"); }

  Finished wait() {
    int status = 0;
    REQUIRE(waitpid(pid_, &status, 0) == pid_);
    pid_ = -1;
    Finished finished;
    finished.status = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
    finished.out = slurp(folder_.path() / "out");
    finished.err = slurp(folder_.path() / "err");
    return finished;
  }

 private:
  static std::vector<char*> pointers(std::vector<std::string>& words) {
    std::vector<char*> all;
    for (std::string& word : words) all.push_back(word.data());
    all.push_back(nullptr);
    return all;
  }

  TemporaryFolder folder_;
  pid_t pid_ = -1;
};

inline Finished run_cli(const std::vector<std::string>& arguments, const std::vector<std::string>& environment = {}) {
  return Cli(arguments, environment).wait();
}

}  // namespace attune::tests
