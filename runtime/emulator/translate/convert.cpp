// FunctionTranslator: cvt, mov and addresses of state spaces.
#include "runtime/emulator/translate/function.h"
#include "runtime/emulator/translate/math_helpers.h"

namespace attune::emulator {

using ptx::Operand;
using ptx::OperandKind;
using ptx::Type;

namespace {

bool is_integer(Type type) { return is_signed(type) || is_unsigned(type); }

std::optional<Number> number_of(Type type) {
  switch (type) {
    case Type::u8: return Number::u8;
    case Type::u16: return Number::u16;
    case Type::u32: return Number::u32;
    case Type::u64: return Number::u64;
    case Type::s8: return Number::s8;
    case Type::s16: return Number::s16;
    case Type::s32: return Number::s32;
    case Type::s64: return Number::s64;
    case Type::f16: return Number::f16;
    case Type::bf16: return Number::bf16;
    case Type::tf32: return Number::tf32;
    case Type::f32: return Number::f32;
    case Type::f64: return Number::f64;
    default: return std::nullopt;
  }
}

std::optional<Number> element_of(Type pair) {
  switch (pair) {
    case Type::f16x2: return Number::f16;
    case Type::bf16x2: return Number::bf16;
    case Type::e4m3x2: return Number::e4m3;
    case Type::e5m2x2: return Number::e5m2;
    default: return std::nullopt;
  }
}

}  // namespace

// -- cvt ------------------------------------------------------------------------------------------------------------

struct FunctionTranslator::Conversion {
  ConvertMode mode;
  Type to{}, from{};
  bool has_rounding = false;
};

void FunctionTranslator::translate_cvt() {
  if (modifiers_->take("pack")) return translate_cvt_pack();
  Conversion conversion;
  ConvertMode& mode = conversion.mode;
  const std::optional<Rounding> integral = modifiers_->take_one_of<Rounding>({{"rni", Rounding::nearest_even},
                                                                              {"rzi", Rounding::toward_zero},
                                                                              {"rmi", Rounding::down},
                                                                              {"rpi", Rounding::up}});
  std::optional<Rounding> rounding = integral ? integral : modifiers_->take_rounding();
  if (!rounding && modifiers_->take("rna")) rounding = Rounding::nearest_away;
  conversion.has_rounding = rounding.has_value();
  mode.rounding = rounding.value_or(Rounding::nearest_even);
  mode.to_integral = integral.has_value();
  mode.ftz = modifiers_->take("ftz");
  mode.saturate = modifiers_->take("sat");
  mode.satfinite = modifiers_->take("satfinite");
  mode.relu = modifiers_->take("relu");
  conversion.to = modifiers_->need_type();
  conversion.from = modifiers_->need_type();
  modifiers_->finish();
  if (element_of(conversion.to)) {
    convert_pair(conversion);
  } else {
    convert_scalar(conversion);
  }
}

void FunctionTranslator::convert_pair(Conversion& conversion) {
  ConvertMode& mode = conversion.mode;
  mode.to = *element_of(conversion.to);
  const bool to_bytes = conversion.to == Type::e4m3x2 || conversion.to == Type::e5m2x2;
  const bool from_bytes = conversion.from == Type::e4m3x2 || conversion.from == Type::e5m2x2;
  const bool nearest = conversion.has_rounding && mode.rounding == Rounding::nearest_even && !mode.to_integral;
  const bool toward_zero = mode.rounding == Rounding::toward_zero && !mode.to_integral && !to_bytes;
  if (!nearest && !toward_zero) unsupported("unknown rounding mode");
  if (mode.ftz || mode.saturate || (to_bytes && !mode.satfinite)) unsupported("unknown conversion");
  if (conversion.from == Type::f32) {
    expect_operands(3, 3);
    Value* const high = read(operand(1), Type::f32);
    Value* const low = read(operand(2), Type::f32);
    const bool plain = nearest && !mode.satfinite && !mode.relu;
    Value* result = nullptr;
    if (plain && conversion.to == Type::bf16x2) {
      result = call(CalleeId::att_pack_bf16x2, {high, low});
    } else if (plain && conversion.to == Type::f16x2) {
      result = call(CalleeId::att_pack_f16x2, {high, low});
    } else {
      result = call(CalleeId::att_convert_pair, {high, low, i32(convert_word(mode))});
    }
    write(operand(0), builder_.CreateTrunc(result, type_of(conversion.to)));
    return;
  }
  const bool known = (to_bytes && conversion.from == Type::f16x2) || (from_bytes && conversion.to == Type::f16x2);
  if (!known || !nearest || (from_bytes && mode.satfinite)) unsupported("unknown conversion");
  expect_operands(2, 2);
  mode.from = *element_of(conversion.from);
  Value* const pair = builder_.CreateZExt(read(operand(1), conversion.from), builder_.getInt32Ty());
  Value* const result = call(CalleeId::att_convert_packed, {pair, i32(convert_word(mode))});
  write(operand(0), builder_.CreateTrunc(result, type_of(conversion.to)));
}

void FunctionTranslator::check_conversion(const Conversion& conversion) const {
  const ConvertMode& mode = conversion.mode;
  const Type to = conversion.to, from = conversion.from;
  const bool to_integer = is_integer(to), from_integer = is_integer(from);
  if (mode.ftz && to != Type::f32 && from != Type::f32) unsupported("unknown modifier .ftz");
  if (to == Type::tf32) {
    const bool away = mode.rounding == Rounding::nearest_away;
    const bool known = away || ((mode.rounding == Rounding::nearest_even || mode.rounding == Rounding::toward_zero));
    if (from != Type::f32 || !conversion.has_rounding || !known || mode.to_integral || mode.saturate || mode.ftz ||
        (away && mode.relu)) {
      unsupported("unknown conversion");
    }
    return;
  }
  if (from == Type::tf32 || mode.rounding == Rounding::nearest_away) unsupported("unknown conversion");
  if ((mode.relu || mode.satfinite) && (from != Type::f32 || !is_half(to))) unsupported("unknown conversion");
  if (to_integer && from_integer) {
    if (conversion.has_rounding) unsupported("integers convert without rounding");
    return;
  }
  if (to_integer) {
    if (!mode.to_integral) unsupported("the rounding mode is missing (.rni, .rzi, .rmi, .rpi)");
    return;
  }
  const bool narrows = from_integer || bit_width(to) < bit_width(from) || (is_half(to) && is_half(from) && to != from);
  if (narrows && (!conversion.has_rounding || mode.to_integral)) unsupported("the rounding mode is missing");
  if (!narrows && conversion.has_rounding && !mode.to_integral) unsupported("the conversion is exact");
  if (mode.to_integral && to != from) unsupported("unknown conversion");
}

void FunctionTranslator::convert_scalar(Conversion& conversion) {
  ConvertMode& mode = conversion.mode;
  const Type to = conversion.to, from = conversion.from;
  const std::optional<Number> to_number = number_of(to), from_number = number_of(from);
  if (!to_number || !from_number) unsupported("unknown conversion");
  check_conversion(conversion);
  expect_operands(2, 2);
  mode.to = *to_number;
  mode.from = *from_number;
  Value* const value = read(operand(1), from, true);
  const bool plain = !mode.ftz && !mode.saturate && !mode.satfinite && !mode.relu;
  const bool nearest = mode.rounding == Rounding::nearest_even && !mode.to_integral;
  llvm::Type* const result_type = type_of(to);
  if (is_integer(to) && is_integer(from) && plain) {
    Value* const resized = is_signed(from) ? builder_.CreateSExtOrTrunc(value, result_type)
                                           : builder_.CreateZExtOrTrunc(value, result_type);
    write_extended(operand(0), resized, to);
    return;
  }
  if (is_float(to) && plain && nearest) {
    if (is_integer(from)) {
      write(operand(0),
            is_signed(from) ? builder_.CreateSIToFP(value, result_type) : builder_.CreateUIToFP(value, result_type));
      return;
    }
    if (is_float(from)) {
      write(operand(0), builder_.CreateFPCast(value, result_type));
      return;
    }
  }
  Value* const bits = builder_.CreateZExt(as_bits(value), builder_.getInt64Ty());
  Value* const result = call(CalleeId::att_convert, {bits, i32(convert_word(mode))});
  const auto width = static_cast<unsigned>(bit_width(to));
  write_extended(operand(0), cast(builder_.CreateTrunc(result, builder_.getIntNTy(width)), result_type), to);
}

/// cvt.pack.sat.u8.s32.b32 d, a, b, c
void FunctionTranslator::translate_cvt_pack() {
  if (!modifiers_->take("sat")) unsupported(".sat is missing");
  struct Element {
    std::uint32_t bits;
    bool sign;
  };
  const Element element = modifiers_->need_one_of<Element>({{"u16", {16, false}},
                                                            {"s16", {16, true}},
                                                            {"u8", {8, false}},
                                                            {"s8", {8, true}},
                                                            {"u4", {4, false}},
                                                            {"s4", {4, true}},
                                                            {"u2", {2, false}},
                                                            {"s2", {2, true}}});
  if (!modifiers_->take("s32")) unsupported("unknown type");
  const bool keeps = modifiers_->take("b32");
  modifiers_->finish();
  if (!keeps && element.bits != 16) unsupported("narrow elements need .b32");
  expect_operands(keeps ? 4 : 3, keeps ? 4 : 3);
  Value* const a = read(operand(1), Type::s32);
  Value* const b = read(operand(2), Type::s32);
  Value* const c = keeps ? read(operand(3), Type::b32) : i32(0);
  write(operand(0), call(CalleeId::att_pack_saturated, {a, b, c, i32(element.bits), i32(element.sign)}));
}

// -- mov ------------------------------------------------------------------------------------------------------------

void FunctionTranslator::translate_mov() {
  const Type type = modifiers_->need_type();
  modifiers_->finish();
  expect_operands(2, 2);
  const bool known = type == Type::pred || is_float(type) || type == Type::b128 ||
                     ((is_bits(type) || is_integer(type)) && bit_width(type) >= 16);
  if (!known) unsupported("unknown type");
  const Operand& to = operand(0);
  const Operand& from = operand(1);
  if (to.kind != OperandKind::vector && from.kind != OperandKind::vector) {
    write(to, read(from, type));
    return;
  }
  if (!is_bits(type)) unsupported("vectors move as bits");
  const int width = bit_width(type);
  Value* const value = from.kind == OperandKind::vector ? pack(from, width) : read(from, type);
  if (to.kind == OperandKind::vector) {
    unpack(to, value);
  } else {
    write(to, value);
  }
}

// -- state spaces -----------------------------------------------------------------------------------------------------

void FunctionTranslator::translate_cvta() {
  const bool to_space = modifiers_->take("to");
  const bool parameter = modifiers_->take("param") || modifiers_->take("param::entry");
  const AddressSpace space = parameter ? AddressSpace::generic : modifiers_->take_space();
  if (!parameter && space == AddressSpace::generic) unsupported("the state space is missing");
  if (modifiers_->need_type() != Type::u64) unsupported("addresses have 64 bits");
  modifiers_->finish();
  expect_operands(2, 2);
  Value* const address = read(operand(1), Type::u64);
  if (parameter) {  // the addresses of parameters are generic ones
    write(operand(0), address);
  } else if (to_space) {
    write(operand(0), call(CalleeId::att_cvta_to, {context_, address, enumerator(space), site()}));
  } else {
    write(operand(0), call(CalleeId::att_cvta_from, {context_, address, enumerator(space)}));
  }
}

void FunctionTranslator::translate_isspacep() {
  const AddressSpace space = modifiers_->take_space();
  if (space == AddressSpace::generic) unsupported("unknown state space");
  modifiers_->finish();
  expect_operands(2, 2);
  Value* const result = call(CalleeId::att_is_space, {context_, read(operand(1), Type::u64), enumerator(space)});
  write(operand(0), builder_.CreateIsNotNull(result));
}

/// An operand that is a shared address where the instruction says so, else a generic one of 64 bits.
llvm::Value* FunctionTranslator::shared_operand(std::size_t index, AddressSpace space, Type type, AddressSpace wanted) {
  Value* const value = read(operand(index), type);
  llvm::Type* const word = builder_.getInt32Ty();
  if (space != AddressSpace::generic) return builder_.CreateZExtOrTrunc(value, word);
  Value* const generic = builder_.CreateZExt(value, builder_.getInt64Ty());
  return builder_.CreateTrunc(call(CalleeId::att_cvta_to, {context_, generic, enumerator(wanted), site()}), word);
}

void FunctionTranslator::translate_mapa() {
  const AddressSpace space = modifiers_->take_space();
  const Type type = modifiers_->need_type();
  modifiers_->finish();
  expect_operands(3, 3);
  if (space != AddressSpace::generic && space != AddressSpace::shared_cluster) unsupported("unknown state space");
  if (type != Type::u32 && type != Type::u64) unsupported("unknown type");
  if (space == AddressSpace::generic && type == Type::u32) unsupported("generic addresses have 64 bits");
  Value* const shared = shared_operand(1, space, type, AddressSpace::shared);
  Value* result = call(CalleeId::att_mapa, {context_, shared, read(operand(2), Type::u32), site()});
  result = builder_.CreateZExt(result, type_of(type));
  if (space == AddressSpace::generic) {
    result = call(CalleeId::att_cvta_from, {context_, result, enumerator(AddressSpace::shared_cluster)});
  }
  write(operand(0), result);
}

void FunctionTranslator::translate_getctarank() {
  const AddressSpace space = modifiers_->take_space();
  const Type type = modifiers_->need_type();
  modifiers_->finish();
  expect_operands(2, 2);
  if (space != AddressSpace::generic && space != AddressSpace::shared_cluster) unsupported("unknown state space");
  if (type != Type::u32 && type != Type::u64) unsupported("unknown type");
  if (space == AddressSpace::generic && type == Type::u32) unsupported("generic addresses have 64 bits");
  Value* const shared = shared_operand(1, space, type, AddressSpace::shared_cluster);
  write(operand(0), call(CalleeId::att_getctarank, {context_, shared}));
}

}  // namespace attune::emulator
