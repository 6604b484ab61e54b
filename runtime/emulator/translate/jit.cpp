#include "runtime/emulator/translate/jit.h"

#include <llvm/ExecutionEngine/JITLink/JITLinkMemoryManager.h>
#include <llvm/ExecutionEngine/Orc/CompileUtils.h>
#include <llvm/ExecutionEngine/Orc/ExecutionUtils.h>
#include <llvm/ExecutionEngine/Orc/ExecutorProcessControl.h>
#include <llvm/ExecutionEngine/Orc/JITTargetMachineBuilder.h>
#include <llvm/ExecutionEngine/Orc/ObjectLinkingLayer.h>
#include <llvm/IR/DiagnosticHandler.h>
#include <llvm/IR/DiagnosticInfo.h>
#include <llvm/Passes/PassBuilder.h>
#include <llvm/Support/TargetSelect.h>

#include <cmath>
#include <cstring>
#include <mutex>

#include "base/error.h"
#include "runtime/emulator/translate/callees.h"

namespace attune::emulator {
namespace {

template <typename T>
T check(llvm::Expected<T> value) {
  if (value) return std::move(*value);
  fail(ErrorCode::internal, "JIT: {}", llvm::toString(value.takeError()));
}
void check(llvm::Error error) {
  if (error) fail(ErrorCode::internal, "JIT: {}", llvm::toString(std::move(error)));
}

/// Takes the frame sizes that code generation reports for functions with the attribute "warn-stack-size".
class FrameSizes : public llvm::DiagnosticHandler {
 public:
  explicit FrameSizes(std::unordered_map<std::string, std::uint64_t>* frames) : frames_(frames) {}
  bool handleDiagnostics(const llvm::DiagnosticInfo& info) override {
    if (const auto* size = llvm::dyn_cast<llvm::DiagnosticInfoStackSize>(&info)) {
      (*frames_)[size->getFunction().getName().str()] = size->getStackSize();
      return true;
    }
    return false;
  }

 private:
  std::unordered_map<std::string, std::uint64_t>* frames_;
};

std::unique_ptr<llvm::TargetMachine> host_machine(bool optimise) {
  static std::once_flag initialised;
  std::call_once(initialised, [] {
    llvm::InitializeNativeTarget();
    llvm::InitializeNativeTargetAsmPrinter();
  });
  auto builder = check(llvm::orc::JITTargetMachineBuilder::detectHost());
  builder.setCodeGenOptLevel(optimise ? llvm::CodeGenOptLevel::Less : llvm::CodeGenOptLevel::None);
  builder.setRelocationModel(llvm::Reloc::PIC_);
  builder.setCodeModel(llvm::CodeModel::Small);
  return check(builder.createTargetMachine());
}

}  // namespace

Jit::Jit(bool optimise) : optimise_(optimise), machine_(host_machine(optimise)) {
  auto control = check(llvm::orc::SelfExecutorProcessControl::Create());
  session_ = std::make_unique<llvm::orc::ExecutionSession>(std::move(control));
  linker_ = std::make_unique<llvm::orc::ObjectLinkingLayer>(*session_);
  library_ = &session_->createBareJITDylib("program");
  define_symbols();
}

Jit::~Jit() {
  // What could fail here is the release of memory, which leaves nothing to be done.
  llvm::consumeError(session_->endSession());
}

void Jit::define_symbols() {
  llvm::orc::SymbolMap symbols;
  const auto define = [&](const char* name, void* address) {
    symbols[session_->intern(name)] = {llvm::orc::ExecutorAddr::fromPtr(address),
                                       llvm::JITSymbolFlags::Exported | llvm::JITSymbolFlags::Callable};
  };
  for (const Callee& callee : callees()) define(callee.name, callee.address);
  // What code generation may call of its own accord.
  define("memcpy", reinterpret_cast<void*>(static_cast<void* (*)(void*, const void*, std::size_t)>(std::memcpy)));
  define("memset", reinterpret_cast<void*>(static_cast<void* (*)(void*, int, std::size_t)>(std::memset)));
  define("memmove", reinterpret_cast<void*>(static_cast<void* (*)(void*, const void*, std::size_t)>(std::memmove)));
  define("fmaf", reinterpret_cast<void*>(static_cast<float (*)(float, float, float)>(std::fma)));
  define("fma", reinterpret_cast<void*>(static_cast<double (*)(double, double, double)>(std::fma)));
  check(library_->define(llvm::orc::absoluteSymbols(std::move(symbols))));
}

void Jit::prepare(llvm::Module* module) const {
  module->setDataLayout(machine_->createDataLayout());
  module->setTargetTriple(machine_->getTargetTriple().str());
}

bool Jit::has_fused_multiply_add() const {
  if (machine_->getTargetTriple().isAArch64()) return true;
  return machine_->getTargetFeatureString().contains("+fma,");
}

void Jit::optimise_module(llvm::Module* module) {
  llvm::LoopAnalysisManager loops;
  llvm::FunctionAnalysisManager functions;
  llvm::CGSCCAnalysisManager components;
  llvm::ModuleAnalysisManager modules;
  llvm::PassBuilder passes(machine_.get());
  passes.registerModuleAnalyses(modules);
  passes.registerCGSCCAnalyses(components);
  passes.registerFunctionAnalyses(functions);
  passes.registerLoopAnalyses(loops);
  passes.crossRegisterProxies(loops, functions, components, modules);
  passes.buildPerModuleDefaultPipeline(llvm::OptimizationLevel::O1).run(*module, modules);
}

void Jit::add(llvm::Module* module) {
  if (optimise_) optimise_module(module);
  module->getContext().setDiagnosticHandler(std::make_unique<FrameSizes>(&frames_));
  llvm::orc::SimpleCompiler compile(*machine_);
  check(linker_->add(*library_, check(compile(*module))));
}

void* Jit::find(const std::string& name) {
  return check(session_->lookup({library_}, name)).getAddress().toPtr<void*>();
}

std::uint64_t Jit::frame_bytes(const std::string& name) const {
  const auto found = frames_.find(name);
  return found == frames_.end() ? 0 : found->second;
}

}  // namespace attune::emulator
