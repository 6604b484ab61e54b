// Whole command lines, in this process.
#include <doctest/doctest.h>
#include <signal.h>

#include <chrono>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>
#include <thread>

#include "cache/store.h"
#include "cli/app.h"
#include "cli/interrupt.h"
#include "cli/table.h"
#include "cli/wording.h"
#include "codegen/kernel_spec.h"
#include "codegen/space.h"
#include "runtime/keys.h"
#include "tests/unit/temporary_folder.h"

using namespace attune;
using attune::tests::TemporaryFolder;

namespace {

struct Result {
  int status;
  std::string out, err;
  nlohmann::json json() const { return nlohmann::json::parse(out); }
};

Result run(const std::vector<std::string>& arguments) {
  std::ostringstream out, err;
  const int status = cli::run(arguments, {.out = out, .err = err});
  return {status, out.str(), err.str()};
}

const std::string kIdentity =
    "name=NVIDIA_H200,cc=90,sms=132,l2=62914560,memory_gib=140,clock_mhz=1980,"
    "memory_clock_mhz=3201,bus=6144";

// A cache in which one problem is tuned: two configs that tie, one that is slower, one that is wrong.
struct TunedCache {
  TunedCache() {
    cache::Options options;
    options.directory = folder.string();
    cache::Store store = cache::Store::open(std::move(options));
    const auto add = [&](const char* config, cache::TrialStatus status, double median, const char* reason) {
      cache::Trial trial;
      trial.plan_key = key;
      trial.problem = to_string(problem);
      trial.config = codegen::to_string(codegen::parse_config(config));
      trial.device = kIdentity;
      trial.environment = "driver=13000,nvrtc=13.0.88";
      trial.regime = "burst";
      trial.session = "s1";
      if (median > 0) trial.samples = {median, median, median};
      trial.median = median;
      trial.low = median * 0.995;
      trial.high = median * 1.005;
      trial.status = status;
      trial.reason = reason;
      store.append_trial(trial);
    };
    add("block_n=128", cache::TrialStatus::ok, 1.000e-3, "");
    add("block_n=112", cache::TrialStatus::ok, 1.002e-3, "");
    add("block_n=96", cache::TrialStatus::ok, 1.200e-3, "");
    add("block_n=80", cache::TrialStatus::wrong, 0, "relative L2 error of O: 0.31");
    store.finish_session(key, "s1");
    store.note_miss(std::string(64, 'b'), "somebody's problem");
  }

  TemporaryFolder folder;
  Problem problem{.batch = 4};
  std::string key = runtime::plan_key(problem, kIdentity, codegen::emitter_digest());
};

}  // namespace

TEST_CASE("help and version go to stdout") {
  CHECK(run({"--help"}).out.find("doctor") != std::string::npos);
  CHECK(run({"--help"}).status == 0);
  CHECK(run({"tune", "--help"}).out.find("--budget") != std::string::npos);
  CHECK(run({"cache", "--help"}).out.find("merge") != std::string::npos);
  CHECK(run({"--version"}).out == "attune 0.1.0\n");
}

TEST_CASE("emit prints a kernel that its spec reproduces") {
  const Result first = run({"emit", "--head-dim", "64", "--causal", "--json"});
  REQUIRE(first.status == 0);
  const nlohmann::json document = first.json();
  CHECK(document["schema"] == 1);
  CHECK(document["command"] == "emit");
  CHECK(document["cluster"] == 1);
  CHECK(run({"emit", "--head-dim", "64", "--config", "cluster=2", "--json"}).json()["cluster"] == 2);
  CHECK(run({"--json", "emit", "--head-dim", "64", "--causal"}).out == first.out);
  CHECK(document["exit_code"] == 0);
  CHECK(document["source"].get<std::string>().find("#include") == std::string::npos);
  const Result again = run({"emit", "--spec", document["spec"]});
  CHECK(again.out == document["source"]);
  const Result by_config = run({"emit", "--head-dim", "64", "--causal", "--config", document["config"]});
  CHECK(by_config.out == again.out);
}

TEST_CASE("emit writes a file, --list a table") {
  const TemporaryFolder folder;
  const std::string file = folder.string() + "/kernel.cu";
  CHECK(run({"emit", "-o", file}).out == "");
  std::ifstream in(file);
  std::ostringstream text;
  text << in.rdbuf();
  CHECK(text.str() == run({"emit"}).out);

  const nlohmann::json document = run({"emit", "--list", "--limit", "3", "--json"}).json();
  CHECK(document["candidates"].size() == 3);
  CHECK(document["count"] > 3);
  CHECK(document["candidates"][0]["estimate"]["seconds"] <= document["candidates"][2]["estimate"]["seconds"]);
  CHECK(run({"emit", "--list", "--limit", "0", "--json"}).json()["candidates"].size() == document["count"]);
}

TEST_CASE("--problem gives all fields, other flags override") {
  const Result result = run({"emit", "--list", "--limit", "1", "--json", "--problem",
                             "head_dim=64,heads=8,heads_kv=2,seqlen_q=512", "--batch", "3"});
  CHECK(result.json()["problem"] ==
        "op=forward,dtype=bf16,head_dim=64,head_dim_v=64,heads=8,heads_kv=2,causal=0,batch=3,seqlen_q=512,seqlen_k=512,"
        "layout=bshd");
}

TEST_CASE("cache ls, show, stats, verify, misses") {
  const TunedCache tuned;
  const std::vector<std::string> there{"--cache-dir", tuned.folder.string(), "--json"};
  const auto ask = [&](std::vector<std::string> words) {
    words.insert(words.end(), there.begin(), there.end());
    const Result result = run(words);
    CHECK_MESSAGE(result.status == 0, result.err);
    return result.json();
  };
  const nlohmann::json plans = ask({"cache", "ls"})["plans"];
  REQUIRE(plans.size() == 1);
  CHECK(plans[0]["problem"] == to_string(tuned.problem));
  CHECK(plans[0]["winner"]["tie_set"].size() == 2);
  CHECK(plans[0]["current"] == true);
  const nlohmann::json shown = ask({"cache", "show", tuned.key.substr(0, 10)});
  CHECK(shown["trials"].size() == 4);
  CHECK(shown["plan_key"] == tuned.key);
  CHECK(ask({"cache", "stats"})["trials"] == 4);
  CHECK(ask({"cache", "verify"})["problems"].empty());
  CHECK(ask({"cache", "misses"})["misses"].size() == 1);
  CHECK(ask({"cache", "misses", "--forget"})["misses"].size() == 1);
  CHECK(ask({"cache", "misses"})["misses"].empty());
  CHECK(ask({"cache", "quarantine"})["quarantine"].empty());
}

TEST_CASE("cache merge: a union, the second time nothing") {
  const TunedCache tuned;
  const TemporaryFolder folder;
  const auto merge = [&] {
    return run({"cache", "merge", tuned.folder.string(), "--cache-dir", folder.string(), "--json"}).json();
  };
  CHECK(merge()["trials"] == 4);
  CHECK(merge()["trials"] == 0);
  CHECK(run({"cache", "ls", "--cache-dir", folder.string(), "--json"}).json()["plans"].size() == 1);
  CHECK(run({"cache", "clear", "--trials", "--cache-dir", folder.string()}).status == 0);
  CHECK(run({"cache", "ls", "--cache-dir", folder.string(), "--json"}).json()["plans"].empty());
}

TEST_CASE("explain names winner, runner-up and losers, from the cache alone") {
  const TunedCache tuned;
  for (const std::vector<std::string>& flags :
       {std::vector<std::string>{}, {"--head-dim", "128"}, {"--device-identity", "NVIDIA_H200"}}) {
    std::vector<std::string> words{"explain", "--cache-dir", tuned.folder.string(), "--json"};
    words.insert(words.end(), flags.begin(), flags.end());
    const Result result = run(words);
    REQUIRE_MESSAGE(result.status == 0, result.err);
    const nlohmann::json document = result.json();
    CHECK(document["problem"] == to_string(tuned.problem));
    CHECK(document["winner"]["median"].get<double>() == doctest::Approx(1e-3).epsilon(1e-4));
    CHECK(document["runner_up"]["tied"] == true);
    CHECK(document["peaked"].is_null());  // the winner does not speculate
    CHECK(document["losers"].size() == 1);
    CHECK(document["losers"][0]["status"] == "wrong");
    CHECK(document["losers"][0]["differences"].size() == 1);
    CHECK(document["causes"] == nlohmann::json{{"numerics", 1}});
    REQUIRE(document["axes"].size() == 3);
    for (const nlohmann::json& axis : document["axes"]) CHECK(axis["axis"] == "block_n");
    CHECK(document["axes"][1]["value"] == "96");
    CHECK(document["axes"][1]["slower"].get<double>() == doctest::Approx(0.2).epsilon(0.02));
    CHECK(document["axes"][1]["alone"] == true);
    CHECK(document["axes"][2]["slower"].is_null());
    CHECK(document["axes"][2]["lost"] == 1);
    CHECK(document["runner_up"]["estimate"]["tensor_seconds"].get<double>() > 0);
  }
  const std::string text = run({"explain", "--cache-dir", tuned.folder.string()}).out;
  for (const char* part : {"relative L2 error", "tensor cores", "exponentials", "shared memory", "L2 ", "HBM", "launch",
                           "measured", "runner-up   1.002 ms [", "a tie", "block_n=112 (winner 128)",
                           "block_n=96 (winner 128)", "did not race to the end: 1 (1 numerics)"})
    CHECK_MESSAGE(text.find(part) != std::string::npos, part << " in\n" << text);
  // Its peaked twin is another problem, which none of the flags means.
  cache::Options options;
  options.directory = tuned.folder.string();
  cache::Store store = cache::Store::open(std::move(options));
  const Problem twin = peaked_twin(tuned.problem).value();
  const std::string twin_key = runtime::plan_key(twin, kIdentity, codegen::emitter_digest());
  cache::Trial trial = store.trials(tuned.key).front();
  trial.plan_key = twin_key;
  trial.problem = to_string(twin);
  store.append_trial(trial);
  store.finish_session(twin_key, "s1");
  const auto explained = [&](std::vector<std::string> flags) {
    flags.insert(flags.begin(), {"explain", "--cache-dir", tuned.folder.string(), "--json"});
    return run(flags).json()["problem"].get<std::string>();
  };
  CHECK(explained({}) == to_string(tuned.problem));
  CHECK(explained({"--head-dim", "128"}) == to_string(tuned.problem));
  CHECK(explained({"--scores", "peaked"}) == to_string(twin));
  CHECK(explained({"--problem", to_string(tuned.problem)}) == to_string(tuned.problem));
  // A winner that speculates, without and with a second kernel.
  const Problem wide{.batch = 8};
  const std::string wide_key = runtime::plan_key(wide, kIdentity, codegen::emitter_digest());
  trial.plan_key = wide_key;
  trial.problem = to_string(wide);
  trial.config = codegen::to_string(codegen::parse_config("softmax=zero,order=pv_qk"));
  store.append_trial(trial);
  store.finish_session(wide_key, "s1");
  const auto second = [&] {
    return run({"explain", "--cache-dir", tuned.folder.string(), "--json", "--batch", "8"}).json()["peaked"];
  };
  CHECK(second()["problem"] == to_string(peaked_twin(wide).value()));
  CHECK(second()["config"].is_null());
  trial.plan_key = runtime::plan_key(peaked_twin(wide).value(), kIdentity, codegen::emitter_digest());
  trial.problem = to_string(peaked_twin(wide).value());
  trial.config = codegen::to_string(codegen::parse_config("softmax=exact,block_n=96"));
  store.append_trial(trial);
  store.finish_session(trial.plan_key, "s1");
  CHECK(second()["config"] == trial.config);
  const Result other = run({"explain", "--cache-dir", tuned.folder.string(), "--head-dim", "64", "--json"});
  CHECK(other.status == 1);
  CHECK(other.json()["winner"].is_null());
  CHECK(!other.json()["near"].empty());
}

TEST_CASE("explain says what became of the configs where none passed") {
  const TemporaryFolder folder;
  cache::Options options;
  options.directory = folder.string();
  cache::Store store = cache::Store::open(std::move(options));
  cache::Trial trial;
  trial.problem = to_string(Problem{.batch = 4});
  trial.plan_key = runtime::plan_key(Problem{.batch = 4}, kIdentity, codegen::emitter_digest());
  trial.config = "block_n=128";
  trial.device = kIdentity;
  trial.regime = "brief";
  trial.session = "s1";
  trial.status = cache::TrialStatus::crashed;
  trial.reason = "illegal address";
  store.append_trial(trial);
  const Result result = run({"explain", "--cache-dir", folder.string(), "--json"});
  CHECK(result.status == 1);
  REQUIRE(result.json()["losers"].size() == 1);
  CHECK(result.json()["losers"][0]["reason"] == "illegal address");
}

TEST_CASE("a table keeps its columns in line") {
  std::ostringstream out, err;
  cli::Output output({.out = out, .err = err});
  cli::Table table({{"name", cli::Align::left}, {"time"}, {"note", cli::Align::left}});
  table.row({"a", "10", "x"});
  table.row({"longer", "9"});
  table.row({"µ", "8", "y"});
  table.print(output);
  CHECK(out.str() ==
        "name    time  note\n"
        "a         10  x\n"
        "longer     9\n"
        "µ          8  y\n");
}

TEST_CASE("progress is shown on terminals only, and removed before a line") {
  std::ostringstream out, err, silent;
  cli::Output terminal({.out = out, .err = err, .err_is_terminal = true, .width = 24});
  terminal.progress("tuning d128 causal 4x4096  142/188", true);
  terminal.note("done");
  CHECK(err.str() == "\r\x1b[Ktuning d128 causal 4x40\r\x1b[Kdone\n");
  cli::Output pipe({.out = out, .err = silent});
  pipe.progress("tuning d128 causal", true);
  CHECK(silent.str() == "");
}

TEST_CASE("colours only where asked for") {
  std::ostringstream out, plain, colored;
  cli::Output({.out = out, .err = plain}).error("it broke");
  cli::Output({.out = out, .err = colored, .color = true}).error("it broke");
  CHECK(plain.str() == "attune: it broke\n");
  CHECK(colored.str() == "\x1b[31mattune:\x1b[0m it broke\n");
}

TEST_CASE("numbers in words") {
  CHECK(cli::seconds_text(412.34e-6) == "412.3 us");
  CHECK(cli::seconds_text(1.2345e-3) == "1.234 ms");
  CHECK(cli::seconds_text(12) == "12.00 s");
  CHECK(cli::bytes_text(1023) == "1023 B");
  CHECK(cli::bytes_text(1536) == "1.5 KiB");
  CHECK(cli::time_text(0) == "");
  CHECK(cli::pack_time_text("0.000737620 s") == "737.6 us");
  CHECK(cli::pack_time_text("soon") == "soon");
  CHECK(cli::pack_time_text("") == "");
  CHECK(cli::errors_text("") == "");
  CHECK(cli::errors_text("none to speak of") == "none to speak of");
  CHECK(cli::errors_text(R"({"o_rel_l2":0.00164,"lse_max_abs":9.5e-07,"gate":{"share_of_bounds":0.387}})") ==
        "O 0.0016 relative L2, LSE 9.5e-07; small problems at most 39% of their bounds");
  CHECK(cli::time_text(1764425220000) == "2025-11-29 14:07");
  Problem problem{.heads = 32, .heads_kv = 8, .causal = true, .batch = 4};
  CHECK(cli::problem_text(problem) == "bf16 d128 causal 4x4096 h32/8");
  problem.head_dim_v = 64;
  problem.seqlen_k = 8192;
  CHECK(cli::short_problem_text(problem) == "d128/64 causal 4x4096/8192");
}

TEST_CASE("configs in words: two that differ read differently") {
  const std::vector<codegen::Config> all = codegen::candidates(Arch{}, Problem{.causal = true});
  std::map<std::string, std::string> seen;
  for (const codegen::Config& config : all) {
    const auto [it, fresh] = seen.emplace(cli::config_text(config), codegen::to_string(config));
    CHECK_MESSAGE((fresh || it->second == codegen::to_string(config)), it->first);
  }
}

TEST_CASE("a signal becomes a request to stop") {
  struct sigaction before{}, after{};
  sigaction(SIGTERM, nullptr, &before);
  int told = 0;
  {
    cli::Interrupt interrupt([&] { ++told; });
    CHECK_FALSE(interrupt.requested());
    raise(SIGTERM);
    for (int i = 0; i < 1000 && !interrupt.requested(); ++i) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    CHECK(interrupt.requested());
    CHECK(interrupt.token().stop_requested());
  }
  CHECK(told == 1);
  sigaction(SIGTERM, nullptr, &after);
  CHECK((after.sa_handler == before.sa_handler));
}
