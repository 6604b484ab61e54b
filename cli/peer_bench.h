// attune bench --peers: the comparison with other libraries. That is Python's, since these come with PyTorch: this
// finds the script, the library and an interpreter, and runs them.
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include <attune/problem.h>

#include "cli/exit_code.h"
#include "cli/output.h"

namespace attune::cli {

struct PeerBench {
  Op op = Op::forward;               ///< of all problems
  std::vector<Problem> problems;     ///< what to time, unless `grid_dtype` says it
  std::optional<DType> grid_dtype;   ///< the whole grid fa3 in this type
  bool grid_deterministic = false;   ///< and backward with sums in one order
  std::vector<std::string> configs;  ///< empty: what plan() gives, whose name here is `winner`
  bool burst = true, sustained = true;
  // Where these are empty the script has values of its own.
  std::optional<std::int64_t> turns;  ///< rounds over all problems
  std::optional<double> seconds;      ///< a sustained half's length
  std::optional<double> budget;       ///< seconds for everything
  std::string out = "forward";        ///< beginning of the files' names
  std::string commit;                 ///< for the record
  std::string fa3;                    ///< forward: FlashAttention-3 as a library; empty: by its recorded speed
  int device = 0;
  std::string cache_directory;  ///< empty: as attune finds it
  bool use_cache = true;
  std::vector<std::string> packs;
  bool allow_unsigned = false;
};

/// The script's arguments.
std::vector<std::string> peer_arguments(const PeerBench& bench);

/// The script of an op: in $ATTUNE_PEERS, which, when set, is the only place; else in `program`'s own folder (a
/// bundle),
/// ../share/attune/bench (installed), ../../../bench/peers (in the source tree's build/PRESET/bin). Throws
/// Error(unsupported) that lists the places.
std::filesystem::path find_peer_script(const std::filesystem::path& program, Op op);

/// The shared library: $ATTUNE_LIB, which, when set, is the only place; else beside `program` or in ../lib. Throws
/// Error(unsupported) likewise.
std::filesystem::path find_shared_library(const std::filesystem::path& program);

/// Runs it to the end: writes OUT_burst and OUT_sustained as .csv, .json and .html, prints tables. The exit code is the
/// script's. Throws Error(unsupported) where script, library, Python 3.11 or PyTorch is missing.
ExitCode run_peer_bench(const PeerBench& bench, Output& output);

}  // namespace attune::cli
