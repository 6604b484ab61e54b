// Collects lines of source with indentation.
#pragma once

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <string>
#include <string_view>
#include <utility>

namespace attune::codegen {

class Writer {
 public:
  /// One line at the current indentation; "" gives an empty line.
  void line(std::string_view text) {
    if (!text.empty()) out_.append(static_cast<std::size_t>(2 * depth_), ' ').append(text);
    out_ += '\n';
  }
  template <typename... Args>
  void line(fmt::format_string<Args...> text, Args&&... args)
    requires(sizeof...(Args) > 0)
  {
    line(std::string_view(fmt::format(text, std::forward<Args>(args)...)));
  }
  /// A line that opens a scope, and the one that closes it.
  void open(std::string_view text) {
    line(text);
    depth_++;
  }
  void close(std::string_view text = "}") {
    depth_--;
    line(text);
  }
  /// "} else {" and the like.
  void reopen(std::string_view text) {
    depth_--;
    line(text);
    depth_++;
  }
  /// Text that brings its own lines.
  void raw(std::string_view text) { out_ += text; }
  /// Lines written so far.
  std::ptrdiff_t lines() const { return std::count(out_.begin(), out_.end(), '\n'); }
  std::string take() { return std::move(out_); }

 private:
  std::string out_;
  int depth_ = 0;
};

}  // namespace attune::codegen
