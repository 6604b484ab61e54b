// The numerics gate on the CPU emulator: the GPU's cases with shorter lengths, and what the emulator found meanwhile.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <stop_token>
#include <string>
#include <string_view>
#include <vector>

#include "cli/emulator/emulated_case.h"
#include "codegen/kernel_spec.h"
#include "runtime/cpu/cpu_device.h"
#include "runtime/plan_state.h"
#include "runtime/reference.h"
#include "tuner/measure/gate.h"

namespace attune::cli {

struct CaseFinding {
  std::string where;  ///< the case
  std::uint64_t seed = 0;
  emulator::Finding finding;
};

struct CasePrint {
  std::string where;  ///< the case
  std::uint64_t seed = 0;
  std::string text;
};

struct EmulatedVerdict {
  tuner::Judgement judgement;
  std::vector<CaseFinding> findings;
  std::vector<CasePrint> prints;   ///< what the kernel printed
  std::uint64_t seed = 0;          ///< of the last launch: of the one that was not good, if one was not
  double seconds = 0;              ///< of all launches
  std::uint64_t instructions = 0;  ///< of all launches

  bool good() const { return !judgement.wrong && findings.empty(); }
};

struct EmulatedGateOptions {
  int seeds = 1;                 ///< launches of each case, each in another order
  std::uint64_t first_seed = 0;  ///< a case and a seed decide the order, whatever ran before; below 2^50
  std::stop_token stop = {};
};

class EmulatedGate {
 public:
  EmulatedGate(std::shared_ptr<runtime::CpuDevice> device, EmulatedGateOptions options);

  /// Runs a kernel on the shapes of the gate; stops after the first case that is wrong or has findings. Throws what
  /// launching throws, and Error(interrupted) soon after a stop.
  EmulatedVerdict judge(const codegen::KernelSpec& spec, const std::string& code);

  /// Runs a kernel on a problem of the caller's, with plain scores. `rows` are compared; of gradients all.
  EmulatedVerdict judge(const codegen::KernelSpec& spec, const codegen::Config& config, const std::string& code,
                        const Problem& problem, const runtime::RowSample& rows);

 private:
  Plan plan(const codegen::KernelSpec& spec, const codegen::Config& config, const std::string& code,
            const Problem& problem) const;
  std::unique_ptr<EmulatedCase> prepare(const Plan& plan, const tuner::Scores& scores,
                                        const runtime::RowSample& rows) const;
  void run(const Plan& plan, const tuner::Scores& scores, const runtime::RowSample& rows, int number,
           EmulatedVerdict& verdict);

  std::shared_ptr<runtime::CpuDevice> device_;
  std::shared_ptr<runtime::PlanContext> plans_;
  EmulatedGateOptions options_;
};

}  // namespace attune::cli
