// What `attune emulate` hands to a kernel: numbers, bytes and buffers, from their texts on the command line.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <attune/emulator.h>

#include "cli/emulator/argument_bytes.h"
#include "cli/emulator/tensor_map_argument.h"

namespace attune::cli {

struct KernelArgument {
  std::string text;                       ///< as it was given
  Bytes value = {};                       ///< of the parameter; of buffers and maps once they have an address
  std::size_t buffer_bytes = 0;           ///< of memory of its own; 0: none
  std::optional<Bytes> contents = {};     ///< of that memory before each launch; nothing: unwritten
  std::optional<TensorMapText> map = {};  ///< it is a tensor map
};

/// `index` names the argument in errors ("arg 2: ...") and seeds random contents. Throws Error(invalid_argument) for a
/// text that is not allowed, and what read_file() throws.
KernelArgument parse_kernel_argument(std::size_t index, const std::string& text);

/// The arguments of a kernel in a machine's memory.
class KernelArguments {
 public:
  /// Throws Error(invalid_argument) if count or sizes are not those of the kernel's parameters, Error(out_of_memory).
  KernelArguments(emulator::Machine& machine, const emulator::KernelInfo& kernel,
                  std::vector<KernelArgument> arguments);
  KernelArguments(const KernelArguments&) = delete;
  KernelArguments& operator=(const KernelArguments&) = delete;

  /// Buffers have their first contents again.
  void reset();
  /// As Machine::launch() takes them.
  void* const* addresses() const { return addresses_.data(); }
  bool is_buffer(std::size_t index) const { return index < all_.size() && all_[index].buffer_bytes > 0; }
  /// What a buffer, or the tensor of a map, holds now.
  std::string_view contents(std::size_t index) const;

 private:
  void place(std::size_t index);

  emulator::Machine& machine_;
  std::vector<KernelArgument> all_;
  std::vector<void*> memory_;  ///< of each; null: none
  std::vector<void*> addresses_;
};

}  // namespace attune::cli
