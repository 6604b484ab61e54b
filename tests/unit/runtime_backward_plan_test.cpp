#include <doctest/doctest.h>

#include <cmath>
#include <functional>

#include <attune/error.h>

#include "runtime/plan_state.h"
#include "tests/unit/fake_device.h"

namespace attune::runtime {
namespace {

using tests::fake_map;
using tests::FakeDevice;

constexpr std::uintptr_t kQ = 0x7f0000000000, kK = 0x7f0010000000, kV = 0x7f0020000000, kO = 0x7f0030000000,
                         kDo = 0x7f0040000000, kLse = 0x7f0050000000, kDq = 0x7f0060000000, kDk = 0x7f0070000000,
                         kDv = 0x7f0080000000, kWorkspace = 0x7f0090000000;

template <typename T = void>
T* at(std::uintptr_t address) {
  return reinterpret_cast<T*>(address);
}

struct Fixture {
  std::shared_ptr<FakeDevice> device = std::make_shared<FakeDevice>();
  std::shared_ptr<PlanContext> context = std::make_shared<PlanContext>(device);
  Problem problem{.op = Op::backward,
                  .head_dim = 128,
                  .head_dim_v = 64,
                  .heads = 8,
                  .heads_kv = 2,
                  .batch = 2,
                  .seqlen_q = 1000,
                  .seqlen_k = 1024};

  PlanSource source(codegen::Config config = {}) const {
    config.family = codegen::Family::sm90_backward;
    PlanSource s;
    s.config = config;
    s.spec = codegen::specialise(arch_of(device->properties()), problem, config);
    s.shape = codegen::launch_shape(s.spec);
    s.cubin = tests::fake_cubin({"attune_backward_prepare", "attune_backward", "attune_backward_finish"});
    return s;
  }
  Plan plan(const codegen::Config& config = {}) const { return make_plan(context, problem, source(config)); }
  static BackwardArgs args() {
    return {.q = at(kQ),
            .k = at(kK),
            .v = at(kV),
            .o = at(kO),
            .d_o = at(kDo),
            .lse = at<float>(kLse),
            .d_q = at(kDq),
            .d_k = at(kDk),
            .d_v = at(kDv),
            .workspace = at(kWorkspace),
            .workspace_bytes = std::size_t{1} << 32};
  }
};

std::string refusal(const std::function<void()>& body, ErrorCode code = ErrorCode::invalid_argument) {
  try {
    body();
  } catch (const Error& error) {
    CHECK(error.code() == code);
    return error.what();
  }
  return "accepted";
}

TEST_CASE_FIXTURE(Fixture, "backward launch: what reaches the kernels, in order") {
  const Plan p = plan();
  BackwardArgs a = args();
  a.d_lse = at<float>(0x7f00a0000000);
  a.d_o_strides = {.batch = 1000 * 8 * 72, .head = 72, .row = 8 * 72};
  a.stream = at<CUstream_st>(0x1230);
  p.launch(a);
  REQUIRE(device->launches.size() == 3);
  CHECK(device->launches[0].entry == "attune_backward_prepare");
  CHECK(device->launches[1].entry == "attune_backward");
  CHECK(device->launches[2].entry == "attune_backward_finish");
  const int block_m = codegen::Config{}.backward.block_m, tiles_m = (1000 + block_m - 1) / block_m;
  for (const tests::RecordedLaunch& l : device->launches) {
    CHECK(l.config.stream == a.stream);
    const bool main = l.entry == "attune_backward";
    CHECK(l.config.grid.x == static_cast<unsigned>(main ? 8 * 2 * 2 : tiles_m * 8 * 2));
    CHECK(l.config.block.x == (main ? 384 : 256));
    CHECK(l.config.waits_itself);
    CHECK(l.backward.o == a.o);
    CHECK(l.backward.d_o == a.d_o);
    CHECK(l.backward.d_q == a.d_q);
    CHECK(l.backward.lse == a.lse);
    CHECK(l.backward.d_lse == a.d_lse);
    CHECK(l.backward.o_row == 8 * 64);
    CHECK(l.backward.do_row == 8 * 72);
    CHECK(l.backward.do_batch == 1000 * 8 * 72);
    CHECK(l.backward.dq_batch == 1000 * 8 * 128);
    CHECK(l.backward.seqlen_q == 1000);
    CHECK(l.backward.seqlen_k == 1024);
    CHECK(l.backward.heads == 8);
    CHECK(l.backward.heads_kv == 2);
    CHECK(l.backward.tiles_m == tiles_m);
    CHECK(l.backward.tiles_n == 8);
    CHECK(l.backward.pairs == 4);
    CHECK(l.backward.section >= 1);
    CHECK(l.backward.scale == doctest::Approx(1 / std::sqrt(128.0)));
    CHECK(l.backward.scale_log2 == doctest::Approx(std::log2(std::exp(1.0)) / std::sqrt(128.0)));
    CHECK(reinterpret_cast<std::uintptr_t>(l.backward.shifts) >= kWorkspace);
    CHECK(reinterpret_cast<std::uintptr_t>(l.backward.dq_sums) < kWorkspace + p.workspace_bytes());
  }
  const std::vector<TensorMap>& maps = device->launches[1].maps;
  const std::uintptr_t bases[] = {kQ, kK, kV, kDo, kDk, kDv};
  for (int i = 0; i < 6; ++i) CHECK(fake_map(maps[i]).base == bases[i]);
  CHECK(fake_map(maps[3]).strides[0] == 8 * 72 * 2);
  CHECK(fake_map(maps[4]).dims[0] == 128);
  CHECK(fake_map(maps[5]).dims[0] == 64);
  CHECK(fake_map(maps[5]).dims[2] == 2);
  CHECK(fake_map(maps[0]).box_rows == static_cast<std::uint64_t>(block_m));
  CHECK(fake_map(maps[1]).box_rows == 128);
  CHECK(fake_map(maps[4]).box_rows == 64);
  CHECK(p.info().blocks == 32);
  CHECK(p.info().kernel == "attune_backward");
}

TEST_CASE_FIXTURE(Fixture, "backward launch: grids and sections") {
  codegen::Config config{.family = codegen::Family::sm90_backward};
  config.backward.section = 100;
  plan(config).launch(args());
  CHECK(device->launches[1].backward.section == 4);  // KV heads of all sequences
  problem.seqlen_k = 128 * 100;
  CHECK(plan(config).info().blocks == 400);
  config.backward.persistent = true;
  CHECK(plan(config).info().blocks == 132);
  config.backward.workers = 7;
  CHECK(plan(config).info().blocks == 7);
  problem.seqlen_q = 0;  // every block of keys is to be zeroed, and nothing counts them
  CHECK(plan(config).info().blocks == 400);
}

TEST_CASE_FIXTURE(Fixture, "backward launch: a kernel that finishes dQ itself takes a map of it") {
  codegen::Config config{.family = codegen::Family::sm90_backward};
  config.backward.persistent = true;
  const std::size_t of_all = plan(config).workspace_bytes();
  config.backward.finish = codegen::backward::Finish::ring;
  config.backward.registers = 224;
  problem.batch = 200;
  const Plan p = plan(config);
  CHECK(p.workspace_bytes() < 100 * of_all / 2);
  device->backward_maps = 7;
  BackwardArgs a = args();
  a.d_q_strides = {.batch = 1000 * 8 * 136, .head = 136, .row = 8 * 136};
  p.launch(a);
  REQUIRE(device->launches.size() == 2);
  CHECK(device->launches[0].entry == "attune_backward_prepare");
  CHECK(device->launches[1].entry == "attune_backward");
  const tests::RecordedLaunch& l = device->launches[1];
  CHECK(fake_map(l.maps[6]).base == kDq);
  CHECK(fake_map(l.maps[6]).strides[0] == 8 * 136 * 2);
  CHECK(fake_map(l.maps[6]).box_rows == 64);
  CHECK(l.backward.slots > 0);
  CHECK(l.backward.slots < 400);
  CHECK(l.backward.tiles_of_pair == 4 * 16);
  CHECK(reinterpret_cast<std::uintptr_t>(l.backward.finished) < kWorkspace + p.workspace_bytes());

  problem.seqlen_q = 0;
  plan(config).launch(BackwardArgs{.k = at(kK), .v = at(kV), .d_k = at(kDk), .d_v = at(kDv)});
  REQUIRE(device->launches.size() == 3);
  CHECK(fake_map(device->launches[2].maps[6]).base == kK);
}

TEST_CASE_FIXTURE(Fixture, "backward launch: shares of a KV head's query heads") {
  codegen::Config config{.family = codegen::Family::sm90_backward};
  const std::size_t whole = plan(config).workspace_bytes();
  config.backward.dkv = codegen::backward::DkvPath::parts;
  config.backward.parts = 2;
  const Plan p = plan(config);
  CHECK(p.workspace_bytes() == whole + std::size_t{2} * 4 * 8 * 128 * (128 + 64) * 4);
  CHECK(p.info().blocks == 2 * 4 * 8);
  p.launch(args());
  REQUIRE(device->launches.size() == 3);
  CHECK(device->launches[0].config.grid.x == 16 * 8 * 2);
  CHECK(device->launches[1].config.grid.x == 2 * 4 * 8);
  CHECK(device->launches[2].config.grid.x == 16 * 8 * 2 + 4 * 4 * 8);
  CHECK(device->launches[2].backward.parts == 2);
  const auto parts = reinterpret_cast<std::uintptr_t>(device->launches[2].backward.dkv_parts);
  CHECK(parts == kWorkspace + whole);
  config.backward.parts = 3;
  CHECK(refusal([&] { plan(config); }) == "config parts: 3 with 4 query heads of each KV head (allowed: 0, 1, 2, 4)");

  // The main kernel alone stores the zeros.
  config.backward.parts = 2;
  problem.seqlen_q = 0;
  CHECK(plan(config).workspace_bytes() == 0);
  plan(config).launch(BackwardArgs{.k = at(kK), .v = at(kV), .d_k = at(kDk), .d_v = at(kDv)});
  REQUIRE(device->launches.size() == 4);
  CHECK(device->launches[3].config.grid.x == 4 * 8);
  CHECK(device->launches[3].backward.heads_kv == 2);
}

TEST_CASE_FIXTURE(Fixture, "backward launch: repeated launches encode nothing anew and ask nothing") {
  const Plan p = plan();
  p.launch(args());
  const int encodes = device->encodes, replacements = device->replacements;
  p.launch(args());
  CHECK(device->encodes == encodes);
  CHECK(device->replacements == replacements);
  BackwardArgs a = args();
  a.d_o = at(kDo + 4096);
  a.o = at(kO + 4096);
  p.launch(a);
  CHECK(device->encodes == encodes);
  CHECK(device->replacements == replacements + 1);
  CHECK(fake_map(device->launches[7].maps[3]).base == kDo + 4096);
  CHECK(device->launches[7].backward.o == a.o);
  CHECK(device->allocations == 0);
  CHECK(device->queries == 0);
}

TEST_CASE_FIXTURE(Fixture, "backward launch: arguments are named, nothing is launched") {
  const Plan p = plan();
  const auto with = [&](auto change) {
    BackwardArgs a = args();
    change(a);
    return refusal([&] { p.launch(a); });
  };
  CHECK(with([](BackwardArgs& a) { a.q = nullptr; }) == "q: null (allowed: device memory aligned to 16 bytes)");
  CHECK(with([](BackwardArgs& a) { a.k = nullptr; }).starts_with("k: null"));
  CHECK(with([](BackwardArgs& a) { a.v = at(kV + 8); }).starts_with("v: address 0x7f0020000008 is not aligned"));
  CHECK(with([](BackwardArgs& a) { a.o = nullptr; }).starts_with("o: null"));
  CHECK(with([](BackwardArgs& a) { a.o = at(kO + 2); }).starts_with("o: address"));
  CHECK(with([](BackwardArgs& a) { a.d_o = nullptr; }).starts_with("d_o: null"));
  CHECK(with([](BackwardArgs& a) { a.d_q = nullptr; }).starts_with("d_q: null"));
  CHECK(with([](BackwardArgs& a) { a.d_k = nullptr; }).starts_with("d_k: null"));
  CHECK(with([](BackwardArgs& a) { a.d_v = nullptr; }).starts_with("d_v: null"));
  CHECK(with([](BackwardArgs& a) { a.lse = nullptr; }) == "lse: null (allowed: device memory aligned to 4 bytes)");
  CHECK(with([](BackwardArgs& a) { a.lse = at<float>(kLse + 2); }).starts_with("lse: address"));
  CHECK(with([](BackwardArgs& a) { a.d_lse = at<float>(kLse + 2); }).starts_with("d_lse: address"));
  CHECK(with([](BackwardArgs& a) { a.scale = -1; }).starts_with("scale: -1"));
  CHECK(with([](BackwardArgs& a) {
          a.o_strides = {.batch = 1000 * 8 * 64, .head = 60, .row = 8 * 64};
        }).starts_with("o: the head stride of 60"));
  CHECK(with([](BackwardArgs& a) {
          a.d_q_strides = {.batch = 1000 * 8 * 128, .head = 120, .row = 8 * 128};
        }).starts_with("d_q: with a head stride of 120 elements its elements would overlap"));
  CHECK(
      with([](BackwardArgs& a) { a.d_k_strides = {.batch = 64, .head = 128, .row = 256}; }).starts_with("d_k: with a"));
  CHECK(with([](BackwardArgs& a) { a.d_k = a.d_v; }) ==
        "d_v: address 0x7f0080000000 is d_k's, too (allowed: memory of its own)");
  CHECK(with([](BackwardArgs& a) { a.d_q = at(kQ); }).starts_with("d_q: address 0x7f0000000000 is q's, too"));
  CHECK(with([](BackwardArgs& a) { a.workspace = at(kDv); }).starts_with("d_v: address"));
  const std::string bytes = std::to_string(p.workspace_bytes());
  CHECK(with([](BackwardArgs& a) { a.workspace = nullptr; }) ==
        "workspace: null (allowed: " + bytes + " bytes of device memory aligned to 256 bytes)");
  CHECK(with([](BackwardArgs& a) { a.workspace_bytes = 1000; }) ==
        "workspace_bytes: 1000 (allowed: " + bytes + " and more)");
  CHECK(with([](BackwardArgs& a) { a.workspace = at(kWorkspace + 16); }).starts_with("workspace: address"));
  CHECK(device->launches.empty());
}

TEST_CASE_FIXTURE(Fixture, "backward launch: inputs may overlap themselves, as expanded dO does") {
  BackwardArgs a = args();
  a.d_o_strides = {.batch = 8, .head = 8, .row = 8};
  plan().launch(a);
  CHECK(device->launches.size() == 3);
}

TEST_CASE_FIXTURE(Fixture, "backward launch: the workspace is linear in seqlen_q") {
  const std::size_t once = plan().workspace_bytes();
  CHECK(once >= std::size_t{2} * 8 * 1000 * (128 + 2) * 4);
  problem.seqlen_q = 8 * 1024;
  CHECK(plan().workspace_bytes() == doctest::Approx(8.0 * static_cast<double>(once)).epsilon(0.001));
  problem.deterministic = true;
  CHECK(plan().workspace_bytes() > std::size_t{8} * once);
}

TEST_CASE_FIXTURE(Fixture, "backward launch: no keys, no queries, nothing at all") {
  problem.seqlen_k = 0;
  BackwardArgs a = args();
  a.k = a.v = a.d_k = a.d_v = nullptr;
  plan().launch(a);
  REQUIRE(device->launches.size() == 2);
  CHECK(device->launches[0].entry == "attune_backward_prepare");
  CHECK(device->launches[1].entry == "attune_backward_finish");

  problem.seqlen_k = 1024;
  problem.seqlen_q = 0;
  problem.deterministic = true;  // with queries it needs counters
  CHECK(plan().workspace_bytes() == 0);
  problem.deterministic = false;
  CHECK(plan().workspace_bytes() == 0);
  plan().launch(BackwardArgs{.k = at(kK), .v = at(kV), .d_k = at(kDk), .d_v = at(kDv)});
  REQUIRE(device->launches.size() == 3);
  CHECK(device->launches[2].entry == "attune_backward");
  CHECK(fake_map(device->launches[2].maps[0]).base == kK);
  CHECK(fake_map(device->launches[2].maps[3]).dims[1] == 1);

  problem.seqlen_k = 0;
  plan().launch(BackwardArgs{});
  problem.seqlen_q = 1000;
  problem.batch = 0;
  plan().launch(BackwardArgs{});
  CHECK(device->launches.size() == 3);
}

TEST_CASE_FIXTURE(Fixture, "backward launch: arguments of the other operation are refused") {
  CHECK(refusal([&] { plan().launch({.q = at(kQ)}); }) ==
        "args: ForwardArgs for a plan of op = backward (allowed: BackwardArgs)");
  problem.op = Op::forward;
  problem.head_dim_v = 128;
  PlanSource s;
  s.spec = codegen::specialise(arch_of(device->properties()), problem, s.config);
  s.shape = codegen::launch_shape(s.spec);
  s.cubin = tests::fake_cubin(s.shape.entry);
  const Plan forward = make_plan(context, problem, s);
  CHECK(refusal([&] { forward.launch(args()); }) ==
        "args: BackwardArgs for a plan of op = forward (allowed: ForwardArgs)");
}

TEST_CASE_FIXTURE(Fixture, "backward launch: debug mode names host memory") {
  context = std::make_shared<PlanContext>(device, /*check_pointers=*/true);
  const Plan p = plan();
  for (const std::uintptr_t address : {kO, kDo, kLse, kDv, kWorkspace}) {
    device->kinds = {{at(address), PointerKind::host}};
    CHECK(refusal([&] { p.launch(args()); }).find("is host memory (allowed: memory of device 0") != std::string::npos);
  }
  CHECK(device->launches.empty());
}

TEST_CASE_FIXTURE(Fixture, "backward plan: code and shapes that do not fit are refused before they are loaded") {
  PlanSource s = source();
  s.cubin = tests::fake_cubin(std::vector<std::string>{"attune_backward", "attune_backward_prepare"});
  CHECK(refusal([&] { make_plan(context, problem, s); }, ErrorCode::not_found) ==
        "cubin: holds no kernel 'attune_backward_finish'");
  s = source();
  s.shape.block_n = 0;
  CHECK(refusal([&] { make_plan(context, problem, s); }).starts_with("launch shape: "));
  s = source();
  s.shape.before.front().threads = 0;
  CHECK(refusal([&] { make_plan(context, problem, s); }).starts_with("launch shape: 0 threads"));
  s = source();
  s.shape.before.clear();
  CHECK(refusal([&] { make_plan(context, problem, s); }) == "launch shape: attune_backward needs a kernel before it");
  s = source();
  problem.deterministic = true;
  CHECK(refusal([&] { make_plan(context, problem, s); }).find("does not serve problem") != std::string::npos);
  problem.deterministic = false;
  problem.seqlen_k = 1 << 30;
  problem.batch = 1 << 14;
  CHECK(refusal([&] { plan(); }).starts_with("seqlen_k: 1073741824 x heads_kv = 2 x batch = 16384 make"));
  CHECK(device->loads == 0);
  problem.seqlen_k = problem.batch = 1;
  s = source();
  s.shape.after.clear();
  CHECK(refusal([&] { make_plan(context, problem, s); }).starts_with("launch shape: not that of"));
}

}  // namespace
}  // namespace attune::runtime
