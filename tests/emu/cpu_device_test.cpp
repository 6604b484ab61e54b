// The runtime on the CPU device: builds, plans, launches, and what the gate says of kernels that are wrong.
#include <doctest/doctest.h>

#include <cstring>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>

#include "base/error.h"
#include "cli/app.h"
#include "cli/emulator/emulated_gate.h"
#include "cli/emulator/emulated_tensors.h"
#include "runtime/cpu/ptx_compiler.h"
#include "runtime/element.h"
#include "runtime/keys.h"
#include "runtime/reference.h"
#include "runtime/runtime_state.h"
#include "tests/emu/kernel_text.h"
#include "tests/emu/ptx_cache.h"
#include "tests/nvrtc.h"
#include "tests/unit/temporary_folder.h"

namespace attune::emulator {
namespace {

constexpr Problem kProblem{.head_dim = 64,
                           .head_dim_v = 64,
                           .heads = 2,
                           .heads_kv = 1,
                           .causal = true,
                           .batch = 1,
                           .seqlen_q = 150,
                           .seqlen_k = 150};

runtime::Builder ptx_builder() {
  return runtime::Builder(cache::Store::memory_only(), [] { return tests::ptx_compiler(); });
}

codegen::KernelSpec spec_of(const std::string& config) {
  return codegen::specialise(parse_arch("sm_90a"), kProblem, codegen::parse_config(config));
}

template <typename Call>
ErrorCode code_of(const Call& call) {
  try {
    call();
  } catch (const Error& error) {
    return error.code();
  }
  FAIL("no error");
  return ErrorCode::internal;
}

std::string without(std::string text, const std::string& word) {
  std::size_t count = 0;
  for (std::size_t at = 0; (at = text.find(word, at)) != std::string::npos; ++count)
    text.erase(at, text.find('\n', at) - at);
  REQUIRE(count > 0);
  return text;
}

struct Finished {
  int status;
  std::string out, err;
};
Finished run_command(const std::vector<std::string>& arguments) {
  std::ostringstream out, err;
  const int status = cli::run(arguments, {.out = out, .err = err});
  return {status, out.str(), err.str()};
}

}  // namespace

TEST_CASE("cpu device: memory") {
  runtime::CpuDevice device;
  CHECK(device.allocate(0) == nullptr);
  device.free(nullptr);
  const runtime::DeviceBuffer a(device, 1000), b(device, 1000);
  CHECK(reinterpret_cast<std::uintptr_t>(a.data()) % 256 == 0);
  CHECK(device.free_memory() < static_cast<std::size_t>(device.properties().memory_bytes));
  CHECK(device.pointer_kind(a.data()) == runtime::PointerKind::this_device);
  CHECK(device.pointer_kind(&device) == runtime::PointerKind::host);
  device.fill8(a.data(), 0x11, 1000, nullptr);
  device.fill32(a.data(), 0x22334455, 2, nullptr);
  device.copy_on_device(b.data(), a.data(), 12, nullptr);
  unsigned char host[12];
  device.copy_to_host(host, b.data(), sizeof host);
  CHECK(host[0] == 0x55);
  CHECK(host[7] == 0x22);
  CHECK(host[8] == 0x11);
  CHECK(code_of([&] { device.allocate(std::size_t{1} << 40); }) == ErrorCode::out_of_memory);
  const runtime::Stream one = device.create_stream(), two = device.create_stream();
  CHECK(one != nullptr);
  CHECK(one != two);
  CHECK(!device.capturing(one));
  const auto start = device.create_event(), end = device.create_event();
  start->record(one);
  end->record(one);
  CHECK(end->done());
  CHECK(end->milliseconds_since(*start) >= 0);
}

TEST_CASE("cpu device: it is an sm_90a chip that no winner was measured on") {
  const runtime::CpuDevice device;
  CHECK(runtime::arch_of(device.properties()).name == "sm_90a");
  CHECK(runtime::identity_text(device.properties()).find("name=CPU_emulator") == 0);
}

TEST_CASE("cpu device: code that is not PTX") {
  runtime::CpuDevice device;
  CHECK(code_of([&] {
          device.load(
              "\x7f"
              "ELF and so on");
        }) == ErrorCode::invalid_argument);
  CHECK(code_of([&] { device.inspect("Lorem ipsum"); }) == ErrorCode::invalid_argument);
  CHECK(code_of([&] { device.load(".version 8.8\n.target sm_75\n.address_size 64\n"); }) == ErrorCode::unsupported);
  const auto empty = device.load(".version 8.8\n.target sm_90a\n.address_size 64\n");
  CHECK(code_of([&] { empty->function("attune_forward", 0); }) == ErrorCode::not_found);
}

TEST_CASE("cpu device: each module has variables of its own") {
  runtime::CpuDevice device;
  const std::string code = tests::count_text();
  const auto one = device.load(code), other = device.load(code);
  const runtime::DeviceBuffer out(device, sizeof(std::uint32_t));
  void* address = out.data();
  void* arguments[] = {&address};
  const auto count = [&](runtime::Module& module) {
    device.launch(module.function("count", 0), {}, arguments);
    return *static_cast<const std::uint32_t*>(out.data());
  };
  CHECK(count(*one) == 6);
  CHECK(count(*one) == 7);
  CHECK(count(*other) == 6);
}

TEST_CASE("cpu device: builds for it have keys of their own") {
  if (!attune::tests::nvrtc()) return;
  runtime::Builder ptx = ptx_builder(), cubin(cache::Store::memory_only());
  const codegen::KernelSpec spec = spec_of("consumers=1,block_n=64,ping_pong=0");
  CHECK(ptx.key(spec) != cubin.key(spec));
  const runtime::Build build = ptx.build(spec);
  CHECK(build.key == ptx.key(spec));
  CHECK(build.cubin.find(".target sm_90a") != std::string::npos);
  CHECK(build.cubin.find("softmax.cuh") != std::string::npos);  // positions that findings can name
  // What reads cubins says that this is none.
  CHECK(code_of([&] { runtime::read_cubin(build.cubin); }) == ErrorCode::invalid_argument);
}

TEST_CASE("cpu device: a runtime plans and launches on it") {
  if (!attune::tests::nvrtc()) return;
  const auto device = std::make_shared<runtime::CpuDevice>();
  runtime::RuntimeState state({.use_cache = false, .check_pointers = true, .on_warning = [](const std::string&) {}},
                              device, [] { return tests::ptx_compiler(); });
  const Plan plan = state.plan(kProblem, {});
  CHECK(plan.info().origin == Origin::heuristic);
  cli::EmulatedTensors tensors(*device, kProblem, {});
  for (const std::uint64_t seed : {0, 1}) {
    device->set_seed(seed);
    tensors.reset();
    ForwardArgs args = tensors.args();
    args.workspace = nullptr;  // the runtime's own
    plan.launch(args);
    CHECK(tuner::violation(tensors.accuracy(), tensors.bounds()).value_or("") == "");
  }
  const std::vector<runtime::CpuLaunch> launches = device->take_launches();
  REQUIRE(launches.size() == 2);
  for (const runtime::CpuLaunch& launch : launches) {
    CHECK(launch.kernel == "attune_forward");
    CHECK_MESSAGE(launch.report.clean(), launch.report.text());
    CHECK(launch.report.instructions > 10000);
  }
  CHECK(device->take_launches().empty());
  const std::vector<std::uint16_t> host(150 * 2 * 64);
  ForwardArgs args = tensors.args();
  args.q = host.data();
  CHECK(code_of([&] { plan.launch(args); }) == ErrorCode::invalid_argument);
}

TEST_CASE("cpu device: the reference kernel and the host agree") {
  if (!attune::tests::nvrtc()) return;
  for (const DType dtype : {DType::bf16, DType::fp16}) {
    Problem problem = kProblem;
    problem.dtype = dtype;
    problem.head_dim_v = 40;
    problem.seqlen_q = 40;
    problem.seqlen_k = 23;  // the first rows see nothing
    const auto device = std::make_shared<runtime::CpuDevice>();
    runtime::Builder builder = ptx_builder();
    const runtime::Reference reference(device, builder, problem);
    cli::EmulatedTensors tensors(*device, problem, {});
    const runtime::RowSample rows{.first = 3, .step = 4};
    const auto count = static_cast<std::size_t>(runtime::Reference::rows_in(problem, rows));
    const runtime::DeviceBuffer o(*device, 2 * count * 40 * sizeof(double)), lse(*device, 2 * 40 * sizeof(float));
    reference.launch(problem, tensors.args(), rows,
                     {.lse = static_cast<float*>(lse.data()), .o_exact = static_cast<double*>(o.data())});
    for (const runtime::CpuLaunch& launch : device->take_launches())
      CHECK_MESSAGE(launch.report.clean(), launch.report.text());
    const runtime::HostAttention host = runtime::host_attention(problem, tensors.args(), rows);
    double worst = 0;
    for (std::size_t i = 0; i < host.o.size(); ++i)
      worst = std::max(worst, std::abs(host.o[i] - static_cast<const double*>(o.data())[i]));
    CHECK(worst < 1e-6);
    for (std::size_t i = 0; i < host.lse.size(); ++i) {
      const std::size_t row = i / count * 40 + 3 + i % count * 4;
      const auto emulated = static_cast<double>(static_cast<const float*>(lse.data())[row]);
      CHECK((host.lse[i] == emulated || std::abs(host.lse[i] - emulated) < 1e-5));
    }
  }
}

TEST_CASE("cpu device: elements round to nearest even and back") {
  for (const DType dtype : {DType::bf16, DType::fp16}) {
    for (unsigned bits = 0; bits < 0x10000; bits += 3) {
      const float value = runtime::to_float(dtype, static_cast<std::uint16_t>(bits));
      if (std::isfinite(value)) CHECK(runtime::to_element(dtype, value) == bits);
    }
  }
  CHECK(runtime::to_element(DType::fp16, 1 + 0x1p-11f) == 0x3c00);
  CHECK(runtime::to_element(DType::fp16, 1 + 3 * 0x1p-11f) == 0x3c02);
  CHECK(runtime::to_element(DType::bf16, 1 + 0x1p-8f) == 0x3f80);
}

TEST_CASE("gate on the emulator: a kernel, the same without a fence, and one that computes something else") {
  if (!attune::tests::nvrtc()) return;
  const auto device = std::make_shared<runtime::CpuDevice>();
  runtime::Builder builder = ptx_builder();
  const codegen::KernelSpec spec = spec_of("consumers=1,block_n=64,ping_pong=0,o=own");
  const std::string code = builder.build(spec).cubin;
  cli::EmulatedGate gate(device, {});
  const cli::EmulatedVerdict right = gate.judge(spec, code);
  CHECK(right.good());
  CHECK(right.judgement.wrong.value_or("") == "");
  for (const cli::CaseFinding& found : right.findings) FAIL_CHECK(found.finding.message);
  CHECK(right.judgement.cases >= 8);
  CHECK(right.judgement.share_of_bounds > 0.05);

  const cli::EmulatedVerdict unfenced = gate.judge(spec, without(code, "fence.proxy.async"));
  REQUIRE(!unfenced.findings.empty());
  CHECK(unfenced.findings.front().finding.kind == FindingKind::proxy_race);
  CHECK(unfenced.findings.front().finding.at.line > 0);

  Problem other = kProblem;
  other.causal = false;
  codegen::KernelSpec unmasked = codegen::specialise(parse_arch("sm_90a"), other, spec.config);
  unmasked.edge = codegen::Edge::length;
  CHECK(gate.judge(spec, builder.build(unmasked).cubin).judgement.wrong.has_value());

  std::stop_source stopped;
  stopped.request_stop();
  cli::EmulatedGate interrupted(device, {.stop = stopped.get_token()});
  CHECK(code_of([&] { interrupted.judge(spec, code); }) == ErrorCode::interrupted);
}

TEST_CASE("gate on the emulator: a seed gives a case the same order, whatever ran before") {
  if (!attune::tests::nvrtc()) return;
  const auto device = std::make_shared<runtime::CpuDevice>();
  runtime::Builder builder = ptx_builder();
  const codegen::KernelSpec spec = spec_of("consumers=1,block_n=64,ping_pong=0,o=own");
  const std::string code = without(builder.build(spec).cubin, "fence.proxy.async");
  cli::EmulatedGate gate(device, {.seeds = 2, .first_seed = 40});
  const cli::EmulatedVerdict first = gate.judge(spec, code), again = gate.judge(spec, code);
  cli::EmulatedGate alone(device, {.first_seed = first.seed});
  const cli::EmulatedVerdict replayed = alone.judge(spec, code);
  CHECK(first.seed >= 40);
  for (const cli::EmulatedVerdict* verdict : {&again, &replayed}) {
    CHECK(verdict->seed == first.seed);
    CHECK(verdict->judgement.cases == first.judgement.cases);
    REQUIRE(verdict->findings.size() == first.findings.size());
    for (std::size_t i = 0; i < first.findings.size(); ++i) {
      CHECK(verdict->findings[i].where == first.findings[i].where);
      CHECK(verdict->findings[i].finding.message == first.findings[i].finding.message);
      CHECK(verdict->findings[i].finding.count == first.findings[i].finding.count);
    }
  }
}

TEST_CASE("verify --device cpu: what a kernel prints, and the command that repeats a finding") {
  if (!attune::tests::nvrtc()) return;
  const attune::tests::TemporaryFolder folder;
  const std::string file = folder.string() + "/kernel.cu", problem = to_string(kProblem);
  std::string source =
      run_command({"emit", "--problem", problem, "--config", "consumers=1,block_n=64,ping_pong=0,o=own"}).out;
  source = without(source, "fence_proxy_async();");
  source.insert(source.find('{', source.find("attune_forward(")) + 1,
                " if (threadIdx.x + blockIdx.x == 0) printf(\"begun\\n\");");
  std::ofstream(file) << source;
  const Finished text =
      run_command({"verify", "--device", "cpu", "--problem", problem, "--source", file, "--first-seed", "3"});
  CHECK(text.status == 1);
  CHECK(text.out.find("printed in: ") != std::string::npos);
  CHECK(text.out.find("(seed 3)\nbegun\n") != std::string::npos);
  CHECK(text.out.find("proxy_race: ") != std::string::npos);
  CHECK(text.out.find("the same again: attune verify --device cpu --problem " + problem + " --source " + file +
                      " --first-seed 3") != std::string::npos);
  const auto results_of = [&](const std::vector<std::string>& arguments) {
    const Finished finished = run_command(arguments);
    CHECK(finished.status == 1);
    return nlohmann::json::parse(finished.out)["results"];
  };
  const nlohmann::json first = results_of({"verify", "--device", "cpu", "--problem", problem, "--source", file,
                                           "--seeds", "2", "--first-seed", "7", "--json"});
  std::vector<std::string> replay{"--json"};
  std::istringstream words(first[0]["replay"].get<std::string>());
  for (std::string word; words >> word;)
    if (word != "attune") replay.push_back(word);
  const nlohmann::json again = results_of(replay);
  CHECK(first[0]["findings"] == again[0]["findings"]);
  CHECK(first[0]["printed"][0]["text"] == "begun\n");
}

TEST_CASE("verify --device cpu: a kernel that the emulator refuses fails for itself, and the others go on") {
  if (!attune::tests::nvrtc()) return;
  const attune::tests::TemporaryFolder folder;
  const std::string file = folder.string() + "/kernel.cu";
  const std::vector<std::string> problem{"--head-dim", "64", "--heads", "2", "--tokens", "256", "--causal"};
  std::vector<std::string> arguments{"emit", "--head-dim", "64",       "--heads",
                                     "2",    "--causal",   "--config", "consumers=1,block_n=64,ping_pong=0"};
  std::string source = run_command(arguments).out;
  source.insert(source.find('{', source.find("attune_forward(")) + 1, " asm volatile(\"frobnicate.b32;\");");
  std::ofstream(file) << source;
  arguments = {"verify", "--device", "cpu", "--source", file, "--seqlens", "128,256", "--json"};
  arguments.insert(arguments.end(), problem.begin(), problem.end());
  const Finished finished = run_command(arguments);
  CHECK(finished.status == 1);
  const nlohmann::json results = nlohmann::json::parse(finished.out)["results"];
  REQUIRE(results.size() == 2);
  for (const nlohmann::json& result : results) {
    CHECK(result["ok"] == false);
    CHECK(result["status"] == "rejected");
    CHECK(result["reason"].get<std::string>().find("frobnicate") != std::string::npos);
  }
}

TEST_CASE("verify --device cpu") {
  if (!attune::tests::nvrtc()) return;
  const std::vector<std::string> problem{"--head-dim", "64", "--heads", "2", "--batch", "1", "--causal"};
  std::vector<std::string> arguments{"verify",   "--device", "cpu",      "--json",
                                     "--seqlen", "128",      "--config", "consumers=1,block_n=64,ping_pong=0",
                                     "--seeds",  "2"};
  arguments.insert(arguments.end(), problem.begin(), problem.end());
  const Finished verified = run_command(arguments);
  REQUIRE_MESSAGE(verified.status == 0, verified.err);
  const nlohmann::json document = nlohmann::json::parse(verified.out);
  CHECK(document["ok"] == true);
  CHECK(document["device"] == "cpu");
  REQUIRE(document["results"].size() == 2);
  for (const nlohmann::json& result : document["results"]) {
    CHECK(result["ok"] == true);
    CHECK(result["findings"].empty());
    CHECK(result["instructions"] > 10000);
  }
  // What a CPU cannot do in reasonable time is no failure, but not left unsaid.
  arguments = {"verify", "--device", "cpu", "--seqlen", "65536", "--config", "consumers=1,block_n=64,ping_pong=0"};
  arguments.insert(arguments.end(), problem.begin(), problem.end());
  const Finished large = run_command(arguments);
  CHECK(large.status == 0);
  CHECK(large.out.find("not run: ") != std::string::npos);
}

}  // namespace attune::emulator
