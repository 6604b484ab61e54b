// What `attune emulate` hands to a kernel: numbers, bytes and buffers, from their texts on the command line.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <attune/emulator.h>

namespace attune::cli {

using Bytes = std::vector<std::uint8_t>;

struct KernelArgument {
  std::string text;                    ///< as it was given
  Bytes value = {};                    ///< of the parameter; of a buffer its address, once it has one
  std::size_t buffer_bytes = 0;        ///< 0: no buffer
  std::optional<Bytes> contents = {};  ///< of a buffer before each launch; nothing: unwritten
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
  /// What a buffer holds now.
  std::string_view contents(std::size_t index) const;

 private:
  void* memory(const KernelArgument& argument) const;

  emulator::Machine& machine_;
  std::vector<KernelArgument> all_;
  std::vector<void*> addresses_;
};

}  // namespace attune::cli
