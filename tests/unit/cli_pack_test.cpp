// Packs made of the cache's winners, without a GPU or a compiler.
#include <doctest/doctest.h>

#include <nlohmann/json.hpp>
#include <sstream>

#include "cache/store.h"
#include "cli/app.h"
#include "codegen/kernel_spec.h"
#include "runtime/build_info.h"
#include "runtime/keys.h"
#include "tests/unit/fake_device.h"
#include "tests/unit/temporary_folder.h"

using namespace attune;
using attune::tests::TemporaryFolder;

namespace {

struct Fixture {
  TemporaryFolder folder;
  std::string pack = folder.string() + "/pack";

  cache::Store store() const {
    cache::Options options;
    options.directory = folder.string() + "/cache";
    return cache::Store::open(std::move(options));
  }

  // A tuned problem whose winner and runner-up tie, their kernels in the cache.
  void tune(const Problem& problem, const std::string& device) const {
    cache::Store cache = store();
    const std::string key = runtime::plan_key(problem, device, codegen::emitter_digest());
    for (const int block_n : {112, 128}) {
      const codegen::Config config{.block_n = block_n};
      runtime::BuildInfo info;
      const codegen::KernelSpec spec = codegen::specialise(Arch{}, problem, config);
      info.spec = codegen::to_string(spec);
      info.shape = codegen::launch_shape(spec);
      info.registers = 168;
      info.nvrtc = "13.0.88";
      cache::Trial trial;
      trial.build_key = runtime::build_key(info.spec, "13.0.88", {});
      cache.put_kernel(trial.build_key, tests::fake_cubin() + info.spec, to_json(info));
      trial.plan_key = key;
      trial.problem = to_string(problem);
      trial.config = codegen::to_string(config);
      trial.device = device;
      trial.environment = "driver=13000,nvrtc=13.0.88";
      trial.regime = "burst";
      trial.session = "s1";
      trial.samples = {1e-3};
      trial.median = 1e-3;
      trial.low = 0.99e-3;
      trial.high = 1.01e-3;
      trial.errors = R"({"o_rel_l2":0.002})";
      cache.append_trial(trial);
    }
    cache.finish_session(key, "s1");
  }

  struct Result {
    int status;
    nlohmann::json json;
  };
  Result run(std::vector<std::string> arguments) const {
    std::ostringstream out, err;
    arguments.push_back("--json");
    const int status = cli::run(arguments, {.out = out, .err = err});
    CAPTURE(err.str());
    return {status, nlohmann::json::parse(out.str())};
  }
  Result create(std::vector<std::string> flags) const {
    flags.insert(flags.begin(), {"pack", "create", "-o", pack, "--cache-dir", folder.string() + "/cache"});
    return run(flags);
  }
};

const Problem kShort{.batch = 4, .seqlen_q = 1024, .seqlen_k = 1024};
const Problem kLong{.batch = 1, .seqlen_q = 4096, .seqlen_k = 4096};
const std::string kH200 = "name=NVIDIA_H200,cc=90,sms=132";
const std::string kH100 = "name=NVIDIA_H100,cc=90,sms=132";

}  // namespace

TEST_CASE_FIXTURE(Fixture, "pack create: the winners, with what was measured") {
  tune(kShort, kH200);
  tune(kLong, kH200);
  const Result all = create({"--all"});
  CHECK(all.status == 0);
  REQUIRE(all.json["entries"].size() == 2);
  for (const nlohmann::json& entry : all.json["entries"]) {
    CHECK(entry["config"].get<std::string>().find("block_n=112") != std::string::npos);
    CHECK(entry["arch"] == "sm_90a");
    CHECK(entry["median"] == "0.001000000 s");
    CHECK(entry["errors"]["o_rel_l2"] == 0.002);
    CHECK(entry["environment"] == "driver=13000,nvrtc=13.0.88");
  }
  CHECK(run({"pack", "verify", pack}).status == 0);
  CHECK(run({"pack", "ls", pack}).json["entries"] == all.json["entries"]);
}

TEST_CASE_FIXTURE(Fixture, "pack create: problem flags choose among the winners, alternates come along") {
  tune(kShort, kH200);
  tune(kLong, kH200);
  const Result one = create({"--seqlen", "4096"});
  REQUIRE(one.json["entries"].size() == 1);
  CHECK(one.json["entries"][0]["problem"] == to_string(kLong));
  CHECK(create({"--seqlens", "1024", "--tokens", "4096"}).json["entries"].size() == 1);
  CHECK(create({"--all", "--alternates", "3"}).json["entries"].size() == 4);
  tune(*peaked_twin(kLong), kH200);  // what a plan's launches change to goes with it
  CHECK(create({"--seqlen", "4096"}).json["entries"].size() == 2);
  CHECK(create({"--seqlen", "4096", "--scores", "any"}).json["entries"].size() == 1);
  const Result none = create({"--head-dim", "64"});
  CHECK(none.status == 1);
  CHECK(none.json["error"]["code"] == "not_found");
}

TEST_CASE_FIXTURE(Fixture, "pack create: winners of several devices must be told apart") {
  tune(kShort, kH200);
  tune(kShort, kH100);
  const Result both = create({"--all"});
  CHECK(both.status == 2);
  CHECK(both.json["error"]["message"].get<std::string>().find("NVIDIA_H100") != std::string::npos);
  CHECK(create({"--all", "--device-identity", "NVIDIA_H100"}).json["entries"].size() == 1);
  CHECK(create({"--all", "--device-identity", kH200}).json["entries"].size() == 1);
  CHECK(create({"--all", "--device-identity", "NVIDIA_B300"}).status == 2);
}

TEST_CASE_FIXTURE(Fixture, "pack create: what hung or crashed ships, too") {
  tune(kShort, kH200);
  store().quarantine({std::string(64, 'c'), "driver=13000", "block_n=64", "it hung", 0});
  CHECK(create({"--all"}).json["quarantined"] == 1);
}

TEST_CASE_FIXTURE(Fixture, "inspect: the pack's kernels, and one by its build key") {
  tune(kShort, kH200);
  create({"--all"});
  const Result result = run({"inspect", pack});
  REQUIRE(result.json["cubins"].size() == 1);
  CHECK(result.json["cubins"][0]["serves"][0]["problem"] == to_string(kShort));
  const std::string key = result.json["cubins"][0]["build_key"];
  const Result single = run({"inspect", key.substr(0, 8), "--cache-dir", folder.string() + "/cache"});
  CHECK(single.status == 0);
  CHECK(single.json["cubins"][0]["kernels"][0]["name"] == "attune_forward");
  CHECK(run({"inspect", "00000000", "--cache-dir", folder.string() + "/cache"}).status == 1);
}
