// One PTX module becoming one LLVM module: its symbols, the layout of its memory, and what its functions share.
#pragma once

#include <llvm/IR/LLVMContext.h>
#include <llvm/IR/Module.h>

#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "base/error.h"
#include "runtime/emulator/exec/code.h"
#include "runtime/emulator/exec/intrinsics.h"
#include "runtime/emulator/ptx/ast.h"
#include "runtime/emulator/translate/callees.h"

namespace attune::emulator {

/// Constants that translated code points at; they live as long as the code.
class ConstantPool {
 public:
  template <typename T>
  const T* keep(T value) {
    auto kept = std::make_shared<const T>(std::move(value));
    kept_.push_back(kept);
    return kept.get();
  }

 private:
  std::vector<std::shared_ptr<const void>> kept_;
};

/// What a name of the module or of a function stands for.
struct Symbol {
  enum class Kind : std::uint8_t { global, shared, function } kind{};
  std::uint64_t address = 0;  ///< global: in the process; shared: 32 bits; function: what an indirect call takes
  std::size_t function = 0;   ///< index
};

struct TranslatedFunction {
  const ptx::Function* source = nullptr;
  llvm::Function* ir = nullptr;  ///< null of a declaration
  std::string ir_name;
  std::vector<std::size_t> callees;  ///< functions it may call
  bool calls_indirectly = false;
  std::vector<const ptx::Variable*> shared;                        ///< that it names
  std::unordered_map<std::string_view, std::uint64_t> own_shared;  ///< where those lie
  bool names_dynamic_shared = false;
  std::uint64_t shared_end = 0;                    ///< kernels: where dynamic shared memory begins
  std::uint64_t local_bytes = 0, stack_bytes = 0;  ///< of its frames, and in the end of those it calls
  bool uses_wgmma = false;
  std::uint32_t slots = 0;  ///< that its code and what it calls may name: from 0 to here
};

/// What a pointer to a function holds: no address of any memory.
constexpr std::uint64_t function_address(std::size_t index) { return (std::uint64_t{3} << 56) + 16 * (index + 1); }

/// Sizes and alignments as PTX lays variables out.
std::uint64_t variable_bytes(const ptx::Variable& variable);
std::uint64_t variable_alignment(const ptx::Variable& variable);
constexpr std::uint64_t align_up(std::uint64_t value, std::uint64_t alignment) {
  return (value + alignment - 1) / alignment * alignment;
}

class ModuleTranslator {
 public:
  ModuleTranslator(const ptx::Module& source, const ProgramOptions& options, ProgramImage* image);
  ~ModuleTranslator();

  /// The whole translation, linked.
  void run();

  // -- for FunctionTranslator ---------------------------------------------------------------------------
  llvm::LLVMContext& context() { return *context_; }
  llvm::Module& ir() { return *ir_; }
  bool checks() const { return options_.checks; }
  bool optimise() const { return options_.optimise; }
  /// Whether llvm.fma is one instruction of the host.
  bool fused_multiply_add() const { return fused_multiply_add_; }
  ConstantPool& constants() { return *constants_; }
  llvm::FunctionCallee callee(CalleeId id);
  std::uint32_t add_site(const ptx::Instruction& instruction, std::size_t first_location);
  /// Appends the function's .loc table to the image's and returns where it begins.
  std::size_t add_locations(const ptx::Function& function);
  const Symbol* find_symbol(std::string_view name) const;
  const std::vector<TranslatedFunction>& functions() const { return functions_; }
  /// Functions whose address a program may hold: those that are named other than as the callee of a call.
  const std::vector<std::size_t>& address_taken() const { return address_taken_; }
  std::uint16_t new_slot(const ptx::Instruction& instruction);

 private:
  struct Owner;

  void declare_functions();
  void declare_variables();
  void initialise_globals();
  void scan(TranslatedFunction* function);
  void order_calls();
  void lay_out_shared();
  void describe_kernels();
  void add_up_calls();

  const ptx::Module& source_;
  ProgramOptions options_;
  ProgramImage* image_;
  std::unique_ptr<llvm::LLVMContext> context_;
  std::unique_ptr<llvm::Module> ir_;
  std::shared_ptr<ConstantPool> constants_;
  std::shared_ptr<Owner> owner_;
  std::array<llvm::Function*, static_cast<std::size_t>(CalleeId::count)> declared_{};
  std::vector<TranslatedFunction> functions_;
  std::vector<std::size_t> call_order_;
  std::vector<std::size_t> address_taken_;
  std::unordered_map<std::string_view, Symbol> symbols_;
  std::unordered_map<std::string_view, const ptx::Variable*> shared_variables_;  ///< of the module
  std::unordered_set<std::string_view> shared_in_common_;                        ///< that values of globals name
  std::unordered_map<std::string_view, std::uint64_t> common_shared_;            ///< where those lie
  std::unordered_set<std::string_view> taken_;                                   ///< functions whose address is used
  std::uint32_t slots_ = 0;
  bool fused_multiply_add_ = false;
};

}  // namespace attune::emulator
