// Bad input of every kind: the right exit status, and a message that names the argument, its value and what is allowed.
#include "tests/fault/cli_process.h"

using namespace attune::tests;

namespace {

struct BadInput {
  std::vector<std::string> arguments;
  int status;
  std::vector<std::string> says;  // each stands in the message
};

const std::vector<BadInput>& bad_inputs() {
  static const std::vector<BadInput> all{
      {{"frobnicate"}, 2, {"command: 'frobnicate'", "doctor, emit"}},
      {{}, 2, {"command: missing", "doctor, emit"}},
      {{"cache"}, 2, {"command: missing after cache", "path, ls"}},
      {{"pack", "frobnicate"}, 2, {"'frobnicate'", "create, ls"}},
      {{"emit", "--frobnicate"}, 2, {"--frobnicate", "attune emit --help"}},
      {{"emit", "stray"}, 2, {"stray"}},
      {{"emit", "--limit"}, 2, {"--limit"}},
      {{"inspect"}, 2, {"target"}},
      {{"emit", "--dtype", "fp32"}, 2, {"dtype: fp32", "convert", "bf16"}},
      {{"emit", "--dtype", "int4"}, 2, {"dtype: 'int4'", "bf16, fp16"}},
      {{"emit", "--head-dim", "129"}, 2, {"head_dim: 129", "8, 16, ..., 256"}},
      {{"emit", "--head-dim", "264"}, 2, {"head_dim: 264", "8, 16, ..., 256"}},
      {{"emit", "--head-dim", "0"}, 2, {"head_dim: 0"}},
      {{"emit", "--head-dim", "-8"}, 2, {"head_dim: -8"}},
      {{"emit", "--head-dim", "many"}, 2, {"head_dim: 'many'"}},
      {{"emit", "--head-dim", "99999999999999999999"}, 2, {"head_dim", "99999999999999999999"}},
      {{"emit", "--head-dim-v", "12"}, 2, {"head_dim_v: 12"}},
      {{"emit", "--heads", "32", "--heads-kv", "5"}, 2, {"heads_kv: 5", "heads = 32"}},
      {{"emit", "--heads", "0"}, 2, {"heads: 0"}},
      {{"emit", "--heads", "-4"}, 2, {"heads: -4"}},
      {{"emit", "--batch", "0"}, 2, {"batch: 0"}},
      {{"emit", "--batch", "-1"}, 2, {"batch: -1"}},
      {{"emit", "--seqlen", "0"}, 2, {"seqlen_q: 0"}},
      {{"emit", "--seqlen-q", "-1"}, 2, {"seqlen_q: -1"}},
      {{"emit", "--seqlen-k", "3000000000"}, 2, {"seqlen_k: 3000000000"}},
      {{"emit", "--layout", "bsdh"}, 2, {"layout: 'bsdh'", "bshd, bhsd"}},
      {{"emit", "--causal", "--no-causal"}, 2, {"causal"}},
      {{"emit", "--problem", "heads=4,legs=2"}, 2, {"legs", "heads_kv"}},
      {{"emit", "--arch", "sm_75"}, 3, {"arch: 'sm_75'", "sm_90a"}},
      {{"emit", "--config", "warp_factor=9"}, 2, {"'warp_factor'", "block_n"}},
      {{"emit", "--config", "block_n=17"}, 2, {"block_n: 17"}},
      {{"emit", "--config", "softmax=guess"}, 2, {"softmax: 'guess'", "exact"}},
      {{"emit", "--config", "block_n"}, 2, {"'block_n'", "key=value"}},
      {{"emit", "--config", "stages=8,block_n=256"}, 2, {"config"}},
      {{"emit", "--spec", "head_dim=64", "--heads", "4"}, 2, {"spec", "--heads"}},
      {{"emit", "--spec", "head_dim=64,edge=sharp"}, 2, {"'sharp'", "diagonal"}},
      {{"emit", "--list", "--limit", "some"}, 2, {"limit: 'some'"}},
      {{"tune", "--budget", "soon"}, 2, {"budget: 'soon'", "90s"}},
      {{"tune", "--budget", "-5"}, 2, {"budget: '-5'"}},
      {{"tune", "--max-candidates", "0"}, 2, {"max_candidates: 0"}},
      {{"tune", "--regime", "lukewarm"}, 2, {"regime: 'lukewarm'", "burst, sustained"}},
      {{"tune", "--shard", "8/8"}, 2, {"shard", "8"}},
      {{"tune", "--seqlens", "512,"}, 2, {"seqlens"}},
      {{"tune", "--tokens", "4096"}, 2, {"tokens", "--seqlens"}},
      {{"tune", "--device", "cpu"}, 3, {"device: 'cpu'", "CPU emulator"}},
      {{"tune", "--emulate", "2"}, 2, {"emulate", "--no-gpu"}},
      {{"tune", "--no-gpu", "--emulate", "some"}, 2, {"emulate: 'some'"}},
      {{"verify", "--device", "cpu", "--seeds", "0"}, 2, {"seeds: 0"}},
      {{"verify", "--seeds", "2"}, 2, {"seeds", "--device cpu"}},
      {{"verify", "--first-seed", "2"}, 2, {"first_seed", "--device cpu"}},
      {{"verify", "--device", "cpu", "--first-seed", "-1"}, 2, {"first_seed: -1"}},
      {{"verify", "--device", "cpu", "--cache-dir", "x"}, 2, {"cache_dir", "--device cpu"}},
      {{"verify", "--device", "gpu"}, 2, {"device: 'gpu'", "the ordinal of a GPU", "cpu: the emulator"}},
      {{"verify", "--device", "CPU", "--seeds", "2"}, 2, {"device: 'CPU'", "cpu: the emulator"}},
      {{"emulate"}, 2, {"file"}},
      {{"emulate", "kernel.ptx", "--block", "1"}, 2, {"--grid"}},
      {{"emulate", "kernel.txt", "--grid", "1", "--block", "1"}, 2, {"file: 'kernel.txt'", "*.ptx, *.cu"}},
      {{"emulate", "kernel.ptx", "--grid", "1", "--block", "many"}, 2, {"block: 'many'"}},
      {{"emulate", "kernel.ptx", "--grid", "1", "--block", "1", "--arg", "int:3"}, 2, {"arg 0: 'int:3'", "u32"}},
      {{"verify", "--source", "kernel.cu"}, 2, {"source", "--device cpu"}},
      {{"verify", "--device", "cpu", "--source", "x.cu", "--config", "default"}, 2, {"source", "--config"}},
      {{"verify", "--device", "cpu", "--source", "/dev/null"}, 2, {"source: /dev/null", "attune emit"}},
      {{"verify", "--device", "cpu", "--source", "/nonexistent.cu"}, 1, {"/nonexistent.cu"}},
      {{"bench", "--device", "cpu"}, 3, {"device: 'cpu'"}},
      {{"bench", "--device", "first"}, 2, {"device: 'first'", "the ordinal of a GPU"}},
      {{"bench", "--turns", "0"}, 2, {"turns: 0"}},
      {{"bench", "--config", "block_n=1"}, 2, {"block_n"}},
      {{"bench", "--op", "sideways"}, 3, {"op: 'sideways'", "forward, backward"}},
      {{"bench", "--op", "backward", "--turns", "0"}, 2, {"turns: 0"}},
      {{"bench", "--op", "backward", "--config", "block_n=64"}, 2, {"config", "op = forward", "backward"}},
      {{"bench", "--op", "backward", "--config", "family=sm90_backward,block_m=17"}, 2, {"block_m: 17"}},
      {{"bench", "--deterministic"}, 2, {"deterministic: 1", "op = forward"}},
      {{"doctor", "--for", "dinner"}, 2, {"for: 'dinner'", "compile, emulate, launch, tune"}},
      {{"cache", "prune"}, 2, {"--keep"}},
      {{"cache", "prune", "--keep", "plenty"}, 2, {"keep: 'plenty'"}},
      {{"cache", "show", "not-a-key"}, 2, {"key: 'not-a-key'"}},
      {{"pack", "create"}, 2, {"--output"}},
      {{"pack", "create", "-o", "x"}, 2, {"--all"}},
      {{"pack", "create", "-o", "x", "--all", "--config", "block_n=64"}, 2, {"--config"}},
      {{"pack", "ls", "/nonexistent.pack"}, 4, {"/nonexistent.pack"}},
      {{"pack", "ls", "/dev/null"}, 4, {"/dev/null"}},
      {{"inspect", "/nonexistent.cubin"}, 1, {"/nonexistent.cubin"}},
  };
  return all;
}

std::string joined(const std::vector<std::string>& words) {
  std::string text;
  for (const std::string& word : words) text += word + " ";
  return text;
}

// A machine without a GPU, whatever this one has.
const std::string kNoGpu = "CUDA_VISIBLE_DEVICES=-1";
const std::string kNoNvrtc = "ATTUNE_NVRTC=/nonexistent/libnvrtc.so";

void write(const std::filesystem::path& file, const std::string& text) {
  std::ofstream(file, std::ios::binary) << text;
}

}  // namespace

TEST_CASE("bad input: the exit status, and one line that names what was wrong") {
  const TemporaryFolder folder;
  for (const BadInput& bad : bad_inputs()) {
    const std::string line = joined(bad.arguments);
    CAPTURE(line);
    const Finished finished = run_cli(bad.arguments, {kNoGpu, "ATTUNE_CACHE_DIR=" + folder.string()});
    CHECK(finished.status == bad.status);
    CHECK(finished.out == "");
    CHECK(finished.err.starts_with("attune: "));
    CHECK(std::count(finished.err.begin(), finished.err.end(), '\n') == 1);
    for (const std::string& words : bad.says)
      CHECK_MESSAGE(finished.err.find(words) != std::string::npos, finished.err);
  }
}

TEST_CASE("bad input under --json: an error object with a code") {
  const TemporaryFolder folder;
  for (const BadInput& bad : bad_inputs()) {
    if (bad.arguments.empty()) continue;
    const std::string line = joined(bad.arguments);
    CAPTURE(line);
    std::vector<std::string> arguments = bad.arguments;
    // Before the option whose value is missing, or it would be taken for the value.
    arguments.insert(arguments.begin() + (arguments.size() > 1 && !arguments[1].starts_with("-") ? 2 : 1), "--json");
    if (arguments[0] == "cache" && bad.arguments.size() == 1) continue;  // groups have no --json
    const Finished finished = run_cli(arguments, {kNoGpu, "ATTUNE_CACHE_DIR=" + folder.string()});
    CHECK(finished.status == bad.status);
    const nlohmann::json document = finished.json();
    CHECK(document["schema"] == 1);
    CHECK(document["exit_code"] == bad.status);
    const std::string code = document["error"]["code"];
    CHECK(code == (bad.status == 2   ? "invalid_argument"
                   : bad.status == 3 ? "unsupported"
                   : bad.status == 4 ? "pack"
                                     : "not_found"));
    CHECK(finished.err.find(document["error"]["message"].get<std::string>()) != std::string::npos);
  }
}

TEST_CASE("without a GPU: what needs one exits with 3 and says what does not") {
  const TemporaryFolder folder;
  const std::vector<std::string> environment{kNoGpu, "ATTUNE_CACHE_DIR=" + folder.string()};
  for (const char* command : {"tune", "verify", "bench"}) {
    CAPTURE(command);
    const Finished finished = run_cli({command, "--json"}, environment);
    CHECK(finished.status == 3);
    CHECK(finished.json()["error"]["code"] == "no_device");
  }
  CHECK(run_cli({"tune"}, environment).err.find("--no-gpu") != std::string::npos);
  const Finished backward = run_cli({"bench", "--op", "backward"}, environment);
  CHECK(backward.status == 3);
  CHECK(backward.err == run_cli({"bench"}, environment).err);
}

TEST_CASE("without NVRTC: what compiles exits with 3, the rest goes on") {
  const TemporaryFolder folder;
  const std::vector<std::string> environment{kNoGpu, kNoNvrtc, "ATTUNE_CACHE_DIR=" + folder.string()};
  CHECK(run_cli({"compile"}, environment).status == 3);
  CHECK(run_cli({"tune", "--no-gpu"}, environment).status == 3);
  CHECK(run_cli({"emit"}, environment).status == 0);
  CHECK(run_cli({"cache", "stats"}, environment).status == 0);
  const Finished doctor = run_cli({"doctor", "--json"}, environment);
  CHECK(doctor.status == 3);
  CHECK(doctor.json()["can"] ==
        nlohmann::json{{"emit", true}, {"compile", false}, {"emulate", false}, {"launch", false}, {"tune", false}});
}

TEST_CASE("a cache that cannot be written") {
  // No user can make a folder in a device, root included.
  const std::string nowhere = "/dev/null/cache";
  for (const std::vector<std::string>& arguments : {std::vector<std::string>{"tune", "--no-gpu"},
                                                    {"cache", "clear"},
                                                    {"cache", "merge", "/tmp"},
                                                    {"cache", "ls"}}) {
    const std::string line = joined(arguments);
    CAPTURE(line);
    std::vector<std::string> all = arguments;
    all.insert(all.end(), {"--cache-dir", nowhere});
    const Finished finished = run_cli(all, {kNoGpu});
    CHECK(finished.status == 4);
    CHECK(finished.err.find(nowhere) != std::string::npos);
  }
  // What needs no cache is not kept from working.
  CHECK(run_cli({"emit"}, {"ATTUNE_CACHE_DIR=" + nowhere}).status == 0);
  CHECK(run_cli({"cache", "path"}, {"ATTUNE_CACHE_DIR=" + nowhere}).out == nowhere + "\n");
}

TEST_CASE("a cache that is garbage: reading commands exit with 4 and leave it alone, writing ones set it aside") {
  const TemporaryFolder folder;
  const std::vector<std::string> environment{kNoGpu, "ATTUNE_CACHE_DIR=" + folder.string()};
  CHECK(run_cli({"cache", "clear"}, environment).status == 0);
  const std::filesystem::path file = folder.path() / "cache-v1.sqlite";
  REQUIRE(std::filesystem::exists(file));
  const std::string garbage(8192, 'x');
  write(file, garbage);
  for (const char* action : {"ls", "stats", "verify", "misses"}) {
    CAPTURE(action);
    const Finished finished = run_cli({"cache", action}, environment);
    CHECK(finished.status == 4);
    CHECK(finished.err.find(folder.string()) != std::string::npos);
    CHECK(slurp(file) == garbage);
  }
  const Finished cleared = run_cli({"cache", "clear"}, environment);
  CHECK(cleared.status == 0);
  CHECK(cleared.err.find("damaged") != std::string::npos);
  CHECK(run_cli({"cache", "verify"}, environment).status == 0);
}

TEST_CASE("a model's config that is malformed") {
  const TemporaryFolder folder;
  const std::string file = folder.string() + "/config.json";
  const auto tune = [&](const std::string& text) {
    write(file, text);
    return run_cli({"tune", "--model", file}, {kNoGpu, "ATTUNE_CACHE_DIR=" + folder.string()});
  };
  for (const std::string text :
       {"", "{", "[]", R"({"num_attention_heads": "many"})", R"({"num_attention_heads": 32})",
        R"({"num_attention_heads": 32, "head_dim": 129})", R"({"num_attention_heads": -1, "hidden_size": 4096})"}) {
    CAPTURE(text);
    const Finished finished = tune(text);
    CHECK(finished.status == 2);
    CHECK(finished.err.find("attune: ") != std::string::npos);  // after notes about what was assumed
  }
  const Finished deep = tune(std::string(100000, '['));
  CHECK(deep.status == 2);
  const Finished missing = run_cli({"tune", "--model", "/nonexistent/config.json"}, {kNoGpu});
  CHECK(missing.status == 1);
  CHECK(missing.err.find("/nonexistent/config.json") != std::string::npos);
}

TEST_CASE("a cubin that is none") {
  const TemporaryFolder folder;
  const std::string file = folder.string() + "/kernel.cubin";
  for (const std::string& bytes : {std::string(), std::string("ELF"),
                                   std::string("\x7f"
                                               "ELF\x02\x01\x01") +
                                       std::string(200, '\0')}) {
    write(file, bytes);
    const Finished finished = run_cli({"inspect", file});
    CHECK(finished.status == 1);
    CHECK(finished.err.find(file) != std::string::npos);
  }
}

TEST_CASE("output that cannot be written is a failure") {
  const std::string full = "'" + cli_path() + "' emit >/dev/full 2>/dev/null";
  CHECK(WEXITSTATUS(std::system(full.c_str())) == 1);
  const Finished finished = run_cli({"emit", "-o", "/nonexistent/folder/kernel.cu"});
  CHECK(finished.status == 1);
  CHECK(finished.err.find("/nonexistent/folder/kernel.cu") != std::string::npos);
}
