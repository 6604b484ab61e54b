#include <doctest/doctest.h>

#include <attune/error.h>

#include "runtime/device.h"
#include "runtime/keys.h"

namespace attune::runtime {
namespace {

// Printed by another implementation (Python's hashlib) from the text of cache/KEY.md. If one of these changes, every
// cache in the world is stale: raise the key version.
TEST_CASE("build key: golden vectors") {
  CHECK(build_key("", "", {}) == "cc75bb567d6e9632449e149f5d9a70d825ae933e596f29d14e5e41c969cf053f");
  CHECK(build_key("__global__ void f() {}\n", "13.0.88", {"--gpu-architecture=sm_90a", "--ptxas-options=-v"}) ==
        "90ae5115442c33e1dffd92efc19fc0438e45e4fe0fc2439d4794c7f1ebc13be6");
}

TEST_CASE("build key: every part counts, and fields do not run into each other") {
  const std::string base = build_key("source", "13.0", {"-a", "b"});
  CHECK(build_key("source ", "13.0", {"-a", "b"}) != base);
  CHECK(build_key("source", "13.1", {"-a", "b"}) != base);
  CHECK(build_key("source", "13.0", {"b", "-a"}) != base);
  CHECK(build_key("source", "13.0", {"-a b"}) != base);
  CHECK(build_key("source", "13.0", {"-ab"}) != base);
  CHECK(build_key("bsource", "13.0", {"-a", ""}) != base);
  CHECK_THROWS_AS(build_key("source", std::string("13\0.0", 5), {}), Error);
  CHECK_THROWS_AS(build_key("source", "13.0", {std::string("-a\0b", 4)}), Error);
}

TEST_CASE("plan key: golden vector") {
  const Problem problem{.head_dim = 128, .head_dim_v = 128, .heads = 32, .heads_kv = 8, .causal = true, .batch = 4};
  CHECK(plan_key(problem, "cc=90,sms=132", "digest") ==
        "6ac48f04cfb7cea7094a9676ab5452e8c50e7c043753476f907790c4c8882747");
}

TEST_CASE("plan key: problem, device and emitter count") {
  const Problem problem;
  Problem longer = problem;
  longer.seqlen_k *= 2;
  const std::string base = plan_key(problem, "device", "emitter");
  CHECK(plan_key(longer, "device", "emitter") != base);
  CHECK(plan_key(problem, "device2", "emitter") != base);
  CHECK(plan_key(problem, "device", "emitter2") != base);
}

TEST_CASE("device identity: canonical text, blind to the driver's version and to which board it is") {
  DeviceProperties p{.ordinal = 3,
                     .name = "NVIDIA H200, 141 GB=",
                     .uuid = "00ff",
                     .compute_capability = 90,
                     .sms = 132,
                     .l2_bytes = 62914560,
                     .memory_bytes = 150110011392,
                     .shared_per_block = 232448,
                     .registers_per_sm = 65536,
                     .clock_khz = 1980000,
                     .memory_clock_khz = 3201000,
                     .memory_bus_bits = 6144,
                     .driver_version = 13000};
  const std::string text = identity_text(p);
  CHECK(text ==
        "name=NVIDIA_H200__141_GB_,cc=90,sms=132,l2=62914560,memory_gib=140,clock_mhz=1980,memory_clock_mhz=3201,"
        "bus=6144");
  p.ordinal = 0;
  p.uuid = "1111";
  p.driver_version = 12080;
  p.memory_bytes -= 100 << 20;  // another driver reserves another amount
  CHECK(identity_text(p) == text);
  p.sms = 16;  // a MIG slice
  CHECK(identity_text(p) != text);
}

TEST_CASE("arch of a device") {
  DeviceProperties p{.name = "GPU", .uuid = "", .compute_capability = 90, .sms = 114, .shared_per_block = 232448};
  CHECK(arch_of(p).name == "sm_90a");
  CHECK(arch_of(p).sms == 114);
  p.compute_capability = 75;
  CHECK_THROWS_WITH_AS(arch_of(p), "device 0 (GPU): compute capability 7.5 is not supported (allowed: 9.0)", Error);
}

}  // namespace
}  // namespace attune::runtime
