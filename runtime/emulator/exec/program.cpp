#include "runtime/emulator/exec/program.h"

#include <algorithm>
#include <chrono>
#include <cstring>

#include "runtime/emulator/ptx/parser.h"
#include "runtime/emulator/translate/translate.h"

namespace attune::emulator {

namespace {

double seconds_since(std::chrono::steady_clock::time_point begin) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

}  // namespace

LoadedProgram::LoadedProgram(std::shared_ptr<const ProgramImage> image, double parse_seconds, double translate_seconds)
    : image_(std::move(image)), parse_seconds_(parse_seconds), translate_seconds_(translate_seconds) {
  for (const KernelCode& kernel : image_->kernels) kernels_.push_back(kernel.info);
  for (std::size_t i = 0; i < image_->globals.size(); ++i) {
    const GlobalVariable& global = image_->globals[i];
    variables_.push_back({global.name, image_->global_addresses[i], global.bytes, global.constant});
  }
}

void ProgramImage::reset_globals() const {
  for (std::size_t i = 0; i < globals.size(); ++i) {
    const GlobalVariable& global = globals[i];
    std::uint8_t* const memory = global_addresses[i];
    const std::size_t given = std::min(global.initial.size(), global.bytes);
    std::copy_n(global.initial.begin(), given, memory);
    std::fill(memory + given, memory + global.bytes, std::uint8_t{0});
    for (const GlobalVariable::Address& address : global.addresses) {
      if (address.offset + sizeof address.value <= global.bytes)
        std::memcpy(memory + address.offset, &address.value, sizeof address.value);
    }
  }
}

std::shared_ptr<const Program> Program::load(std::string_view ptx, const ProgramOptions& options) {
  auto begin = std::chrono::steady_clock::now();
  const ptx::Module module = ptx::parse(ptx);
  const double parse_seconds = seconds_since(begin);
  begin = std::chrono::steady_clock::now();
  std::shared_ptr<const ProgramImage> image = translate(module, options);
  return std::make_shared<LoadedProgram>(std::move(image), parse_seconds, seconds_since(begin));
}

}  // namespace attune::emulator
