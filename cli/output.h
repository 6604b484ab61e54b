// What a command says: results on stdout, everything else on stderr, and under --json one document on stdout instead of
// the results.
#pragma once

#include <fmt/format.h>

#include <chrono>
#include <mutex>
#include <nlohmann/json.hpp>
#include <ostream>
#include <string>
#include <string_view>
#include <utility>

namespace attune::cli {

/// Members keep the order in which they are set.
using Json = nlohmann::ordered_json;

/// Raised when a member of a document is renamed, removed or changes its meaning; new members do not count.
inline constexpr int kJsonSchema = 1;

struct Streams {
  std::ostream& out;
  std::ostream& err;
  bool err_is_terminal = false;  ///< progress lines are shown
  bool color = false;            ///< of what goes to err
  int width = 80;                ///< columns of the terminal
};

/// Safe from any thread.
class Output {
 public:
  explicit Output(Streams streams) : streams_(streams) {}

  void use_json(bool json) { json_ = json; }
  bool json() const { return json_; }

  /// A line of the result. Nothing under --json.
  void line(std::string_view text = {});
  template <typename... Args>
  void line(fmt::format_string<Args...> text, Args&&... args)
    requires(sizeof...(Args) > 0)
  {
    line(std::string_view(fmt::format(text, std::forward<Args>(args)...)));
  }
  /// Bytes as they are. Nothing under --json.
  void raw(std::string_view bytes);

  /// A line about what is going on; to stderr.
  void note(std::string_view text);
  template <typename... Args>
  void note(fmt::format_string<Args...> text, Args&&... args)
    requires(sizeof...(Args) > 0)
  {
    note(std::string_view(fmt::format(text, std::forward<Args>(args)...)));
  }
  /// "attune: warning: <text>"
  void warn(std::string_view text);
  /// "attune: <message>"; further lines of the message follow as they are.
  void error(std::string_view message);

  /// Replaces the progress line; only where stderr is a terminal, and not more often than people can read unless
  /// `at_once`.
  void progress(std::string_view text, bool at_once = false);
  bool shows_progress() const { return streams_.err_is_terminal; }
  /// Removes the progress line.
  void end_progress();

  /// The members of the document that --json prints.
  Json& document() { return document_; }
  /// Prints the document, if --json asks for one: {"schema":1,"command":"emit","exit_code":0,...}. False if stdout
  /// could not be written.
  bool finish(const std::string& command, int exit_code);

 private:
  void clear_progress();

  Streams streams_;
  bool json_ = false;
  Json document_ = Json::object();
  std::mutex mutex_;  // guards the streams and what follows
  bool progress_shown_ = false;
  std::chrono::steady_clock::time_point progress_time_{};
};

}  // namespace attune::cli
