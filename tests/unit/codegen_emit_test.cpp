// Emitted source: golden files, determinism, self-containedness.
#include <doctest/doctest.h>

#include <cstdlib>
#include <fstream>
#include <sstream>
#include <string>

#include "base/error.h"
#include "codegen/kernel_spec.h"
#include "codegen/space.h"

using namespace attune;
using namespace attune::codegen;

namespace {

const Arch kArch = parse_arch("sm_90a");

struct Golden {
  const char* file;
  const char* problem;
  const char* config;
};
constexpr Golden kGoldens[] = {
    {"forward_d128_speculative.cu", "head_dim=128,heads=16",
     "softmax=zero,order=pv_qk,q=registers,o=own,boundary=overlapped"},
    {"forward_d128_causal_gqa_trimmed.cu", "head_dim=128,heads=32,heads_kv=8,causal=1",
     "softmax=first_max,order=pv_qk,q=registers,o=own,boundary=overlapped,grid=dynamic,diagonal=trimmed"},
    {"forward_fp16_d80_exact.cu", "dtype=fp16,head_dim=80,heads=8,seqlen_q=1000",
     "softmax=exact,order=qk_pv,dependent_launch=1"},
    {"forward_d64_skip_idle.cu", "head_dim=64,heads=32,seqlen_q=1024",
     "consumers=3,softmax=zero,order=pv_qk,q_buffers=2,q_ahead=1,o=own,boundary=overlapped,grid=dynamic,remember=0,"
     "skip_idle=1"},
    {"forward_d128_small.cu", "head_dim=128,heads=16,batch=2,seqlen_q=512,seqlen_k=512",
     "softmax=first_max,order=pv_qk,q=registers,q_ahead=1,o=own,boundary=overlapped,grid=dynamic,dependent_launch=1,"
     "early_copies=1,first_turn=1"},
    {"forward_d256_q_columns.cu", "head_dim=256,heads=8",
     "block_n=64,softmax=zero,order=pv_qk,q_columns=128,o=own,o_pieces=2,first_turn=1"},
    {"reference_d64.cu", "head_dim=64,heads=8", "family=reference"},
    {"backward_d128_causal_lagging.cu", "op=backward,head_dim=128,heads=32,heads_kv=8,causal=1",
     "family=sm90_backward,lag=1,ping_pong=1,late_fences=1,prefetch=1"},
    {"backward_d64_persistent.cu", "op=backward,head_dim=64,heads=32,seqlen_q=1000",
     "family=sm90_backward,block_m=96,lag=1,ping_pong=1,late_fences=1,v_in_registers=1,persistent=1,registers=232"},
    {"backward_d128_ring.cu", "op=backward,head_dim=128,heads=32,heads_kv=8,causal=1",
     "family=sm90_backward,lag=1,ping_pong=1,late_fences=1,prefetch=1,skip=1,persistent=1,finish=ring,registers=224"},
    {"backward_d128_overlapped.cu", "op=backward,head_dim=128,heads=16,seqlen_q=1000",
     "family=sm90_backward,lag=1,ping_pong=1,late_fences=1,dkv=direct,k_stages=2,boundary=overlapped,persistent=1,"
     "registers=224"},
    {"backward_d64_prepared_inside.cu", "op=backward,head_dim=64,heads=32,causal=1",
     "family=sm90_backward,block_m=128,lag=1,ping_pong=1,late_fences=1,persistent=1,registers=232,prepare=inside"},
    {"backward_d128_parts.cu", "op=backward,head_dim=128,heads=32,heads_kv=8,batch=1,seqlen_q=1024,causal=1",
     "family=sm90_backward,lag=1,ping_pong=1,late_fences=1,dkv=parts"},
    {"backward_fp16_d256_deterministic.cu", "op=backward,dtype=fp16,head_dim=256,heads=8,seqlen_q=1000,deterministic=1",
     "family=sm90_backward,split=columns,q_stages=1,do_stages=1,ds_stages=1"},
    {"backward_d256_causal_passes.cu", "op=backward,head_dim=256,heads=8,causal=1",
     "family=sm90_backward,split=products,dq=pass"},
    {"reference_backward_d64.cu", "op=backward,head_dim=64,heads=8", "family=reference_backward"},
};

// What the emitter printed itself: the header comment and what follows the templates, which are reviewed as files.
std::string without_templates(const std::string& source) {
  const std::size_t templates = source.find("#line"), own = source.rfind("#line ");
  return source.substr(0, templates) + source.substr(own);
}

std::string read(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  std::ostringstream text;
  text << in.rdbuf();
  return text.str();
}

}  // namespace

TEST_CASE("emitted source equals the reviewed golden files") {
  // ATTUNE_UPDATE_GOLDEN=1 rewrites them; the difference is then reviewed like any other code.
  const bool update = std::getenv("ATTUNE_UPDATE_GOLDEN") != nullptr;
  for (const Golden& golden : kGoldens) {
    const KernelSpec spec = specialise(kArch, parse_problem(golden.problem), parse_config(golden.config));
    const std::string source = without_templates(emit(spec).source);
    const std::string path = std::string(ATTUNE_TEST_GOLDEN) + "/" + golden.file;
    if (update) std::ofstream(path, std::ios::binary) << source;
    CAPTURE(path);
    CHECK((read(path) == source));
  }
}

TEST_CASE("every kernel that may start early waits for the one before it") {
  for (const Golden& golden : kGoldens) {
    const KernelSpec spec = specialise(kArch, parse_problem(golden.problem), parse_config(golden.config));
    if (spec.config.family != Family::sm90_backward && !spec.config.dependent_launch) continue;
    const std::string source = emit(spec).source;
    CAPTURE(std::string(golden.file));
    for (std::size_t at = source.find("__global__"); at != std::string::npos;) {
      const std::size_t next = source.find("__global__", at + 1);
      std::string kernel = source.substr(at, next - at);
      // The path without queries leaves early, and waits by itself.
      if (const std::size_t early = kernel.find("if (params.tiles_m == 0) {"); early != std::string::npos) {
        const std::size_t leaves = kernel.find("return;", early);
        CHECK(kernel.find("follow_closely();", early) < kernel.find("store_zeros<", early));
        kernel.erase(early, leaves - early);
      }
      // Nothing is read, handed out or written before.
      const std::size_t waits = kernel.find("follow_closely();");
      CHECK(waits != std::string::npos);
      for (const char* access :
           {"atomicAdd(", "begin(", "produce(", "consume(", "prepare_tile<", "finish_tile<", "finish_keys<"})
        CHECK_MESSAGE(waits < kernel.find(access), access);
      at = next;
    }
  }
}

TEST_CASE("the same spec gives the same bytes, and another spec gives others") {
  const Problem p = parse_problem("head_dim=128,heads=16,causal=1");
  std::string previous;
  for (const Config& c : candidates(kArch, p)) {
    const KernelSpec spec = specialise(kArch, p, c);
    const std::string source = emit(spec).source;
    REQUIRE(source == emit(parse_kernel_spec(to_string(spec))).source);
    REQUIRE(source != previous);
    previous = source;
  }
}

TEST_CASE("source includes nothing and names no path") {
  for (const char* text : {"head_dim=128,heads=16", "head_dim=256,heads=8,causal=1", "head_dim=72,head_dim_v=136",
                           "op=backward,head_dim=128,heads=16,causal=1", "op=backward,head_dim=256,heads=8"}) {
    const Problem p = parse_problem(text);
    const std::string source = emit(specialise(kArch, p, default_config(kArch, p))).source;
    CHECK(source.find("#include") == std::string::npos);
    CHECK(source.find("/home") == std::string::npos);
    CHECK(source.find("__DATE__") == std::string::npos);
  }
}

TEST_CASE("a spec that breaks a rule is not emitted") {
  const Problem p = parse_problem("head_dim=256,heads=2");
  CHECK_THROWS_WITH_AS(emit(specialise(kArch, p, parse_config("block_n=128"))),
                       doctest::Contains("config: shared memory: "), Error);
}
