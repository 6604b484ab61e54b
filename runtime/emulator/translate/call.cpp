// FunctionTranslator: calls. Arguments and results lie in buffers that the caller owns: call(context, results...,
// arguments...).
#include "runtime/emulator/translate/function.h"

namespace attune::emulator {

using ptx::Operand;
using ptx::OperandKind;
using ptx::Type;

/// Where the buffer of an argument or a result lies; one is made for a register or a number.
llvm::Value* FunctionTranslator::call_buffer(const Operand& from, const ptx::Variable& parameter) {
  const std::uint64_t bytes = variable_bytes(parameter);
  if (from.kind == OperandKind::symbol) {
    const auto buffer = buffers_.find(from.name);
    if (buffer == buffers_.end()) invalid(from.name + " is no .param variable");
    if (buffer->second.bytes < bytes) invalid(from.name + " is smaller than the parameter");
    return buffer->second.pointer;
  }
  if (parameter.is_array || parameter.vector != 1) invalid("the parameter needs a .param variable");
  return frame_memory(bytes, 16);
}

std::vector<llvm::Value*> FunctionTranslator::call_arguments(const ptx::Call& call, const ptx::Function& target) {
  if (call.results.size() != target.results.size() || call.arguments.size() != target.parameters.size()) {
    invalid("another number of parameters");
  }
  std::vector<Value*> arguments = {context_};
  for (std::size_t i = 0; i < call.results.size(); ++i) {
    arguments.push_back(call_buffer(call.results[i], target.results[i]));
  }
  for (std::size_t i = 0; i < call.arguments.size(); ++i) {
    const Operand& from = call.arguments[i];
    Value* const buffer = call_buffer(from, target.parameters[i]);
    if (from.kind != OperandKind::symbol) {
      builder_.CreateAlignedStore(to_memory(read(from, target.parameters[i].type)), buffer, llvm::Align(1));
    }
    arguments.push_back(buffer);
  }
  return arguments;
}

void FunctionTranslator::take_results(const ptx::Call& call, const ptx::Function& target,
                                      const std::vector<Value*>& arguments) {
  for (std::size_t i = 0; i < call.results.size(); ++i) {
    if (call.results[i].kind != OperandKind::reg) continue;
    const Type type = target.results[i].type;
    Value* const value = builder_.CreateAlignedLoad(memory_type(type), arguments[i + 1], llvm::Align(1));
    write(call.results[i], from_memory(value, type));
  }
}

void FunctionTranslator::translate_call(const ptx::Call& call) {
  modifiers_->take("uni");
  modifiers_->finish();
  if (call.callee.kind == OperandKind::reg) return call_indirect(call);
  const Symbol* const symbol = module_.find_symbol(call.callee.name);
  if (!symbol || symbol->kind != Symbol::Kind::function) invalid(call.callee.name + " is no function");
  const TranslatedFunction& target = module_.functions()[symbol->function];
  const std::vector<Value*> arguments = call_arguments(call, *target.source);
  if (target.source->is_declaration) {
    call_system(target.source->name, *target.source, arguments);
  } else {
    if (target.source->is_entry) unsupported("a kernel cannot be called");
    builder_.CreateCall(target.ir, arguments);
  }
  take_results(call, *target.source, arguments);
}

/// Through an address: one of the functions whose address was taken and that have such parameters. Anything else traps.
void FunctionTranslator::call_indirect(const ptx::Call& call) {
  const ptx::Function* signature = nullptr;
  std::vector<Value*> arguments;
  Value* const address = read(call.callee, Type::u64);
  llvm::BasicBlock* const after = new_block();
  for (const std::size_t index : module_.address_taken()) {
    const TranslatedFunction& target = module_.functions()[index];
    if (target.source->is_declaration || target.source->is_entry ||
        target.source->results.size() != call.results.size() ||
        target.source->parameters.size() != call.arguments.size()) {
      continue;
    }
    if (!signature) {
      signature = target.source;
      arguments = call_arguments(call, *signature);
    }
    const auto same_sizes = [](const std::vector<ptx::Variable>& a, const std::vector<ptx::Variable>& b) {
      return std::ranges::equal(a, b, {}, variable_bytes, variable_bytes);
    };
    if (!same_sizes(signature->results, target.source->results) ||
        !same_sizes(signature->parameters, target.source->parameters)) {
      continue;
    }
    llvm::BasicBlock* const here = new_block();
    llvm::BasicBlock* const next = new_block();
    builder_.CreateCondBr(builder_.CreateICmpEQ(address, i64(function_address(index))), here, next);
    builder_.SetInsertPoint(here);
    builder_.CreateCall(target.ir, arguments);
    builder_.CreateBr(after);
    builder_.SetInsertPoint(next);
  }
  this->call(CalleeId::att_trap, {context_, site()});
  builder_.CreateUnreachable();
  builder_.SetInsertPoint(after);
  if (signature) take_results(call, *signature, arguments);
}

/// What CUDA's device runtime provides.
void FunctionTranslator::call_system(const std::string& name, const ptx::Function& target,
                                     const std::vector<Value*>& arguments) {
  const auto argument = [&](std::size_t index, unsigned bits) {
    const std::size_t position = 1 + target.results.size() + index;
    if (variable_bytes(target.parameters[index]) != bits / 8) invalid("another type of parameter");
    return builder_.CreateAlignedLoad(builder_.getIntNTy(bits), arguments[position], llvm::Align(1));
  };
  if (name == "vprintf" && target.results.size() == 1 && target.parameters.size() == 2 &&
      variable_bytes(target.results[0]) == 4) {
    Value* const count = call(CalleeId::att_vprintf, {context_, argument(0, 64), argument(1, 64), site()});
    builder_.CreateAlignedStore(count, arguments[1], llvm::Align(1));
  } else if (name == "__assertfail" && target.results.empty() && target.parameters.size() == 5) {
    call(CalleeId::att_assert_fail,
         {context_, argument(0, 64), argument(1, 64), argument(2, 32), argument(3, 64), site()});
  } else {
    unsupported("unknown function " + name);
  }
}

}  // namespace attune::emulator
