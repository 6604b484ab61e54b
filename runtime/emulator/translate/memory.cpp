// FunctionTranslator: loads, stores, atomics, fences, hints.
#include "runtime/emulator/translate/function.h"

namespace attune::emulator {

using ptx::Operand;
using ptx::OperandKind;
using ptx::Type;

struct FunctionTranslator::MemoryAccess {
  AccessKind kind{};
  AddressSpace space{};
  bool parameter = false;  ///< .param: plain memory of the kernel's launch or of a call
  Semantics semantics = Semantics::weak;
  Scope scope = Scope::gpu;
  Type type{};
  unsigned vector = 1;

  unsigned element_bytes() const { return static_cast<unsigned>(bit_width(type)) / 8; }
  unsigned bytes() const { return vector * element_bytes(); }
};

FunctionTranslator::MemoryAccess FunctionTranslator::take_access(AccessKind kind) {
  MemoryAccess access;
  access.kind = kind;
  const bool mmio = modifiers_->take("mmio");
  const std::optional<Semantics> semantics =
      modifiers_->take_one_of<Semantics>({{"weak", Semantics::weak},
                                          {"volatile", Semantics::is_volatile},
                                          {"relaxed", Semantics::relaxed},
                                          {kind == AccessKind::read ? "acquire" : "release",
                                           kind == AccessKind::read ? Semantics::acquire : Semantics::release}});
  access.semantics = mmio ? Semantics::mmio : semantics.value_or(Semantics::weak);
  if (mmio && semantics != Semantics::relaxed) unsupported(".mmio needs .relaxed");
  if (const std::optional<Scope> scope = modifiers_->take_scope()) {
    if (!semantics || semantics == Semantics::weak || semantics == Semantics::is_volatile) {
      unsupported("a scope without .relaxed, .acquire or .release");
    }
    access.scope = *scope;
  } else if (semantics == Semantics::is_volatile) {
    access.scope = Scope::sys;
  }
  access.parameter = modifiers_->take("param") || modifiers_->take("param::entry") || modifiers_->take("param::func");
  access.space = access.parameter ? AddressSpace::generic : modifiers_->take_space();
  const bool policy = modifiers_->take_cache_hints();
  if (kind == AccessKind::read && modifiers_->take("nc") && access.space != AddressSpace::global) {
    unsupported(".nc goes with .global");
  }
  access.vector = modifiers_->take_one_of<unsigned>({{"v2", 2}, {"v4", 4}, {"v8", 8}}).value_or(1);
  access.type = modifiers_->need_type();
  modifiers_->finish();
  if (access.bytes() == 0 || access.bytes() > 32 || access.type == Type::pred) unsupported("unknown type");
  expect_operands(2, policy ? 3 : 2);
  return access;
}

std::optional<std::uint64_t> FunctionTranslator::known_parameter_offset(const Operand& base) const {
  if (base.kind == OperandKind::symbol) {
    const auto found = parameter_offsets_.find(base.name);
    if (found != parameter_offsets_.end()) return found->second + static_cast<std::uint64_t>(base.addend);
  } else if (base.kind == OperandKind::reg) {
    const auto found = parameter_addresses_.find(need_register(base.name));
    if (found != parameter_addresses_.end()) return found->second;
  }
  return std::nullopt;
}

/// Where .param memory lies that is known now; null: behind a register that may hold any address.
llvm::Value* FunctionTranslator::parameter_pointer(const Operand& where, std::uint64_t bytes) {
  if (where.kind != OperandKind::address || where.items.empty()) invalid("an address in brackets is needed");
  const Operand& base = where.items[0];
  if (const std::optional<std::uint64_t> offset = known_parameter_offset(base)) {
    const std::uint64_t begin = *offset + static_cast<std::uint64_t>(where.addend);
    if (begin > parameter_bytes_ || parameter_bytes_ - begin < bytes) invalid("beyond the parameters");
    return at_offset(parameters_, begin);
  }
  if (base.kind != OperandKind::symbol) return nullptr;
  const auto buffer = buffers_.find(base.name);
  if (buffer == buffers_.end()) invalid(base.name + " is no parameter");
  const std::uint64_t begin = static_cast<std::uint64_t>(base.addend) + static_cast<std::uint64_t>(where.addend);
  if (begin > buffer->second.bytes || buffer->second.bytes - begin < bytes) invalid("beyond the parameter");
  return at_offset(buffer->second.pointer, begin);
}

llvm::Value* FunctionTranslator::access(const MemoryAccess& access, const Operand& where) {
  if (access.parameter) {
    if (Value* const pointer = parameter_pointer(where, access.bytes())) return pointer;
    if (access.kind == AccessKind::write) unsupported("a store to a parameter behind a register");
  }
  const std::uint32_t word =
      access_word(access.kind, access.space, access.semantics, access.scope, access.bytes(), access.bytes()) |
      (late_loads_.contains(statement_) ? kMayBeLate : 0);
  return call(CalleeId::att_access, {context_, address(where, access.space), i32(word), site()});
}

void FunctionTranslator::translate_ld() {
  const MemoryAccess memory = take_access(AccessKind::read);
  Value* const pointer = access(memory, operand(1));
  const auto load = [&](unsigned index) {
    return builder_.CreateAlignedLoad(
        type_of(memory.type), at_offset(pointer, std::uint64_t{index} * memory.element_bytes()), llvm::Align(1));
  };
  const Operand& to = operand(0);
  if (to.kind != OperandKind::vector) {
    if (memory.vector != 1) invalid("the result needs a vector");
    write_extended(to, load(0), memory.type);
    return;
  }
  if (to.items.size() != memory.vector) invalid("the vector has another number of elements");
  std::vector<Value*> values;
  for (unsigned i = 0; i < memory.vector; ++i) {
    values.push_back(to.items[i].kind == OperandKind::sink ? nullptr : load(i));
  }
  for (unsigned i = 0; i < memory.vector; ++i) {
    if (values[i]) write_extended(to.items[i], values[i], memory.type);
  }
}

void FunctionTranslator::translate_st() {
  const MemoryAccess memory = take_access(AccessKind::write);
  if (memory.space == AddressSpace::constant) unsupported("constants cannot be written");
  const Operand& from = operand(1);
  std::vector<const Operand*> elements;
  if (from.kind == OperandKind::vector) {
    for (const Operand& item : from.items) elements.push_back(&item);
  } else {
    elements.push_back(&from);
  }
  if (elements.size() != memory.vector) invalid("the vector has another number of elements");
  std::vector<Value*> values;
  for (const Operand* element : elements) values.push_back(read(*element, memory.type, true));
  Value* const pointer = access(memory, operand(0));
  for (unsigned i = 0; i < memory.vector; ++i) {
    builder_.CreateAlignedStore(values[i], at_offset(pointer, std::uint64_t{i} * memory.element_bytes()),
                                llvm::Align(1));
  }
}

// -- atomics --------------------------------------------------------------------------------------------------------

namespace {

std::optional<AtomicType> atomic_type(Type type) {
  switch (type) {
    case Type::u32: return AtomicType::u32;
    case Type::s32: return AtomicType::s32;
    case Type::u64: return AtomicType::u64;
    case Type::s64: return AtomicType::s64;
    case Type::b16: return AtomicType::b16;
    case Type::b32: return AtomicType::b32;
    case Type::b64: return AtomicType::b64;
    case Type::b128: return AtomicType::b128;
    case Type::f32: return AtomicType::f32;
    case Type::f64: return AtomicType::f64;
    case Type::f16: return AtomicType::f16;
    case Type::f16x2: return AtomicType::f16x2;
    case Type::bf16: return AtomicType::bf16;
    case Type::bf16x2: return AtomicType::bf16x2;
    default: return std::nullopt;
  }
}

bool is_known(AtomicOp op, Type type, unsigned vector) {
  const bool integer = type == Type::u32 || type == Type::s32 || type == Type::u64 || type == Type::s64;
  const bool bits = type == Type::b32 || type == Type::b64;
  if (vector != 1 && !is_half(type) && !(type == Type::f32 && op == AtomicOp::add)) return false;
  switch (op) {
    case AtomicOp::add: return integer || is_float(type) || is_half(type);
    case AtomicOp::min:
    case AtomicOp::max: return integer || (vector != 1 && is_half(type));
    case AtomicOp::inc:
    case AtomicOp::dec: return type == Type::u32;
    case AtomicOp::cas: return bits || integer || type == Type::b16 || type == Type::b128;
    case AtomicOp::exch: return bits || integer || is_float(type) || type == Type::b128;
    default: return bits || integer;
  }
}

}  // namespace

/// atom and red.
void FunctionTranslator::translate_atom() {
  const bool result = instruction_->opcode == "atom";
  AtomicInfo info{};
  info.semantics = modifiers_
                       ->take_one_of<Semantics>({{"relaxed", Semantics::relaxed},
                                                 {"acquire", Semantics::acquire},
                                                 {"release", Semantics::release},
                                                 {"acq_rel", Semantics::acq_rel}})
                       .value_or(Semantics::relaxed);
  info.scope = modifiers_->take_scope().value_or(Scope::gpu);
  info.space = modifiers_->take_space();
  const bool policy = modifiers_->take_cache_hints();
  info.op = modifiers_->need_one_of<AtomicOp>({{"add", AtomicOp::add},
                                               {"min", AtomicOp::min},
                                               {"max", AtomicOp::max},
                                               {"inc", AtomicOp::inc},
                                               {"dec", AtomicOp::dec},
                                               {"cas", AtomicOp::cas},
                                               {"exch", AtomicOp::exch},
                                               {"and", AtomicOp::bit_and},
                                               {"or", AtomicOp::bit_or},
                                               {"xor", AtomicOp::bit_xor}});
  info.no_ftz = modifiers_->take("noftz");
  info.vector = modifiers_->take_one_of<std::uint8_t>({{"v2", 2}, {"v4", 4}, {"v8", 8}}).value_or(1);
  const Type type = modifiers_->need_type();
  modifiers_->finish();
  const std::optional<AtomicType> known = atomic_type(type);
  const bool swaps = info.op == AtomicOp::cas || info.op == AtomicOp::exch;
  if (!known || !is_known(info.op, type, info.vector) || (swaps && !result)) unsupported("unknown operation");
  if (is_half(type) && !info.no_ftz) unsupported(".noftz is missing");
  if (info.space == AddressSpace::local || info.space == AddressSpace::constant) unsupported("unknown state space");
  info.type = *known;

  const std::size_t first = result ? 1 : 0;
  const std::size_t count = info.op == AtomicOp::cas ? 2 : 1;
  expect_operands(first + 1 + count, first + 1 + count + (policy ? 1 : 0));
  const AtomicInfo* const kept = module_.constants().keep(info);
  llvm::Type* const wide = builder_.getInt64Ty();
  const auto width = static_cast<unsigned>(bit_width(type));
  if (info.vector == 1 && width <= 64) {
    Value* const value = builder_.CreateZExt(as_bits(read(operand(first + 1), type)), wide);
    Value* const second = count == 2 ? builder_.CreateZExt(as_bits(read(operand(first + 2), type)), wide) : i64(0);
    Value* const where = address(operand(first), info.space);
    Value* const old = call(CalleeId::att_atomic, {context_, pointer_to(kept), where, value, second, site()});
    if (result) write(operand(0), cast(builder_.CreateTrunc(old, builder_.getIntNTy(width)), type_of(type)));
    return;
  }
  const std::uint64_t element = width / 8, bytes = element * info.vector;
  Value* const operands = operand_array(2 * bytes);
  for (std::size_t i = 0; i < count; ++i) {
    const Operand& from = operand(first + 1 + i);
    if (info.vector != 1 && (from.kind != OperandKind::vector || from.items.size() != info.vector)) {
      invalid("the operand needs a vector");
    }
    for (std::size_t j = 0; j < info.vector; ++j) {
      Value* const value = read(info.vector == 1 ? from : from.items[j], type);
      builder_.CreateAlignedStore(value, at_offset(operands, i * bytes + j * element), llvm::Align(1));
    }
  }
  Value* const where = address(operand(first), info.space);
  Value* const old = result ? operands : llvm::ConstantPointerNull::get(builder_.getPtrTy());
  call(CalleeId::att_atomic_wide, {context_, pointer_to(kept), where, operands, old, site()});
  if (!result || operand(0).kind == OperandKind::sink) return;
  if (info.vector != 1 && (operand(0).kind != OperandKind::vector || operand(0).items.size() != info.vector)) {
    invalid("the result needs a vector");
  }
  for (std::size_t j = 0; j < info.vector; ++j) {
    Value* const value = builder_.CreateAlignedLoad(type_of(type), at_offset(operands, j * element), llvm::Align(1));
    write(info.vector == 1 ? operand(0) : operand(0).items[j], value);
  }
}

// -- fences and hints -----------------------------------------------------------------------------------------------

/// fence and membar.
void FunctionTranslator::translate_fence() {
  std::optional<FenceKind> kind;
  bool has_address = false;
  if (instruction_->opcode == "membar" && !instruction_->has("proxy")) {
    kind =
        modifiers_->need_one_of<FenceKind>({{"cta", FenceKind::cta}, {"gl", FenceKind::gpu}, {"sys", FenceKind::sys}});
  } else if (modifiers_->take("proxy")) {
    kind = modifiers_->take_one_of<FenceKind>({{"alias", FenceKind::proxy_alias}, {"async", FenceKind::proxy_async}});
    if (kind == FenceKind::proxy_async) {
      kind = modifiers_
                 ->take_one_of<FenceKind>({{"global", FenceKind::proxy_async_global},
                                           {"shared::cta", FenceKind::proxy_async_shared},
                                           {"shared::cluster", FenceKind::proxy_async_shared}})
                 .value_or(FenceKind::proxy_async);
    } else if (!kind && modifiers_->take("tensormap::generic")) {
      kind = FenceKind::proxy_tensormap;
      has_address = modifiers_->need_one_of<bool>({{"acquire", true}, {"release", false}});
      if (!modifiers_->take_scope()) unsupported("the scope is missing");
    }
  } else if (modifiers_->take("mbarrier_init")) {
    if (!modifiers_->take("release") || !modifiers_->take("cluster")) unsupported("unknown fence");
    kind = FenceKind::mbarrier_init;
  } else {
    // All of these are treated as acq_rel, which is what a fence without a name is.
    modifiers_->take_one_of<bool>({{"sc", true}, {"acq_rel", true}, {"acquire", true}, {"release", true}});
    kind = modifiers_->need_one_of<FenceKind>(
        {{"cta", FenceKind::cta}, {"cluster", FenceKind::cluster}, {"gpu", FenceKind::gpu}, {"sys", FenceKind::sys}});
  }
  if (!kind) unsupported("unknown fence");
  modifiers_->finish();
  expect_operands(has_address ? 2 : 0, has_address ? 2 : 0);
  call(CalleeId::att_fence, {context_, enumerator(*kind), site()});
}

/// prefetch, prefetchu, applypriority, discard: hints, but for prefetch.tensormap, whose map is looked at.
void FunctionTranslator::translate_prefetch() {
  const std::string& opcode = instruction_->opcode;
  const bool parameter = modifiers_->take("param");
  const AddressSpace space = modifiers_->take_space();
  if (opcode == "prefetch" && modifiers_->take("tensormap")) {
    modifiers_->finish();
    expect_operands(1, 1);
    call(CalleeId::att_prefetch_tensormap, {context_, address(operand(0), space), site()});
    return;
  }
  modifiers_->take_one_of<bool>({{"L1", true}, {"L2", true}});
  modifiers_->take_cache_hints();
  if (parameter || (space != AddressSpace::generic && space != AddressSpace::global && space != AddressSpace::local)) {
    unsupported("unknown state space");
  }
  modifiers_->finish();
  const std::size_t count = opcode == "prefetch" || opcode == "prefetchu" ? 1 : 2;
  expect_operands(count, count);
}

void FunctionTranslator::translate_createpolicy() {
  const bool known = modifiers_->take("fractional") || modifiers_->take("range") || modifiers_->take("cvt");
  modifiers_->take("global");
  modifiers_->take("L2");
  modifiers_->take_cache_hints();
  if (!known || modifiers_->need_type() != Type::b64) unsupported("unknown policy");
  modifiers_->finish();
  expect_operands(1, 4);
  write(operand(0), i64(0));
}

}  // namespace attune::emulator
