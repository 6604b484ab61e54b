// A compiler that makes fake cubins and counts.
#pragma once

#include <atomic>
#include <chrono>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "base/error.h"
#include "runtime/compiler.h"
#include "tests/unit/fake_device.h"

namespace attune::tests {

class FakeCompiler : public runtime::Compiler {
 public:
  mutable std::atomic<int> compiles{0};
  std::string fake_version = "13.0.0";
  int spill_bytes = 0;
  int fails = 0;  // so many of the first compiles
  std::chrono::milliseconds takes{0};

  const std::string& version() const override { return fake_version; }
  const std::string& nvrtc_path() const override { return fake_version; }
  runtime::CompileResult compile(const std::string& source, const std::vector<std::string>&, bool) const override {
    const int number = ++compiles;
    std::this_thread::sleep_for(takes);
    if (number <= fails) fail(ErrorCode::compile_failed, "file.cuh:1: refused");
    runtime::CompileResult result;
    // Whatever entries the source declares.
    std::vector<std::string> entries;
    for (const char* name :
         {"attune_reference_forward", "attune_reference_backward_rows", "attune_reference_backward_keys",
          "attune_forward", "attune_backward", "attune_backward_prepare", "attune_backward_finish"})
      if (source.find(std::string(") ") + name + "(") != std::string::npos ||
          source.find(std::string("\n") + name + "(") != std::string::npos)
        entries.emplace_back(name);
    result.cubin = fake_cubin(entries);
    result.registers = 100;
    result.spill_stores = spill_bytes;
    result.log = "log";
    result.milliseconds = 1;
    return result;
  }
};

}  // namespace attune::tests
