#include <sys/ioctl.h>
#include <unistd.h>

#include <cstdlib>
#include <iostream>
#include <string>
#include <vector>

#include "cli/app.h"

namespace {

int terminal_width() {
  winsize size{};
  return ioctl(STDERR_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0 ? size.ws_col : 80;
}

}  // namespace

int main(int argc, char** argv) {
  std::ios::sync_with_stdio(false);
  const bool terminal = isatty(STDERR_FILENO) == 1;
  const char* no_color = std::getenv("NO_COLOR");
  const attune::cli::Streams streams{
      .out = std::cout,
      .err = std::cerr,
      .err_is_terminal = terminal,
      .color = terminal && (no_color == nullptr || *no_color == '\0'),
      .width = terminal_width(),
  };
  return attune::cli::run(std::vector<std::string>(argv + 1, argv + argc), streams);
}
