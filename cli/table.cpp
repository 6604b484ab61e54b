#include "cli/table.h"

#include <algorithm>

namespace attune::cli {
namespace {

// Columns that a text takes on the screen, as long as it is made of characters one column wide: continuation bytes of
// UTF-8 take none.
std::size_t columns_of(std::string_view text) {
  return static_cast<std::size_t>(
      std::ranges::count_if(text, [](char c) { return (static_cast<unsigned char>(c) & 0xc0) != 0x80; }));
}

}  // namespace

void Table::row(std::vector<std::string> cells) {
  cells.resize(columns_.size());
  rows_.push_back(std::move(cells));
}

void Table::print(Output& output) const {
  std::vector<std::size_t> widths;
  for (std::size_t i = 0; i < columns_.size(); ++i) {
    std::size_t width = columns_of(columns_[i].title);
    for (const auto& row : rows_) width = std::max(width, columns_of(row[i]));
    widths.push_back(width);
  }
  const auto print_row = [&](const auto& cell) {
    std::string text;
    for (std::size_t i = 0; i < columns_.size(); ++i) {
      if (i > 0) text += "  ";
      const std::string& words = cell(i);
      const std::string padding(widths[i] - columns_of(words), ' ');
      text += columns_[i].align == Align::left ? words + padding : padding + words;
    }
    text.erase(text.find_last_not_of(' ') + 1);
    output.line(std::string_view(text));
  };
  print_row([&](std::size_t i) -> const std::string& { return columns_[i].title; });
  for (const auto& row : rows_) print_row([&](std::size_t i) -> const std::string& { return row[i]; });
}

}  // namespace attune::cli
