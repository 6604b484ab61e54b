// What stands in a cubin, read from its ELF sections. Nothing is executed, no driver is asked, any bytes may
// come.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace attune::runtime {

struct CubinKernel {
  std::string name;
  int registers = 0;              ///< a thread; 0: not stated
  int stack_bytes = 0;            ///< frame a thread
  int max_threads = 0;            ///< launch bound; 0: none
  std::int64_t shared_bytes = 0;  ///< static, with the 1 KiB that sm_90 and later reserve
  std::int64_t code_bytes = 0;
  std::int64_t instructions = 0;  ///< code_bytes / 16, padding at the end included
};

struct CubinInfo {
  int sm = 0;                        ///< 90 for sm_90 and sm_90a
  std::vector<CubinKernel> kernels;  ///< by name
};

/// Throws Error(invalid_argument) for anything that is not a whole CUDA ELF file; never crashes, never reads
/// outside.
CubinInfo read_cubin(std::string_view bytes);

}  // namespace attune::runtime
