// attune bench --peers, with a stand-in for Python.
#include <doctest/doctest.h>
#include <sys/stat.h>

#include <cstdlib>
#include <fstream>
#include <nlohmann/json.hpp>
#include <optional>
#include <sstream>

#include "cli/app.h"
#include "cli/files.h"
#include "cli/peer_bench.h"
#include "tests/unit/temporary_folder.h"

using namespace attune;
using attune::tests::TemporaryFolder;

namespace {

// An environment variable that is as before in the end.
class Variable {
 public:
  Variable(const char* name, const std::string& value) : name_(name) {
    if (const char* const text = std::getenv(name)) before_ = text;
    setenv(name, value.c_str(), 1);
  }
  ~Variable() {
    if (before_)
      setenv(name_, before_->c_str(), 1);
    else
      unsetenv(name_);
  }
  Variable(const Variable&) = delete;
  Variable& operator=(const Variable&) = delete;

 private:
  const char* name_;
  std::optional<std::string> before_;
};

// A folder with a library, a script, and a python that does what `probe` (for the question whether there is PyTorch)
// and `work` (for the script) say. Its arguments end up in `words`.
struct Stage {
  Stage(const std::string& probe, const std::string& work) {
    write("forward_grid.py", "");
    write("backward_grid.py", "");
    write("libattune.so", "");
    write("python", "#!/bin/sh\nif [ \"$1\" = -c ]; then " + probe + "; fi\nprintf '%s\\n' \"$@\" >" + path("words") +
                        "\n" + work + "\n");
    REQUIRE(chmod(path("python").c_str(), 0755) == 0);
  }

  std::string path(const std::string& name) const { return (folder.path() / name).string(); }
  void write(const std::string& name, const std::string& text) const { std::ofstream(path(name)) << text; }

  TemporaryFolder folder;
  Variable python{"ATTUNE_PYTHON", path("python")}, library{"ATTUNE_LIB", path("libattune.so")},
      scripts{"ATTUNE_PEERS", folder.string()};
};

struct Result {
  int status;
  std::string out, err;
};

Result run(const std::vector<std::string>& arguments) {
  std::ostringstream out, err;
  const int status = cli::run(arguments, {.out = out, .err = err});
  return {status, out.str(), err.str()};
}

std::string text_of(const std::vector<std::string>& words) {
  std::string text;
  for (const std::string& word : words) text += (text.empty() ? "" : " ") + word;
  return text;
}

bool has(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

}  // namespace

TEST_CASE("peers: the script's arguments") {
  cli::PeerBench bench;
  bench.grid_dtype = DType::bf16;
  CHECK(text_of(cli::peer_arguments(bench)) == "--dtypes bf16 --modes burst,sustained --device 0 --out forward --html");
  bench.op = Op::backward;
  bench.out = "backward";
  bench.grid_deterministic = true;
  CHECK(text_of(cli::peer_arguments(bench)) ==
        "--dtypes bf16 --deterministic --modes burst,sustained --device 0 --out backward --html");
  bench.grid_dtype.reset();
  bench.problems = {Problem{.batch = 2}};
  bench.configs = {"winner", "block_n=64"};
  bench.burst = false;
  bench.turns = 4;
  bench.seconds = 0.25;
  bench.budget = 90;
  bench.out = "x/y";
  bench.commit = "abc";
  bench.fa3 = "fa3.so";
  bench.device = 1;
  bench.cache_directory = "here";
  bench.use_cache = false;
  bench.packs = {"a", "b"};
  bench.allow_unsigned = true;
  CHECK(text_of(cli::peer_arguments(bench)) ==
        "--no-grid --problem " + to_string(Problem{.batch = 2}) +
            " --config plan --config block_n=64 --modes sustained --rounds 4 --sustained-rounds 4 --load 0.25 --budget "
            "90 --device 1 --cache-dir here --no-cache --pack a --pack b --allow-unsigned-packs --commit abc --fa3 "
            "fa3.so --out x/y --html");
}

TEST_CASE("peers: where script and library are looked for") {
  const TemporaryFolder folder;
  namespace fs = std::filesystem;
  const Variable scripts("ATTUNE_PEERS", ""), named("ATTUNE_LIB", "");
  const auto place = [&](const char* file) {
    fs::create_directories((folder.path() / file).parent_path());
    std::ofstream(folder.path() / file) << "";
  };
  const fs::path program = folder.path() / "build/dev/bin/attune";
  fs::create_directories(program.parent_path());
  CHECK_THROWS_WITH_AS(cli::find_peer_script(program, Op::forward), doctest::Contains("ATTUNE_PEERS may name it"),
                       Error);
  CHECK_THROWS_WITH_AS(cli::find_shared_library(program), doctest::Contains("ATTUNE_LIB may name it"), Error);
  place("bench/peers/forward_grid.py");
  place("build/dev/lib/libattune.so.0");
  CHECK(cli::find_peer_script(program, Op::forward) == folder.path() / "bench/peers/forward_grid.py");
  CHECK_THROWS_WITH_AS(cli::find_peer_script(program, Op::backward),
                       doctest::Contains("backward_grid.py was not found"), Error);
  place("bench/peers/backward_grid.py");
  CHECK(cli::find_peer_script(program, Op::backward) == folder.path() / "bench/peers/backward_grid.py");
  CHECK(cli::find_shared_library(program) == folder.path() / "build/dev/lib/libattune.so.0");
  place("build/dev/share/attune/bench/forward_grid.py");
  CHECK(cli::find_peer_script(program, Op::forward) == folder.path() / "build/dev/share/attune/bench/forward_grid.py");
  place("build/dev/bin/forward_grid.py");
  place("build/dev/bin/libattune.so.0");
  CHECK(cli::find_peer_script(program, Op::forward) == folder.path() / "build/dev/bin/forward_grid.py");
  CHECK(cli::find_shared_library(program) == folder.path() / "build/dev/bin/libattune.so.0");
  const Variable only("ATTUNE_PEERS", folder.string());  // where there is none
  CHECK_THROWS_AS(cli::find_peer_script(program, Op::forward), Error);
}

TEST_CASE("peers: the script's tables and its exit status are the command's") {
  const Stage stage("exit 0",
                    "out=; while [ $# -gt 0 ]; do [ \"$1\" = --out ] && out=$2; shift; done\n"
                    "echo '{\"mode\": \"burst\", \"summary\": {}}' >\"$out\"_burst.json\n"
                    "touch \"$out\"_burst.csv \"$out\"_burst.html\nexit 5");
  stage.write("new_sustained.json", "{\"mode\": \"an older run's\"}");
  const Result result = run({"bench", "--grid", "fa3", "--peers", "--out", stage.path("new"), "--json"});
  CHECK_MESSAGE(result.status == 5, result.err);
  const nlohmann::json document = nlohmann::json::parse(result.out);
  CHECK(document["exit_code"] == 5);
  CHECK(document["burst"]["mode"] == "burst");
  CHECK_FALSE(document.contains("sustained"));
  CHECK(document["files"] ==
        nlohmann::json{stage.path("new_burst.csv"), stage.path("new_burst.json"), stage.path("new_burst.html")});
  CHECK(has(result.err, "new_burst.html is written"));
  const std::string words = cli::read_file(stage.path("words"));
  CHECK(words.starts_with(stage.path("forward_grid.py") + "\n--lib\n" + stage.path("libattune.so") + "\n"));
  CHECK(has(words, "\n--dtypes\nbf16\n"));
  CHECK(run({"bench", "--peers", "--dtype", "fp16", "--out", stage.path("new")}).status == 5);
  CHECK(has(cli::read_file(stage.path("words")),
            "\n--no-grid\n--problem\n" + to_string(Problem{.dtype = DType::fp16, .batch = 4})));
}

TEST_CASE("peers: gradients have a script of their own") {
  const Stage stage("exit 0", "exit 0");
  const auto words_of = [&](std::vector<std::string> words) {
    words.insert(words.begin(), {"bench", "--peers", "--op", "backward"});
    const Result result = run(words);
    CHECK_MESSAGE(result.status == 0, result.err);
    return cli::read_file(stage.path("words"));
  };
  std::string words = words_of({"--grid", "fa3", "--deterministic"});
  CHECK(words.starts_with(stage.path("backward_grid.py") + "\n--lib\n"));
  CHECK(has(words, "\n--dtypes\nbf16\n--deterministic\n"));
  CHECK(has(words, "\n--out\nbackward\n"));
  words = words_of({"--head-dim", "64", "--out", stage.path("new")});
  const Problem problem{.op = Op::backward, .head_dim = 64, .head_dim_v = 64, .batch = 4};
  CHECK(has(words, "\n--no-grid\n--problem\n" + to_string(problem) + "\n--modes\n"));
  CHECK(has(words, "\n--out\n" + stage.path("new") + "\n"));
}

TEST_CASE("peers: without Python or PyTorch it is status 3, and the script does not run") {
  const auto refused = [](const std::string& probe, const char* words) {
    const Stage stage(probe, "exit 0");
    const Result result = run({"bench", "--grid", "fa3", "--peers", "--out", stage.path("never")});
    CHECK(result.status == 3);
    CHECK_MESSAGE(has(result.err, words), result.err);
    CHECK(has(result.err, "needs Python 3.11 or newer with a CUDA build of PyTorch"));
    CHECK_FALSE(std::filesystem::exists(stage.path("words")));
  };
  refused("exit 12", "has no module torch");
  refused("exit 11", "is too old");
  refused("exit 1", "does not run");
  refused("kill -9 $$", "does not run");
  const Stage stage("exit 0", "exit 0");
  const Variable absent("ATTUNE_PYTHON", stage.path("nowhere"));
  const Result result = run({"bench", "--peers"});
  CHECK(result.status == 3);
  CHECK(has(result.err, "nowhere: was not found"));
}

TEST_CASE("peers: a script that does not end well") {
  const auto status_of = [](const std::string& work) {
    const Stage stage("exit 0", work);
    return run({"bench", "--peers", "--out", stage.path("never")}).status;
  };
  CHECK(status_of("exit 1") == 1);
  CHECK(status_of("exit 3") == 3);
  CHECK(status_of("exit 77") == 1);
  CHECK(status_of("kill -9 $$") == 1);
  CHECK(status_of("kill -2 $$") == 130);
}

TEST_CASE("peers: options that exclude or need each other") {
  const auto usage = [](const std::vector<std::string>& words, const char* text) {
    std::vector<std::string> all{"bench"};
    all.insert(all.end(), words.begin(), words.end());
    const Result result = run(all);
    CHECK(result.status == 2);
    CHECK_MESSAGE(has(result.err, text), result.err);
  };
  usage({"--peers", "--launches", "3"}, "launches: excludes --peers");
  usage({"--peers", "--csv"}, "csv: excludes --peers");
  usage({"--peers", "--no-compiler"}, "no_compiler: excludes --peers");
  usage({"--peers", "--config", "default"}, "config: 'default' excludes --peers");
  usage({"--peers", "--turns", "0"}, "turns: ");
  usage({"--peers", "--budget", "soon"}, "budget: ");
  usage({"--out", "x"}, "out: needs --peers");
  usage({"--budget", "9"}, "budget: needs --peers");
  usage({"--commit", "x"}, "commit: needs --peers");
  usage({"--fa3", "x"}, "fa3: needs --peers");
  usage({"--peers", "--op", "backward", "--fa3", "x"}, "fa3: 'x' with op = backward (allowed: with forward)");
  usage({"--grid", "fa4"}, "grid: 'fa4' is unknown (allowed: fa3)");
  usage({"--grid", "fa3", "--head-dim", "64"}, "grid: says what --head-dim would say");
  usage({"--grid", "fa3", "--deterministic", "--peers"}, "deterministic: 1 with op = forward");
  CHECK(run({"bench", "--peers", "--device", "cpu"}).status == 3);
}
