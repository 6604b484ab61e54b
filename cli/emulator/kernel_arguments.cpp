#include "cli/emulator/kernel_arguments.h"

#include <cstring>

#include "base/error.h"
#include "cli/problem_flags.h"

namespace attune::cli {
namespace {

constexpr const char* kForms =
    "buf:BYTES, buf:BYTES=zero, buf:BYTES=random:TYPE[:SEED], buf:@FILE, map:type=TYPE,dims=NxN,box=NxN,..., "
    "bytes:@FILE, TYPE:VALUE with TYPE i8, u8, i16, u16, i32, u32, i64, u64, f16, bf16, f32 or f64";
// NaN in every format: what a launch that reads it shows in its results, too.
constexpr int kUnwritten = 0xFF;

std::string file_after_at(std::string_view text) { return std::string(text.substr(1)); }

void fill_buffer(KernelArgument& argument, std::string_view text, std::uint64_t seed) {
  if (text.starts_with('@')) {
    argument.contents = read_bytes(file_after_at(text));
    argument.buffer_bytes = argument.contents->size();
    return;
  }
  const std::size_t equals = text.find('=');
  argument.buffer_bytes = static_cast<std::size_t>(parse_bytes("BYTES", std::string(text.substr(0, equals))));
  if (argument.buffer_bytes == 0)
    fail(ErrorCode::invalid_argument, "BYTES: 0 (allowed: 1 and more; a null pointer is u64:0)");
  const std::size_t room = emulator::MachineOptions().memory_limit;
  if (argument.buffer_bytes > room)
    fail(ErrorCode::invalid_argument, "BYTES: {} (allowed: 1 to {})", argument.buffer_bytes, room);
  if (equals == std::string_view::npos) return;
  argument.contents = buffer_bytes(argument.buffer_bytes, text.substr(equals + 1), seed);
}

KernelArgument parse(std::size_t index, const std::string& text) {
  KernelArgument argument{.text = text};
  const std::size_t colon = text.find(':');
  const std::string_view type = std::string_view(text).substr(0, colon);
  const std::string_view rest = colon == std::string::npos ? "" : std::string_view(text).substr(colon + 1);
  if (colon != std::string::npos) {
    if (type == "buf") {
      fill_buffer(argument, rest, index);
      argument.value = Bytes(sizeof(void*));
      return argument;
    }
    if (type == "map") {
      argument.map = parse_tensor_map(rest, index);
      argument.value = Bytes(sizeof(emulator::TensorMap));
      if (!argument.map->buffer) {
        argument.buffer_bytes = argument.map->bytes;
        argument.contents = argument.map->contents;
      }
      return argument;
    }
    if (type == "bytes" && rest.starts_with('@')) {
      argument.value = read_bytes(file_after_at(rest));
      return argument;
    }
    if (std::optional<Bytes> value = number_bytes(type, rest)) {
      argument.value = *std::move(value);
      return argument;
    }
  }
  fail(ErrorCode::invalid_argument, "'{}' is no argument (allowed: {})", text, kForms);
}

void require_parameters(const emulator::KernelInfo& kernel, const std::vector<KernelArgument>& arguments) {
  if (arguments.size() != kernel.parameter_bytes.size()) {
    std::string sizes;
    for (const std::size_t bytes : kernel.parameter_bytes) sizes += (sizes.empty() ? "" : ", ") + std::to_string(bytes);
    fail(ErrorCode::invalid_argument, "arg: given {} times, but {} has {} parameters{}", arguments.size(), kernel.name,
         kernel.parameter_bytes.size(), sizes.empty() ? "" : fmt::format(" (bytes: {})", sizes));
  }
  for (std::size_t i = 0; i < arguments.size(); ++i) {
    if (arguments[i].value.size() == kernel.parameter_bytes[i]) continue;
    fail(ErrorCode::invalid_argument, "arg {}: '{}' has {} bytes, but parameter {} of {} has {}", i, arguments[i].text,
         arguments[i].value.size(), i, kernel.name, kernel.parameter_bytes[i]);
  }
}

}  // namespace

KernelArgument parse_kernel_argument(std::size_t index, const std::string& text) {
  try {
    return parse(index, text);
  } catch (const Error& error) {
    fail(error.code(), "arg {}: {}", index, error.what());
  }
}

KernelArguments::KernelArguments(emulator::Machine& machine, const emulator::KernelInfo& kernel,
                                 std::vector<KernelArgument> arguments)
    : machine_(machine), all_(std::move(arguments)), memory_(all_.size()) {
  require_parameters(kernel, all_);
  for (std::size_t i = 0; i < all_.size(); ++i) {
    try {
      place(i);
    } catch (const Error& error) {
      fail(error.code(), "arg {}: {}", i, error.what());
    }
    addresses_.push_back(all_[i].value.data());
  }
}

void KernelArguments::place(std::size_t index) {
  KernelArgument& argument = all_[index];
  if (argument.buffer_bytes > 0) memory_[index] = machine_.allocate(argument.buffer_bytes);
  if (argument.map) {
    const void* base = memory_[index];
    if (argument.map->buffer) {
      const std::size_t buffer = *argument.map->buffer;
      if (buffer >= index || !is_buffer(buffer))
        fail(ErrorCode::invalid_argument, "buffer: {} is no buffer before it (allowed: the place of a buf:...)",
             buffer);
      if (all_[buffer].buffer_bytes < argument.map->bytes)
        fail(ErrorCode::invalid_argument, "buffer: {} has {} bytes, but the tensor {}", buffer,
             all_[buffer].buffer_bytes, argument.map->bytes);
      base = memory_[buffer];
    }
    const emulator::TensorMap map = encode(*argument.map, base);
    std::memcpy(argument.value.data(), &map, sizeof map);
  } else if (argument.buffer_bytes > 0) {
    std::memcpy(argument.value.data(), &memory_[index], sizeof(void*));
  }
}

void KernelArguments::reset() {
  for (std::size_t i = 0; i < all_.size(); ++i) {
    const KernelArgument& argument = all_[i];
    if (argument.buffer_bytes == 0) continue;
    if (argument.contents)
      std::memcpy(memory_[i], argument.contents->data(), argument.buffer_bytes);
    else
      std::memset(memory_[i], kUnwritten, argument.buffer_bytes);
    machine_.mark_written(memory_[i], argument.buffer_bytes, argument.contents.has_value());
  }
}

std::string_view KernelArguments::contents(std::size_t index) const {
  return {static_cast<const char*>(memory_.at(index)), all_.at(index).buffer_bytes};
}

}  // namespace attune::cli
