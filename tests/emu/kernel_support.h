// CUDA kernels of kernels/*.cu on the emulator.
#pragma once

#include <doctest/doctest.h>

#include <cmath>
#include <cstdint>
#include <cstring>
#include <fstream>
#include <iterator>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include <attune/emulator.h>
#include <attune/error.h>

#include "tests/emu/ptx_cache.h"
#include "tests/nvrtc.h"

namespace attune::emulator::tests {

constexpr std::uint64_t kSeeds[] = {0, 1, 2, 3, 4, 5};

/// PTX of kernels/<name>.cu; empty where this machine has no NVRTC.
inline std::string kernel_ptx(const std::string& name) {
  std::ifstream in(ATTUNE_TEST_DATA "/../emu/kernels/" + name + ".cu", std::ios::binary);
  REQUIRE_MESSAGE(in.good(), "no kernels/" << name << ".cu");
  const std::string source = "#line 1 \"" + name + ".cu\"\n" + std::string(std::istreambuf_iterator<char>(in), {});
  if (!attune::tests::nvrtc()) return {};
  return ptx_compiler()
      ->compile(source, {"--gpu-architecture=sm_90a", "--std=c++17", "-default-device", "--generate-line-info"}, true)
      .ptx;
}

/// One kernel on a machine of its own: translated plainly, optimised, and without checks. The seed says which one a
/// launch takes.
class KernelTest {
 public:
  explicit KernelTest(std::string name) : name_(std::move(name)) {
    const std::string ptx = kernel_ptx(name_);
    if (ptx.empty()) return;
    programs_ = {Program::load(ptx), Program::load(ptx, {.optimise = true}),
                 Program::load(ptx, {.checks = false, .optimise = true})};
  }
  bool available() const { return !programs_.empty(); }
  Machine& machine() { return *machine_; }

  /// Memory that lives as long as the machine; unwritten where no values are given.
  template <typename T>
  std::span<T> allocate(std::size_t count) {
    return {static_cast<T*>(machine_->allocate(count * sizeof(T))), count};
  }
  template <typename T>
  std::span<T> upload(const std::vector<T>& values) {
    const std::span<T> memory = allocate<T>(values.size());
    std::memcpy(memory.data(), values.data(), memory.size_bytes());
    machine_->mark_written(memory.data(), memory.size_bytes());
    return memory;
  }
  /// What a kernel left there is forgotten.
  template <typename T>
  void clear(std::span<T> memory) {
    std::memset(memory.data(), 0xee, memory.size_bytes());
    machine_->mark_written(memory.data(), memory.size_bytes(), false);
  }

  template <typename... Arguments>
  Report launch(const LaunchOptions& options, const Arguments&... arguments) {
    void* addresses[] = {const_cast<void*>(static_cast<const void*>(&arguments))...};
    return machine_->launch(*programs_[options.seed % programs_.size()], name_, options, addresses);
  }

 private:
  std::string name_;
  std::vector<std::shared_ptr<const Program>> programs_;
  std::unique_ptr<Machine> machine_ = Machine::create();
};

/// A launch of `blocks` times `threads`, as many blocks at once as there are.
inline LaunchOptions launch_options(unsigned blocks, unsigned threads, std::uint64_t seed) {
  LaunchOptions options;
  options.grid = {blocks, 1, 1};
  options.block = {threads, 1, 1};
  options.seed = seed;
  options.resident_blocks = static_cast<int>(blocks);
  return options;
}

/// To nearest even; no NaN.
inline std::uint16_t to_bf16(float value) {
  std::uint32_t bits;
  std::memcpy(&bits, &value, sizeof bits);
  return static_cast<std::uint16_t>((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}
inline float from_bf16(std::uint16_t value) {
  const std::uint32_t bits = static_cast<std::uint32_t>(value) << 16;
  float result;
  std::memcpy(&result, &bits, sizeof result);
  return result;
}
inline float from_fp16(std::uint16_t value) {
  const int exponent = value >> 10 & 31, fraction = value & 1023;
  const float magnitude = exponent == 0 ? std::ldexp(static_cast<float>(fraction), -24)
                                        : std::ldexp(static_cast<float>(fraction + 1024), exponent - 25);
  return value & 0x8000 ? -magnitude : magnitude;
}

}  // namespace attune::emulator::tests
