// FunctionTranslator: floating-point arithmetic. Rounding to nearest is LLVM's own; the other modes, and f16 and bf16,
// are helpers. Approximations are computed to the precision of the type.
#include "runtime/emulator/translate/function.h"
#include "runtime/emulator/translate/math_helpers.h"

namespace attune::emulator {

using ptx::Operand;
using ptx::OperandKind;
using ptx::Type;

struct FunctionTranslator::FloatMode {
  Type type{};
  Rounding rounding = Rounding::nearest_even;
  bool ftz = false, sat = false;
};

/// Subnormal numbers to zero of their sign.
llvm::Value* FunctionTranslator::flush(Value* value) {
  Value* const bits = cast(value, builder_.getInt32Ty());
  Value* const small = builder_.CreateIsNull(builder_.CreateAnd(bits, i32(0x7F800000)));
  return cast(choose(small, builder_.CreateAnd(bits, i32(0x80000000)), bits), builder_.getFloatTy());
}

llvm::Value* FunctionTranslator::flush_half(Value* value) {
  Value* const bits = cast(value, builder_.getInt32Ty());
  Value* const small = builder_.CreateICmpULT(builder_.CreateAnd(bits, i32(0x7FFFFFFF)), i32(0x38800000));  // 2^-14
  return cast(choose(small, builder_.CreateAnd(bits, i32(0x80000000)), bits), builder_.getFloatTy());
}

/// .rn and so on, .ftz, .sat as f32 and f64 have them. Where `must_round`, a rounding mode is required.
FunctionTranslator::FloatMode FunctionTranslator::take_float_mode(Type type, bool must_round) {
  FloatMode mode;
  mode.type = type;
  const std::optional<Rounding> rounding = modifiers_->take_rounding();
  if (must_round && !rounding) unsupported("the rounding mode is missing");
  mode.rounding = rounding.value_or(Rounding::nearest_even);
  if (type == Type::f32) {
    mode.ftz = modifiers_->take("ftz");
    mode.sat = modifiers_->take("sat");
  }
  modifiers_->finish();
  return mode;
}

llvm::Value* FunctionTranslator::read_float(std::size_t index, const FloatMode& mode) {
  Value* const value = read(operand(index), mode.type);
  return mode.ftz ? flush(value) : value;
}

void FunctionTranslator::write_float(Value* value, const FloatMode& mode) {
  if (mode.ftz) value = flush(value);
  if (mode.sat) value = call(CalleeId::att_f32_saturate, {value});
  write(operand(0), value);
}

llvm::Value* FunctionTranslator::rounded(std::uint8_t op, const FloatMode& mode, Value* a, Value* b, Value* c) {
  Value* const zero = llvm::ConstantFP::get(a->getType(), 0);
  return call(mode.type == Type::f32 ? CalleeId::att_f32_rounded : CalleeId::att_f64_rounded,
              {a, b ? b : zero, c ? c : zero, i32(rounded_word(static_cast<RoundedOp>(op), mode.rounding))});
}

// -- addition, multiplication, division ---------------------------------------------------------------------

void FunctionTranslator::translate_float_add(Type type) {
  const bool subtract = instruction_->opcode == "sub";
  if (is_half(type)) {
    modifiers_->take("rn");
    return translate_half(type, static_cast<std::uint8_t>(subtract ? HalfOp::sub : HalfOp::add), 2);
  }
  const FloatMode mode = take_float_mode(type, false);
  expect_operands(3, 3);
  Value* const a = read_float(1, mode);
  Value* const b = read_float(2, mode);
  if (mode.rounding != Rounding::nearest_even) {
    write_float(rounded(static_cast<std::uint8_t>(subtract ? RoundedOp::sub : RoundedOp::add), mode, a, b), mode);
  } else {
    write_float(subtract ? builder_.CreateFSub(a, b) : builder_.CreateFAdd(a, b), mode);
  }
}

void FunctionTranslator::translate_float_mul(Type type) {
  if (is_half(type)) {
    modifiers_->take("rn");
    return translate_half(type, static_cast<std::uint8_t>(HalfOp::mul), 2);
  }
  const FloatMode mode = take_float_mode(type, false);
  expect_operands(3, 3);
  Value* const a = read_float(1, mode);
  Value* const b = read_float(2, mode);
  write_float(mode.rounding == Rounding::nearest_even ? builder_.CreateFMul(a, b)
                                                      : rounded(static_cast<std::uint8_t>(RoundedOp::mul), mode, a, b),
              mode);
}

void FunctionTranslator::translate_fma() {
  const Type type = modifiers_->need_type();
  if (is_half(type)) {
    if (!modifiers_->take("rn")) unsupported("the rounding mode is missing");
    return translate_half(type, static_cast<std::uint8_t>(HalfOp::fma), 3);
  }
  if (!is_float(type)) unsupported("unknown type");
  translate_float_fma(type);
}

void FunctionTranslator::translate_float_fma(Type type) {
  const FloatMode mode = take_float_mode(type, true);
  expect_operands(4, 4);
  Value* const a = read_float(1, mode);
  Value* const b = read_float(2, mode);
  Value* const c = read_float(3, mode);
  if (mode.rounding != Rounding::nearest_even) {
    write_float(rounded(static_cast<std::uint8_t>(RoundedOp::fma), mode, a, b, c), mode);
  } else if (module_.fused_multiply_add()) {
    write_float(builder_.CreateIntrinsic(llvm::Intrinsic::fma, {a->getType()}, {a, b, c}), mode);
  } else {
    write_float(call(type == Type::f32 ? CalleeId::att_f32_fma : CalleeId::att_f64_fma, {a, b, c}), mode);
  }
}

void FunctionTranslator::translate_float_div(Type type) {
  const bool approximate = type == Type::f32 && (modifiers_->take("approx") || modifiers_->take("full"));
  const FloatMode mode = take_float_mode(type, !approximate);
  if (mode.sat) unsupported("unknown modifier .sat");
  expect_operands(3, 3);
  Value* const a = read_float(1, mode);
  Value* const b = read_float(2, mode);
  write_float(mode.rounding == Rounding::nearest_even ? builder_.CreateFDiv(a, b)
                                                      : rounded(static_cast<std::uint8_t>(RoundedOp::div), mode, a, b),
              mode);
}

void FunctionTranslator::translate_reciprocal() {
  const Type type = modifiers_->need_type();
  const bool approximate = modifiers_->take("approx");
  if (!is_float(type)) unsupported("unknown type");
  expect_operands(2, 2);
  if (type == Type::f64 && approximate) {
    if (!modifiers_->take("ftz")) unsupported("rcp.approx.f64 needs .ftz");
    modifiers_->finish();
    write(operand(0), call(CalleeId::att_f64_coarse, {read(operand(1), type), i32(0)}));
    return;
  }
  const FloatMode mode = take_float_mode(type, !approximate);
  Value* const a = read_float(1, mode);
  Value* const one = llvm::ConstantFP::get(a->getType(), 1);
  write_float(mode.rounding == Rounding::nearest_even
                  ? builder_.CreateFDiv(one, a)
                  : rounded(static_cast<std::uint8_t>(RoundedOp::div), mode, one, a),
              mode);
}

void FunctionTranslator::translate_sqrt() {
  const Type type = modifiers_->need_type();
  if (!is_float(type)) unsupported("unknown type");
  const bool approximate = type == Type::f32 && modifiers_->take("approx");
  const FloatMode mode = take_float_mode(type, !approximate);
  if (mode.sat) unsupported("unknown modifier .sat");
  expect_operands(2, 2);
  Value* const a = read_float(1, mode);
  write_float(mode.rounding == Rounding::nearest_even
                  ? builder_.CreateIntrinsic(llvm::Intrinsic::sqrt, {a->getType()}, {a})
                  : rounded(static_cast<std::uint8_t>(RoundedOp::sqrt), mode, a),
              mode);
}

/// rsqrt, sin, cos, lg2, ex2, tanh; all .approx.
void FunctionTranslator::translate_function() {
  const std::string& opcode = instruction_->opcode;
  const Type type = modifiers_->need_type();
  if (!modifiers_->take("approx")) unsupported(".approx is missing");
  if (is_half(type) && (opcode == "ex2" || opcode == "tanh")) {
    return translate_half(type, static_cast<std::uint8_t>(opcode == "ex2" ? HalfOp::ex2 : HalfOp::tanh), 1);
  }
  expect_operands(2, 2);
  if (type == Type::f64 && opcode == "rsqrt") {
    const bool coarse = modifiers_->take("ftz");
    modifiers_->finish();
    Value* const a = read(operand(1), type);
    write(operand(0), coarse ? call(CalleeId::att_f64_coarse, {a, i32(1)}) : call(CalleeId::att_f64_rsqrt, {a}));
    return;
  }
  if (type != Type::f32) unsupported("unknown type");
  const FloatMode mode{.type = type, .ftz = opcode != "tanh" && modifiers_->take("ftz")};
  modifiers_->finish();
  const CalleeId function = opcode == "ex2"    ? CalleeId::att_f32_ex2
                            : opcode == "lg2"  ? CalleeId::att_f32_lg2
                            : opcode == "sin"  ? CalleeId::att_f32_sin
                            : opcode == "cos"  ? CalleeId::att_f32_cos
                            : opcode == "tanh" ? CalleeId::att_f32_tanh
                                               : CalleeId::att_f32_rsqrt;
  write_float(call(function, {read_float(1, mode)}), mode);
}

// -- signs and order --------------------------------------------------------------------------------------------

void FunctionTranslator::translate_float_min_max(Type type) {
  const bool maximum = instruction_->opcode == "max";
  if (is_half(type)) {
    return translate_half(type, static_cast<std::uint8_t>(maximum ? HalfOp::max : HalfOp::min), 2);
  }
  FloatMode mode;
  mode.type = type;
  MinMaxMode order{.maximum = maximum};
  if (type == Type::f32) {
    mode.ftz = modifiers_->take("ftz");
    order.propagate_nan = modifiers_->take("NaN");
    order.xorsign_abs = modifiers_->take("xorsign");
    if (order.xorsign_abs && !modifiers_->take("abs")) unsupported(".xorsign needs .abs");
  }
  modifiers_->finish();
  const std::size_t count = instruction_->operands.size();
  expect_operands(3, type == Type::f32 ? 4 : 3);
  if (order.xorsign_abs && count == 4) unsupported(".xorsign takes two operands");
  Value* result = read_float(1, mode);
  for (std::size_t i = 2; i < count; ++i) {
    Value* const other = read_float(i, mode);
    if (type == Type::f64) {
      result = call(CalleeId::att_f64_min_max, {result, other, i32(min_max_word(order))});
    } else if (!order.propagate_nan && !order.xorsign_abs) {
      result = call(maximum ? CalleeId::att_f32_max : CalleeId::att_f32_min, {result, other});
    } else {
      result = call(CalleeId::att_f32_min_max, {result, other, i32(min_max_word(order))});
    }
  }
  write(operand(0), result);
}

void FunctionTranslator::translate_float_abs_neg(Type type) {
  const bool absolute = instruction_->opcode == "abs";
  if (is_half(type)) {
    return translate_half(type, static_cast<std::uint8_t>(absolute ? HalfOp::abs : HalfOp::neg), 1);
  }
  FloatMode mode;
  mode.type = type;
  mode.ftz = type == Type::f32 && modifiers_->take("ftz");
  modifiers_->finish();
  expect_operands(2, 2);
  Value* const bits = as_bits(read_float(1, mode));
  const auto width = static_cast<unsigned>(bit_width(type));
  const llvm::APInt sign = llvm::APInt::getSignMask(width);
  Value* const result = absolute ? builder_.CreateAnd(bits, llvm::ConstantInt::get(module_.context(), ~sign))
                                 : builder_.CreateXor(bits, llvm::ConstantInt::get(module_.context(), sign));
  write(operand(0), cast(result, type_of(type)));
}

void FunctionTranslator::translate_testp() {
  const TestProperty property = modifiers_->need_one_of<TestProperty>({{"finite", TestProperty::finite},
                                                                       {"infinite", TestProperty::infinite},
                                                                       {"number", TestProperty::number},
                                                                       {"notanumber", TestProperty::not_a_number},
                                                                       {"normal", TestProperty::normal},
                                                                       {"subnormal", TestProperty::subnormal}});
  const Type type = modifiers_->need_type();
  modifiers_->finish();
  expect_operands(2, 2);
  if (!is_float(type)) unsupported("unknown type");
  Value* const result = call(type == Type::f32 ? CalleeId::att_f32_test : CalleeId::att_f64_test,
                             {read(operand(1), type), enumerator(property)});
  write(operand(0), builder_.CreateIsNotNull(result));
}

/// The sign of the first on the magnitude of the second.
void FunctionTranslator::translate_copysign() {
  const Type type = modifiers_->need_type();
  modifiers_->finish();
  expect_operands(3, 3);
  if (!is_float(type)) unsupported("unknown type");
  const llvm::APInt sign = llvm::APInt::getSignMask(static_cast<unsigned>(bit_width(type)));
  Value* const from =
      builder_.CreateAnd(as_bits(read(operand(1), type)), llvm::ConstantInt::get(module_.context(), sign));
  Value* const magnitude =
      builder_.CreateAnd(as_bits(read(operand(2), type)), llvm::ConstantInt::get(module_.context(), ~sign));
  write(operand(0), cast(builder_.CreateOr(from, magnitude), type_of(type)));
}

// -- f16 and bf16 -------------------------------------------------------------------------------------------------

void FunctionTranslator::translate_half(Type type, std::uint8_t op, std::size_t operands) {
  HalfMode mode{.op = static_cast<HalfOp>(op), .bf16 = is_bf16(type), .pair = is_pair(type)};
  const bool arithmetic = mode.op <= HalfOp::fma, order = mode.op == HalfOp::min || mode.op == HalfOp::max;
  // bf16 has .ftz where it must have it: ex2.
  if (mode.bf16 ? mode.op == HalfOp::ex2 : mode.op != HalfOp::tanh) mode.ftz = modifiers_->take("ftz");
  if (mode.bf16 && mode.op == HalfOp::ex2 && !mode.ftz) unsupported("ex2.approx of bf16 needs .ftz");
  if (arithmetic && !mode.bf16) mode.saturate = modifiers_->take("sat");
  if (mode.op == HalfOp::fma) mode.relu = modifiers_->take("relu");
  if (order) {
    mode.propagate_nan = modifiers_->take("NaN");
    if (modifiers_->take("xorsign")) {
      if (!modifiers_->take("abs")) unsupported(".xorsign needs .abs");
      mode.xorsign_abs = true;
    }
  }
  modifiers_->finish();
  expect_operands(operands + 1, operands + 1);
  llvm::Type* const word = builder_.getInt32Ty();
  Value* inputs[3] = {i32(0), i32(0), i32(0)};
  for (std::size_t i = 0; i < operands; ++i) inputs[i] = builder_.CreateZExt(read(operand(i + 1), type), word);
  Value* const result = call(CalleeId::att_half, {inputs[0], inputs[1], inputs[2], i32(half_word(mode))});
  write(operand(0), builder_.CreateTrunc(result, type_of(type)));
}

}  // namespace attune::emulator
