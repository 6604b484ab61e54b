// Templates and emitted kernels through NVRTC, which needs no GPU.
#include <doctest/doctest.h>

#include <string>

#include "codegen/emit_parts.h"
#include "codegen/space.h"
#include "runtime/compiler.h"
#include "templates/embedded.h"

using namespace attune;
using namespace attune::codegen;

namespace {
const Arch kArch = parse_arch("sm_90a");
}

TEST_CASE("every template compiles alone, with what it says it needs") {
  const auto compiler = runtime::Compiler::get();
  for (const templates::File& file : templates::files()) {
    const std::string name(file.name);
    CAPTURE(name);
    const std::string source = assemble_templates({name}) + "extern \"C\" __global__ void nothing() {}\n";
    CHECK_NOTHROW(compiler->compile(source, compile_options(KernelSpec{})));
  }
}

TEST_CASE("emitted kernels of every schedule compile without spills and serialised wgmma") {
  const auto compiler = runtime::Compiler::get();
  struct Case {
    const char* problem;
    const char* config;
  };
  for (const Case& c :
       {Case{"head_dim=128,heads=16", "softmax=zero,order=pv_qk,q=registers,o=own,boundary=overlapped"},
        Case{"head_dim=128,heads=16", "softmax=exact,order=qk_pv,q=registers,o=own,boundary=overlapped"},
        Case{"head_dim=128,heads=16,causal=1",
             "softmax=zero,order=pv_qk,q=registers,o=own,boundary=overlapped,grid=dynamic,"
             "diagonal=trimmed,remember=0"},
        Case{"head_dim=128,heads=16,causal=1",
             "softmax=zero,order=pv_qk,q=registers,o=own,boundary=overlapped,grid=dynamic,cluster=2,"
             "diagonal=skipped"},
        Case{"head_dim=64,heads=32",
             "softmax=first_max,order=pv_qk,consumers=3,q_buffers=2,q_ahead=1,o=own,boundary=overlapped"},
        Case{"head_dim=256,heads=8", "softmax=zero,order=pv_qk,block_n=64"},
        Case{"dtype=fp16,head_dim=72,head_dim_v=136,heads=8,seqlen_q=100",
             "softmax=exact,order=qk_pv,block_n=64,o=own"},
        Case{"op=backward,head_dim=128,heads=16", "family=sm90_backward"},
        Case{"op=backward,head_dim=128,heads=16,causal=1",
             "family=sm90_backward,block_m=80,lag=1,ping_pong=1,late_fences=1,prefetch=1"},
        Case{"op=backward,head_dim=64,heads=32,causal=1",
             "family=sm90_backward,block_m=128,lag=1,ping_pong=1,late_fences=1,registers=224"},
        Case{"op=backward,head_dim=128,heads=16,causal=1",
             "family=sm90_backward,lag=1,ping_pong=1,late_fences=1,prefetch=1,persistent=1,finish=ring,registers=224"},
        Case{"op=backward,head_dim=64,heads=32",
             "family=sm90_backward,block_m=128,lag=1,ping_pong=1,late_fences=1,persistent=1,finish=ring,registers=224"},
        Case{"op=backward,head_dim=256,heads=8,deterministic=1",
             "family=sm90_backward,split=columns,q_stages=1,do_stages=1,ds_stages=1"},
        Case{"op=backward,head_dim=128,heads=16,causal=1",
             "family=sm90_backward,lag=1,ping_pong=1,late_fences=1,dkv=direct,k_stages=2,persistent=1,registers=232"},
        Case{"op=backward,head_dim=128,heads=16,causal=1",
             "family=sm90_backward,lag=1,ping_pong=1,late_fences=1,prefetch=1,skip=1,dkv=direct,k_stages=2,"
             "boundary=overlapped,persistent=1,registers=224"},
        Case{"op=backward,head_dim=64,heads=32",
             "family=sm90_backward,block_m=128,lag=1,ping_pong=1,late_fences=1,dkv=direct,k_stages=2,"
             "boundary=overlapped,persistent=1,registers=224"},
        Case{"op=backward,head_dim=64,heads=32",
             "family=sm90_backward,block_m=128,late_fences=1,ds_stages=1,k_stages=2,persistent=1,finish=ring,registers="
             "224"},
        Case{"op=backward,head_dim=128,heads=16,causal=1",
             "family=sm90_backward,lag=1,ping_pong=1,late_fences=1,dkv=direct,k_stages=2,boundary=overlapped,"
             "persistent=1,registers=224,prepare=inside"},
        Case{"op=backward,head_dim=128,heads=16,causal=1",
             "family=sm90_backward,lag=1,ping_pong=1,late_fences=1,prefetch=1,persistent=1,finish=ring,prepare=inside,"
             "registers=224"},
        Case{"op=backward,head_dim=128,heads=16",
             "family=sm90_backward,lag=1,ping_pong=1,late_fences=1,prefetch=1,registers=232,prepare=inside"},
        Case{"op=backward,head_dim=64,heads=32",
             "family=sm90_backward,block_m=128,late_fences=1,persistent=1,finish=ring,prepare=inside,registers=224"},
        Case{"op=backward,head_dim=128,heads=32,heads_kv=8,causal=1",
             "family=sm90_backward,lag=1,ping_pong=1,late_fences=1,dkv=parts"},
        Case{"op=backward,head_dim=128,heads=32,heads_kv=8,causal=1",
             "family=sm90_backward,lag=1,ping_pong=1,late_fences=1,skip=1,dkv=parts,k_stages=2,boundary=overlapped,"
             "persistent=1,registers=224"},
        Case{"op=backward,head_dim=256,heads=8,causal=1", "family=sm90_backward,split=products,dq=pass"}}) {
    CAPTURE(std::string(c.problem));
    CAPTURE(std::string(c.config));
    const KernelSpec spec = specialise(kArch, parse_problem(c.problem), parse_config(c.config));
    const runtime::CompileResult result = compiler->compile(emit(spec).source, compile_options(spec));
    CHECK(runtime::rejection(result).value_or("accepted") == "accepted");
    CHECK(result.cubin.size() > 10000);
    CHECK(result.log.find("C7517") == std::string::npos);  // a wait that the source does not have
  }
}
