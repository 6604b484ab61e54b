// FunctionTranslator: what the lanes of a warp and the threads of a block do together.
#include "runtime/emulator/translate/function.h"

namespace attune::emulator {

using ptx::Operand;
using ptx::OperandKind;
using ptx::Type;

// -- warps ------------------------------------------------------------------------------------------------------------

/// d or d|p, from a value in the lower 32 bits and a predicate in bit 32.
void FunctionTranslator::write_with_predicate(const Operand& to, Value* packed) {
  Value* const value = builder_.CreateTrunc(packed, builder_.getInt32Ty());
  if (to.kind != OperandKind::pair) {
    write(to, value);
    return;
  }
  Value* const predicate = builder_.CreateTrunc(builder_.CreateLShr(packed, 32), builder_.getInt1Ty());
  write(to.items[0], value);
  write(to.items[1], predicate);
}

void FunctionTranslator::translate_shfl() {
  if (!modifiers_->take("sync")) unsupported("only shfl.sync exists on this target");
  const ShuffleMode mode = modifiers_->need_one_of<ShuffleMode>(
      {{"up", ShuffleMode::up}, {"down", ShuffleMode::down}, {"bfly", ShuffleMode::bfly}, {"idx", ShuffleMode::idx}});
  if (modifiers_->need_type() != Type::b32) unsupported("unknown type");
  modifiers_->finish();
  expect_operands(5, 5);
  write_with_predicate(operand(0), call(CalleeId::att_shfl, {context_, enumerator(mode), read(operand(1), Type::b32),
                                                             read(operand(2), Type::u32), read(operand(3), Type::u32),
                                                             read(operand(4), Type::b32), site()}));
}

void FunctionTranslator::translate_vote() {
  if (!modifiers_->take("sync")) unsupported("only vote.sync exists on this target");
  const VoteMode mode = modifiers_->need_one_of<VoteMode>(
      {{"all", VoteMode::all}, {"any", VoteMode::any}, {"uni", VoteMode::uni}, {"ballot", VoteMode::ballot}});
  if (modifiers_->need_type() != (mode == VoteMode::ballot ? Type::b32 : Type::pred)) unsupported("unknown type");
  modifiers_->finish();
  expect_operands(3, 3);
  Value* const predicate = builder_.CreateZExt(read_predicate(operand(1)), builder_.getInt32Ty());
  Value* const result =
      call(CalleeId::att_vote, {context_, enumerator(mode), predicate, read(operand(2), Type::b32), site()});
  write(operand(0), mode == VoteMode::ballot ? result : builder_.CreateIsNotNull(result));
}

void FunctionTranslator::translate_match() {
  const bool all = modifiers_->need_one_of<bool>({{"all", true}, {"any", false}});
  if (!modifiers_->take("sync")) unsupported(".sync is missing");
  const Type type = modifiers_->need_type();
  modifiers_->finish();
  expect_operands(3, 3);
  if (type != Type::b32 && type != Type::b64) unsupported("unknown type");
  if (!all && operand(0).kind == OperandKind::pair) invalid("match.any gives no predicate");
  Value* const value = builder_.CreateZExt(read(operand(1), type), builder_.getInt64Ty());
  write_with_predicate(operand(0),
                       call(CalleeId::att_match, {context_, i32(all), i32(static_cast<std::uint32_t>(bit_width(type))),
                                                  value, read(operand(2), Type::b32), site()}));
}

void FunctionTranslator::translate_redux() {
  if (!modifiers_->take("sync")) unsupported(".sync is missing");
  enum class Op { add, min, max, bit_and, bit_or, bit_xor };
  const Op op = modifiers_->need_one_of<Op>({{"add", Op::add},
                                             {"min", Op::min},
                                             {"max", Op::max},
                                             {"and", Op::bit_and},
                                             {"or", Op::bit_or},
                                             {"xor", Op::bit_xor}});
  const Type type = modifiers_->need_type();
  modifiers_->finish();
  expect_operands(3, 3);
  const bool arithmetic = op == Op::add || op == Op::min || op == Op::max;
  const bool known = arithmetic ? type == Type::u32 || type == Type::s32 : type == Type::b32;
  if (!known) unsupported("unknown type");
  const bool sign = type == Type::s32;
  ReduxOp redux{};
  switch (op) {
    case Op::add: redux = sign ? ReduxOp::add_s32 : ReduxOp::add_u32; break;
    case Op::min: redux = sign ? ReduxOp::min_s32 : ReduxOp::min_u32; break;
    case Op::max: redux = sign ? ReduxOp::max_s32 : ReduxOp::max_u32; break;
    case Op::bit_and: redux = ReduxOp::bit_and; break;
    case Op::bit_or: redux = ReduxOp::bit_or; break;
    case Op::bit_xor: redux = ReduxOp::bit_xor; break;
  }
  write(operand(0), call(CalleeId::att_redux,
                         {context_, enumerator(redux), read(operand(1), type), read(operand(2), Type::b32), site()}));
}

void FunctionTranslator::translate_activemask() {
  if (modifiers_->need_type() != Type::b32) unsupported("unknown type");
  modifiers_->finish();
  expect_operands(1, 1);
  write(operand(0), call(CalleeId::att_activemask, {context_, site()}));
}

void FunctionTranslator::translate_elect() {
  if (!modifiers_->take("sync")) unsupported(".sync is missing");
  modifiers_->finish();
  expect_operands(2, 2);
  write_with_predicate(operand(0), call(CalleeId::att_elect, {context_, read(operand(1), Type::b32), site()}));
}

// -- barriers -----------------------------------------------------------------------------------------------------

/// bar and barrier.
void FunctionTranslator::translate_bar() {
  if (modifiers_->take("warp")) {
    if (instruction_->opcode != "bar" || !modifiers_->take("sync")) unsupported("unknown barrier");
    modifiers_->finish();
    expect_operands(1, 1);
    call(CalleeId::att_warp_sync, {context_, read(operand(0), Type::b32), site()});
    return;
  }
  if (instruction_->opcode == "barrier" && modifiers_->take("cluster")) {
    const bool arrive = modifiers_->need_one_of<bool>({{"arrive", true}, {"wait", false}});
    const Semantics semantics =
        modifiers_
            ->take_one_of<Semantics>(
                {{"release", Semantics::release}, {"relaxed", Semantics::relaxed}, {"acquire", Semantics::acquire}})
            .value_or(arrive ? Semantics::release : Semantics::acquire);
    if (semantics == (arrive ? Semantics::acquire : Semantics::release)) unsupported("unknown semantics");
    const bool aligned = modifiers_->take("aligned");
    modifiers_->finish();
    expect_operands(0, 0);
    call(arrive ? CalleeId::att_cluster_arrive : CalleeId::att_cluster_wait,
         {context_, enumerator(semantics), i32(aligned), site()});
    return;
  }
  modifiers_->take("cta");
  const bool aligned = modifiers_->take("aligned") || instruction_->opcode == "bar";
  BarrierMode mode{};
  if (modifiers_->take("red")) {
    mode = modifiers_->need_one_of<BarrierMode>(
        {{"popc", BarrierMode::red_popc}, {"and", BarrierMode::red_and}, {"or", BarrierMode::red_or}});
    if (modifiers_->need_type() != (mode == BarrierMode::red_popc ? Type::u32 : Type::pred)) {
      unsupported("unknown type");
    }
  } else {
    mode = modifiers_->need_one_of<BarrierMode>({{"sync", BarrierMode::sync}, {"arrive", BarrierMode::arrive}});
  }
  modifiers_->finish();
  const bool reduces = mode != BarrierMode::sync && mode != BarrierMode::arrive;
  const std::size_t first = reduces ? 1 : 0;
  expect_operands(mode == BarrierMode::sync ? 1 : mode == BarrierMode::arrive ? 2 : 3, reduces ? 4 : 2);
  const bool has_count = instruction_->operands.size() == (reduces ? 4 : 2);
  Value* const id = read(operand(first), Type::u32);
  Value* const threads = has_count ? read(operand(first + 1), Type::u32) : i32(0);
  Value* const predicate =
      reduces ? builder_.CreateZExt(read_predicate(instruction_->operands.back()), builder_.getInt32Ty()) : i32(0);
  Value* const result =
      call(CalleeId::att_barrier, {context_, enumerator(mode), id, threads, predicate, i32(aligned), site()});
  if (mode == BarrierMode::red_popc) {
    write(operand(0), result);
  } else if (reduces) {
    write(operand(0), builder_.CreateIsNotNull(result));
  }
}

// -- mbarriers ----------------------------------------------------------------------------------------------------

/// An address operand in a shared space; generic ones are converted.
llvm::Value* FunctionTranslator::shared_address(const Operand& where, AddressSpace* space) {
  if (*space != AddressSpace::generic) {
    if (*space != AddressSpace::shared && *space != AddressSpace::shared_cluster) unsupported("unknown state space");
    return address(where, *space);
  }
  *space = AddressSpace::shared_cluster;
  Value* const generic = address(where, AddressSpace::generic);
  return call(CalleeId::att_cvta_to, {context_, generic, enumerator(*space), site()});
}

void FunctionTranslator::translate_mbarrier() {
  if (modifiers_->take("arrive")) return translate_mbarrier_arrive(false);
  if (modifiers_->take("arrive_drop")) return translate_mbarrier_arrive(true);
  if (modifiers_->take("test_wait")) return translate_mbarrier_wait(false);
  if (modifiers_->take("try_wait")) return translate_mbarrier_wait(true);
  if (modifiers_->take("pending_count")) {
    if (modifiers_->need_type() != Type::b64) unsupported("unknown type");
    modifiers_->finish();
    expect_operands(2, 2);
    write(operand(0), call(CalleeId::att_mbarrier_pending_count, {read(operand(1), Type::b64)}));
    return;
  }
  enum class Op { init, inval, expect_tx, complete_tx };
  const Op op = modifiers_->need_one_of<Op>(
      {{"init", Op::init}, {"inval", Op::inval}, {"expect_tx", Op::expect_tx}, {"complete_tx", Op::complete_tx}});
  AddressSpace space = modifiers_->take_space();
  if (op == Op::expect_tx || op == Op::complete_tx) {
    modifiers_->take("relaxed");
    modifiers_->take_scope();
  }
  if (modifiers_->need_type() != Type::b64) unsupported("unknown type");
  modifiers_->finish();
  expect_operands(op == Op::inval ? 1 : 2, op == Op::inval ? 1 : 2);
  Value* const where = shared_address(operand(0), &space);
  switch (op) {
    case Op::init: call(CalleeId::att_mbarrier_init, {context_, where, read(operand(1), Type::u32), site()}); break;
    case Op::inval: call(CalleeId::att_mbarrier_inval, {context_, where, site()}); break;
    case Op::expect_tx:
    case Op::complete_tx: {
      Value* const bytes = read(operand(1), Type::u32);
      Value* const change = op == Op::expect_tx ? bytes : builder_.CreateNeg(bytes);
      call(CalleeId::att_mbarrier_tx, {context_, enumerator(space), where, change, site()});
    }
  }
}

void FunctionTranslator::translate_mbarrier_arrive(bool drop) {
  MbarrierArriveInfo info{};
  info.drop = drop;
  info.expect_tx = modifiers_->take("expect_tx");
  info.no_complete = modifiers_->take("noComplete");
  info.semantics =
      modifiers_->take_one_of<Semantics>({{"release", Semantics::release}, {"relaxed", Semantics::relaxed}})
          .value_or(Semantics::release);
  info.scope = modifiers_->take_scope().value_or(Scope::cta);
  info.space = modifiers_->take_space();
  if (modifiers_->need_type() != Type::b64) unsupported("unknown type");
  modifiers_->finish();
  if (info.expect_tx && info.no_complete) unsupported("unknown combination");
  const bool needs_operand = info.expect_tx || info.no_complete;
  expect_operands(needs_operand ? 3 : 2, 3);
  Value* const where = shared_address(operand(1), &info.space);
  Value* const last = instruction_->operands.size() == 3 ? read(operand(2), Type::u32) : i32(1);
  Value* const count = info.expect_tx ? i32(1) : last;
  Value* const bytes = info.expect_tx ? last : i32(0);
  Value* const state = call(CalleeId::att_mbarrier_arrive, {context_, constant(info), where, count, bytes, site()});
  write(operand(0), state);
}

void FunctionTranslator::translate_mbarrier_wait(bool try_wait) {
  MbarrierWaitInfo info{};
  info.try_wait = try_wait;
  info.parity = modifiers_->take("parity");
  info.semantics =
      modifiers_->take_one_of<Semantics>({{"acquire", Semantics::acquire}, {"relaxed", Semantics::relaxed}})
          .value_or(Semantics::acquire);
  info.scope = modifiers_->take_scope().value_or(Scope::cta);
  AddressSpace space = modifiers_->take_space();
  if (modifiers_->need_type() != Type::b64) unsupported("unknown type");
  modifiers_->finish();
  if (space == AddressSpace::shared_cluster) unsupported("waiting is for the block's own mbarriers");
  expect_operands(3, try_wait ? 4 : 3);
  Value* const where = shared_address(operand(1), &space);
  Value* const phase = info.parity ? builder_.CreateZExt(read(operand(2), Type::u32), builder_.getInt64Ty())
                                   : read(operand(2), Type::b64);
  Value* const done = call(CalleeId::att_mbarrier_wait, {context_, constant(info), where, phase, site()});
  write(operand(0), builder_.CreateIsNotNull(done));
}

// -- the thread -----------------------------------------------------------------------------------------------------

void FunctionTranslator::translate_nanosleep() {
  if (modifiers_->need_type() != Type::u32) unsupported("unknown type");
  modifiers_->finish();
  expect_operands(1, 1);
  call(CalleeId::att_yield, {context_, site()});
}

void FunctionTranslator::translate_setmaxnreg() {
  const bool increase = modifiers_->need_one_of<bool>({{"inc", true}, {"dec", false}});
  if (!modifiers_->take("sync") || !modifiers_->take("aligned")) unsupported(".sync.aligned is missing");
  if (modifiers_->need_type() != Type::u32) unsupported("unknown type");
  modifiers_->finish();
  expect_operands(1, 1);
  if (operand(0).kind != OperandKind::immediate) invalid("the count needs to be a number");
  call(CalleeId::att_setmaxnreg, {context_, i32(increase), read(operand(0), Type::u32), site()});
}

void FunctionTranslator::translate_griddepcontrol() {
  const bool wait = modifiers_->need_one_of<bool>({{"wait", true}, {"launch_dependents", false}});
  modifiers_->finish();
  expect_operands(0, 0);
  call(CalleeId::att_griddepcontrol, {context_, i32(wait), site()});
}

}  // namespace attune::emulator
