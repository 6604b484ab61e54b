// attune emulate: a kernel of anybody's on the CPU emulator.
#include "cli/command.h"
#include "cli/emulator.h"

namespace attune::cli {

void add_emulate(CLI::App& app, Invocation& invocation) {
  auto request = std::make_shared<EmulateRequest>();
  CLI::App& command = invocation.add(app, "emulate", "Run any kernel on the CPU emulator and report what it does wrong",
                                     [request](Output& output) { return emulate(*request, output); });
  command.add_option("file", request->file, "PTX for sm_90a or older (.ptx), or CUDA source for NVRTC (.cu)")
      ->type_name("FILE.ptx|FILE.cu")
      ->required();
  command
      .add_option("--kernel", request->kernel,
                  "its name, mangled or as in the source (default: the only one of the file)")
      ->type_name("NAME");
  command.add_option("--grid", request->grid, "blocks")->type_name("X[,Y[,Z]]")->required();
  command.add_option("--block", request->block, "threads of a block")->type_name("X[,Y[,Z]]")->required();
  command.add_option("--cluster", request->cluster, "blocks of a cluster (default: 1)")->type_name("X[,Y[,Z]]");
  command.add_option("--shared", request->shared, "dynamic shared memory of a block (default: 0)")->type_name("BYTES");
  command
      .add_option("--arg", request->arguments,
                  "the next parameter: a buffer buf:BYTES, buf:BYTES=zero, buf:BYTES=random:TYPE[:SEED] or buf:@FILE, "
                  "bytes bytes:@FILE, a tensor map map:type=TYPE,dims=NxN,box=NxN,..., or a number TYPE:VALUE of i8, "
                  "u8, ..., i64, u64, f16, bf16, f32 or f64; once for "
                  "each parameter, in their order")
      ->type_name("TEXT")
      ->allow_extra_args(false);
  command.add_option("--save", request->saves, "write a buffer to a file afterwards, N: the argument's place, from 0")
      ->type_name("N:FILE")
      ->allow_extra_args(false);
  command
      .add_option("--seeds", request->seeds,
                  "launches, each with another order of the threads and asynchronous operations (default: 1)")
      ->type_name("N");
  command.add_option("--first-seed", request->first_seed, "the first order; 0: program order (default: 0)")
      ->type_name("N");
  command
      .add_option("--resident-blocks", request->resident_blocks,
                  "blocks that run side by side, for grids whose blocks wait for each other (default: 1)")
      ->type_name("N");
  command
      .add_option("--instruction-limit", request->instruction_limit,
                  "PTX instructions of a launch, over all threads (default: 20000000000)")
      ->type_name("N");
  command.add_option("--compile-option", request->compile_options, "of NVRTC, for CUDA source; may be repeated")
      ->type_name("TEXT")
      ->allow_extra_args(false);
}

}  // namespace attune::cli
