// A Program as machines run it.
#pragma once

#include <memory>
#include <utility>
#include <vector>

#include "runtime/emulator/exec/code.h"

namespace attune::emulator {

class LoadedProgram final : public Program {
 public:
  LoadedProgram(std::shared_ptr<const ProgramImage> image, double parse_seconds, double translate_seconds);

  const std::vector<KernelInfo>& kernels() const override { return kernels_; }
  const std::vector<ModuleVariable>& variables() const override { return variables_; }
  void reset_variables() const override { image_->reset_globals(); }
  double parse_seconds() const override { return parse_seconds_; }
  double translate_seconds() const override { return translate_seconds_; }
  const ProgramImage& image() const { return *image_; }

 private:
  std::shared_ptr<const ProgramImage> image_;
  std::vector<KernelInfo> kernels_;
  std::vector<ModuleVariable> variables_;
  double parse_seconds_, translate_seconds_;
};

}  // namespace attune::emulator
