// A tensor map as an argument on the command line.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

#include <attune/emulator.h>

#include "cli/emulator/argument_bytes.h"

namespace attune::cli {

struct TensorMapText {
  emulator::TensorMapDescription description;  ///< but for the address
  std::size_t bytes = 0;                       ///< of the tensor
  std::optional<std::size_t> buffer = {};      ///< the argument whose memory it describes; nothing: memory of its own
  std::optional<Bytes> contents = {};          ///< of its own memory; nothing: unwritten
};

/// "type=bf16,dims=128x512,box=64x64" and, where wanted, "strides=256" (bytes, of all dimensions but the first),
/// "swizzle=128", "fill=nan", and either "buffer=0" or "contents=zero", "contents=random", "contents=random:7",
/// "contents=@FILE". Sizes begin with the innermost dimension. `seed` is for random contents. Throws
/// Error(invalid_argument), and what read_bytes() throws.
TensorMapText parse_tensor_map(std::string_view text, std::uint64_t seed);

/// Throws Error(invalid_argument) for what the driver would refuse.
emulator::TensorMap encode(const TensorMapText& map, const void* base);

}  // namespace attune::cli
