// Flags for more than one problem: a model's config.json, a grid, or one problem at several lengths.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "cli/problem_flags.h"

namespace attune::cli {

struct ProblemSetFlags {
  void add(CLI::App& command);

  /// In the order of their lengths. Notes what was assumed about a model. Throws Error(invalid_argument).
  std::vector<Problem> problems(Output& output) const;
  /// And, unless it was said what kind of scores is meant, behind them all their peaked twins.
  std::vector<Problem> problems_and_twins(Output& output) const;
  Arch arch() const { return one_.arch(); }
  /// Whether any of the flags was given, --arch aside.
  bool any() const;
  /// --grid, empty if it was not given.
  const std::string& grid() const { return grid_; }
  /// Whether a problem is one that the flags mean: one of problems(), or, without --model, --grid and --seqlens, any
  /// problem that agrees with what was given.
  std::function<bool(const Problem&)> filter(Output& output) const;

 private:
  std::vector<Problem> of_model(Output& output) const;
  std::vector<Problem> of_grid() const;

  ProblemFlags one_;
  std::string model_, grid_;
  std::optional<std::string> tokens_, seqlens_;
};

}  // namespace attune::cli
