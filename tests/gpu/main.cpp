// The GPU tests' own main: without a usable GPU it says so and exits with 77, which ctest reports as skipped.

#define DOCTEST_CONFIG_IMPLEMENT
#include <dlfcn.h>
#include <doctest/doctest.h>

#include <cstdio>
#include <string_view>

#include "tests/gpu/cached_plan.h"

namespace {

constexpr int kSkipped = 77;

// Null if there is a GPU, else why there is none. Asks the driver itself, so that a fault in attune's own
// code is a failed test rather than a skipped one.
const char* why_no_gpu() {
  void* driver = dlopen("libcuda.so.1", RTLD_NOW);
  if (driver == nullptr) return "libcuda.so.1 cannot be opened";
  const auto init = reinterpret_cast<int (*)(unsigned)>(dlsym(driver, "cuInit"));
  const auto count = reinterpret_cast<int (*)(int*)>(dlsym(driver, "cuDeviceGetCount"));
  if (init == nullptr || count == nullptr) return "libcuda.so.1 is not a driver";
  if (init(0) != 0) return "cuInit failed";
  int devices = 0;
  if (count(&devices) != 0 || devices == 0) return "there is no device";
  return nullptr;
}

}  // namespace

int main(int argc, char** argv) {
  if (const char* reason = why_no_gpu()) {
    std::printf("SKIPPED: no usable GPU (%s); the GPU tests did not run\n", reason);
    return kSkipped;
  }
  if (argc == 3 && std::string_view(argv[1]) == "--cached-plan") return attune::gpu::run_cached_plan(argv[2]);
  return doctest::Context(argc, argv).run();
}
