// Configs that won on a real device, built in: what a problem that nobody has tuned here is served with.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "codegen/config.h"

namespace attune::codegen {

struct TabledWinner {
  Problem problem;
  Config config;       ///< launch part included
  double seconds = 0;  ///< of a launch
  double error = 0;    ///< relative error of the worst row of what it writes, against float64
};

/// The rows of default_table.txt. They live as long as the program; safe from any thread.
const std::vector<TabledWinner>& default_table();

/// Reads rows "problem | config | seconds | error"; empty lines and lines that begin with # are skipped. Throws
/// Error(invalid_argument) that names the line.
std::vector<TabledWinner> parse_default_table(std::string_view text);

/// What won on the problems of the table that are closest to this one, closest first, each kernel once, fitted to it
/// (only configs that pass every rule). Empty if none is close: other head dims, or work of another order.
std::vector<Config> tabled_configs(const Arch& arch, const Problem& problem);

}  // namespace attune::codegen
