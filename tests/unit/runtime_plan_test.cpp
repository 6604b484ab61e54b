#include <doctest/doctest.h>

#include <cmath>
#include <functional>
#include <limits>

#include <attune/error.h>

#include "runtime/forward_plan.h"
#include "runtime/plan_state.h"
#include "tests/unit/fake_device.h"

namespace attune::runtime {
namespace {

using tests::fake_map;
using tests::FakeDevice;

constexpr std::uintptr_t kQ = 0x7f0000000000, kK = 0x7f0010000000, kV = 0x7f0020000000, kO = 0x7f0030000000;

template <typename T = void>
T* at(std::uintptr_t address) {
  return reinterpret_cast<T*>(address);
}

struct Fixture {
  std::shared_ptr<FakeDevice> device = std::make_shared<FakeDevice>();
  std::shared_ptr<PlanContext> context = std::make_shared<PlanContext>(device);
  Problem problem{
      .head_dim = 128, .head_dim_v = 128, .heads = 8, .heads_kv = 2, .batch = 2, .seqlen_q = 1000, .seqlen_k = 1024};

  PlanSource source(const codegen::Config& config = {}) const {
    PlanSource s;
    s.config = config;
    s.spec = codegen::specialise(arch_of(device->properties()), problem, config);
    s.shape = codegen::launch_shape(s.spec);
    s.cubin = tests::fake_cubin(s.shape.entry);
    return s;
  }
  Plan plan(const codegen::Config& config = {}) const { return make_plan(context, problem, source(config)); }
  static ForwardArgs args() { return {.q = at(kQ), .k = at(kK), .v = at(kV), .o = at(kO)}; }
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

TEST_CASE("speculation may fail for an eighth of the blocks of keys, as warps count them") {
  codegen::LaunchShape shape;
  shape.block_m = shape.block_n = 128;
  const auto limit = [&](std::int64_t q, std::int64_t k, bool causal, codegen::Softmax softmax) {
    const Problem p{.heads = 2, .heads_kv = 1, .causal = causal, .batch = 3, .seqlen_q = q, .seqlen_k = k};
    return failure_limit(p, shape, softmax);
  };
  const auto first_max = codegen::Softmax::first_max, zero = codegen::Softmax::zero;
  CHECK(8 * limit(1024, 1024, false, first_max) == 6 * 64 * 8);
  CHECK(8 * limit(1, 1000, false, zero) == 6 * 1 * 8);
  CHECK(8 * limit(1024, 1024, true, first_max) == 6 * 64 * 4.5);  // 1, 2, ... 8 blocks
  CHECK(8 * limit(128, 1024, true, first_max) == 6 * 8 * 8);
  CHECK(8 * limit(1024, 128, true, first_max) == 6 * 8 * 1);  // the other rows see no key
  CHECK(limit(1024, 0, true, zero) == 0);
  // Beyond that a warp of each tile whose rows see few keys.
  CHECK(limit(1024, 1024, true, zero) == limit(1024, 1024, true, first_max) + 6 * 8);
}

TEST_CASE_FIXTURE(Fixture, "launch: a kernel may start early if it waits by itself for what is before it") {
  plan({.dependent_launch = true}).launch(args());
  CHECK(device->launches[0].config.waits_itself);
}

TEST_CASE_FIXTURE(Fixture, "launch: what reaches the kernel") {
  const Plan p = plan();
  ForwardArgs a = args();
  a.lse = at<float>(0x7f0040000000);
  a.stream = at<CUstream_st>(0x1230);
  p.launch(a);
  REQUIRE(device->launches.size() == 1);
  const tests::RecordedLaunch& l = device->launches[0];
  CHECK(l.entry == "attune_forward");
  CHECK(l.config.stream == a.stream);
  CHECK(l.config.grid.x == 128);  // 8 tiles of 128 rows x 16 heads, fewer than SMs
  CHECK(l.config.block.x == 384);
  CHECK(!l.config.waits_itself);
  CHECK(fake_map(l.maps[0]).base == kQ);
  CHECK(fake_map(l.maps[1]).base == kK);
  CHECK(fake_map(l.maps[1]).dims[2] == 2);
  CHECK(fake_map(l.maps[3]).base == kO);
  CHECK(l.params.lse == a.lse);
  CHECK(l.params.counter == nullptr);
  CHECK(l.params.o == a.o);
  CHECK(l.params.o_batch == 1000 * 8 * 128);
  CHECK(l.params.o_head == 128);
  CHECK(l.params.o_row == 8 * 128);
  CHECK(l.params.seqlen_q == 1000);
  CHECK(l.params.seqlen_k == 1024);
  CHECK(l.params.heads == 8);
  CHECK(l.params.group == 4);
  CHECK(l.params.tiles_m == 8);
  CHECK(l.params.total_tiles == 128);
  CHECK(l.params.head_count == 16);
  CHECK(l.params.section >= 1);
  CHECK(l.params.scale == doctest::Approx(1 / std::sqrt(128.0)));
  CHECK(l.params.scale_log2 == doctest::Approx(std::log2(std::exp(1.0)) / std::sqrt(128.0)));
}

TEST_CASE_FIXTURE(Fixture, "launch: grids") {
  problem.seqlen_q = 4096;
  CHECK(plan().info().blocks == 132);
  CHECK(plan({.workers = 128}).info().blocks == 128);
  CHECK(plan({.grid = codegen::Grid::plain}).info().blocks == 512);
}

TEST_CASE_FIXTURE(Fixture, "launch: clusters take pairs of tiles") {
  const auto launched = [&](const codegen::Config& config) {
    plan(config).launch(args());
    return device->launches.back();
  };
  const tests::RecordedLaunch l = launched({.cluster = 2});
  CHECK(l.config.cluster.x == 2);
  CHECK(l.config.cluster.y == 1);
  CHECK(l.config.grid.x == 128);
  CHECK(l.params.tiles_m == 4);  // of 256 rows
  CHECK(l.params.total_tiles == 64);
  CHECK(fake_map(l.maps[0]).box_rows == 64);
  CHECK(fake_map(l.maps[1]).box_rows == 64);  // each thread block's half of 128 keys
  CHECK(fake_map(l.maps[2]).box_rows == 64);
  const tests::RecordedLaunch alone = launched({});
  CHECK(alone.config.cluster.x == 1);
  CHECK(alone.params.tiles_m == 8);
  CHECK(fake_map(alone.maps[1]).box_rows == 128);

  CHECK(launched({.grid = codegen::Grid::plain, .cluster = 2}).config.grid.x == 128);
  CHECK(launched({.cluster = 2, .workers = 7}).config.grid.x == 6);
  CHECK(launched({.cluster = 2, .workers = 1}).config.grid.x == 2);
  problem.seqlen_q = 4096;
  CHECK(launched({.cluster = 2}).config.grid.x == 132);
  device->fake.sms = 131;
  CHECK(launched({.cluster = 2}).config.grid.x == 130);
  problem.batch = 1;
  problem.heads = problem.heads_kv = 1;
  problem.seqlen_q = 1;  // the second thread block has no row
  for (const codegen::Grid grid : {codegen::Grid::plain, codegen::Grid::persistent, codegen::Grid::dynamic}) {
    const tests::RecordedLaunch one = launched({.grid = grid, .cluster = 2});
    CHECK(one.config.grid.x == 2);
    CHECK(one.params.total_tiles == 1);
  }
}

TEST_CASE_FIXTURE(Fixture, "launch: a scale of the caller's") {
  const Plan p = plan();
  ForwardArgs a = args();
  a.scale = 0.25f;
  p.launch(a);
  CHECK(device->launches.back().params.scale == 0.25f);
  for (const float bad : {-0.1f, std::numeric_limits<float>::infinity(), std::nanf("")}) {
    a.scale = bad;
    CHECK(refusal([&] { p.launch(a); }).starts_with("scale: "));
  }
  CHECK(device->launches.size() == 1);
}

TEST_CASE_FIXTURE(Fixture, "launch: repeated launches encode nothing anew") {
  const Plan p = plan();
  ForwardArgs a = args();
  p.launch(a);
  const int encodes = device->encodes, replacements = device->replacements;
  p.launch(a);
  CHECK(device->encodes == encodes);
  CHECK(device->replacements == replacements);
  a.q = at(kQ + 4096);
  p.launch(a);
  CHECK(device->encodes == encodes);
  CHECK(device->replacements == replacements + 1);
  CHECK(fake_map(device->launches.back().maps[0]).base == kQ + 4096);
  CHECK(fake_map(device->launches.back().maps[1]).base == kK);
  CHECK(device->allocations == 0);
  CHECK(device->queries == 0);
}

TEST_CASE_FIXTURE(Fixture, "launch: strides of the caller's, then the default ones again") {
  const Plan p = plan();
  ForwardArgs a = args();
  a.q_strides = {.batch = 1000 * 8 * 256, .head = 256, .row = 8 * 256};
  p.launch(a);
  CHECK(fake_map(device->launches.back().maps[0]).strides[0] == 8 * 256 * 2);
  a.o_strides = {.batch = 1000 * 8 * 136, .head = 1000 * 136, .row = 136};
  p.launch(a);
  CHECK(device->launches.back().params.o_batch == a.o_strides.batch);
  CHECK(device->launches.back().params.o_head == a.o_strides.head);
  CHECK(device->launches.back().params.o_row == a.o_strides.row);
  CHECK(fake_map(device->launches.back().maps[3]).strides[0] == 136 * 2);
  p.launch(args());
  CHECK(fake_map(device->launches.back().maps[0]).strides[0] == 8 * 128 * 2);
}

TEST_CASE_FIXTURE(Fixture, "launch: plans do not mix up their maps, more of them than a thread remembers included") {
  std::vector<Plan> plans;
  for (int i = 0; i < 20; ++i) {
    problem.seqlen_k = 1024 + 128 * i;
    plans.push_back(plan());
  }
  for (int round = 0; round < 3; ++round) {
    for (int i = 0; i < 20; ++i) {
      plans[i].launch(args());
      CHECK(fake_map(device->launches.back().maps[1]).dims[1] == static_cast<std::uint64_t>(1024 + 128 * i));
    }
  }
}

TEST_CASE_FIXTURE(Fixture, "launch: a refused launch leaves no stale map behind") {
  const Plan p = plan();
  p.launch(args());
  ForwardArgs bad = args();
  bad.k_strides = {.batch = 7, .head = 7, .row = 7};
  CHECK(refusal([&] { p.launch(bad); }).starts_with("k: the row stride of 7"));
  p.launch(args());
  CHECK(fake_map(device->launches.back().maps[1]).strides[0] == 2 * 128 * 2);
}

TEST_CASE_FIXTURE(Fixture, "launch: null and misaligned pointers are named, nothing is launched") {
  const Plan p = plan();
  const auto with = [&](auto change) {
    ForwardArgs a = args();
    change(a);
    return refusal([&] { p.launch(a); });
  };
  CHECK(with([](ForwardArgs& a) { a.q = nullptr; }) == "q: null (allowed: device memory aligned to 16 bytes)");
  CHECK(with([](ForwardArgs& a) { a.k = nullptr; }).starts_with("k: null"));
  CHECK(with([](ForwardArgs& a) { a.v = at(kV + 8); }).starts_with("v: address 0x7f0020000008 is not aligned"));
  CHECK(with([](ForwardArgs& a) { a.o = nullptr; }).starts_with("o: null"));
  CHECK(with([](ForwardArgs& a) { a.lse = at<float>(0x7f0040000002); }).starts_with("lse: address 0x7f0040000002"));
  CHECK(device->launches.empty());
}

TEST_CASE_FIXTURE(Fixture, "launch: empty problems launch nothing, whatever the pointers") {
  problem.seqlen_q = 0;
  plan().launch({});
  problem.seqlen_q = 1000;
  problem.batch = 0;
  plan().launch({});
  CHECK(device->launches.empty());
}

TEST_CASE_FIXTURE(Fixture, "launch: no keys is a launch without K and V") {
  problem.seqlen_k = 0;
  plan().launch({.q = at(kQ), .o = at(kO)});
  REQUIRE(device->launches.size() == 1);
  CHECK(fake_map(device->launches[0].maps[1]).base == kQ);
  CHECK(fake_map(device->launches[0].maps[2]).dims[1] == 1);
}

TEST_CASE_FIXTURE(Fixture, "launch: the tile counter") {
  CHECK(plan().workspace_bytes() == 0);
  const Plan p = plan({.grid = codegen::Grid::dynamic});
  CHECK(p.workspace_bytes() == 8);
  ForwardArgs a = args();
  p.launch(a);
  unsigned* first = device->launches.back().params.counter;
  CHECK(first != nullptr);
  a.stream = at<CUstream_st>(0x1230);
  p.launch(a);
  CHECK(device->launches.back().params.counter != first);

  std::uint64_t mine[2]{};
  a.workspace = mine;
  a.workspace_bytes = 8;
  const int queries = device->queries;
  p.launch(a);
  CHECK(device->launches.back().params.counter == reinterpret_cast<unsigned*>(mine));
  CHECK(device->queries == queries);
  a.workspace_bytes = 4;
  CHECK(refusal([&] { p.launch(a); }) == "workspace_bytes: 4 (allowed: 8 and more)");
  a.workspace_bytes = 8;
  a.workspace = reinterpret_cast<char*>(mine) + 4;
  CHECK(refusal([&] { p.launch(a); }).starts_with("workspace: address "));
}

TEST_CASE_FIXTURE(Fixture, "launch: debug mode names host memory and other devices'") {
  context = std::make_shared<PlanContext>(device, /*check_pointers=*/true);
  const Plan p = plan();
  device->kinds[at(kK)] = PointerKind::host;
  CHECK(refusal([&] { p.launch(args()); }) ==
        "k: address 0x7f0010000000 is host memory (allowed: memory of device 0, Fake H200)");
  device->kinds[at(kK)] = PointerKind::other_device;
  CHECK(refusal([&] { p.launch(args()); }).find("another device's memory") != std::string::npos);
  device->kinds.clear();
  p.launch(args());
  CHECK(device->launches.size() == 1);
}

TEST_CASE_FIXTURE(
    Fixture, "plan: a cubin for another architecture, without the kernel, or garbage is refused before it is loaded") {
  PlanSource s = source();
  s.cubin = tests::fake_cubin("attune_forward", 80);
  CHECK(refusal([&] { make_plan(context, problem, s); }, ErrorCode::unsupported) ==
        "cubin: compiled for sm_80, but device 0 (Fake H200) is sm_90");
  s.cubin = tests::fake_cubin("other");
  CHECK(refusal([&] { make_plan(context, problem, s); }, ErrorCode::not_found) ==
        "cubin: holds no kernel 'attune_forward'");
  s.cubin = "garbage";
  CHECK(refusal([&] { make_plan(context, problem, s); }).starts_with("cubin: "));
  CHECK(device->loads == 0);
}

TEST_CASE_FIXTURE(Fixture, "plan: a kernel that does not serve the problem is refused") {
  PlanSource s = source();
  problem.seqlen_k = 1000;  // the kernel was made for multiples of block_n
  CHECK(refusal([&] { make_plan(context, problem, s); }).find("does not serve problem") != std::string::npos);
}

TEST_CASE_FIXTURE(Fixture, "plan: launch shapes that make no sense are refused") {
  for (const auto& change : std::initializer_list<std::function<void(codegen::LaunchShape&)>>{
           [](auto& s) { s.threads = 0; }, [](auto& s) { s.threads = 2048; }, [](auto& s) { s.block_m = 0; },
           [](auto& s) { s.q_box_rows = 0; }, [](auto& s) { s.kv_box_rows = 257; },
           [](auto& s) { s.o_box_rows = -1; }}) {
    PlanSource s = source();
    change(s.shape);
    CHECK(refusal([&] { make_plan(context, problem, s); }).starts_with("launch shape: "));
  }
  PlanSource s = source();
  s.shape.shared_bytes = 300000;
  CHECK(refusal([&] { make_plan(context, problem, s); }, ErrorCode::unsupported) ==
        "shared memory: 300000 bytes needed, 232448 available");
}

TEST_CASE_FIXTURE(Fixture, "plan: more tiles than a grid has room for") {
  problem.batch = 1 << 14;
  problem.seqlen_q = 1 << 30;
  CHECK(refusal([&] { plan(); }).find("tiles of 128 rows (allowed: up to ") != std::string::npos);
}

TEST_CASE_FIXTURE(Fixture, "plan: the reference family is no kernel to plan with") {
  CHECK(refusal([&] { plan({.family = codegen::Family::reference}); }, ErrorCode::unsupported)
            .starts_with("config: family"));
}

TEST_CASE_FIXTURE(Fixture,
                  "plan: default strides beyond TMA's limits are an error of the launch, other strides are not") {
  problem.layout = Layout::bhsd;
  problem.heads = problem.heads_kv = 64;
  problem.seqlen_k = 1ll << 30;
  problem.seqlen_q = 128;
  const Plan p = plan();
  CHECK(refusal([&] { p.launch(args()); }).starts_with("k: the batch stride"));
  ForwardArgs a = args();
  a.k_strides = a.v_strides = {.batch = 128, .head = 2 * 128, .row = 128 * 128};
  p.launch(a);
  CHECK(device->launches.size() == 1);
}

}  // namespace
}  // namespace attune::runtime
