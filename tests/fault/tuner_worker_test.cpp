// The tuner against workers that hang, crash, lie and die, and against its own death. The workers are fakes.
#include <doctest/doctest.h>
#include <signal.h>
#include <spawn.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <filesystem>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <thread>

#include <attune/attune.h>

#include "base/error.h"
#include "codegen/space.h"
#include "runtime/keys.h"
#include "tests/unit/fake_compiler.h"
#include "tests/unit/temporary_folder.h"
#include "tuner/tuner.h"
#include "tuner/worker_measurer.h"
#include "tuner/worker_path.h"

extern char** environ;

namespace attune::tuner {
namespace {

using Json = nlohmann::json;
using namespace std::chrono_literals;

const std::string kFakeWorker = std::string(ATTUNE_TEST_DATA) + "/tuner/fake_worker.py";

// Head dim 256 has the smallest space.
const Problem kProblem{.head_dim = 256,
                       .head_dim_v = 256,
                       .heads = 32,
                       .heads_kv = 8,
                       .causal = true,
                       .batch = 4,
                       .seqlen_q = 4096,
                       .seqlen_k = 4096};

bool is_gone(pid_t pid) { return kill(pid, 0) != 0; }

struct Fixture {
  tests::TemporaryFolder folder;
  std::filesystem::path log = folder.path() / "log";
  Json plan{{"emitter", codegen::emitter_digest()}, {"version", version()}, {"log", log.string()}};
  std::vector<std::string> warnings;
  std::stop_source stop;
  int max_candidates = 8;
  std::vector<std::string> configs;
  double hang_seconds = 0.4;

  Fixture() { std::ofstream(log).flush(); }

  cache::Store store() const {
    cache::Options options;
    options.directory = (folder.path() / "cache").string();
    return cache::Store::open(std::move(options));
  }
  void misbehave(const char* stage, const char* match, const char* fault) {
    plan["stage"] = stage;
    plan["match"] = match;
    plan["fault"] = fault;
  }
  Report tune() {
    setenv("FAKE_WORKER", plan.dump().c_str(), 1);
    Request request{.store = store(),
                    .problems = {kProblem},
                    .max_candidates = max_candidates,
                    .min_raced = 0,
                    .compile_threads = 2};
    request.configs = configs;
    request.worker = kFakeWorker;
    request.hang_seconds = hang_seconds;
    request.compiler = [] { return std::make_shared<tests::FakeCompiler>(); };
    Hooks hooks;
    hooks.warn = [this](const std::string& text) { warnings.push_back(text); };
    hooks.stop = stop.get_token();
    return attune::tuner::tune(request, hooks);
  }
  // What the workers were told, one entry a command.
  std::vector<Json> commands() const {
    std::vector<Json> all;
    std::ifstream file(log);
    for (std::string line; std::getline(file, line);) {
      Json command = Json::parse(line, nullptr, false);
      if (command.is_object()) all.push_back(std::move(command));
    }
    return all;
  }
  std::set<pid_t> workers() const {
    std::set<pid_t> pids;
    for (const Json& c : commands()) pids.insert(c.at("pid").get<pid_t>());
    return pids;
  }
  void check_all_gone() const {
    for (const pid_t pid : workers()) CHECK(is_gone(pid));
  }
  std::vector<cache::Trial> trials() const {
    const std::string identity =
        "name=Fake_GPU,cc=90,sms=132,l2=52428800,memory_gib=140,clock_mhz=1980,memory_clock_mhz=3201,bus=6144";
    return store().trials(runtime::plan_key(kProblem, identity, codegen::emitter_digest()));
  }
};

std::string refusal(const std::function<void()>& body, ErrorCode code) {
  try {
    body();
  } catch (const Error& error) {
    CHECK(error_code_name(error.code()) == std::string(error_code_name(code)));
    return error.what();
  }
  return "accepted";
}

TEST_CASE_FIXTURE(Fixture, "all is well: one worker does everything, and ends") {
  const Report report = tune();
  CHECK(report.problems[0].outcome == Outcome::tuned);
  CHECK(report.device == "Fake GPU");
  CHECK(warnings.empty());
  CHECK(workers().size() == 1);
  check_all_gone();
}

TEST_CASE_FIXTURE(Fixture, "a kernel that hangs or crashes costs itself alone") {
  struct Case {
    const char* stage;
    const char* fault;
    cache::TrialStatus status;
    const char* reason;
  };
  Case expected{};
  SUBCASE("never ends, in the gate") { expected = {"gate", "hang", cache::TrialStatus::timeout, "silent for"}; }
  SUBCASE("never ends, at full size") { expected = {"check", "hang", cache::TrialStatus::timeout, "silent for"}; }
  SUBCASE("never ends, in the race") { expected = {"race", "hang", cache::TrialStatus::timeout, "silent for"}; }
  SUBCASE("takes the worker down") { expected = {"race", "abort", cache::TrialStatus::crashed, "signal 6"}; }
  SUBCASE("ends the worker") {
    expected = {"check", "exit", cache::TrialStatus::crashed, "exit status 7: something went wrong"};
  }
  SUBCASE("illegal address") { expected = {"race", "context", cache::TrialStatus::crashed, "invented context error"}; }
  SUBCASE("refused launch") { expected = {"race", "refuse", cache::TrialStatus::crashed, "invented refusal"}; }
  SUBCASE("garbage") { expected = {"gate", "garbage", cache::TrialStatus::crashed, "what is no message"}; }
  // One of six, in the middle.
  for (const codegen::Config& c : codegen::candidates(Arch{}, kProblem)) {
    const bool culprit = configs.size() == 3;
    if (c.ping_pong != culprit && configs.size() < 6) configs.push_back(codegen::to_string(c));
  }
  misbehave(expected.stage, "ping_pong=0", expected.fault);
  const Report report = tune();
  const ProblemReport& p = report.problems[0];
  CHECK(p.outcome == Outcome::tuned);
  REQUIRE(p.winner);
  CHECK(p.winner->config.find("ping_pong=1") != std::string::npos);
  int bad = 0, good = 0;
  for (const cache::Trial& trial : trials()) {
    const bool culprit = trial.config.find("ping_pong=0") != std::string::npos;
    CHECK(culprit == (trial.status != cache::TrialStatus::ok));
    (culprit ? bad : good) += 1;
    if (!culprit) continue;
    CHECK(trial.status == expected.status);
    CHECK_MESSAGE(trial.reason.find(expected.reason) != std::string::npos, trial.reason);
  }
  CHECK(bad == 1);
  CHECK(bad == p.counts.timeout + p.counts.crashed);
  CHECK(good > bad);
  CHECK(store().list_quarantine().size() == static_cast<std::size_t>(bad));
  CHECK(workers().size() == static_cast<std::size_t>(bad) + 1);  // a fresh one for each
  CHECK(warnings.size() == static_cast<std::size_t>(bad));
  check_all_gone();
}

TEST_CASE_FIXTURE(Fixture, "a worker that cannot start is given up soon, with its last words") {
  SUBCASE("it exits") {
    plan["at_start"] = "exit";
    CHECK(refusal([&] { tune(); }, ErrorCode::internal).find("exit status 7: something went wrong") !=
          std::string::npos);
    CHECK(warnings.size() == 3);
  }
  SUBCASE("it greets with garbage") {
    plan["at_start"] = "garbage";
    CHECK(refusal([&] { tune(); }, ErrorCode::internal).find("no message") != std::string::npos);
  }
  SUBCASE("it refuses") {
    plan["at_start"] = "refuse";
    CHECK(refusal([&] { tune(); }, ErrorCode::driver) == "invented refusal");
  }
  SUBCASE("it is of another build") {
    plan["emitter"] = "0123";
    CHECK(refusal([&] { tune(); }, ErrorCode::internal).find("is of another build of attune") != std::string::npos);
  }
  SUBCASE("there is none") {
    Request request{.store = store(), .problems = {kProblem}};
    request.worker = "/nowhere/attune-worker";
    request.compiler = [] { return std::make_shared<tests::FakeCompiler>(); };
    CHECK(refusal([&] { attune::tuner::tune(request); }, ErrorCode::io)
              .find("/nowhere/attune-worker cannot be started") != std::string::npos);
  }
  CHECK(trials().empty());
}

TEST_CASE_FIXTURE(Fixture, "after a hardware fault nothing is stored") {
  misbehave("race", "family", "hardware");
  CHECK(refusal([&] { tune(); }, ErrorCode::driver) == "device 0: invented hardware error");
  CHECK(trials().empty());
  CHECK(store().list_quarantine().empty());
  check_all_gone();
}

TEST_CASE_FIXTURE(Fixture, "a stop ends a worker that hangs, at once") {
  misbehave("race", "family", "hang");
  hang_seconds = 30;
  std::jthread user([this] {
    for (int i = 0; i < 500; ++i) {
      std::this_thread::sleep_for(10ms);
      const std::vector<Json> all = commands();
      if (!all.empty() && all.back().at("cmd") == "race") break;
    }
    stop.request_stop();
  });
  const Report report = tune();
  user.join();
  CHECK(report.interrupted);
  CHECK(report.problems[0].outcome == Outcome::failed);
  CHECK(report.seconds < 8);
  check_all_gone();
}

// -- the tuner's own death ----------------------------------------------------------------------------------------

// Run by the test below in a process of its own, which is then killed.
TEST_CASE("helper: tune until killed" * doctest::skip()) {
  const char* const directory = getenv("ATTUNE_TEST_KILLED_CACHE");
  REQUIRE(directory != nullptr);
  cache::Options options;
  options.directory = directory;
  Request request{.store = cache::Store::open(std::move(options)),
                  .problems = {kProblem},
                  .max_candidates = 12,
                  .min_raced = 0,
                  .compile_threads = 2};
  request.worker = kFakeWorker;
  request.compiler = [] { return std::make_shared<tests::FakeCompiler>(); };
  attune::tuner::tune(request);
}

TEST_CASE_FIXTURE(Fixture, "kill -9 in mid-tune: no worker is left, and the next run goes on") {
  plan["delay"] = 0.05;
  setenv("FAKE_WORKER", plan.dump().c_str(), 1);
  setenv("ATTUNE_TEST_KILLED_CACHE", (folder.path() / "cache").c_str(), 1);
  std::string program = std::filesystem::read_symlink("/proc/self/exe").string();
  std::string filter = "--test-case=helper: tune until killed", no_skip = "--no-skip", quiet = "--out=/dev/null";
  std::vector<char*> argv{program.data(), filter.data(), no_skip.data(), quiet.data(), nullptr};
  pid_t pid = 0;
  REQUIRE(posix_spawn(&pid, program.c_str(), nullptr, nullptr, argv.data(), environ) == 0);
  std::size_t ok = 0;
  for (int i = 0; i < 2000 && ok < 5; ++i) {
    std::this_thread::sleep_for(10ms);
    ok = trials().size();
  }
  REQUIRE(ok >= 5);
  kill(pid, SIGKILL);
  REQUIRE(waitpid(pid, nullptr, 0) == pid);
  const std::vector<cache::Trial> before = trials();
  CHECK(before.size() >= ok);
  for (int i = 0; i < 200 && !is_gone(*workers().begin()); ++i) std::this_thread::sleep_for(10ms);
  check_all_gone();

  plan["delay"] = 0;
  max_candidates = 12;
  const std::size_t told = commands().size();
  const Report report = tune();
  const ProblemReport& p = report.problems[0];
  CHECK(p.outcome == Outcome::tuned);
  CHECK(p.session == before.front().session);
  CHECK(p.counts.resumed >= 5);
  // What was timed is neither checked nor timed briefly again.
  std::set<std::string> known;
  for (const cache::Trial& trial : before) known.insert(trial.config);
  std::map<int, std::string> loaded;
  const std::vector<Json> all = commands();
  for (std::size_t i = told; i < all.size(); ++i) {
    if (all[i].at("cmd") == "load") loaded[all[i].at("id").get<int>()] = all[i].at("config").get<std::string>();
    if (all[i].at("cmd") == "check") CHECK(!known.contains(loaded[all[i].at("id").get<int>()]));
  }
  const auto winner = store().winner(p.plan_key);
  REQUIRE(winner);
  CHECK(winner->session_finished);
}

// -- the real worker ----------------------------------------------------------------------------------------------

TEST_CASE("the real worker: greets, or says that there is no GPU; ends when its tuner is gone") {
  std::string path;
  try {
    path = find_worker();
  } catch (const Error& error) {
    MESSAGE("not built: " << std::string(error.what()));
    return;
  }
  WorkerMeasurer measurer({.path = path, .device = "0", .stop = {}, .warn = {}});
  try {
    const int capability = measurer.device().properties.compute_capability;
    CHECK(capability > 0);
  } catch (const Error& error) {
    CHECK(error_code_name(error.code()) == std::string("no_device"));
  }
  WorkerProcess process(path, {"--device", "0"});
  std::string line;
  CHECK(process.send("{\"cmd\":\"dance\"}\n", 5, {}) == WorkerProcess::Status::ok);
  CHECK(process.receive(&line, 10, {}) == WorkerProcess::Status::ok);
  CHECK(line.find("'dance' is unknown") != std::string::npos);
  CHECK(process.send("{\"cmd\":\"quit\"}\n", 5, {}) == WorkerProcess::Status::ok);
  CHECK(process.receive(&line, 10, {}) == WorkerProcess::Status::closed);
  CHECK(process.obituary() == "exit status 0");
  WorkerProcess refused(path, {"--dance"});
  CHECK(refused.receive(&line, 10, {}) == WorkerProcess::Status::closed);
  CHECK(refused.obituary().find("exit status 2: attune-worker: argument: '--dance' (allowed: --device") == 0);
}

}  // namespace
}  // namespace attune::tuner
