// Columns of text.
#pragma once

#include <string>
#include <vector>

#include "cli/output.h"

namespace attune::cli {

enum class Align { left, right };

struct Column {
  std::string title;
  Align align = Align::right;
};

class Table {
 public:
  explicit Table(std::vector<Column> columns) : columns_(std::move(columns)) {}

  /// One text for each column; missing ones are empty.
  void row(std::vector<std::string> cells);
  bool empty() const { return rows_.empty(); }
  /// Title and rows, two spaces between columns, none at the end of a line.
  void print(Output& output) const;

 private:
  std::vector<Column> columns_;
  std::vector<std::vector<std::string>> rows_;
};

}  // namespace attune::cli
