// ProgramImage::position: what a site's instruction looks like, for people.
#include <algorithm>
#include <cctype>
#include <cstddef>

#include "runtime/emulator/exec/code.h"

namespace attune::emulator {
namespace {

constexpr std::size_t kLongestText = 16384, kShownItems = 2;

/// The text from there to the semicolon, blanks squeezed.
std::string statement_at(const std::vector<std::string>& lines, std::size_t line, std::size_t column) {
  std::string text;
  for (; line < lines.size() && text.size() < kLongestText; ++line, column = 0) {
    for (std::size_t i = column; i < lines[line].size(); ++i) {
      const char c = lines[line][i];
      if (c == ';') return text;
      if (c == '/' && i + 1 < lines[line].size() && lines[line][i + 1] == '/') break;
      if (std::isspace(static_cast<unsigned char>(c))) {
        if (!text.empty() && text.back() != ' ') text += ' ';
      } else {
        text += c;
      }
    }
    if (!text.empty() && text.back() != ' ') text += ' ';
  }
  return text;
}

/// {%f1, %f2, %f3, %f4, %f5, %f6} becomes {%f1, %f2, ... %f6}.
std::string shorten_lists(const std::string& text) {
  std::string result;
  for (std::size_t i = 0; i < text.size();) {
    const std::size_t end = text[i] == '{' ? text.find('}', i) : std::string::npos;
    if (end == std::string::npos) {
      result += text[i++];
      continue;
    }
    const std::string list = text.substr(i, end - i);
    if (std::ranges::count(list, ',') > static_cast<std::ptrdiff_t>(2 * kShownItems)) {
      std::size_t shown = 0;
      for (std::size_t item = 0; item < kShownItems; ++item) shown = list.find(',', shown) + 1;
      result += list.substr(0, shown) + " ..." + list.substr(list.rfind(',') + 1);
    } else {
      result += list;
    }
    i = end;
  }
  return result;
}

}  // namespace

SourcePosition ProgramImage::position(std::uint32_t site) const {
  SourcePosition result;
  if (site >= sites.size()) return result;
  const Site& at = sites[site];
  result.ptx_line = at.line;
  if (at.line > 0 && at.column > 0) {
    result.instruction = shorten_lists(
        statement_at(lines, static_cast<std::size_t>(at.line) - 1, static_cast<std::size_t>(at.column) - 1));
  }
  if (at.location >= 0) {
    const SourceLine& line = locations[static_cast<std::size_t>(at.location)];
    result.file = line.file;
    result.line = line.line;
    result.inlined_file = line.inlined_file;
    result.inlined_line = line.inlined_line;
  }
  return result;
}

}  // namespace attune::emulator
