#include "runtime/emulator/exec/program.h"

#include <chrono>

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
