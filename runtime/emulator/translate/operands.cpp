// FunctionTranslator: operands, registers and small pieces of IR that every family needs.
#include <bit>
#include <cmath>
#include <unordered_map>

#include "runtime/emulator/translate/function.h"

namespace attune::emulator {

using ptx::Operand;
using ptx::OperandKind;
using ptx::Type;

namespace {

const std::unordered_map<std::string_view, SpecialRegister> kSpecialRegisters = {
    {"%tid.x", SpecialRegister::tid_x},
    {"%tid.y", SpecialRegister::tid_y},
    {"%tid.z", SpecialRegister::tid_z},
    {"%ntid.x", SpecialRegister::ntid_x},
    {"%ntid.y", SpecialRegister::ntid_y},
    {"%ntid.z", SpecialRegister::ntid_z},
    {"%ctaid.x", SpecialRegister::ctaid_x},
    {"%ctaid.y", SpecialRegister::ctaid_y},
    {"%ctaid.z", SpecialRegister::ctaid_z},
    {"%nctaid.x", SpecialRegister::nctaid_x},
    {"%nctaid.y", SpecialRegister::nctaid_y},
    {"%nctaid.z", SpecialRegister::nctaid_z},
    {"%laneid", SpecialRegister::laneid},
    {"%warpid", SpecialRegister::warpid},
    {"%nwarpid", SpecialRegister::nwarpid},
    {"%smid", SpecialRegister::smid},
    {"%nsmid", SpecialRegister::nsmid},
    {"%gridid", SpecialRegister::gridid},
    {"%lanemask_eq", SpecialRegister::lanemask_eq},
    {"%lanemask_le", SpecialRegister::lanemask_le},
    {"%lanemask_lt", SpecialRegister::lanemask_lt},
    {"%lanemask_ge", SpecialRegister::lanemask_ge},
    {"%lanemask_gt", SpecialRegister::lanemask_gt},
    {"%clock", SpecialRegister::clock},
    {"%clock64", SpecialRegister::clock64},
    {"%clock_hi", SpecialRegister::clock_hi},
    {"%globaltimer", SpecialRegister::globaltimer},
    {"%globaltimer_lo", SpecialRegister::globaltimer_lo},
    {"%globaltimer_hi", SpecialRegister::globaltimer_hi},
    {"%clusterid.x", SpecialRegister::clusterid_x},
    {"%clusterid.y", SpecialRegister::clusterid_y},
    {"%clusterid.z", SpecialRegister::clusterid_z},
    {"%nclusterid.x", SpecialRegister::nclusterid_x},
    {"%nclusterid.y", SpecialRegister::nclusterid_y},
    {"%nclusterid.z", SpecialRegister::nclusterid_z},
    {"%cluster_ctaid.x", SpecialRegister::cluster_ctaid_x},
    {"%cluster_ctaid.y", SpecialRegister::cluster_ctaid_y},
    {"%cluster_ctaid.z", SpecialRegister::cluster_ctaid_z},
    {"%cluster_nctaid.x", SpecialRegister::cluster_nctaid_x},
    {"%cluster_nctaid.y", SpecialRegister::cluster_nctaid_y},
    {"%cluster_nctaid.z", SpecialRegister::cluster_nctaid_z},
    {"%cluster_ctarank", SpecialRegister::cluster_ctarank},
    {"%cluster_nctarank", SpecialRegister::cluster_nctarank},
    {"%is_explicit_cluster", SpecialRegister::is_explicit_cluster},
    {"%dynamic_smem_size", SpecialRegister::dynamic_smem_size},
    {"%total_smem_size", SpecialRegister::total_smem_size},
    {"%aggr_smem_size", SpecialRegister::aggr_smem_size},
    {"%reserved_smem_offset_begin", SpecialRegister::reserved_smem_offset_begin},
    {"%reserved_smem_offset_end", SpecialRegister::reserved_smem_offset_end},
    {"%current_graph_exec", SpecialRegister::current_graph_exec},
};

}  // namespace

// -- the instruction ------------------------------------------------------------------------------------------

void FunctionTranslator::unsupported(std::string_view what) const {
  fail_at(ErrorCode::unsupported, *instruction_, what);
}
void FunctionTranslator::invalid(std::string_view what) const {
  fail_at(ErrorCode::invalid_argument, *instruction_, what);
}

const Operand& FunctionTranslator::operand(std::size_t index) const {
  if (index >= instruction_->operands.size()) invalid("an operand is missing");
  return instruction_->operands[index];
}

void FunctionTranslator::expect_operands(std::size_t least, std::size_t most) const {
  const std::size_t count = instruction_->operands.size();
  if (count < least) invalid("operands are missing");
  if (count > most) invalid("too many operands");
}

llvm::Value* FunctionTranslator::call(CalleeId id, std::initializer_list<Value*> arguments) {
  return builder_.CreateCall(module_.callee(id), llvm::ArrayRef<Value*>(arguments));
}

llvm::Value* FunctionTranslator::pointer_to(const void* address) {
  return builder_.CreateIntToPtr(i64(reinterpret_cast<std::uintptr_t>(address)), builder_.getPtrTy());
}

llvm::Value* FunctionTranslator::at_offset(Value* pointer, std::uint64_t offset) {
  return offset == 0 ? pointer : builder_.CreateConstGEP1_64(builder_.getInt8Ty(), pointer, offset);
}

// -- types ------------------------------------------------------------------------------------------------------

llvm::Type* FunctionTranslator::type_of(Type type) {
  if (type == Type::f32) return builder_.getFloatTy();
  if (type == Type::f64) return builder_.getDoubleTy();
  return builder_.getIntNTy(static_cast<unsigned>(bit_width(type)));
}

llvm::Value* FunctionTranslator::cast(Value* value, llvm::Type* type) {
  return value->getType() == type ? value : builder_.CreateBitCast(value, type);
}

llvm::Value* FunctionTranslator::as_bits(Value* value) {
  llvm::Type* const type = value->getType();
  if (type->isFloatTy()) return builder_.CreateBitCast(value, builder_.getInt32Ty());
  if (type->isDoubleTy()) return builder_.CreateBitCast(value, builder_.getInt64Ty());
  return value;
}

llvm::Value* FunctionTranslator::choose(Value* condition, Value* a, Value* b) {
  if (const auto* known = llvm::dyn_cast<llvm::ConstantInt>(condition)) return known->isZero() ? b : a;
  return builder_.CreateSelect(condition, a, b);
}

llvm::Value* FunctionTranslator::widen(Value* value, llvm::Type* type, bool sign) {
  return sign ? builder_.CreateSExt(value, type) : builder_.CreateZExt(value, type);
}

llvm::Type* FunctionTranslator::memory_type(Type type) {
  return type == Type::pred ? builder_.getInt8Ty() : type_of(type);
}
llvm::Value* FunctionTranslator::to_memory(Value* value) {
  return value->getType()->isIntegerTy(1) ? builder_.CreateZExt(value, builder_.getInt8Ty()) : value;
}
llvm::Value* FunctionTranslator::from_memory(Value* value, Type type) {
  return type == Type::pred ? builder_.CreateTrunc(value, builder_.getInt1Ty()) : value;
}

Type FunctionTranslator::register_type(const Operand& reg) const {
  if (reg.kind != OperandKind::reg) invalid("a register is needed");
  return registers_[static_cast<std::size_t>(need_register(reg.name))].type;
}

// -- registers ----------------------------------------------------------------------------------------------------

void FunctionTranslator::give_memory(Register* reg) {
  if (reg->memory) return;
  const llvm::IRBuilderBase::InsertPointGuard guard(builder_);
  builder_.SetInsertPoint(entry_, entry_->begin());
  reg->memory = builder_.CreateAlloca(memory_type(reg->type));
}

llvm::Value* FunctionTranslator::read_register(std::int32_t index, llvm::Type* type) {
  Register& reg = registers_[static_cast<std::size_t>(index)];
  if (reg.home == Register::Home::slot) {
    return builder_.CreateAlignedLoad(type, at_offset(slots_, 4 * std::uint64_t{reg.slot}), llvm::Align(4));
  }
  if (reg.epoch == epoch_) return cast(reg.current, type);
  if (reg.home != Register::Home::memory) return llvm::Constant::getNullValue(type);  // nothing writes it
  give_memory(&reg);
  llvm::Type* const stored = type->isIntegerTy(1) ? builder_.getInt8Ty() : type;
  Value* value = builder_.CreateLoad(stored, reg.memory);
  if (stored != type) value = builder_.CreateTrunc(value, type);
  if (!guarded_) {
    reg.current = value;
    reg.epoch = epoch_;
  }
  return value;
}

void FunctionTranslator::write_register(std::int32_t index, Value* value) {
  Register& reg = registers_[static_cast<std::size_t>(index)];
  if (select_) {
    value = choose(select_, value, read_register(index, value->getType()));
  }
  if (reg.home == Register::Home::slot) {
    builder_.CreateAlignedStore(value, at_offset(slots_, 4 * std::uint64_t{reg.slot}), llvm::Align(4));
    return;
  }
  if (reg.home == Register::Home::memory) {
    give_memory(&reg);
    builder_.CreateStore(to_memory(value), reg.memory);
  }
  if (guarded_) guarded_writes_.push_back({index, reg.current, value});
  if (!guarded_ || reg.home == Register::Home::memory) {
    reg.current = value;
    reg.epoch = epoch_;
  }
}

llvm::Value* FunctionTranslator::read_carry() {
  return carry_ ? builder_.CreateTrunc(builder_.CreateLoad(builder_.getInt8Ty(), carry_), builder_.getInt1Ty())
                : builder_.getFalse();
}

void FunctionTranslator::write_carry(Value* carry) {
  if (!carry_) carry_ = frame_memory(1, 1);
  builder_.CreateStore(to_memory(carry), carry_);
}

// -- operands -------------------------------------------------------------------------------------------------------

llvm::Value* FunctionTranslator::read(const Operand& from, Type type, bool allow_wider) {
  if (from.minus) unsupported("a negated register");
  switch (from.kind) {
    case OperandKind::reg: {
      const std::int32_t index = need_register(from.name);
      const Type declared = registers_[static_cast<std::size_t>(index)].type;
      const int have = bit_width(declared), need = bit_width(type);
      if ((declared == Type::pred) != (type == Type::pred)) invalid("predicates and numbers do not mix");
      if (have == need) {
        Value* const value = read_register(index, type_of(type));
        return from.negated ? builder_.CreateNot(value) : value;
      }
      if (have < need || !allow_wider) {
        invalid(fmt::format("{} has {} bits where {} are needed", from.name, have, need));
      }
      Value* const bits = read_register(index, builder_.getIntNTy(static_cast<unsigned>(have)));
      return cast(builder_.CreateTrunc(bits, builder_.getIntNTy(static_cast<unsigned>(need))), type_of(type));
    }
    case OperandKind::special: return special_register(from, type);
    case OperandKind::immediate: return immediate(from, type);
    case OperandKind::symbol: return symbol_address(from, type);
    default: invalid("a register or a number is needed");
  }
}

llvm::Value* FunctionTranslator::read_predicate(const Operand& from) { return read(from, Type::pred); }

llvm::Value* FunctionTranslator::immediate(const Operand& from, Type type) {
  const auto width = static_cast<unsigned>(bit_width(type));
  if (type == Type::pred) return builder_.getInt1(from.bits != 0);
  std::uint64_t bits = from.bits;
  if (from.is_float) {
    if (type == Type::f32 && from.float_bits == 64) {
      bits = std::bit_cast<std::uint32_t>(static_cast<float>(std::bit_cast<double>(bits)));
    } else if (type == Type::f64 && from.float_bits == 32) {
      bits = std::bit_cast<std::uint64_t>(double{std::bit_cast<float>(static_cast<std::uint32_t>(bits))});
    } else if (static_cast<int>(width) < from.float_bits) {
      invalid("the literal is too wide");
    }
  } else if (is_float(type)) {
    invalid("a floating-point literal is needed");
  }
  const llvm::APInt value(width, bits, !from.is_float);
  return cast(llvm::ConstantInt::get(module_.context(), value), type_of(type));
}

llvm::Value* FunctionTranslator::special_register(const Operand& from, Type type) {
  const auto found = kSpecialRegisters.find(from.name);
  if (found == kSpecialRegisters.end()) unsupported("unknown special register " + from.name);
  Value* const value = call(CalleeId::att_special, {context_, enumerator(found->second)});
  if (type == Type::pred) return builder_.CreateICmpNE(value, i64(0));
  const auto width = static_cast<unsigned>(bit_width(type));
  if (width > 64) invalid("special registers have at most 64 bits");
  return cast(builder_.CreateTrunc(value, builder_.getIntNTy(width)), type_of(type));
}

/// The address that a name stands for: in its own space, which for global variables and kernel parameters is generic.
llvm::Value* FunctionTranslator::symbol_address(const Operand& from, Type type) {
  const int width = bit_width(type);
  if (width != 32 && width != 64) invalid("an address needs 32 or 64 bits");
  const auto addend = static_cast<std::uint64_t>(from.addend);
  Value* result = nullptr;
  if (const auto parameter = parameter_offsets_.find(from.name); parameter != parameter_offsets_.end()) {
    result = builder_.CreatePtrToInt(at_offset(parameters_, parameter->second + addend), builder_.getInt64Ty());
  } else if (const auto local = locals_.find(from.name); local != locals_.end()) {
    result = builder_.CreateAdd(local_base_, i64(local->second + addend));
  } else if (buffers_.contains(from.name)) {
    unsupported("the address of a function's parameter");
  } else if (const auto shared = function_.own_shared.find(from.name); shared != function_.own_shared.end()) {
    result = i64(static_cast<std::uint32_t>(shared->second + addend));
  } else if (const Symbol* symbol = module_.find_symbol(from.name)) {
    result = i64(symbol->address + addend);
  } else {
    invalid("unknown name " + from.name);
  }
  return cast(builder_.CreateTrunc(result, builder_.getIntNTy(static_cast<unsigned>(width))), type_of(type));
}

void FunctionTranslator::write(const Operand& to, Value* value) {
  if (to.kind == OperandKind::sink) return;
  if (to.kind != OperandKind::reg) invalid("the result needs a register");
  const std::int32_t index = need_register(to.name);
  const int have = bit_width(registers_[static_cast<std::size_t>(index)].type);
  const auto width = static_cast<int>(value->getType()->getPrimitiveSizeInBits().getFixedValue());
  if (have != width) invalid(fmt::format("{} has {} bits, the result {}", to.name, have, width));
  write_register(index, value);
}

void FunctionTranslator::write_extended(const Operand& to, Value* value, Type type) {
  if (to.kind == OperandKind::sink) return;
  const int have = bit_width(register_type(to));
  if (have > bit_width(type) && bit_width(type) > 1) {
    value = widen(as_bits(value), builder_.getIntNTy(static_cast<unsigned>(have)), is_signed(type));
  }
  write(to, value);
}

/// {a, b, ...} as one number, the first element lowest.
llvm::Value* FunctionTranslator::pack(const Operand& from, int total_bits) {
  const auto count = static_cast<int>(from.items.size());
  if (count == 0 || total_bits % count != 0) invalid("the vector does not fill the register");
  const int width = total_bits / count;
  if (width != 8 && width != 16 && width != 32 && width != 64) invalid("the vector does not fill the register");
  const Type element = width == 8 ? Type::b8 : width == 16 ? Type::b16 : width == 32 ? Type::b32 : Type::b64;
  llvm::Type* const whole = builder_.getIntNTy(static_cast<unsigned>(total_bits));
  Value* result = nullptr;
  for (int i = 0; i < count; ++i) {
    Value* part = builder_.CreateZExt(read(from.items[static_cast<std::size_t>(i)], element, width == 8), whole);
    if (i != 0) part = builder_.CreateShl(part, static_cast<std::uint64_t>(i * width));
    result = result ? builder_.CreateOr(result, part) : part;
  }
  return result;
}

void FunctionTranslator::unpack(const Operand& to, Value* value) {
  const auto total_bits = static_cast<int>(value->getType()->getIntegerBitWidth());
  const auto count = static_cast<int>(to.items.size());
  if (count == 0 || total_bits % count != 0) invalid("the vector does not divide the register");
  const int width = total_bits / count;
  std::vector<Value*> parts;
  for (int i = 0; i < count; ++i) {
    Value* const shifted = i == 0 ? value : builder_.CreateLShr(value, static_cast<std::uint64_t>(i * width));
    parts.push_back(builder_.CreateTrunc(shifted, builder_.getIntNTy(static_cast<unsigned>(width))));
  }
  for (int i = 0; i < count; ++i) {
    const Operand& item = to.items[static_cast<std::size_t>(i)];
    if (width == 8) {
      write_extended(item, parts[static_cast<std::size_t>(i)], Type::u8);
    } else {
      write(item, parts[static_cast<std::size_t>(i)]);
    }
  }
}

llvm::Value* FunctionTranslator::address(const Operand& where, AddressSpace space) {
  if (where.kind != OperandKind::address || where.items.empty()) invalid("an address in brackets is needed");
  const Operand& base = where.items[0];
  if (base.kind == OperandKind::symbol) {
    const bool in_shared =
        function_.own_shared.contains(base.name) ||
        (module_.find_symbol(base.name) && module_.find_symbol(base.name)->kind == Symbol::Kind::shared);
    const bool needs_shared = space == AddressSpace::shared || space == AddressSpace::shared_cluster;
    const bool in_local = locals_.contains(base.name);
    if (in_shared != needs_shared || in_local != (space == AddressSpace::local)) {
      invalid(base.name + " lies in another state space");
    }
    Operand symbol = base;
    symbol.addend += where.addend;
    return symbol_address(symbol, Type::u64);
  }
  if (base.kind == OperandKind::immediate) return i64(base.bits + static_cast<std::uint64_t>(where.addend));
  const int width = bit_width(register_type(base));
  if (width != 32 && width != 64) invalid("an address needs 32 or 64 bits");
  Value* result = read(base, width == 32 ? Type::u32 : Type::u64);
  if (where.addend != 0) {
    result = builder_.CreateAdd(result, llvm::ConstantInt::getSigned(result->getType(), where.addend));
  }
  return builder_.CreateZExt(result, builder_.getInt64Ty());
}

}  // namespace attune::emulator
