#include "cli/peer_bench.h"

#include <fmt/ranges.h>
#include <signal.h>

#include <cstdlib>
#include <cstring>
#include <system_error>

#include "base/environment.h"
#include "base/error.h"
#include "cli/child_process.h"
#include "cli/files.h"

namespace attune::cli {
namespace {

namespace fs = std::filesystem;

constexpr const char* kNeeds = "--peers needs Python 3.11 or newer with a CUDA build of PyTorch";

// Looks for PyTorch without loading it, which takes seconds. Statuses of its own: Python itself ends with 1 and 2.
constexpr int kTooOld = 11, kNoTorch = 12;
constexpr const char* kProbe =
    "import importlib.util as u, sys\n"
    "sys.exit(11 if sys.version_info < (3, 11) else 0 if u.find_spec('torch') else 12)";

// The first of the folders' files that exists; else Error(unsupported).
fs::path first_of(const std::string& what, const std::vector<fs::path>& paths, const char* variable) {
  std::string tried;
  for (const fs::path& path : paths) {
    std::error_code error;
    if (fs::is_regular_file(path, error)) return path;
    tried += (tried.empty() ? "" : ", ") + path.string();
  }
  fail(ErrorCode::unsupported, "peers: {} was not found (tried {}); {} may name it", what, tried, variable);
}

fs::path own_program() {
  std::error_code error;
  fs::path program = fs::read_symlink("/proc/self/exe", error);
  if (error) fail(ErrorCode::io, "/proc/self/exe: {}", error.message());
  return program;
}

// The name of an interpreter that can run the scripts.
std::string checked_python() {
  const std::string python = environment_variable("ATTUNE_PYTHON").value_or("python3");
  ChildResult result;
  try {
    result = run_child({python, "-c", kProbe}, ChildStdout::to_stderr);
  } catch (const Error& error) {
    fail(ErrorCode::unsupported, "peers: {} ({}; ATTUNE_PYTHON may name one)", error.what(), kNeeds);
  }
  if (result.interrupted) fail(ErrorCode::interrupted, "interrupted");
  if (result.signal == 0 && result.status == 0) return python;
  const char* const wrong = result.status == kTooOld    ? "is too old"
                            : result.status == kNoTorch ? "has no module torch"
                                                        : "does not run";
  fail(ErrorCode::unsupported, "peers: {} {} ({}; ATTUNE_PYTHON may name another)", python, wrong, kNeeds);
}

std::vector<std::string> modes_of(const PeerBench& bench) {
  std::vector<std::string> modes;
  if (bench.burst) modes.emplace_back("burst");
  if (bench.sustained) modes.emplace_back("sustained");
  return modes;
}

// When a file was written; nothing if there is none.
std::optional<fs::file_time_type> time_of(const fs::path& path) {
  std::error_code error;
  const fs::file_time_type time = fs::last_write_time(path, error);
  return error ? std::nullopt : std::optional(time);
}

// A mode's document as the script wrote it.
Json document_of(const std::string& path) {
  Json document = Json::parse(read_file(path), nullptr, /*allow_exceptions=*/false);
  if (document.is_discarded()) fail(ErrorCode::io, "{}: is no JSON", path);
  return document;
}

ExitCode code_of(const std::string& script, const ChildResult& result) {
  if (result.interrupted || result.signal == SIGINT) fail(ErrorCode::interrupted, "interrupted");
  if (result.signal != 0)
    fail(ErrorCode::internal, "peers: {} ended by signal {} ({})", script, result.signal, strsignal(result.signal));
  switch (result.status) {
    case 0: return ExitCode::ok;
    case 1: return ExitCode::failure;
    case 2: return ExitCode::usage;
    case 3: return ExitCode::unavailable;
    case 5: return ExitCode::partly_tuned;
    default: fail(ErrorCode::internal, "peers: {} ended with status {}", script, result.status);
  }
}

}  // namespace

std::vector<std::string> peer_arguments(const PeerBench& bench) {
  std::vector<std::string> words;
  const auto add = [&](const char* option, const std::string& value) {
    words.emplace_back(option);
    words.push_back(value);
  };
  if (bench.grid_dtype) {
    add("--dtypes", to_string(*bench.grid_dtype));
    if (bench.grid_deterministic) words.emplace_back("--deterministic");
  } else {
    words.emplace_back("--no-grid");
    for (const Problem& problem : bench.problems) add("--problem", to_string(problem));
  }
  for (const std::string& config : bench.configs) add("--config", config == "winner" ? "plan" : config);
  add("--modes", fmt::format("{}", fmt::join(modes_of(bench), ",")));
  if (bench.turns) {
    add("--rounds", std::to_string(*bench.turns));
    add("--sustained-rounds", std::to_string(*bench.turns));
  }
  if (bench.seconds) add("--load", fmt::format("{}", *bench.seconds));
  if (bench.budget) add("--budget", fmt::format("{}", *bench.budget));
  add("--device", std::to_string(bench.device));
  if (!bench.cache_directory.empty()) add("--cache-dir", bench.cache_directory);
  if (!bench.use_cache) words.emplace_back("--no-cache");
  for (const std::string& pack : bench.packs) add("--pack", pack);
  if (bench.allow_unsigned) words.emplace_back("--allow-unsigned-packs");
  if (!bench.commit.empty()) add("--commit", bench.commit);
  if (!bench.fa3.empty()) add("--fa3", bench.fa3);
  add("--out", bench.out);
  words.emplace_back("--html");
  return words;
}

fs::path find_peer_script(const fs::path& program, Op op) {
  const std::string script = fmt::format("{}_grid.py", to_string(op));
  std::vector<fs::path> paths;
  if (const auto named = environment_variable("ATTUNE_PEERS")) {
    paths.push_back(fs::path(*named) / script);
  } else {
    for (const char* way : {".", "../share/attune/bench", "../../../bench/peers"})
      paths.push_back((program.parent_path() / way / script).lexically_normal());
  }
  return first_of(script, paths, "ATTUNE_PEERS");
}

fs::path find_shared_library(const fs::path& program) {
  std::vector<fs::path> paths;
  if (const auto named = environment_variable("ATTUNE_LIB")) {
    paths.emplace_back(*named);
  } else {
    for (const char* way : {".", "../lib", "../" ATTUNE_LIBDIR})
      paths.push_back((program.parent_path() / way / ATTUNE_LIBRARY).lexically_normal());
    if (paths[1] == paths[2]) paths.pop_back();
  }
  return first_of(ATTUNE_LIBRARY, paths, "ATTUNE_LIB");
}

ExitCode run_peer_bench(const PeerBench& bench, Output& output) {
  const fs::path program = own_program();
  const fs::path script = find_peer_script(program, bench.op);
  const fs::path library = find_shared_library(program);
  std::vector<std::string> words{checked_python(), script.string(), "--lib", library.string()};
  for (std::string& word : peer_arguments(bench)) words.push_back(std::move(word));

  std::vector<std::optional<fs::file_time_type>> before;
  for (const std::string& mode : modes_of(bench)) before.push_back(time_of(bench.out + "_" + mode + ".json"));
  const ChildResult result = run_child(words, output.json() ? ChildStdout::to_stderr : ChildStdout::same);
  const ExitCode code = code_of(script.filename().string(), result);
  Json files = Json::array();
  for (std::size_t i = 0; i < before.size(); ++i) {
    const std::string mode = modes_of(bench)[i], name = bench.out + "_" + mode;
    // An older run's files are none of this one's.
    if (const auto now = time_of(name + ".json"); !now || now == before[i]) continue;
    output.document()[mode] = document_of(name + ".json");
    for (const char* ending : {".csv", ".json", ".html"}) {
      if (!time_of(name + ending)) continue;
      files.push_back(name + ending);
      output.note("{}{} is written", name, ending);
    }
  }
  output.document()["files"] = std::move(files);
  return code;
}

}  // namespace attune::cli
