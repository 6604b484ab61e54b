// LLVM IR to native code in this process.
#pragma once

#include <llvm/IR/Module.h>
#include <llvm/Target/TargetMachine.h>

#include <cstdint>
#include <memory>
#include <string>
#include <unordered_map>

namespace llvm::orc {
class ExecutionSession;
class JITDylib;
class ObjectLinkingLayer;
}  // namespace llvm::orc

namespace attune::emulator {

class Jit {
 public:
  /// `optimise`: LLVM's O1 pipeline; else instructions are selected as fast as LLVM can.
  explicit Jit(bool optimise);
  ~Jit();
  Jit(const Jit&) = delete;
  Jit& operator=(const Jit&) = delete;

  /// Sets what a module must know of the host before code is put into it.
  void prepare(llvm::Module* module) const;
  bool has_fused_multiply_add() const;
  /// Compiles and links. Its functions may call callees() and a few of the C library.
  void add(llvm::Module* module);
  /// The address of a function of the module.
  void* find(const std::string& name);
  /// Bytes of a function's frame on the stack.
  std::uint64_t frame_bytes(const std::string& name) const;

 private:
  void optimise_module(llvm::Module* module);
  void define_symbols();

  bool optimise_;
  std::unique_ptr<llvm::TargetMachine> machine_;
  std::unique_ptr<llvm::orc::ExecutionSession> session_;
  std::unique_ptr<llvm::orc::ObjectLinkingLayer> linker_;
  llvm::orc::JITDylib* library_ = nullptr;
  std::unordered_map<std::string, std::uint64_t> frames_;
};

}  // namespace attune::emulator
