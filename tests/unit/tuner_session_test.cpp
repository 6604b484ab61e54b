#include <doctest/doctest.h>

#include <deque>
#include <map>

#include "base/error.h"
#include "tests/unit/computing_device.h"
#include "tuner/measure/session.h"

namespace attune::tuner {
namespace {

using tests::Bug;
using tests::ComputingDevice;

// A worker's session in this process, on a device that computes on the host.
struct Fixture {
  std::shared_ptr<ComputingDevice> device = std::make_shared<ComputingDevice>();
  Problem problem{.head_dim = 8,
                  .head_dim_v = 8,
                  .heads = 2,
                  .heads_kv = 1,
                  .causal = true,
                  .batch = 1,
                  .seqlen_q = 96,
                  .seqlen_k = 96};
  codegen::Config config{.block_n = 128, .grid = codegen::Grid::dynamic};
  int status = -1;

  Fixture() { device->fake.l2_bytes = 0; }

  codegen::KernelSpec spec() const { return codegen::specialise(runtime::arch_of(device->fake), problem, config); }

  std::vector<Json> run(const std::vector<Json>& commands) {
    ComputingDevice::causal_ = problem.causal;
    ComputingDevice::dim_ = problem.head_dim;
    ComputingDevice::dim_v_ = problem.head_dim_v;
    std::vector<Json> answers;
    std::deque<Json> left(commands.begin(), commands.end());
    SessionPorts ports;
    ports.read_line = [&](std::string* line) {
      if (left.empty()) return false;
      *line = left.front().is_string() ? left.front().get<std::string>() : left.front().dump();
      left.pop_front();
      return true;
    };
    ports.write = [&](const std::string& line) {
      CHECK(line.back() == '\n');
      answers.push_back(Json::parse(line));
    };
    ports.open_device = [&] { return device; };
    ports.open_nvml = [](const runtime::DeviceProperties&, std::string* why) {
      *why = "none here";
      return std::unique_ptr<runtime::Nvml>();
    };
    ports.version = "test";
    status = Session(std::move(ports)).run();
    return answers;
  }

  std::vector<Json> opening() const {
    const std::string reference = reference_spec(runtime::arch_of(device->fake), problem);
    const auto code = [](const char* key, const std::string& entry) {
      return Json{{"cmd", "code"}, {"key", key}, {"data", to_base64(tests::fake_cubin(entry))}};
    };
    return {{{"cmd", "hello"}},
            code("h", "attune_fill_normal"),
            code("r", "attune_reference_forward"),
            code("k", "attune_forward"),
            {{"cmd", "tools"}, {"helpers", "h"}},
            {{"cmd", "reference"}, {"spec", reference}, {"key", "r"}}};
  }
  Json gate_command() const { return {{"cmd", "gate"}, {"id", 1}, {"spec", codegen::to_string(spec())}, {"key", "k"}}; }
  std::vector<Json> shape_commands() const {
    return {{{"cmd", "problem"}, {"problem", to_string(problem)}},
            {{"cmd", "load"},
             {"id", 1},
             {"spec", codegen::to_string(spec())},
             {"config", codegen::to_string(config)},
             {"key", "k"}},
            {{"cmd", "check"}, {"id", 1}}};
  }
  std::vector<Json> after_opening(const std::vector<Json>& commands) {
    std::vector<Json> all = opening();
    all.insert(all.end(), commands.begin(), commands.end());
    std::vector<Json> answers = run(all);
    REQUIRE(answers.size() > 6);
    for (int i = 0; i < 6; ++i)
      REQUIRE_MESSAGE(answers[static_cast<std::size_t>(i)].contains("done"),
                      answers[static_cast<std::size_t>(i)].dump());
    answers.erase(answers.begin(), answers.begin() + 6);
    return answers;
  }
  Judgement gate() {
    const std::vector<Json> answers = after_opening({gate_command()});
    REQUIRE_MESSAGE(answers.size() == 2, answers.at(0).dump());
    CHECK(answers[0] == Json{{"begin", 1}});
    REQUIRE_MESSAGE(answers[1].contains("done"), answers[1].dump());
    return judgement_from_json(answers[1].at("done"));
  }
  Judgement check_at_full_size() {
    const std::vector<Json> answers = after_opening(shape_commands());
    REQUIRE(answers.size() == 4);
    CHECK(answers[2] == Json{{"begin", 1}});
    return judgement_from_json(answers[3].at("done"));
  }
};

TEST_CASE_FIXTURE(Fixture, "hello says what the device is") {
  const std::vector<Json> answers = run({{{"cmd", "hello"}}, {{"cmd", "quit"}}, {{"cmd", "hello"}}});
  REQUIRE(answers.size() == 1);
  const Json& done = answers[0].at("done");
  CHECK(done.at("version") == "test");
  CHECK(done.at("emitter") == codegen::emitter_digest());
  CHECK(runtime::identity_text(device_from_json(done.at("device"))) == runtime::identity_text(device->fake));
  CHECK(done.at("nvml") == "none here");
  CHECK(status == kWorkerDone);
}

TEST_CASE_FIXTURE(Fixture, "commands that make no sense are refused, and the session goes on") {
  const std::vector<Json> answers = run({Json("no json"),
                                         {{"cmd", "dance"}},
                                         {{"cmd", "check"}, {"id", 1}},
                                         {{"cmd", "race"}},
                                         {{"no", "cmd"}},
                                         {{"cmd", "code"}, {"key", "k"}, {"data", "?"}},
                                         {{"cmd", "hello"}}});
  REQUIRE(answers.size() == 7);
  for (std::size_t i = 0; i < 6; ++i) CHECK_MESSAGE(answers[i].contains("error"), answers[i].dump());
  CHECK(answers[1]["error"]["message"].get<std::string>().find("'dance' is unknown (allowed: hello") !=
        std::string::npos);
  CHECK(answers[6].contains("done"));
}

TEST_CASE_FIXTURE(Fixture, "gate: a right kernel passes, on every kind of mask") {
  SUBCASE("causal, aligned") {}
  SUBCASE("causal, any length") { config.block_n = 96; }
  SUBCASE("not causal, any length") {
    problem.causal = false;
    problem.seqlen_k = 111;
  }
  SUBCASE("not causal, a tail") {
    problem.causal = false;
    problem.seqlen_k = 160;
    config.exact_tail = true;
  }
  SUBCASE("not causal, whole blocks, plain grid") {
    problem.causal = false;
    problem.seqlen_k = 256;
    config.grid = codegen::Grid::plain;
  }
  SUBCASE("other dims") { problem.head_dim_v = 16; }
  const Judgement j = gate();
  CHECK_MESSAGE(!j.wrong, *j.wrong);
  CHECK(j.cases >= 8);
  CHECK(j.share_of_bounds < 0.7);  // only O is rounded here, P is not
  CHECK(j.accuracy.o_rel_l2 > 0.5e-3);
}

TEST_CASE_FIXTURE(Fixture, "gate: every bug is found") {
  const auto found = [&] {
    const Judgement j = gate();
    REQUIRE(j.wrong);
    CHECK(status == kWorkerDone);
    return *j.wrong;
  };
  SUBCASE("mask off by one") {
    device->bug = Bug::sees_one_key_too_many;
    CHECK(found().find("plain, 317 queries, 317 keys: relative L2 error of O") == 0);
  }
  SUBCASE("last key dropped") {
    device->bug = Bug::drops_last_key;
    CHECK(found().find("relative L2 error") != std::string::npos);
  }
  SUBCASE("a row that is never written") {
    device->bug = Bug::skips_last_row;
    CHECK(found().find("not written") != std::string::npos);
  }
  SUBCASE("one NaN") {
    device->bug = Bug::not_a_number;
    CHECK(found().find("not a number") != std::string::npos);
  }
  SUBCASE("a store behind the output") {
    device->bug = Bug::writes_behind_o;
    CHECK(found().find("memory behind O or LSE was written") != std::string::npos);
  }
  SUBCASE("a counter that is not left zero") {
    device->bug = Bug::leaves_counter;
    CHECK(found().find("tile counter") != std::string::npos);
  }
  SUBCASE("wrong for large scores only") {
    device->bug = Bug::overflows_when_shifted;
    const std::string what = found();
    CHECK_MESSAGE((what.find("sd 10") == 0 || what.find("sd 30") == 0 || what.find("shifted") == 0), what);
  }
}

TEST_CASE_FIXTURE(Fixture, "full size: a right kernel passes, a wrong one does not") {
  CHECK(!check_at_full_size().wrong);
  device->bug = Bug::sees_one_key_too_many;
  CHECK(check_at_full_size().wrong);
  // The sampled rows do not cover this one, but nothing may be left unwritten.
  problem.seqlen_q = problem.seqlen_k = 96;
  device->bug = Bug::skips_last_row;
  CHECK(check_at_full_size().wrong);
}

TEST_CASE_FIXTURE(Fixture, "race: turns are interleaved, samples are what the events say") {
  std::vector<Json> commands = shape_commands();
  Json second = commands[1];
  second["id"] = 2;
  commands.push_back(second);
  commands.push_back({{"cmd", "race"},
                      {"ids", {1, 2}},
                      {"turns", 2},
                      {"launches", 3},
                      {"warm", 1},
                      {"rest_seconds", 0},
                      {"run_seconds", 0}});
  const std::vector<Json> answers = after_opening(commands);
  std::vector<std::string> order;
  for (std::size_t i = 5; i < answers.size(); ++i) {
    if (answers[i].contains("begin")) order.push_back("b" + answers[i]["begin"].dump());
    if (answers[i].contains("samples")) {
      order.push_back("s" + answers[i]["samples"].dump() + "t" + answers[i]["turn"].dump());
      REQUIRE(answers[i]["seconds"].size() == 3);
      for (const Json& s : answers[i]["seconds"]) CHECK(s.get<double>() == doctest::Approx(1e-3));
    }
  }
  CHECK(order == std::vector<std::string>{"b1", "s1t0", "b2", "s2t0", "b1", "s1t1", "b2", "s2t1"});
  const RaceReadings readings = readings_from_json(answers.back().at("done"));
  REQUIRE(readings.sm_mhz.size() == 4);
  CHECK(readings.sm_mhz[0] == doctest::Approx(1750));
}

TEST_CASE_FIXTURE(Fixture, "race: a sustained run gives one sample, the mean") {
  std::vector<Json> commands = shape_commands();
  commands.push_back({{"cmd", "race"},
                      {"ids", {1}},
                      {"turns", 2},
                      {"launches", 1},
                      {"warm", 0},
                      {"rest_seconds", 0},
                      {"run_seconds", 0.02}});
  const std::vector<Json> answers = after_opening(commands);
  CHECK(device->attention_launches == 1 + 2 * 2 * 20);
  CHECK(answers[5].at("seconds").size() == 1);
  CHECK(answers[5].at("seconds").at(0).get<double>() == doctest::Approx(1e-3));
}

TEST_CASE_FIXTURE(Fixture, "inputs rotate through as many sets as exceed L2 three times") {
  device->fake.l2_bytes = 1 << 20;
  const std::vector<Json> answers = after_opening({shape_commands()[0]});
  const std::uint64_t bytes = Tensors::bytes_of(problem);
  CHECK(answers[0].at("done").at("sets").get<std::uint64_t>() == 1 + 3 * (1 << 20) / bytes);
}

TEST_CASE_FIXTURE(Fixture, "a lost context and a faulty device end the session") {
  device->bug = Bug::illegal_address;
  std::vector<Json> answers = after_opening({gate_command(), {{"cmd", "quit"}}});
  REQUIRE(answers.size() == 2);
  CHECK(answers[1].at("fatal").at("kind") == "context");
  CHECK(status == kWorkerLostContext);
  device = std::make_shared<ComputingDevice>();
  device->bug = Bug::ecc;
  answers = after_opening({gate_command(), {{"cmd", "quit"}}});
  CHECK(answers[1].at("fatal").at("kind") == "hardware");
  CHECK(status == kWorkerHardware);
}

TEST_CASE("base64 takes any bytes there and back") {
  std::string bytes;
  for (int length = 0; length < 70; ++length) {
    CHECK(from_base64(to_base64(bytes)) == bytes);
    bytes += static_cast<char>(length * 37);
  }
  CHECK(to_base64("Man") == "TWFu");
  CHECK(to_base64("Ma") == "TWE=");
  CHECK(to_base64("M") == "TQ==");
  CHECK_THROWS_AS(from_base64("a"), Error);
  CHECK_THROWS_AS(from_base64("a*b="), Error);
}

}  // namespace
}  // namespace attune::tuner
