// Thread blocks that find no tile: the runtime launches none, but whoever ships a cubin may.
#include <doctest/doctest.h>

#include <string>

#include "codegen/kernel_spec.h"
#include "codegen/space.h"
#include "tests/emu/faults/attention_launch.h"
#include "tests/nvrtc.h"

namespace attune::emulator {

TEST_CASE("more thread blocks than tiles: the others end, and nothing is left behind") {
  if (!attune::tests::nvrtc()) return;
  const Problem problem = parse_problem("head_dim=64,heads=1,batch=1,seqlen_q=128,seqlen_k=128");
  for (const char* buffering : {"q=shared,q_buffers=1,q_ahead=0,o=over_q,boundary=drained",
                                "q=shared,q_buffers=2,q_ahead=1,o=own,boundary=overlapped",
                                "q=registers,q_buffers=1,q_ahead=1,o=own,boundary=overlapped"})
    for (const char* grid : {"persistent", "dynamic"})
      for (const char* early : {"0", "1"}) {
        const std::string config = std::string("consumers=1,block_n=64,ping_pong=0,softmax=exact,order=qk_pv,grid=") +
                                   grid + ",early_copies=" + early + "," + buffering;
        CAPTURE(config);
        const codegen::KernelSpec spec =
            codegen::specialise(parse_arch("sm_90a"), problem, codegen::parse_config(config));
        const codegen::EmittedKernel kernel = codegen::emit(spec);
        const auto program = Program::load(ptx_of(kernel.source));
        LaunchOptions options;
        options.resident_blocks = 4;
        const AttentionRun run = run_attention(*program, kernel.shape, problem, 4, 1, options);  // two tiles
        INFO(run.report.text());
        CHECK(run.report.clean());
        CHECK(run.worst < 0.03);
      }
}

}  // namespace attune::emulator
