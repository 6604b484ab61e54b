// FunctionTranslator: integer arithmetic.
#include "runtime/emulator/translate/function.h"

namespace attune::emulator {

using ptx::Operand;
using ptx::OperandKind;
using ptx::Type;

namespace {

bool is_integer(Type type) { return is_signed(type) || is_unsigned(type); }
bool is_word(Type type) { return bit_width(type) == 32 || bit_width(type) == 64; }
bool is_packed(Type type) { return type == Type::u16x2 || type == Type::s16x2; }

}  // namespace

// -- addition and subtraction -----------------------------------------------------------------------------

void FunctionTranslator::translate_add_sub() {
  const bool subtract = instruction_->opcode.starts_with("sub");
  const bool carry_in = instruction_->opcode.ends_with("c");
  const bool carry_out = modifiers_->take("cc");
  const Type type = modifiers_->need_type();
  if (!carry_in && !carry_out && (is_float(type) || is_half(type))) return translate_float_add(type);
  expect_operands(3, 3);
  if (carry_in || carry_out) {
    modifiers_->finish();
    if (!is_word(type) || is_half(type) || is_float(type)) unsupported("the type has no carry");
    write(operand(0), add_with_carry(subtract, carry_in, carry_out, read(operand(1), type), read(operand(2), type)));
    return;
  }
  const bool sat = modifiers_->take("sat");
  modifiers_->finish();
  if (is_packed(type)) {
    if (sat) unsupported("unknown modifier .sat");
    write(operand(0), by_halves([&](Value* a, Value* b) {
            return subtract ? builder_.CreateSub(a, b) : builder_.CreateAdd(a, b);
          }));
    return;
  }
  if (!is_integer(type) || bit_width(type) == 8) unsupported("unknown type");
  if (sat && type != Type::s32) unsupported(".sat goes with .s32");
  Value* a = read(operand(1), type);
  Value* b = read(operand(2), type);
  if (sat) {
    a = builder_.CreateSExt(a, builder_.getInt64Ty());
    b = builder_.CreateSExt(b, builder_.getInt64Ty());
  }
  Value* const result = subtract ? builder_.CreateSub(a, b) : builder_.CreateAdd(a, b);
  write(operand(0), sat ? saturate_integer(result) : result);
}

/// a + b + carry, or a - b - borrow.
llvm::Value* FunctionTranslator::add_with_carry(bool subtract, bool carry_in, bool carry_out, Value* a, Value* b) {
  Value* result = subtract ? builder_.CreateSub(a, b) : builder_.CreateAdd(a, b);
  Value* carry = subtract ? builder_.CreateICmpULT(a, b) : builder_.CreateICmpULT(result, a);
  if (carry_in) {
    Value* const in = builder_.CreateZExt(read_carry(), result->getType());
    Value* const sum = subtract ? builder_.CreateSub(result, in) : builder_.CreateAdd(result, in);
    Value* const second = subtract ? builder_.CreateICmpULT(result, in) : builder_.CreateICmpULT(sum, result);
    carry = builder_.CreateOr(carry, second);
    result = sum;
  }
  if (carry_out) write_carry(carry);
  return result;
}

/// A 64-bit value to the range of s32.
llvm::Value* FunctionTranslator::saturate_integer(Value* value) {
  return builder_.CreateTrunc(call(CalleeId::att_saturate_integer, {value, i32(32)}), builder_.getInt32Ty());
}

template <typename Operation>
llvm::Value* FunctionTranslator::by_halves(const Operation& operation) {
  Value* const a = read(operand(1), Type::b32);
  Value* const b = read(operand(2), Type::b32);
  llvm::Type* const half = builder_.getInt16Ty();
  const auto part = [&](Value* value, std::uint64_t shift) {
    return builder_.CreateTrunc(shift ? builder_.CreateLShr(value, shift) : value, half);
  };
  Value* const low = builder_.CreateZExt(operation(part(a, 0), part(b, 0)), builder_.getInt32Ty());
  Value* const high = builder_.CreateZExt(operation(part(a, 16), part(b, 16)), builder_.getInt32Ty());
  return builder_.CreateOr(builder_.CreateShl(high, 16), low);
}

// -- multiplication -----------------------------------------------------------------------------------------

enum class FunctionTranslator::Product : std::uint8_t { low, high, wide };

FunctionTranslator::Product FunctionTranslator::take_product() {
  return modifiers_->need_one_of<Product>({{"lo", Product::low}, {"hi", Product::high}, {"wide", Product::wide}});
}

llvm::Value* FunctionTranslator::multiply(Type type, Product product) {
  Value* const a = read(operand(1), type);
  Value* const b = read(operand(2), type);
  const auto width = static_cast<unsigned>(bit_width(type));
  if (product == Product::low) return builder_.CreateMul(a, b);
  if (width == 64) {
    if (product == Product::wide) unsupported(".wide takes 16 or 32 bits");
    return call(is_signed(type) ? CalleeId::att_smulhi : CalleeId::att_umulhi, {a, b});
  }
  llvm::Type* const twice = builder_.getIntNTy(2 * width);
  Value* const full = builder_.CreateMul(widen(a, twice, is_signed(type)), widen(b, twice, is_signed(type)));
  if (product == Product::wide) return full;
  return builder_.CreateTrunc(builder_.CreateLShr(full, width), builder_.getIntNTy(width));
}

void FunctionTranslator::translate_mul() {
  const Type type = modifiers_->need_type();
  if (is_float(type) || is_half(type)) return translate_float_mul(type);
  const Product product = take_product();
  modifiers_->finish();
  expect_operands(3, 3);
  if (!is_integer(type) || bit_width(type) == 8) unsupported("unknown type");
  write(operand(0), multiply(type, product));
}

void FunctionTranslator::translate_mad() {
  const bool carry_in = instruction_->opcode == "madc";
  const bool carry_out = modifiers_->take("cc");
  const Type type = modifiers_->need_type();
  if (is_float(type) && !carry_in && !carry_out) return translate_float_fma(type);
  const Product product = take_product();
  const bool sat = modifiers_->take("sat");
  modifiers_->finish();
  expect_operands(4, 4);
  if (!is_integer(type) || bit_width(type) == 8) unsupported("unknown type");
  if (sat && (type != Type::s32 || product != Product::high || carry_in || carry_out)) {
    unsupported(".sat goes with .hi.s32");
  }
  Value* const multiplied = multiply(type, product);
  const Type sum_type = product != Product::wide ? type : bit_width(type) == 16 ? Type::b32 : Type::b64;
  Value* const addend = read(operand(3), sum_type);
  if (carry_in || carry_out) {
    if (!is_word(type) || product == Product::wide) unsupported("the type has no carry");
    write(operand(0), add_with_carry(false, carry_in, carry_out, multiplied, addend));
  } else if (sat) {
    llvm::Type* const wide = builder_.getInt64Ty();
    write(operand(0), saturate_integer(builder_.CreateAdd(builder_.CreateSExt(multiplied, wide),
                                                          builder_.CreateSExt(addend, wide))));
  } else {
    write(operand(0), builder_.CreateAdd(multiplied, addend));
  }
}

/// mul24 and mad24: of the lower 24 bits.
void FunctionTranslator::translate_mul24() {
  const bool add = instruction_->opcode == "mad24";
  const Product product = take_product();
  const bool sat = modifiers_->take("sat");
  const Type type = modifiers_->need_type();
  modifiers_->finish();
  expect_operands(add ? 4 : 3, add ? 4 : 3);
  if (bit_width(type) != 32 || !is_integer(type) || product == Product::wide) unsupported("unknown type");
  if (sat && !(add && product == Product::high && type == Type::s32)) unsupported(".sat goes with mad24.hi.s32");
  llvm::Type* const wide = builder_.getInt64Ty();
  const auto part = [&](std::size_t index) {
    Value* const raised = builder_.CreateShl(widen(read(operand(index), type), wide, false), 40);
    return is_signed(type) ? builder_.CreateAShr(raised, 40) : builder_.CreateLShr(raised, 40);
  };
  Value* result = builder_.CreateMul(part(1), part(2));
  if (product == Product::high) {
    result = is_signed(type) ? builder_.CreateAShr(result, 16) : builder_.CreateLShr(result, 16);
  }
  result = builder_.CreateTrunc(result, builder_.getInt32Ty());
  if (add) {
    Value* const addend = read(operand(3), type);
    result =
        sat ? saturate_integer(builder_.CreateAdd(builder_.CreateSExt(result, wide), builder_.CreateSExt(addend, wide)))
            : builder_.CreateAdd(result, addend);
  }
  write(operand(0), result);
}

// -- the rest ---------------------------------------------------------------------------------------------------

void FunctionTranslator::translate_sad() {
  const Type type = modifiers_->need_type();
  modifiers_->finish();
  expect_operands(4, 4);
  if (!is_integer(type) || bit_width(type) == 8) unsupported("unknown type");
  Value* const a = read(operand(1), type);
  Value* const b = read(operand(2), type);
  Value* const less = is_signed(type) ? builder_.CreateICmpSLT(a, b) : builder_.CreateICmpULT(a, b);
  Value* const distance = choose(less, builder_.CreateSub(b, a), builder_.CreateSub(a, b));
  write(operand(0), builder_.CreateAdd(distance, read(operand(3), type)));
}

void FunctionTranslator::translate_div_rem() {
  const bool divide = instruction_->opcode == "div";
  const Type type = modifiers_->need_type();
  if (divide && is_float(type)) return translate_float_div(type);
  modifiers_->finish();
  expect_operands(3, 3);
  if (!is_integer(type) || bit_width(type) == 8) unsupported("unknown type");
  const bool sign = is_signed(type);
  Value* const a = read(operand(1), type);
  Value* const b = read(operand(2), type);
  const auto* const divisor = llvm::dyn_cast<llvm::ConstantInt>(b);
  if (divisor && !divisor->isZero() && !divisor->isMinusOne()) {
    if (divide) {
      write(operand(0), sign ? builder_.CreateSDiv(a, b) : builder_.CreateUDiv(a, b));
    } else {
      write(operand(0), sign ? builder_.CreateSRem(a, b) : builder_.CreateURem(a, b));
    }
    return;
  }
  const CalleeId function =
      divide ? (sign ? CalleeId::att_sdiv : CalleeId::att_udiv) : (sign ? CalleeId::att_srem : CalleeId::att_urem);
  llvm::Type* const wide = builder_.getInt64Ty();
  Value* const result = call(function, {widen(a, wide, sign), widen(b, wide, sign)});
  write(operand(0), builder_.CreateTrunc(result, a->getType()));
}

llvm::Value* FunctionTranslator::integer_min_max(Value* a, Value* b, bool maximum, bool sign) {
  const llvm::CmpInst::Predicate less = sign ? llvm::CmpInst::ICMP_SLT : llvm::CmpInst::ICMP_ULT;
  Value* const first = maximum ? builder_.CreateICmp(less, b, a) : builder_.CreateICmp(less, a, b);
  return choose(first, a, b);
}

void FunctionTranslator::translate_min_max() {
  const bool maximum = instruction_->opcode == "max";
  const Type type = modifiers_->need_type();
  if (is_float(type) || is_half(type)) return translate_float_min_max(type);
  const bool relu = modifiers_->take("relu");
  modifiers_->finish();
  expect_operands(3, 3);
  const bool sign = is_signed(type) || type == Type::s16x2;
  if (relu && type != Type::s32 && type != Type::s16x2) unsupported("unknown modifier .relu");
  const auto pick = [&](Value* a, Value* b) {
    Value* const result = integer_min_max(a, b, maximum, sign);
    return relu ? integer_min_max(result, llvm::Constant::getNullValue(result->getType()), true, true) : result;
  };
  if (is_packed(type)) {
    write(operand(0), by_halves(pick));
    return;
  }
  if (!is_integer(type) || bit_width(type) == 8) unsupported("unknown type");
  write(operand(0), pick(read(operand(1), type), read(operand(2), type)));
}

void FunctionTranslator::translate_abs_neg() {
  const bool absolute = instruction_->opcode == "abs";
  const Type type = modifiers_->need_type();
  if (is_float(type) || is_half(type)) return translate_float_abs_neg(type);
  modifiers_->finish();
  expect_operands(2, 2);
  if (!is_signed(type) || bit_width(type) == 8) unsupported("unknown type");
  Value* const a = read(operand(1), type);
  Value* const negated = builder_.CreateNeg(a);
  if (!absolute) {
    write(operand(0), negated);
    return;
  }
  write(operand(0), choose(builder_.CreateICmpSLT(a, llvm::Constant::getNullValue(a->getType())), negated, a));
}

void FunctionTranslator::translate_popc_clz_brev() {
  const Type type = modifiers_->need_type();
  modifiers_->finish();
  expect_operands(2, 2);
  if (!is_bits(type) || !is_word(type)) unsupported("unknown type");
  llvm::Type* const wide = builder_.getInt64Ty();
  Value* const a = builder_.CreateZExt(read(operand(1), type), wide);
  Value* const width = i32(static_cast<std::uint32_t>(bit_width(type)));
  if (instruction_->opcode == "popc") {
    write(operand(0), call(CalleeId::att_popc, {a}));
  } else if (instruction_->opcode == "clz") {
    write(operand(0), call(CalleeId::att_clz, {a, width}));
  } else {
    write(operand(0), builder_.CreateTrunc(call(CalleeId::att_brev, {a, width}), type_of(type)));
  }
}

void FunctionTranslator::translate_bfind() {
  const bool shift_amount = modifiers_->take("shiftamt");
  const Type type = modifiers_->need_type();
  modifiers_->finish();
  expect_operands(2, 2);
  if (!is_integer(type) || !is_word(type)) unsupported("unknown type");
  Value* const a = widen(read(operand(1), type), builder_.getInt64Ty(), is_signed(type));
  write(operand(0), call(CalleeId::att_bfind, {a, i32(static_cast<std::uint32_t>(bit_width(type))),
                                               i32(is_signed(type)), i32(shift_amount)}));
}

void FunctionTranslator::translate_fns() {
  if (modifiers_->need_type() != Type::b32) unsupported("unknown type");
  modifiers_->finish();
  expect_operands(4, 4);
  write(operand(0), call(CalleeId::att_fns,
                         {read(operand(1), Type::b32), read(operand(2), Type::u32), read(operand(3), Type::s32)}));
}

void FunctionTranslator::translate_bfe() {
  const Type type = modifiers_->need_type();
  modifiers_->finish();
  expect_operands(4, 4);
  if (!is_integer(type) || !is_word(type)) unsupported("unknown type");
  Value* const a = builder_.CreateZExt(read(operand(1), type), builder_.getInt64Ty());
  Value* const result =
      call(CalleeId::att_bfe, {a, read(operand(2), Type::u32), read(operand(3), Type::u32),
                               i32(static_cast<std::uint32_t>(bit_width(type))), i32(is_signed(type))});
  write(operand(0), builder_.CreateTrunc(result, type_of(type)));
}

void FunctionTranslator::translate_bfi() {
  const Type type = modifiers_->need_type();
  modifiers_->finish();
  expect_operands(5, 5);
  if (!is_bits(type) || !is_word(type)) unsupported("unknown type");
  llvm::Type* const wide = builder_.getInt64Ty();
  Value* const result =
      call(CalleeId::att_bfi, {builder_.CreateZExt(read(operand(1), type), wide),
                               builder_.CreateZExt(read(operand(2), type), wide), read(operand(3), Type::u32),
                               read(operand(4), Type::u32), i32(static_cast<std::uint32_t>(bit_width(type)))});
  write(operand(0), builder_.CreateTrunc(result, type_of(type)));
}

void FunctionTranslator::translate_szext() {
  const bool wrap = modifiers_->need_one_of<bool>({{"wrap", true}, {"clamp", false}});
  const Type type = modifiers_->need_type();
  modifiers_->finish();
  expect_operands(3, 3);
  if (!is_integer(type) || bit_width(type) != 32) unsupported("unknown type");
  write(operand(0), call(CalleeId::att_szext,
                         {read(operand(1), type), read(operand(2), Type::u32), i32(is_signed(type)), i32(wrap)}));
}

void FunctionTranslator::translate_bmsk() {
  const bool wrap = modifiers_->need_one_of<bool>({{"wrap", true}, {"clamp", false}});
  if (modifiers_->need_type() != Type::b32) unsupported("unknown type");
  modifiers_->finish();
  expect_operands(3, 3);
  write(operand(0), call(CalleeId::att_bmsk, {read(operand(1), Type::u32), read(operand(2), Type::u32), i32(wrap)}));
}

/// dp4a and dp2a.
void FunctionTranslator::translate_dot() {
  const std::uint32_t halves =
      instruction_->opcode == "dp4a" ? 0 : modifiers_->need_one_of<std::uint32_t>({{"lo", 1}, {"hi", 2}});
  const Type a_type = modifiers_->need_type();
  const Type b_type = modifiers_->need_type();
  modifiers_->finish();
  expect_operands(4, 4);
  for (const Type type : {a_type, b_type}) {
    if (!is_integer(type) || bit_width(type) != 32) unsupported("unknown type");
  }
  write(operand(0),
        call(CalleeId::att_dot, {read(operand(1), Type::b32), read(operand(2), Type::b32), read(operand(3), Type::b32),
                                 i32(is_signed(a_type)), i32(is_signed(b_type)), i32(halves)}));
}

}  // namespace attune::emulator
