#include <doctest/doctest.h>

#include <random>

#include <attune/error.h>

#include "runtime/compiler.h"
#include "runtime/cubin.h"
#include "tests/nvrtc.h"
#include "tests/unit/fake_device.h"

namespace attune::runtime {
namespace {

// A real cubin with a kernel, a device function that is not inlined, shared memory and a launch bound; empty without
// NVRTC.
const std::string& real_cubin() {
  static const std::string cubin = [] {
    const auto compiler = tests::nvrtc();
    if (!compiler) return std::string();
    return compiler
        ->compile(R"(
__device__ __noinline__ float helper(float x) { return sinf(x); }
extern "C" __global__ void __launch_bounds__(384) first(float* x) {
  __shared__ float s[256];
  s[threadIdx.x & 255] = x[threadIdx.x];
  __syncthreads();
  x[threadIdx.x] = helper(s[(threadIdx.x + 1) & 255]);
}
extern "C" __global__ void second(int* x) { *x = 1; }
)",
                  {"--gpu-architecture=sm_90a"})
        .cubin;
  }();
  return cubin;
}

// Whatever the bytes: an answer or a typed error.
void must_not_crash(std::string_view bytes) {
  try {
    read_cubin(bytes);
  } catch (const Error& error) {
    if (error.code() != ErrorCode::invalid_argument) FAIL(error.what());
  }
}

TEST_CASE("cubin: what a real one holds") {
  if (real_cubin().empty()) return;
  const CubinInfo info = read_cubin(real_cubin());
  CHECK(info.sm == 90);
  const auto find = [&](const std::string& name) {
    const auto it = std::ranges::find(info.kernels, name, &CubinKernel::name);
    REQUIRE(it != info.kernels.end());
    return *it;
  };
  const CubinKernel first = find("first");
  CHECK(first.registers > 8);
  CHECK(first.max_threads == 384);
  CHECK(first.shared_bytes == 1024 + 1024);
  CHECK(first.code_bytes > 0);
  CHECK(first.instructions * 16 == first.code_bytes);
  CHECK(find("second").max_threads == 0);
  for (const CubinKernel& kernel : info.kernels) CHECK(kernel.name.find("helper") == std::string::npos);
}

TEST_CASE("cubin: the hand-made one of the other tests reads too") {
  const CubinInfo info = read_cubin(tests::fake_cubin("name", 80));
  CHECK(info.sm == 80);
  REQUIRE(info.kernels.size() == 1);
  CHECK(info.kernels[0].name == "name");
}

TEST_CASE("cubin: garbage is a typed error") {
  CHECK_THROWS_AS(read_cubin(""), Error);
  CHECK_THROWS_AS(read_cubin("text"), Error);
  CHECK_THROWS_AS(read_cubin(std::string(1000, '\0')), Error);
  CHECK_THROWS_AS(read_cubin(std::string("\x7f"
                                         "ELF") +
                             std::string(1000, '\xff')),
                  Error);
  std::string host = tests::fake_cubin();
  host[18] = 62;  // x86-64
  CHECK_THROWS_WITH_AS(read_cubin(host), "cubin: machine 62 is not CUDA's; this is no whole CUDA ELF file", Error);
}

TEST_CASE("cubin: every truncation is an answer or a typed error") {
  for (const std::string& cubin : {real_cubin(), tests::fake_cubin()}) {
    for (std::size_t size = 0; size < cubin.size(); ++size) {
      // A copy of exactly this size: reading beyond it is then seen by the address sanitizer.
      must_not_crash(std::string(cubin, 0, size));
    }
  }
}

TEST_CASE("cubin: damaged bytes are an answer or a typed error") {
  std::mt19937 random(1);
  for (const std::string& cubin : {real_cubin(), tests::fake_cubin()}) {
    if (cubin.empty()) continue;
    for (int i = 0; i < 3000; ++i) {
      std::string damaged = cubin;
      for (int flips = 1 + static_cast<int>(random() % 4); flips > 0; --flips) {
        damaged[random() % damaged.size()] = static_cast<char>(random());
      }
      must_not_crash(damaged);
    }
    // The header and the section table steer everything, so each of their bytes gets its turn.
    for (std::size_t at = 0; at < cubin.size(); at += at < 64 ? 1 : 7) {
      for (const char value : {'\0', '\x7f', '\xff'}) {
        std::string damaged = cubin;
        damaged[at] = value;
        must_not_crash(damaged);
      }
    }
  }
}

}  // namespace
}  // namespace attune::runtime
