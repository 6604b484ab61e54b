#include <doctest/doctest.h>

#include <thread>

#include <attune/error.h>

#include "runtime/compiler.h"
#include "tests/nvrtc.h"

namespace attune::runtime {
namespace {

constexpr const char* kCleanLog = R"(ptxas info    : 0 bytes gmem
ptxas info    : Compiling entry function 'attune_forward' for 'sm_90a'
ptxas info    : Function properties for attune_forward
    0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
ptxas info    : Used 168 registers, used 9 barriers
)";

CompileResult parsed(const std::string& log) {
  CompileResult result;
  parse_log(log, &result);
  return result;
}

std::vector<std::string> sm90_options() { return {"--gpu-architecture=sm_90a", "--std=c++17"}; }

TEST_CASE("log: a clean build") {
  const CompileResult r = parsed(kCleanLog);
  CHECK(r.registers == 168);
  CHECK(r.spill_stores == 0);
  CHECK(r.stack == 0);
  CHECK(r.serialised.empty());
  CHECK(!rejection(r));
}

TEST_CASE("log: any spill rejects, however small, and in any function") {
  const CompileResult r = parsed(std::string(kCleanLog) +
                                 "ptxas info    : Function properties for helper\n"
                                 "    16 bytes stack frame, 4 bytes spill stores, 8 bytes spill loads\n");
  CHECK(r.spill_stores == 4);
  CHECK(r.spill_loads == 8);
  CHECK(r.stack == 16);
  CHECK(rejection(r) == "registers spill: 4 bytes of stores, 8 bytes of loads");
  CHECK(rejection_cause(*rejection(r)) == std::string("spills"));
}

TEST_CASE("log: serialised wgmma rejects") {
  for (const char* code : {"C7507", "C7510", "C7511", "C7512", "C7513", "C7514", "C7515", "C7520"}) {
    const CompileResult r = parsed(std::string("ptxas info    : (") + code +
                                   ") Potential Performance Loss: wgmma.mma_async instructions are serialized due "
                                   "to insufficient register resources in the function 'f'\n" +
                                   kCleanLog);
    CHECK(r.serialised == std::vector<std::string>{code});
    CHECK(rejection(r)->find(code) != std::string::npos);
    CHECK(rejection_cause(*rejection(r)) == std::string("serialised wgmma"));
  }
  CHECK(!rejection(parsed(std::string("ptxas info    : (C7519) harmless\n") + kCleanLog)));
}

TEST_CASE("log: diagnostics carry the template's file and line") {
  const auto found = parse_diagnostics(
      "sm90/forward.cuh(120): error: identifier \"kv_full\" is undefined\n"
      "      mbarrier_wait(kv_full);\n"
      "                    ^\n"
      "ptx/wgmma.cuh(7): warning #177-D: variable \"x\" was declared but never referenced\n"
      "ptxas fatal   : Unresolved extern function 'f'\n"
      "ptxas application ptx input, line 21; error   : Unknown modifier '.such'\n");
  REQUIRE(found.size() == 4);
  CHECK(found[0].file == "sm90/forward.cuh");
  CHECK(found[0].line == 120);
  CHECK(found[0].message == "identifier \"kv_full\" is undefined");
  CHECK(found[1].line == 7);
  CHECK(!found[1].error);
  CHECK(found[2].file == "ptxas");
  CHECK(found[2].message == "Unresolved extern function 'f'");
  CHECK(found[3].line == 21);
}

TEST_CASE("options: ptxas is always asked for its figures, once") {
  CHECK(checked_options({"-a"}) == std::vector<std::string>{"-a", "--ptxas-options=-v"});
  CHECK(checked_options({"--ptxas-options=-v"}).size() == 1);
  CHECK(checked_options({"--ptxas-options=-v,-O3"}).size() == 1);
  CHECK(checked_options({"--ptxas-options=-O3"}).size() == 2);
}

TEST_CASE("compile: cubin, PTX, figures") {
  const auto nvrtc = tests::nvrtc();
  if (!nvrtc) return;
  CHECK(nvrtc->version().size() >= 4);
  const CompileResult r = nvrtc->compile("extern \"C\" __global__ void f(float* x) { x[threadIdx.x] *= 2; }",
                                         sm90_options(), /*want_ptx=*/true);
  CHECK(
      r.cubin.starts_with("\x7f"
                          "ELF"));
  CHECK(r.ptx.find(".entry f") != std::string::npos);
  CHECK(r.registers > 0);
  CHECK(r.milliseconds > 0);
  CHECK(!rejection(r));
  CHECK(nvrtc->compile("extern \"C\" __global__ void f() {}", sm90_options()).ptx.empty());
}

TEST_CASE("compile: a virtual architecture gives PTX alone") {
  const auto nvrtc = tests::nvrtc();
  if (!nvrtc) return;
  const CompileResult r =
      nvrtc->compile("extern \"C\" __global__ void f() {}", {"--gpu-architecture=compute_90a"}, /*want_ptx=*/true);
  CHECK(r.cubin.empty());
  CHECK(r.ptx.find(".target sm_90a") != std::string::npos);
}

TEST_CASE("compile: a spill is seen") {
  const auto nvrtc = tests::nvrtc();
  if (!nvrtc) return;
  const CompileResult r = nvrtc->compile(R"(
extern "C" __global__ void __maxnreg__(24) f(const float* in, float* out) {
  float x[64], sum = 0;
#pragma unroll
  for (int i = 0; i < 64; i++) x[i] = in[threadIdx.x + 1024 * i];
  __syncthreads();
#pragma unroll
  for (int i = 0; i < 64; i++) sum = sum * x[i] + x[63 - i];
  out[threadIdx.x] = sum;
})",
                                         sm90_options());
  CHECK(r.spill_stores > 0);
  CHECK(rejection(r).has_value());
}

TEST_CASE("compile: an error names the file and line of #line") {
  const auto nvrtc = tests::nvrtc();
  if (!nvrtc) return;
  try {
    nvrtc->compile("#line 40 \"sm90/forward.cuh\"\n__global__ void f() { undefined(); }\nint x = \"text\";\n",
                   sm90_options());
    FAIL("accepted");
  } catch (const Error& error) {
    CHECK(error.code() == ErrorCode::compile_failed);
    const std::string what = error.what();
    CHECK(what.starts_with("sm90/forward.cuh:40: identifier \"undefined\" is undefined (and 2 more errors)"));
    CHECK(what.find("sm90/forward.cuh(41)") != std::string::npos);
  }
}

TEST_CASE("compile: ptxas errors and bad options are typed errors") {
  const auto nvrtc = tests::nvrtc();
  if (!nvrtc) return;
  const auto code_of = [&](const char* source, const std::vector<std::string>& options) {
    try {
      nvrtc->compile(source, options);
      return ErrorCode::internal;
    } catch (const Error& error) {
      return error.code();
    }
  };
  CHECK(code_of("extern \"C\" __global__ void f() { asm volatile(\"no.such.instruction;\"); }", sm90_options()) ==
        ErrorCode::compile_failed);
  CHECK(code_of("__global__ void f() {}", {"--gpu-architecture=sm_9999"}) == ErrorCode::compile_failed);
  CHECK(code_of("__global__ void f() {}", {"--no-such-option"}) == ErrorCode::compile_failed);
  CHECK(code_of("extern \"C\" __global__ void f() {}", {"--gpu-architecture=compute_90a"}) ==
        ErrorCode::compile_failed);
}

TEST_CASE("compile: several threads at once") {
  const auto nvrtc = tests::nvrtc();
  if (!nvrtc) return;
  std::vector<std::string> cubins(4);
  {
    std::vector<std::jthread> threads;
    for (std::size_t i = 0; i < cubins.size(); ++i) {
      threads.emplace_back([&, i] {
        cubins[i] = nvrtc->compile("extern \"C\" __global__ void f(int* x) { *x = 7; }", sm90_options()).cubin;
      });
    }
  }
  for (const std::string& cubin : cubins) CHECK(cubin == cubins[0]);
}

TEST_CASE("a library that is none is refused in words") {
  CHECK_THROWS_AS(Compiler::open("/nowhere/libnvrtc.so"), Error);
  CHECK_THROWS_AS(Compiler::open("libm.so.6"), Error);
}

}  // namespace
}  // namespace attune::runtime
