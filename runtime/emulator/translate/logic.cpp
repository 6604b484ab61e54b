// FunctionTranslator: bits, shifts, comparisons and selections.
#include "runtime/emulator/translate/function.h"
#include "runtime/emulator/translate/math_helpers.h"

namespace attune::emulator {

using ptx::Operand;
using ptx::OperandKind;
using ptx::Type;

// -- bits -------------------------------------------------------------------------------------------------------

void FunctionTranslator::translate_logic() {
  const Type type = modifiers_->need_type();
  modifiers_->finish();
  expect_operands(3, 3);
  if (type != Type::pred && (!is_bits(type) || bit_width(type) < 16)) unsupported("unknown type");
  Value* const a = read(operand(1), type);
  Value* const b = read(operand(2), type);
  const std::string& opcode = instruction_->opcode;
  write(operand(0), opcode == "and"  ? builder_.CreateAnd(a, b)
                    : opcode == "or" ? builder_.CreateOr(a, b)
                                     : builder_.CreateXor(a, b));
}

void FunctionTranslator::translate_not() {
  const Type type = modifiers_->need_type();
  modifiers_->finish();
  expect_operands(2, 2);
  if (type != Type::pred && (!is_bits(type) || bit_width(type) < 16)) unsupported("unknown type");
  write(operand(0), builder_.CreateNot(read(operand(1), type)));
}

void FunctionTranslator::translate_cnot() {
  const Type type = modifiers_->need_type();
  modifiers_->finish();
  expect_operands(2, 2);
  if (!is_bits(type) || bit_width(type) < 16) unsupported("unknown type");
  Value* const a = read(operand(1), type);
  write(operand(0), builder_.CreateZExt(builder_.CreateIsNull(a), a->getType()));
}

void FunctionTranslator::translate_lop3() {
  const std::optional<bool> with_or = modifiers_->take_one_of<bool>({{"or", true}, {"and", false}});
  if (modifiers_->need_type() != Type::b32) unsupported("unknown type");
  modifiers_->finish();
  expect_operands(with_or ? 6 : 5, with_or ? 6 : 5);
  Value* const result = call(CalleeId::att_lop3, {read(operand(1), Type::b32), read(operand(2), Type::b32),
                                                  read(operand(3), Type::b32), read(operand(4), Type::u32)});
  if (!with_or) {
    write(operand(0), result);
    return;
  }
  if (operand(0).kind != OperandKind::pair) invalid("the result needs a register and a predicate");
  Value* const nonzero = builder_.CreateIsNotNull(result);
  Value* const other = read_predicate(operand(5));
  Value* const predicate = *with_or ? builder_.CreateOr(nonzero, other) : builder_.CreateAnd(nonzero, other);
  write(operand(0).items[0], result);
  write(operand(0).items[1], predicate);
}

/// Amounts of the width and beyond give zeros, or copies of the sign.
void FunctionTranslator::translate_shift() {
  const bool left = instruction_->opcode == "shl";
  const Type type = modifiers_->need_type();
  modifiers_->finish();
  expect_operands(3, 3);
  const auto width = static_cast<std::uint64_t>(bit_width(type));
  if (width < 16 || width > 64 || is_float(type) || is_half(type) || (left && !is_bits(type))) {
    unsupported("unknown type");
  }
  Value* const a = read(operand(1), type);
  Value* const amount = read(operand(2), Type::u32);
  Value* const limit = i32(static_cast<std::uint32_t>(width));
  Value* const inside = builder_.CreateICmpULT(amount, limit);
  const bool sign = !left && is_signed(type);
  Value* const bounded = choose(inside, amount, sign ? i32(static_cast<std::uint32_t>(width - 1)) : i32(0));
  Value* const by = builder_.CreateZExtOrTrunc(bounded, a->getType());
  Value* const shifted = left   ? builder_.CreateShl(a, by)
                         : sign ? builder_.CreateAShr(a, by)
                                : builder_.CreateLShr(a, by);
  write(operand(0), sign ? shifted : choose(inside, shifted, llvm::Constant::getNullValue(a->getType())));
}

void FunctionTranslator::translate_funnel_shift() {
  const bool left = modifiers_->need_one_of<bool>({{"l", true}, {"r", false}});
  const bool wrap = modifiers_->need_one_of<bool>({{"wrap", true}, {"clamp", false}});
  if (modifiers_->need_type() != Type::b32) unsupported("unknown type");
  modifiers_->finish();
  expect_operands(4, 4);
  llvm::Type* const wide = builder_.getInt64Ty();
  Value* const low = builder_.CreateZExt(read(operand(1), Type::b32), wide);
  Value* const high = builder_.CreateShl(builder_.CreateZExt(read(operand(2), Type::b32), wide), 32);
  Value* const both = builder_.CreateOr(high, low);
  Value* amount = read(operand(3), Type::u32);
  amount =
      wrap ? builder_.CreateAnd(amount, i32(31)) : choose(builder_.CreateICmpULT(amount, i32(32)), amount, i32(32));
  amount = builder_.CreateZExt(amount, wide);
  Value* const shifted =
      left ? builder_.CreateLShr(builder_.CreateShl(both, amount), 32) : builder_.CreateLShr(both, amount);
  write(operand(0), builder_.CreateTrunc(shifted, builder_.getInt32Ty()));
}

void FunctionTranslator::translate_prmt() {
  const PermuteMode mode = modifiers_
                               ->take_one_of<PermuteMode>({{"f4e", PermuteMode::f4e},
                                                           {"b4e", PermuteMode::b4e},
                                                           {"rc8", PermuteMode::rc8},
                                                           {"ecl", PermuteMode::ecl},
                                                           {"ecr", PermuteMode::ecr},
                                                           {"rc16", PermuteMode::rc16}})
                               .value_or(PermuteMode::by_selector);
  if (modifiers_->need_type() != Type::b32) unsupported("unknown type");
  modifiers_->finish();
  expect_operands(4, 4);
  write(operand(0), call(CalleeId::att_prmt, {read(operand(1), Type::b32), read(operand(2), Type::b32),
                                              read(operand(3), Type::u32), enumerator(mode)}));
}

// -- comparisons ----------------------------------------------------------------------------------------------------

struct FunctionTranslator::Comparison {
  Type type{};
  llvm::CmpInst::Predicate predicate{};
  bool ftz = false;
  enum class Combine : std::uint8_t { none, with_and, with_or, with_xor } combine = Combine::none;
};

/// All modifiers of setp, or with `result_type` of set.
FunctionTranslator::Comparison FunctionTranslator::take_comparison(std::optional<Type>* result_type) {
  using Predicate = llvm::CmpInst::Predicate;
  struct Names {
    std::string_view name;
    Predicate sign, no_sign, real;
  };
  constexpr Predicate kNone = Predicate::BAD_ICMP_PREDICATE;
  static constexpr Names kNames[] = {
      {"eq", Predicate::ICMP_EQ, Predicate::ICMP_EQ, Predicate::FCMP_OEQ},
      {"ne", Predicate::ICMP_NE, Predicate::ICMP_NE, Predicate::FCMP_ONE},
      {"lt", Predicate::ICMP_SLT, Predicate::ICMP_ULT, Predicate::FCMP_OLT},
      {"le", Predicate::ICMP_SLE, Predicate::ICMP_ULE, Predicate::FCMP_OLE},
      {"gt", Predicate::ICMP_SGT, Predicate::ICMP_UGT, Predicate::FCMP_OGT},
      {"ge", Predicate::ICMP_SGE, Predicate::ICMP_UGE, Predicate::FCMP_OGE},
      {"lo", kNone, Predicate::ICMP_ULT, kNone},
      {"ls", kNone, Predicate::ICMP_ULE, kNone},
      {"hi", kNone, Predicate::ICMP_UGT, kNone},
      {"hs", kNone, Predicate::ICMP_UGE, kNone},
      {"equ", kNone, kNone, Predicate::FCMP_UEQ},
      {"neu", kNone, kNone, Predicate::FCMP_UNE},
      {"ltu", kNone, kNone, Predicate::FCMP_ULT},
      {"leu", kNone, kNone, Predicate::FCMP_ULE},
      {"gtu", kNone, kNone, Predicate::FCMP_UGT},
      {"geu", kNone, kNone, Predicate::FCMP_UGE},
      {"num", kNone, kNone, Predicate::FCMP_ORD},
      {"nan", kNone, kNone, Predicate::FCMP_UNO},
  };
  Comparison result;
  const Names* found = nullptr;
  for (const Names& names : kNames) {
    if (modifiers_->take(names.name)) {
      found = &names;
      break;
    }
  }
  if (!found) unsupported("the comparison is missing");
  using Combine = Comparison::Combine;
  result.combine =
      modifiers_
          ->take_one_of<Combine>({{"and", Combine::with_and}, {"or", Combine::with_or}, {"xor", Combine::with_xor}})
          .value_or(Combine::none);
  result.ftz = modifiers_->take("ftz");
  if (result_type) *result_type = modifiers_->need_type();
  result.type = modifiers_->need_type();
  modifiers_->finish();
  const Type type = result.type;
  if (is_float(type) || is_half(type)) {
    result.predicate = found->real;
    if (result.ftz && (type == Type::f64 || is_bf16(type))) unsupported("unknown modifier .ftz");
  } else {
    if (result.ftz || bit_width(type) < 16 || bit_width(type) > 64) unsupported("unknown type");
    result.predicate = is_signed(type) ? found->sign : found->no_sign;
    const bool equality = result.predicate == Predicate::ICMP_EQ || result.predicate == Predicate::ICMP_NE;
    if (is_bits(type) && !equality) unsupported("bits compare for equality only");
    if (!is_bits(type) && !is_signed(type) && !is_unsigned(type)) unsupported("unknown type");
  }
  if (result.predicate == kNone) unsupported("the type has no such comparison");
  return result;
}

llvm::Value* FunctionTranslator::compare(const Comparison& comparison, Value* a, Value* b) {
  if (!llvm::CmpInst::isFPPredicate(comparison.predicate)) return builder_.CreateICmp(comparison.predicate, a, b);
  if (comparison.ftz && comparison.type == Type::f32) {
    a = flush(a);
    b = flush(b);
  }
  return builder_.CreateFCmp(comparison.predicate, a, b);
}

llvm::Value* FunctionTranslator::combine(const Comparison& comparison, Value* result, Value* other) {
  switch (comparison.combine) {
    case Comparison::Combine::none: return result;
    case Comparison::Combine::with_and: return builder_.CreateAnd(result, other);
    case Comparison::Combine::with_or: return builder_.CreateOr(result, other);
    case Comparison::Combine::with_xor: return builder_.CreateXor(result, other);
  }
  return result;
}

/// One truth value, or two of a pair of halves.
std::vector<llvm::Value*> FunctionTranslator::comparison_results(const Comparison& comparison) {
  if (!is_half(comparison.type)) {
    return {compare(comparison, read(operand(1), comparison.type), read(operand(2), comparison.type))};
  }
  Value* const a = read(operand(1), comparison.type);
  Value* const b = read(operand(2), comparison.type);
  const auto half = [&](Value* value, std::uint64_t shift) {
    Value* const bits = builder_.CreateZExt(
        builder_.CreateTrunc(shift ? builder_.CreateLShr(value, shift) : value, builder_.getInt16Ty()),
        builder_.getInt64Ty());
    const ConvertMode mode{.to = Number::f32, .from = is_bf16(comparison.type) ? Number::bf16 : Number::f16};
    Value* const wide = call(CalleeId::att_convert, {bits, i32(convert_word(mode))});
    Value* const number = cast(builder_.CreateTrunc(wide, builder_.getInt32Ty()), builder_.getFloatTy());
    return comparison.ftz ? flush_half(number) : number;
  };
  std::vector<Value*> results = {compare(comparison, half(a, 0), half(b, 0))};
  if (is_pair(comparison.type)) results.push_back(compare(comparison, half(a, 16), half(b, 16)));
  return results;
}

void FunctionTranslator::translate_setp() {
  const Comparison comparison = take_comparison();
  const bool combines = comparison.combine != Comparison::Combine::none;
  expect_operands(combines ? 4 : 3, combines ? 4 : 3);
  const std::vector<Value*> results = comparison_results(comparison);
  Value* const other = combines ? read_predicate(operand(3)) : nullptr;
  if (operand(0).kind != OperandKind::pair) {
    if (results.size() != 1) invalid("the result needs two predicates");
    write(operand(0), combine(comparison, results[0], other));
    return;
  }
  Value* const first = combine(comparison, results[0], other);
  Value* const second = combine(comparison, results.size() == 2 ? results[1] : builder_.CreateNot(results[0]), other);
  write(operand(0).items[0], first);
  write(operand(0).items[1], second);
}

/// All ones, or one in a floating-point type, for true.
void FunctionTranslator::translate_set() {
  std::optional<Type> result_type;
  const Comparison comparison = take_comparison(&result_type);
  const bool combines = comparison.combine != Comparison::Combine::none;
  expect_operands(combines ? 4 : 3, combines ? 4 : 3);
  const std::vector<Value*> results = comparison_results(comparison);
  Value* const other = combines ? read_predicate(operand(3)) : nullptr;
  const Type type = *result_type;
  const auto width = static_cast<unsigned>(bit_width(type));
  const bool in_halves = results.size() == 2;
  const auto value_of = [&](Value* truth, unsigned bits) -> Value* {
    const std::uint64_t one = type == Type::f32 ? 0x3F800000 : is_bf16(type) ? 0x3F80 : is_half(type) ? 0x3C00 : ~0ull;
    llvm::Type* const result = builder_.getIntNTy(bits);
    return choose(combine(comparison, truth, other), llvm::ConstantInt::get(module_.context(), llvm::APInt(bits, one)),
                  llvm::Constant::getNullValue(result));
  };
  if (!in_halves) {
    const bool known = type == Type::u32 || type == Type::s32 || type == Type::f32 || type == Type::u16 ||
                       type == Type::s16 || (is_half(type) && !is_pair(type));
    if (!known) unsupported("unknown result type");
    write(operand(0), value_of(results[0], width));
    return;
  }
  if (width != 32 || type == Type::f32) unsupported("unknown result type");
  Value* const low = builder_.CreateZExt(value_of(results[0], 16), builder_.getInt32Ty());
  Value* const high = builder_.CreateZExt(value_of(results[1], 16), builder_.getInt32Ty());
  write(operand(0), builder_.CreateOr(builder_.CreateShl(high, 16), low));
}

void FunctionTranslator::translate_selp() {
  const Type type = modifiers_->need_type();
  modifiers_->finish();
  expect_operands(4, 4);
  if (bit_width(type) < 16 || bit_width(type) > 64) unsupported("unknown type");
  write(operand(0), choose(read_predicate(operand(3)), read(operand(1), type), read(operand(2), type)));
}

void FunctionTranslator::translate_slct() {
  const bool ftz = modifiers_->take("ftz");
  const Type type = modifiers_->need_type();
  const Type selector = modifiers_->need_type();
  modifiers_->finish();
  expect_operands(4, 4);
  if (bit_width(type) < 16 || bit_width(type) > 64) unsupported("unknown type");
  if ((selector != Type::s32 && selector != Type::f32) || (ftz && selector != Type::f32)) {
    unsupported("unknown type of the selector");
  }
  Value* c = read(operand(3), selector);
  if (ftz) c = flush(c);
  Value* const first = selector == Type::s32 ? builder_.CreateICmpSGE(c, i32(0))
                                             : builder_.CreateFCmpOGE(c, llvm::ConstantFP::get(c->getType(), 0));
  write(operand(0), choose(first, read(operand(1), type), read(operand(2), type)));
}

}  // namespace attune::emulator
