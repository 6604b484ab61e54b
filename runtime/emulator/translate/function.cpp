// FunctionTranslator: the frame, basic blocks, guards and control flow.
#include "runtime/emulator/translate/function.h"

#include <algorithm>

#include "runtime/emulator/exec/thread.h"

namespace attune::emulator {

using ptx::Operand;
using ptx::OperandKind;
using ptx::Statement;

namespace {

// Where translated code finds what it uses of its thread.
constexpr std::uint64_t kSlots = 0, kSlotStates = 8, kParameters = 16, kFuel = 24, kLocalTop = 28, kInstructions = 32,
                        kUnusedLoads = 40;
static_assert(offsetof(ThreadContext, slots) == kSlots);
static_assert(offsetof(ThreadContext, slot_states) == kSlotStates);
static_assert(offsetof(ThreadContext, parameters) == kParameters);
static_assert(offsetof(ThreadContext, fuel) == kFuel);
static_assert(offsetof(ThreadContext, local_top) == kLocalTop);
static_assert(offsetof(ThreadContext, instructions) == kInstructions);
static_assert(offsetof(ThreadContext, unused_loads) == kUnusedLoads);

constexpr std::uint64_t kMaxLocalBytes = 512 << 10;       // of a thread, as on hardware
constexpr std::uint64_t kMaxParameterBytes = 32764;       // of a kernel, as on hardware
constexpr std::uint64_t kMaxCallBufferBytes = 256 << 10;  // of one function; they lie on the native stack

}  // namespace

std::uint64_t lay_out_parameters(const ptx::Function& function, std::vector<std::size_t>* offsets) {
  std::uint64_t end = 0;
  for (const ptx::Variable& parameter : function.parameters) {
    end = align_up(end, variable_alignment(parameter));
    offsets->push_back(end);
    end += variable_bytes(parameter);
  }
  return end;
}

FunctionTranslator::FunctionTranslator(ModuleTranslator& module, TranslatedFunction& function)
    : module_(module), function_(function), source_(*function.source), builder_(module.context()) {
  end_.at = source_.at;
  end_.opcode = "ret";
  instruction_ = &end_;
}

void FunctionTranslator::run() {
  first_location_ = module_.add_locations(source_);
  sites_.assign(source_.body.size() + 1, -1);
  index_registers();
  find_blocks();
  find_slots();
  prepare_frame();
  find_homes();
  find_late_loads();
  for (const std::size_t index : live_at_entry()) {
    write_register(static_cast<std::int32_t>(index), llvm::Constant::getNullValue(type_of(registers_[index].type)));
  }
  take_register_parameters();
  for (std::size_t i = 0; i < blocks_.size(); ++i) translate_block(i);

  // Operands of single calls share one array, as large as the largest of them.
  if (operand_memory_) {
    llvm::Type* bytes = llvm::ArrayType::get(builder_.getInt8Ty(), operand_bytes_);
    operand_memory_->setAllocatedType(bytes);
  }
  builder_.SetInsertPoint(entry_);
  builder_.CreateBr(blocks_[0].ir);
}

// -- the frame ------------------------------------------------------------------------------------------------

void FunctionTranslator::prepare_frame() {
  llvm::Function* const ir = function_.ir;
  entry_ = llvm::BasicBlock::Create(module_.context(), "", ir);
  for (Block& block : blocks_) block.ir = llvm::BasicBlock::Create(module_.context(), "", ir);
  builder_.SetInsertPoint(entry_);
  context_ = ir->getArg(0);
  llvm::Type* const pointer = builder_.getPtrTy();
  if (function_.uses_wgmma) {
    slots_ = builder_.CreateLoad(pointer, context_field(kSlots));
    slot_states_ = builder_.CreateLoad(pointer, context_field(kSlotStates));
  }

  if (source_.is_entry) {
    parameters_ = builder_.CreateLoad(pointer, context_field(kParameters));
    std::vector<std::size_t> offsets;
    parameter_bytes_ = lay_out_parameters(source_, &offsets);
    if (parameter_bytes_ > kMaxParameterBytes) unsupported("more than 32,764 bytes of kernel parameters");
    for (std::size_t i = 0; i < offsets.size(); ++i) parameter_offsets_[source_.parameters[i].name] = offsets[i];
  } else {
    unsigned argument = 1;
    for (const auto* list : {&source_.results, &source_.parameters}) {
      for (const ptx::Variable& variable : *list) {
        buffers_.emplace(variable.name, Buffer{ir->getArg(argument++), variable_bytes(variable)});
      }
    }
  }

  std::uint64_t local_end = 0, call_buffers = 0;
  for (const ptx::Variable& variable : source_.variables) {
    if (variable.space == ptx::Space::param) {
      const std::uint64_t bytes = variable_bytes(variable);
      call_buffers += bytes;
      if (call_buffers > kMaxCallBufferBytes) unsupported("more than 256 KiB of .param variables");
      buffers_.emplace(variable.name, Buffer{frame_memory(bytes, variable_alignment(variable)), bytes});
    } else if (variable.space == ptx::Space::local) {
      local_end = align_up(local_end, variable_alignment(variable));
      locals_.emplace(variable.name, local_end);
      local_end += variable_bytes(variable);
      if (local_end > kMaxLocalBytes) unsupported("more than 512 KiB of local memory");
    }
  }
  function_.local_bytes = align_up(local_end, 16);
  if (function_.local_bytes != 0) {
    Value* const top = context_field(kLocalTop);
    Value* const base = builder_.CreateLoad(builder_.getInt32Ty(), top);
    builder_.CreateStore(builder_.CreateAdd(base, i32(static_cast<std::uint32_t>(function_.local_bytes))), top);
    local_base_ = builder_.CreateZExt(base, builder_.getInt64Ty());
  }
}

llvm::AllocaInst* FunctionTranslator::frame_memory(std::uint64_t bytes, std::uint64_t alignment) {
  const llvm::IRBuilderBase::InsertPointGuard guard(builder_);
  builder_.SetInsertPoint(entry_, entry_->begin());
  llvm::AllocaInst* const memory =
      builder_.CreateAlloca(llvm::ArrayType::get(builder_.getInt8Ty(), std::max<std::uint64_t>(bytes, 1)));
  memory->setAlignment(llvm::Align(std::clamp<std::uint64_t>(alignment, 1, 64)));
  return memory;
}

llvm::Value* FunctionTranslator::operand_array(std::uint64_t bytes) {
  if (!operand_memory_) operand_memory_ = frame_memory(1, 16);
  operand_bytes_ = std::max(operand_bytes_, bytes);
  return operand_memory_;
}

llvm::Value* FunctionTranslator::context_field(std::uint64_t offset) { return at_offset(context_, offset); }

/// Parameters and results that a function declares as registers.
void FunctionTranslator::take_register_parameters() {
  for (const ptx::Variable& parameter : source_.parameters) {
    if (parameter.space != ptx::Space::reg) continue;
    llvm::Type* const type = memory_type(parameter.type);
    Value* const value = builder_.CreateAlignedLoad(type, buffers_.at(parameter.name).pointer, llvm::Align(1));
    write_register(need_register(parameter.name), from_memory(value, parameter.type));
  }
}

/// ret: ends a device function, or the thread.
void FunctionTranslator::leave() {
  if (source_.is_entry) {
    call(CalleeId::att_exit, {context_, site()});
    builder_.CreateUnreachable();
    return;
  }
  for (const ptx::Variable& result : source_.results) {
    if (result.space != ptx::Space::reg) continue;
    Value* const value = read_register(need_register(result.name), type_of(result.type));
    builder_.CreateAlignedStore(to_memory(value), buffers_.at(result.name).pointer, llvm::Align(1));
  }
  if (local_base_) {
    builder_.CreateStore(builder_.CreateTrunc(local_base_, builder_.getInt32Ty()), context_field(kLocalTop));
  }
  builder_.CreateRetVoid();
}

// -- statements -------------------------------------------------------------------------------------------------

void FunctionTranslator::translate_block(std::size_t index) {
  const Block& block = blocks_[index];
  builder_.SetInsertPoint(block.ir);
  ++epoch_;
  begin_segment(block.begin, block.end);
  for (std::size_t i = block.begin; i < block.end; ++i) {
    const Statement& statement = source_.body[i];
    if (statement.kind == Statement::Kind::label || statement.kind == Statement::Kind::branch_targets) continue;
    statement_ = i;
    instruction_ = &statement.instruction;
    use_loads();
    if (ends_block(statement)) {
      translate_terminator(index);
      return;
    }
    if (statement.instruction.guard.predicate.empty()) {
      dispatch(statement);
    } else {
      translate_guarded(statement);
    }
    if (changes_slots(statement)) begin_segment(i + 1, block.end);
  }
  count_instructions(block.begin, block.end);
  if (index + 1 < blocks_.size()) {
    builder_.CreateBr(blocks_[index + 1].ir);
  } else {
    statement_ = source_.body.size();
    instruction_ = &end_;
    leave();
  }
}

void FunctionTranslator::dispatch(const Statement& statement) {
  Modifiers modifiers(statement.instruction);
  modifiers_ = &modifiers;
  if (statement.call) {
    translate_call(*statement.call);
  } else {
    const auto opcode = opcodes().find(statement.instruction.opcode);
    if (opcode == opcodes().end()) unsupported("unknown instruction");
    (this->*opcode->second.handler)();
  }
  modifiers.finish();
}

llvm::Value* FunctionTranslator::guard_value() {
  const ptx::Guard& guard = instruction_->guard;
  const std::int32_t index = need_register(guard.predicate);
  if (registers_[static_cast<std::size_t>(index)].type != ptx::Type::pred) invalid("the guard is not a predicate");
  Value* const value = read_register(index, builder_.getInt1Ty());
  return guard.negated ? builder_.CreateNot(value) : value;
}

void FunctionTranslator::translate_guarded(const Statement& statement) {
  Value* const guard = guard_value();
  const auto opcode = opcodes().find(statement.instruction.opcode);
  if (opcode != opcodes().end() && opcode->second.only_computes && !touches_slots(statement)) {
    select_ = guard;
    dispatch(statement);
    select_ = nullptr;
    return;
  }
  llvm::BasicBlock* const before = builder_.GetInsertBlock();
  llvm::BasicBlock* const inside = new_block();
  llvm::BasicBlock* const after = new_block();
  builder_.CreateCondBr(guard, inside, after);
  builder_.SetInsertPoint(inside);
  guarded_ = true;
  if (module_.checks() && touches_slots(statement)) {
    ++segment_;
    SlotAccesses accesses;
    add_slot_accesses(statement_, &accesses);
    check_slots(std::move(accesses));
  }
  dispatch(statement);
  guarded_ = false;
  llvm::BasicBlock* const inside_end = builder_.GetInsertBlock();
  builder_.CreateBr(after);
  builder_.SetInsertPoint(after);
  for (const GuardedWrite& write : guarded_writes_) {
    Register& reg = registers_[static_cast<std::size_t>(write.index)];
    if (reg.home == Register::Home::memory) {
      reg.epoch = 0;  // what was known of it holds on one of the paths only
      continue;
    }
    llvm::PHINode* const merged = builder_.CreatePHI(write.old->getType(), 2);
    merged->addIncoming(write.old, before);
    {
      const llvm::IRBuilderBase::InsertPointGuard restore(builder_);
      builder_.SetInsertPoint(inside_end->getTerminator());
      merged->addIncoming(cast(write.value, write.old->getType()), inside_end);
    }
    reg.current = merged;
    reg.epoch = epoch_;
  }
  guarded_writes_.clear();
}

// -- control flow -----------------------------------------------------------------------------------------------

llvm::BasicBlock* FunctionTranslator::new_block() {
  return llvm::BasicBlock::Create(module_.context(), "", function_.ir);
}

void FunctionTranslator::count_instructions(std::size_t begin, std::size_t end) {
  const std::uint32_t count = instructions_before_[end] - instructions_before_[begin];
  if (count == 0) return;
  Value* const field = context_field(kInstructions);
  builder_.CreateStore(builder_.CreateAdd(builder_.CreateLoad(builder_.getInt64Ty(), field), i64(count)), field);
}

/// Where a branch of block `from` to block `target` goes: backwards by way of a turn for other threads, now and then.
llvm::BasicBlock* FunctionTranslator::branch_to(std::size_t from, std::size_t target) {
  if (target > from) return blocks_[target].ir;
  const llvm::IRBuilderBase::InsertPointGuard guard(builder_);
  const std::uint32_t length = instructions_before_[blocks_[from].end] - instructions_before_[blocks_[target].begin];
  llvm::BasicBlock* const count = new_block();
  llvm::BasicBlock* const yield = new_block();
  builder_.SetInsertPoint(count);
  Value* const field = context_field(kFuel);
  Value* const left = builder_.CreateSub(builder_.CreateLoad(builder_.getInt32Ty(), field), i32(length));
  builder_.CreateStore(left, field);
  builder_.CreateCondBr(builder_.CreateICmpSLT(left, i32(0)), yield, blocks_[target].ir);
  builder_.SetInsertPoint(yield);
  call(CalleeId::att_yield, {context_, site()});
  builder_.CreateBr(blocks_[target].ir);
  return count;
}

void FunctionTranslator::translate_terminator(std::size_t index) {
  const ptx::Instruction& instruction = *instruction_;
  const Block& block = blocks_[index];
  Modifiers modifiers(instruction);
  modifiers.take("uni");
  const bool guarded = !instruction.guard.predicate.empty();
  Value* const guard = guarded ? guard_value() : nullptr;
  count_instructions(block.begin, block.end);
  const auto next = [&]() -> llvm::BasicBlock* {
    if (index + 1 < blocks_.size()) return blocks_[index + 1].ir;
    invalid("the function ends after a guarded instruction");
  };
  if (instruction.opcode == "bra") {
    modifiers.finish();
    expect_operands(1, 1);
    llvm::BasicBlock* const target = branch_to(index, block_of_label(operand(0).name));
    if (guarded) {
      builder_.CreateCondBr(guard, target, next());
    } else {
      builder_.CreateBr(target);
    }
    return;
  }
  if (guarded) {
    llvm::BasicBlock* const inside = new_block();
    builder_.CreateCondBr(guard, inside, next());
    builder_.SetInsertPoint(inside);
  }
  if (instruction.opcode == "brx") {
    if (!modifiers.take("idx")) modifiers.refuse("only brx.idx is known");
    modifiers.finish();
    expect_operands(2, 2);
    Value* const choice = read(operand(0), ptx::Type::u32);
    llvm::BasicBlock* const beyond = new_block();
    const std::vector<std::string>& targets = branch_targets(operand(1).name);
    llvm::SwitchInst* const branch = builder_.CreateSwitch(choice, beyond, static_cast<unsigned>(targets.size()));
    for (std::uint32_t i = 0; i < targets.size(); ++i) {
      branch->addCase(builder_.getInt32(i), branch_to(index, block_of_label(targets[i])));
    }
    builder_.SetInsertPoint(beyond);
    call(CalleeId::att_trap, {context_, site()});
    builder_.CreateUnreachable();
    return;
  }
  modifiers.finish();
  expect_operands(0, 0);
  if (instruction.opcode == "ret") {
    leave();
    return;
  }
  call(instruction.opcode == "exit" ? CalleeId::att_exit : CalleeId::att_trap, {context_, site()});
  builder_.CreateUnreachable();
}

// -- slots --------------------------------------------------------------------------------------------------------

/// One test for all of them, eight states at a time; then the written ones are marked so.
void FunctionTranslator::check_slots(SlotAccesses accesses) {
  if (accesses.empty()) return;
  struct Group {
    std::uint32_t first;
    std::uint64_t tested = 0, written = 0;  ///< a byte for each of eight states
  };
  std::vector<Group> groups;
  std::unordered_map<std::uint32_t, std::size_t> group_of;
  for (const SlotAccess& access : accesses) {
    const std::uint32_t first = access.slot & ~7u;
    const auto [entry, added] = group_of.try_emplace(first, groups.size());
    if (added) groups.push_back({first});
    Group& group = groups[entry->second];
    const int shift = 8 * (access.slot & 7);
    group.tested |= static_cast<std::uint64_t>(access.write ? kSlotBusy | kSlotRead : kSlotBusy) << shift;
    if (access.write) group.written |= std::uint64_t{0xFF} << shift;
  }
  std::ranges::sort(groups, {}, &Group::tested);
  llvm::Type* const eight = builder_.getInt64Ty();
  const auto states = [&](const Group& group) { return at_offset(slot_states_, group.first); };
  Value* wrong = nullptr;
  for (std::size_t i = 0; i < groups.size();) {
    const std::uint64_t mask = groups[i].tested;
    Value* seen = nullptr;
    for (; i < groups.size() && groups[i].tested == mask; ++i) {
      Value* const loaded = builder_.CreateAlignedLoad(eight, states(groups[i]), llvm::Align(8));
      seen = seen ? builder_.CreateOr(seen, loaded) : loaded;
    }
    seen = builder_.CreateAnd(seen, i64(mask));
    wrong = wrong ? builder_.CreateOr(wrong, seen) : seen;
  }
  llvm::BasicBlock* const hazard = new_block();
  llvm::BasicBlock* const after = new_block();
  builder_.CreateCondBr(builder_.CreateICmpNE(wrong, i64(0)), hazard, after);
  builder_.SetInsertPoint(hazard);
  call(CalleeId::att_slot_hazards, {context_, constant(std::move(accesses))});
  builder_.CreateBr(after);
  builder_.SetInsertPoint(after);
  constexpr std::uint64_t kWritten = 0x0101010101010101 * kSlotWritten;
  for (const Group& group : groups) {
    if (group.written == 0) continue;
    Value* marked = i64(kWritten);
    if (~group.written != 0) {
      Value* const kept =
          builder_.CreateAnd(builder_.CreateAlignedLoad(eight, states(group), llvm::Align(8)), i64(~group.written));
      marked = builder_.CreateOr(kept, i64(kWritten & group.written));
    }
    builder_.CreateAlignedStore(marked, states(group), llvm::Align(8));
  }
}

// -- loads that may be late -----------------------------------------------------------------------------------------

/// Before an instruction that may be the first to use what they brought.
void FunctionTranslator::use_loads() {
  const auto found = load_uses_.find(statement_);
  if (found == load_uses_.end()) return;
  llvm::BasicBlock* const used = new_block();
  llvm::BasicBlock* const after = new_block();
  Value* const unused = builder_.CreateLoad(builder_.getInt32Ty(), context_field(kUnusedLoads));
  builder_.CreateCondBr(builder_.CreateICmpNE(unused, i32(0)), used, after);
  builder_.SetInsertPoint(used);
  const std::vector<std::uint32_t>& sites = *module_.constants().keep(found->second);
  call(CalleeId::att_loads_used, {context_, pointer_to(sites.data()), i32(static_cast<std::uint32_t>(sites.size()))});
  builder_.CreateBr(after);
  builder_.SetInsertPoint(after);
}

std::uint32_t FunctionTranslator::site_of(std::size_t statement) {
  std::int32_t& known = sites_[statement];
  if (known < 0) {
    const ptx::Instruction& instruction = statement < source_.body.size() ? source_.body[statement].instruction : end_;
    known = static_cast<std::int32_t>(module_.add_site(instruction, first_location_));
  }
  return static_cast<std::uint32_t>(known);
}

}  // namespace attune::emulator
