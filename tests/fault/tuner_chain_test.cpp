// The whole chain in earnest but for the GPU: tuner, worker process, session, numerics; the worker's device computes on
// the host.
#include <doctest/doctest.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <iostream>

#include <attune/attune.h>

#include "base/error.h"
#include "tests/unit/computing_device.h"
#include "tests/unit/fake_compiler.h"
#include "tests/unit/temporary_folder.h"
#include "tuner/measure/session.h"
#include "tuner/tuner.h"

namespace attune::tuner {
namespace {

using tests::ComputingDevice;

const Problem kProblem{.head_dim = 8,
                       .head_dim_v = 8,
                       .heads = 2,
                       .heads_kv = 1,
                       .causal = true,
                       .batch = 1,
                       .seqlen_q = 300,
                       .seqlen_k = 300};

// A worker, in a process of its own. Of the kernels, those with three consumers have a bug.
TEST_CASE("helper: computing worker" * doctest::skip()) {
  ComputingDevice::causal_ = kProblem.causal;
  ComputingDevice::dim_ = ComputingDevice::dim_v_ = kProblem.head_dim;
  SessionPorts ports;
  auto device = std::make_shared<ComputingDevice>();
  device->fake.l2_bytes = 0;
  ports.read_line = [&](std::string* line) {
    if (!std::getline(std::cin, *line)) return false;
    device->bug = line->find("consumers=3") != std::string::npos ? tests::Bug::sees_one_key_too_many : tests::Bug::none;
    // Larger blocks are slower here.
    const std::size_t at = line->find("block_n=");
    if (at != std::string::npos) device->seconds = 1e-5 * std::stoi(line->substr(at + 8));
    return true;
  };
  ports.write = [](const std::string& line) { CHECK(write(STDOUT_FILENO, line.data(), line.size()) > 0); };
  ports.open_device = [&] { return device; };
  ports.open_nvml = [](const runtime::DeviceProperties&, std::string*) { return std::unique_ptr<runtime::Nvml>(); };
  ports.version = version();
  Session(std::move(ports)).run();
}

TEST_CASE("tuner, worker process and numerics together") {
  const tests::TemporaryFolder folder;
  const std::string worker = (folder.path() / "worker").string();
  std::ofstream(worker) << "#!/bin/sh\nexec '" << std::filesystem::read_symlink("/proc/self/exe").string()
                        << "' '--test-case=helper: computing worker' --no-skip --out=/dev/null\n";
  REQUIRE(chmod(worker.c_str(), 0700) == 0);
  cache::Options options;
  options.directory = (folder.path() / "cache").string();
  cache::Store store = cache::Store::open(std::move(options));
  Request request{.store = store, .problems = {kProblem}, .compile_threads = 2};
  for (const char* config : {"consumers=2,block_n=96,q=shared", "consumers=2,block_n=128", "consumers=3,block_n=96"})
    request.configs.emplace_back(config);
  request.worker = worker;
  request.compiler = [] { return std::make_shared<tests::FakeCompiler>(); };
  std::vector<std::string> warnings;
  Hooks hooks;
  hooks.warn = [&](const std::string& text) { warnings.push_back(text); };
  const Report report = tune(request, hooks);
  const ProblemReport& p = report.problems[0];
  CAPTURE(p.message);
  CHECK(p.outcome == Outcome::tuned);
  CHECK(p.counts.wrong >= 1);
  CHECK(warnings.empty());
  REQUIRE(p.winner);
  CHECK(p.winner->config.find("consumers=3") == std::string::npos);
  bool found = false;
  for (const cache::Trial& trial : store.trials(p.plan_key)) {
    if (trial.config.find("consumers=3") == std::string::npos) {
      CHECK(trial.status == cache::TrialStatus::ok);
      continue;
    }
    found = true;
    CHECK(trial.status == cache::TrialStatus::wrong);
    CHECK(trial.reason.find("relative L2 error of O") != std::string::npos);
  }
  CHECK(found);
}

}  // namespace
}  // namespace attune::tuner
