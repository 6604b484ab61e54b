#include "cli/output.h"

#include <algorithm>

namespace attune::cli {
namespace {

constexpr auto kProgressInterval = std::chrono::milliseconds(100);

// Texts of others (a path, a log) may hold bytes that are not UTF-8; a document is printed all the same.
std::string dump(const Json& json) { return json.dump(2, ' ', false, Json::error_handler_t::replace); }

}  // namespace

void Output::line(std::string_view text) {
  if (json_) return;
  const std::lock_guard lock(mutex_);
  clear_progress();
  streams_.out << text << '\n';
}

void Output::raw(std::string_view bytes) {
  if (json_) return;
  const std::lock_guard lock(mutex_);
  clear_progress();
  streams_.out.write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
}

void Output::note(std::string_view text) {
  const std::lock_guard lock(mutex_);
  clear_progress();
  streams_.err << text << std::endl;
}

void Output::warn(std::string_view text) {
  note(streams_.color ? fmt::format("\x1b[33mattune: warning:\x1b[0m {}", text)
                      : fmt::format("attune: warning: {}", text));
}

void Output::error(std::string_view message) {
  note(streams_.color ? fmt::format("\x1b[31mattune:\x1b[0m {}", message) : fmt::format("attune: {}", message));
}

void Output::progress(std::string_view text, bool at_once) {
  if (!streams_.err_is_terminal) return;
  const std::lock_guard lock(mutex_);
  const auto now = std::chrono::steady_clock::now();
  if (!at_once && progress_shown_ && now - progress_time_ < kProgressInterval) return;
  progress_time_ = now;
  progress_shown_ = true;
  // A line that wraps could not be replaced by a carriage return.
  const std::size_t room = static_cast<std::size_t>(std::max(streams_.width - 1, 20));
  streams_.err << "\r\x1b[K" << text.substr(0, room) << std::flush;
}

void Output::end_progress() {
  const std::lock_guard lock(mutex_);
  clear_progress();
}

void Output::clear_progress() {
  if (!progress_shown_) return;
  streams_.err << "\r\x1b[K" << std::flush;
  progress_shown_ = false;
}

bool Output::finish(const std::string& command, int exit_code) {
  const std::lock_guard lock(mutex_);
  clear_progress();
  if (json_) {
    Json all{{"schema", kJsonSchema}, {"command", command}, {"exit_code", exit_code}};
    all.update(document_);
    streams_.out << dump(all) << '\n';
  }
  streams_.out.flush();
  return streams_.out.good();
}

}  // namespace attune::cli
