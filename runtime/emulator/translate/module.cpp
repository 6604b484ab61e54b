#include "runtime/emulator/translate/module.h"

#include <llvm/IR/DerivedTypes.h>
#include <llvm/IR/Function.h>
#include <llvm/IR/Type.h>
#include <llvm/IR/Verifier.h>
#include <llvm/Support/raw_ostream.h>

#include <algorithm>
#include <cstring>
#include <new>
#include <numeric>

#include "base/error.h"
#include "runtime/emulator/translate/function.h"
#include "runtime/emulator/translate/jit.h"
#include "runtime/emulator/translate/translate.h"

namespace attune::emulator {

using ptx::Operand;
using ptx::OperandKind;

namespace {

constexpr std::uint64_t kMaxGlobalBytes = std::uint64_t{1} << 30;
constexpr std::uint64_t kMaxSharedBytes = std::uint64_t{1} << 24;  // the range of an address within a block
/// For att_ functions, the deepest of which format messages.
constexpr std::uint64_t kRuntimeStackBytes = 128 << 10;
/// A return address and the alignment of the frame.
constexpr std::uint64_t kCallBytes = 32;

struct FreeMemory {
  std::size_t alignment;
  void operator()(std::uint8_t* memory) const { ::operator delete[](memory, std::align_val_t(alignment)); }
};

}  // namespace

std::uint64_t variable_bytes(const ptx::Variable& variable) {
  return static_cast<std::uint64_t>(std::max(1, ptx::byte_size(variable.type))) *
         static_cast<std::uint64_t>(variable.vector) * variable.elements;
}

std::uint64_t variable_alignment(const ptx::Variable& variable) {
  if (variable.alignment != 0) return static_cast<std::uint64_t>(variable.alignment);
  return static_cast<std::uint64_t>(std::max(1, ptx::byte_size(variable.type))) *
         static_cast<std::uint64_t>(variable.vector);
}

/// What a program's code needs as long as it may run.
struct ModuleTranslator::Owner {
  std::unique_ptr<Jit> jit;
  std::shared_ptr<ConstantPool> constants;
  std::vector<std::unique_ptr<std::uint8_t[], FreeMemory>> globals;
};

ModuleTranslator::ModuleTranslator(const ptx::Module& source, const ProgramOptions& options, ProgramImage* image)
    : source_(source),
      options_(options),
      image_(image),
      context_(std::make_unique<llvm::LLVMContext>()),
      ir_(std::make_unique<llvm::Module>("program", *context_)),
      constants_(std::make_shared<ConstantPool>()),
      owner_(std::make_shared<Owner>()) {
  context_->setDiscardValueNames(true);
  owner_->constants = constants_;
  image_->code = owner_;
  image_->checks = options.checks;
  image_->lines = source.lines;
}

ModuleTranslator::~ModuleTranslator() = default;

void ModuleTranslator::run() {
  owner_->jit = std::make_unique<Jit>(options_.optimise);
  Jit& jit = *owner_->jit;
  jit.prepare(ir_.get());
  fused_multiply_add_ = options_.optimise && jit.has_fused_multiply_add();
  declare_functions();
  declare_variables();
  for (TranslatedFunction& function : functions_) scan(&function);
  for (const auto& [name, symbol] : symbols_) {
    if (symbol.kind == Symbol::Kind::function && taken_.contains(name)) address_taken_.push_back(symbol.function);
  }
  std::ranges::sort(address_taken_);
  for (TranslatedFunction& function : functions_) {
    if (function.calls_indirectly) {
      function.callees.insert(function.callees.end(), address_taken_.begin(), address_taken_.end());
    }
  }
  order_calls();
  lay_out_shared();
  initialise_globals();
  // Kernels do not run together, so their slots may be the same ones; those of device functions may not.
  for (const bool entries : {false, true}) {
    const std::uint32_t first_slot = slots_;
    for (TranslatedFunction& function : functions_) {
      if (function.source->is_declaration || function.source->is_entry != entries) continue;
      if (entries) slots_ = first_slot;
      FunctionTranslator(*this, function).run();
      function.slots = slots_;
    }
  }
  std::string fault;
  llvm::raw_string_ostream stream(fault);
  if (llvm::verifyModule(*ir_, &stream)) fail(ErrorCode::internal, "translation gave invalid code: {}", fault);
  jit.add(ir_.get());
  for (TranslatedFunction& function : functions_) {
    if (function.ir) function.stack_bytes = jit.frame_bytes(function.ir_name) + kCallBytes;
  }
  add_up_calls();
  describe_kernels();
}

// -- for FunctionTranslator -----------------------------------------------------------------------------------

llvm::FunctionCallee ModuleTranslator::callee(CalleeId id) {
  llvm::Function*& function = declared_[static_cast<std::size_t>(id)];
  if (!function) {
    const Callee& callee = emulator::callee(id);
    const auto type_of = [this](Callee::Kind kind) -> llvm::Type* {
      switch (kind) {
        case Callee::Kind::none: return llvm::Type::getVoidTy(*context_);
        case Callee::Kind::i32: return llvm::Type::getInt32Ty(*context_);
        case Callee::Kind::i64: return llvm::Type::getInt64Ty(*context_);
        case Callee::Kind::f32: return llvm::Type::getFloatTy(*context_);
        case Callee::Kind::f64: return llvm::Type::getDoubleTy(*context_);
        case Callee::Kind::pointer: return llvm::PointerType::get(*context_, 0);
      }
      return nullptr;
    };
    std::vector<llvm::Type*> arguments;
    for (std::size_t i = 0; i < callee.argument_count; ++i) arguments.push_back(type_of(callee.arguments[i]));
    function = llvm::Function::Create(llvm::FunctionType::get(type_of(callee.result), arguments, false),
                                      llvm::Function::ExternalLinkage, callee.name, *ir_);
    function->setDoesNotThrow();
  }
  return function;
}

std::uint32_t ModuleTranslator::add_site(const ptx::Instruction& instruction, std::size_t first_location) {
  Site site{instruction.at.line, instruction.at.column, -1};
  if (instruction.loc >= 0) site.location = static_cast<std::int32_t>(first_location) + instruction.loc;
  image_->sites.push_back(site);
  return static_cast<std::uint32_t>(image_->sites.size() - 1);
}

std::size_t ModuleTranslator::add_locations(const ptx::Function& function) {
  const std::size_t first = image_->locations.size();
  for (const ptx::Location& location : function.locations) {
    image_->locations.push_back({location.file, location.line, location.inlined_file, location.inlined_line});
  }
  return first;
}

const Symbol* ModuleTranslator::find_symbol(std::string_view name) const {
  const auto found = symbols_.find(name);
  return found == symbols_.end() ? nullptr : &found->second;
}

std::uint16_t ModuleTranslator::new_slot(const ptx::Instruction& instruction) {
  if (slots_ == 0xFFFF) fail_at(ErrorCode::unsupported, instruction, "more than 65,535 registers of wgmma");
  return static_cast<std::uint16_t>(slots_++);
}

// -- symbols ----------------------------------------------------------------------------------------------------

void ModuleTranslator::declare_functions() {
  for (const ptx::Function& source : source_.functions) {
    const auto [entry, added] = symbols_.try_emplace(source.name);
    Symbol& symbol = entry->second;
    if (added) {
      symbol.kind = Symbol::Kind::function;
      symbol.function = functions_.size();
      symbol.address = function_address(symbol.function);
      functions_.emplace_back();
      functions_.back().source = &source;
    } else if (!source.is_declaration) {
      functions_[symbol.function].source = &source;
    }
  }
  llvm::Type* const pointer = llvm::PointerType::get(*context_, 0);
  for (std::size_t i = 0; i < functions_.size(); ++i) {
    TranslatedFunction& function = functions_[i];
    if (function.source->is_declaration) continue;
    std::size_t arguments = 1;
    if (!function.source->is_entry) arguments += function.source->results.size() + function.source->parameters.size();
    const std::vector<llvm::Type*> types(arguments, pointer);
    function.ir_name = fmt::format("ptx_{}", i);
    function.ir = llvm::Function::Create(
        llvm::FunctionType::get(llvm::Type::getVoidTy(*context_), types, false),
        function.source->is_entry ? llvm::Function::ExternalLinkage : llvm::Function::InternalLinkage, function.ir_name,
        *ir_);
    function.ir->setDoesNotThrow();
    function.ir->addFnAttr("warn-stack-size", "0");
    if (!function.source->is_entry) function.ir->addFnAttr(llvm::Attribute::NoInline);
  }
}

void ModuleTranslator::declare_variables() {
  std::uint64_t total = 0;
  for (const ptx::Variable& variable : source_.variables) {
    const std::uint64_t bytes = variable_bytes(variable);
    Symbol symbol;
    if (variable.space == ptx::Space::shared) {
      symbol.kind = Symbol::Kind::shared;
      shared_variables_.emplace(variable.name, &variable);
    } else if (variable.is_extern) {
      continue;  // an error only if something names it
    } else {
      total += bytes;
      if (total > kMaxGlobalBytes) {
        fail(ErrorCode::unsupported, "ptx:{}: more than 1 GiB of global variables", variable.at.line);
      }
      GlobalVariable global;
      global.name = variable.name;
      global.bytes = bytes;
      global.alignment = std::max<std::uint64_t>(variable_alignment(variable), 16);
      global.constant = variable.space == ptx::Space::constant;
      global.initial = variable.initial;
      for (const auto& address : variable.addresses) {
        global.addresses.push_back({address.offset, address.symbol, address.addend, 0});
      }
      const std::align_val_t alignment{global.alignment};
      auto* const memory = static_cast<std::uint8_t*>(::operator new[](std::max<std::uint64_t>(bytes, 1), alignment));
      owner_->globals.emplace_back(memory, FreeMemory{global.alignment});
      symbol.kind = Symbol::Kind::global;
      symbol.address = reinterpret_cast<std::uintptr_t>(memory);
      image_->global_addresses.push_back(memory);
      image_->globals.push_back(std::move(global));
    }
    symbols_.emplace(variable.name, symbol);
  }
  for (const GlobalVariable& global : image_->globals) {
    for (const auto& address : global.addresses) {
      const Symbol* const symbol = find_symbol(address.symbol);
      if (symbol && symbol->kind == Symbol::Kind::function) taken_.insert(address.symbol);
      if (symbol && symbol->kind == Symbol::Kind::shared) shared_in_common_.insert(address.symbol);
    }
  }
}

void ModuleTranslator::initialise_globals() {
  for (GlobalVariable& global : image_->globals) {
    for (auto& address : global.addresses) {
      const Symbol* const symbol = find_symbol(address.symbol);
      if (!symbol) fail(ErrorCode::invalid_argument, "{}: unknown name {} in its value", global.name, address.symbol);
      address.value = symbol->address;
      if (symbol->kind == Symbol::Kind::shared) address.value = kSharedWindow + common_shared_.at(address.symbol);
      address.value += static_cast<std::uint64_t>(address.addend);
    }
  }
  image_->reset_globals();
}

// -- what functions name ------------------------------------------------------------------------------------------

void ModuleTranslator::scan(TranslatedFunction* function) {
  std::unordered_map<std::string_view, const ptx::Variable*> own;
  for (const ptx::Variable& variable : function->source->variables) {
    if (variable.space == ptx::Space::shared) own.emplace(variable.name, &variable);
  }
  const auto name = [&](const std::string& text) {
    const auto in_body = own.find(text);
    const auto in_module = shared_variables_.find(text);
    if (in_body != own.end() || in_module != shared_variables_.end()) {
      const ptx::Variable* const variable = in_body != own.end() ? in_body->second : in_module->second;
      if (std::ranges::find(function->shared, variable) == function->shared.end()) function->shared.push_back(variable);
      return;
    }
    const Symbol* const symbol = find_symbol(text);
    if (symbol && symbol->kind == Symbol::Kind::function) taken_.insert(text);
  };
  const auto visit = [&](const Operand& operand, const auto& self) -> void {
    if (operand.kind == OperandKind::symbol) name(operand.name);
    for (const Operand& item : operand.items) self(item, self);
  };
  for (const ptx::Statement& statement : function->source->body) {
    for (const Operand& operand : statement.instruction.operands) visit(operand, visit);
    if (!statement.call) continue;
    for (const Operand& operand : statement.call->arguments) visit(operand, visit);
    if (statement.call->callee.kind != OperandKind::symbol) {
      function->calls_indirectly = true;
    } else if (const Symbol* const symbol = find_symbol(statement.call->callee.name);
               symbol && symbol->kind == Symbol::Kind::function) {
      if (std::ranges::find(function->callees, symbol->function) == function->callees.end()) {
        function->callees.push_back(symbol->function);
      }
    }
  }
}

/// Callees before callers. Frames and register slots are counted for one activation of each function, so none may call
/// itself.
void ModuleTranslator::order_calls() {
  enum class State : std::uint8_t { unseen, open, done };
  std::vector<State> states(functions_.size(), State::unseen);
  struct Visit {
    std::size_t function, next_callee;
  };
  std::vector<Visit> open;
  for (std::size_t root = 0; root < functions_.size(); ++root) {
    if (states[root] == State::unseen) open.push_back({root, 0});
    while (!open.empty()) {
      Visit& visit = open.back();
      const std::vector<std::size_t>& callees = functions_[visit.function].callees;
      states[visit.function] = State::open;
      if (visit.next_callee == callees.size()) {
        states[visit.function] = State::done;
        call_order_.push_back(visit.function);
        open.pop_back();
        continue;
      }
      const std::size_t callee = callees[visit.next_callee++];
      if (states[callee] == State::open) {
        const ptx::Function& function = *functions_[callee].source;
        fail(ErrorCode::unsupported, "ptx:{}: {} may call itself, which is not supported", function.at.line,
             function.name);
      }
      if (states[callee] == State::unseen) open.push_back({callee, 0});
    }
  }
}

// -- shared memory ----------------------------------------------------------------------------------------------------

/// First what device functions name, which lies at the same place for all kernels; then each kernel's own; then dynamic
/// shared memory.
void ModuleTranslator::lay_out_shared() {
  std::uint64_t common_end = kSharedReserved;
  std::unordered_map<const ptx::Variable*, std::uint64_t> common;
  const auto place = [](const ptx::Variable& variable, std::uint64_t* end) {
    const std::uint64_t begin = align_up(*end, variable_alignment(variable));
    *end = begin + variable_bytes(variable);
    if (*end > kMaxSharedBytes) {
      fail(ErrorCode::unsupported, "ptx:{}: {}: more than 16 MiB of shared memory", variable.at.line, variable.name);
    }
    return begin;
  };
  const auto place_common = [&](const ptx::Variable& variable) {
    if (!variable.is_extern && !common.contains(&variable)) common.emplace(&variable, place(variable, &common_end));
  };
  bool dynamic_in_common = false;
  std::uint64_t dynamic_alignment = 16;
  for (const TranslatedFunction& function : functions_) {
    for (const ptx::Variable* variable : function.shared) {
      if (variable->is_extern) dynamic_alignment = std::max(dynamic_alignment, variable_alignment(*variable));
      if (function.source->is_entry) continue;
      place_common(*variable);
      dynamic_in_common |= variable->is_extern;
    }
  }
  for (const std::string_view name : shared_in_common_) {
    const ptx::Variable& variable = *shared_variables_.at(name);
    place_common(variable);
    dynamic_in_common |= variable.is_extern;
  }

  std::uint64_t dynamic_base = 0;
  for (TranslatedFunction& function : functions_) {
    if (!function.source->is_entry) continue;
    function.shared_end = common_end;
    for (const ptx::Variable* variable : function.shared) {
      if (variable->is_extern) {
        function.names_dynamic_shared = true;
      } else if (!common.contains(variable)) {
        function.own_shared[variable->name] = place(*variable, &function.shared_end);
      }
    }
    dynamic_base = std::max(dynamic_base, align_up(function.shared_end, dynamic_alignment));
  }
  for (TranslatedFunction& function : functions_) {
    const bool entry = function.source->is_entry;
    std::uint64_t base = dynamic_base;
    if (entry && !dynamic_in_common) base = align_up(function.shared_end, dynamic_alignment);
    if (entry && (function.names_dynamic_shared || dynamic_in_common)) function.shared_end = base;
    for (const ptx::Variable* variable : function.shared) {
      if (variable->is_extern) {
        function.own_shared[variable->name] = base;
      } else if (const auto placed = common.find(variable); placed != common.end()) {
        function.own_shared[variable->name] = placed->second;
      }
    }
  }
  for (const std::string_view name : shared_in_common_) {
    const ptx::Variable& variable = *shared_variables_.at(name);
    common_shared_[name] = variable.is_extern ? dynamic_base : common.at(&variable);
  }
}

// -- kernels
// --------------------------------------------------------------------------------------------------------------

/// Adds to each function what the deepest of its callees needs.
void ModuleTranslator::add_up_calls() {
  for (const std::size_t index : call_order_) {
    TranslatedFunction& function = functions_[index];
    std::uint64_t local = 0, stack = 0;
    for (const std::size_t callee : function.callees) {
      local = std::max(local, functions_[callee].local_bytes);
      stack = std::max(stack, functions_[callee].stack_bytes);
      function.uses_wgmma |= functions_[callee].uses_wgmma;
    }
    function.local_bytes += local;
    function.stack_bytes += stack;
  }
}

void ModuleTranslator::describe_kernels() {
  for (std::size_t i = 0; i < functions_.size(); ++i) {
    const TranslatedFunction& function = functions_[i];
    const ptx::Function& source = *function.source;
    if (!source.is_entry || source.is_declaration) continue;
    KernelCode kernel;
    kernel.info.name = source.name;
    kernel.parameter_bytes = lay_out_parameters(source, &kernel.info.parameter_offsets);
    for (const ptx::Variable& parameter : source.parameters) {
      kernel.info.parameter_bytes.push_back(variable_bytes(parameter));
    }
    kernel.info.static_shared_bytes = function.shared_end - kSharedReserved;
    const auto product = [](const std::array<int, 3>& sizes) { return sizes[0] * sizes[1] * sizes[2]; };
    const auto dim = [](const std::array<int, 3>& sizes) {
      return Dim3{static_cast<unsigned>(sizes[0]), static_cast<unsigned>(sizes[1]), static_cast<unsigned>(sizes[2])};
    };
    kernel.info.max_threads = product(source.max_threads);
    kernel.info.required_block = dim(source.required_threads);
    kernel.min_blocks_per_sm = source.min_blocks_per_sm;
    kernel.max_registers = source.max_registers;
    kernel.required_cluster = dim(source.required_cluster);
    kernel.entry = reinterpret_cast<void (*)(ThreadContext*)>(owner_->jit->find(function.ir_name));
    kernel.local_bytes = function.local_bytes;
    kernel.stack_bytes = function.stack_bytes + kRuntimeStackBytes;
    kernel.uses_wgmma = function.uses_wgmma;
    if (kernel.uses_wgmma) kernel.slots = static_cast<int>(align_up(function.slots, 8));
    image_->kernels.push_back(std::move(kernel));
  }
}

std::shared_ptr<const ProgramImage> translate(const ptx::Module& module, const ProgramOptions& options) {
  auto image = std::make_shared<ProgramImage>();
  ModuleTranslator(module, options, image.get()).run();
  return image;
}

}  // namespace attune::emulator
