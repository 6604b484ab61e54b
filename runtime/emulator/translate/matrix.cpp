// FunctionTranslator: wgmma, mma, ldmatrix and their like.
#include "runtime/emulator/translate/function.h"

namespace attune::emulator {

using ptx::Operand;
using ptx::OperandKind;
using ptx::Type;

namespace {

std::optional<MatrixType> matrix_type(std::string_view name) {
  constexpr std::pair<std::string_view, MatrixType> kNames[] = {
      {"f16", MatrixType::f16},   {"bf16", MatrixType::bf16}, {"tf32", MatrixType::tf32}, {"e4m3", MatrixType::e4m3},
      {"e5m2", MatrixType::e5m2}, {"s8", MatrixType::s8},     {"u8", MatrixType::u8},     {"s4", MatrixType::s4},
      {"u4", MatrixType::u4},     {"b1", MatrixType::b1},     {"f64", MatrixType::f64},   {"f32", MatrixType::f32},
      {"s32", MatrixType::s32},
  };
  for (const auto& [known, type] : kNames) {
    if (known == name) return type;
  }
  return std::nullopt;
}

unsigned element_bits(MatrixType type) {
  switch (type) {
    case MatrixType::f64: return 64;
    case MatrixType::f32:
    case MatrixType::s32:
    case MatrixType::tf32: return 32;
    case MatrixType::f16:
    case MatrixType::bf16: return 16;
    case MatrixType::s4:
    case MatrixType::u4: return 4;
    case MatrixType::b1: return 1;
    default: return 8;
  }
}

bool is_fp8(MatrixType type) { return type == MatrixType::e4m3 || type == MatrixType::e5m2; }
bool is_int8(MatrixType type) { return type == MatrixType::s8 || type == MatrixType::u8; }
bool is_int4(MatrixType type) { return type == MatrixType::s4 || type == MatrixType::u4; }

struct Shape {
  unsigned m = 0, n = 0, k = 0;
};

std::optional<Shape> parse_shape(std::string_view text) {
  Shape shape;
  for (const auto& [letter, size] : {std::pair{'m', &shape.m}, {'n', &shape.n}, {'k', &shape.k}}) {
    if (text.empty() || text.front() != letter) return std::nullopt;
    text.remove_prefix(1);
    std::size_t digits = 0;
    while (digits < text.size() && digits < 3 && text[digits] >= '0' && text[digits] <= '9') {
      *size = *size * 10 + static_cast<unsigned>(text[digits++] - '0');
    }
    text.remove_prefix(digits);
  }
  if (!text.empty() || shape.m == 0 || shape.n == 0 || shape.k == 0) return std::nullopt;
  return shape;
}

}  // namespace

MatrixType FunctionTranslator::take_matrix_type() {
  const std::optional<MatrixType> type = matrix_type(modifiers_->take_next());
  if (!type) unsupported("unknown matrix type");
  return *type;
}

// -- wgmma ------------------------------------------------------------------------------------------------------------

void FunctionTranslator::translate_wgmma() {
  if (modifiers_->take("mma_async")) {
    translate_wgmma_mma();
    return;
  }
  enum class Op { fence, commit, wait };
  const Op op =
      modifiers_->need_one_of<Op>({{"fence", Op::fence}, {"commit_group", Op::commit}, {"wait_group", Op::wait}});
  if (!modifiers_->take("sync") || !modifiers_->take("aligned")) unsupported(".sync.aligned is missing");
  modifiers_->finish();
  expect_operands(op == Op::wait ? 1 : 0, op == Op::wait ? 1 : 0);
  switch (op) {
    case Op::fence: call(CalleeId::att_wgmma_fence, {context_, site()}); break;
    case Op::commit: call(CalleeId::att_wgmma_commit, {context_, site()}); break;
    case Op::wait:
      if (operand(0).kind != OperandKind::immediate) invalid("the count needs to be a number");
      call(CalleeId::att_wgmma_wait, {context_, read(operand(0), Type::u32), site()});
  }
}

std::vector<std::uint16_t> FunctionTranslator::slots_of(const Operand& list, std::size_t count) {
  if (list.kind != OperandKind::vector || list.items.size() != count) {
    invalid(fmt::format("{} registers are needed", count));
  }
  std::vector<std::uint16_t> result;
  for (const Operand& item : list.items) {
    if (item.kind != OperandKind::reg) invalid("registers are needed");
    result.push_back(registers_[static_cast<std::size_t>(need_register(item.name))].slot);
  }
  return result;
}

void FunctionTranslator::translate_wgmma_mma() {
  if (!modifiers_->take("sync") || !modifiers_->take("aligned")) unsupported(".sync.aligned is missing");
  WgmmaInfo info{};
  info.saturate = modifiers_->take("satfinite");
  const std::optional<Shape> shape = parse_shape(modifiers_->take_next());
  if (!shape) unsupported("unknown shape");
  info.m = static_cast<std::uint16_t>(shape->m);
  info.n = static_cast<std::uint16_t>(shape->n);
  info.k = static_cast<std::uint16_t>(shape->k);
  info.d = take_matrix_type();
  info.a = take_matrix_type();
  info.b = take_matrix_type();
  const bool binary = info.a == MatrixType::b1;
  if (binary && (!modifiers_->take("and") || !modifiers_->take("popc"))) unsupported(".and.popc is missing");
  modifiers_->finish();

  const bool half = info.a == MatrixType::f16 || info.a == MatrixType::bf16;
  const bool floats = half || info.a == MatrixType::tf32 || is_fp8(info.a);
  const bool same = info.a == info.b || (is_fp8(info.a) && is_fp8(info.b)) || (is_int8(info.a) && is_int8(info.b));
  const bool f16_result = info.d == MatrixType::f16;
  const bool result = floats
                          ? info.d == MatrixType::f32 || (f16_result && (info.a == MatrixType::f16 || is_fp8(info.a)))
                          : info.d == MatrixType::s32 && (is_int8(info.a) || binary);
  const bool sizes =
      info.m == 64 && info.n >= 8 && info.n <= 256 && info.n % 8 == 0 && info.k * element_bits(info.a) == 256;
  const bool integer_n = info.n <= 32 || info.n % 16 == 0;
  if (!same || !result || !sizes || (!floats && !integer_n)) unsupported("unknown shape or types");
  if (info.saturate && !is_int8(info.a)) unsupported("unknown modifier .satfinite");

  // d, a, b, scale-d{, imm-scale-a, imm-scale-b{, imm-trans-a}{, imm-trans-b}}
  info.a_in_registers = operand(1).kind == OperandKind::vector;
  const std::size_t transposes = !half ? 0 : info.a_in_registers ? 1 : 2;
  const std::size_t count = 4 + (floats ? 2 : 0) + transposes;
  expect_operands(count, count);
  const auto flag = [&](std::size_t index) {
    if (operand(index).kind != OperandKind::immediate) invalid("scales and transposes are numbers");
    return static_cast<std::int64_t>(operand(index).bits);
  };
  info.scale_a = info.scale_b = 1;
  if (floats) {
    for (const auto& [scale, index] : {std::pair{&info.scale_a, 4}, {&info.scale_b, 5}}) {
      const std::int64_t value = flag(static_cast<std::size_t>(index));
      if (value != 1 && value != -1) invalid("a scale is 1 or -1");
      *scale = static_cast<std::int8_t>(value);
    }
  }
  const auto transpose = [&](std::size_t index) {
    const std::int64_t value = flag(index);
    if (value != 0 && value != 1) invalid("a transpose is 0 or 1");
    return value == 1;
  };
  if (transposes == 2) info.transpose_a = transpose(6);
  if (transposes != 0) info.transpose_b = transpose(count - 1);

  info.d_slots = module_.constants().keep(slots_of(operand(0), info.n / (f16_result ? 4u : 2u)))->data();
  if (info.a_in_registers) info.a_slots = module_.constants().keep(slots_of(operand(1), 4))->data();
  Value* const a = info.a_in_registers ? i64(0) : read(operand(1), Type::u64);
  Value* const b = read(operand(2), Type::u64);
  Value* const scale_d = builder_.CreateZExt(read_predicate(operand(3)), builder_.getInt32Ty());
  call(CalleeId::att_wgmma, {context_, constant(info), a, b, scale_d, site()});
}

// -- mma --------------------------------------------------------------------------------------------------------------

namespace {

bool is_known_mma(const MmaInfo& info) {
  const auto shape = [&](unsigned m, unsigned n, unsigned k) { return info.m == m && info.n == n && info.k == k; };
  const bool f32 = info.c == MatrixType::f32 && info.d == MatrixType::f32;
  const bool s32 = info.c == MatrixType::s32 && info.d == MatrixType::s32;
  const auto f16_or_f32 = [](MatrixType type) { return type == MatrixType::f16 || type == MatrixType::f32; };
  if (is_fp8(info.a) && is_fp8(info.b)) {
    return (f32 || (info.c == MatrixType::f16 && info.d == MatrixType::f16)) && (shape(16, 8, 32) || shape(16, 8, 16));
  }
  if (is_int8(info.a) && is_int8(info.b)) return s32 && (shape(8, 8, 16) || shape(16, 8, 16) || shape(16, 8, 32));
  if (is_int4(info.a) && is_int4(info.b)) return s32 && (shape(8, 8, 32) || shape(16, 8, 32) || shape(16, 8, 64));
  if (info.a != info.b) return false;
  switch (info.a) {
    case MatrixType::f16: return f16_or_f32(info.c) && info.c == info.d && (shape(16, 8, 8) || shape(16, 8, 16));
    case MatrixType::bf16: return f32 && (shape(16, 8, 8) || shape(16, 8, 16));
    case MatrixType::tf32: return f32 && (shape(16, 8, 4) || shape(16, 8, 8));
    case MatrixType::b1: return s32 && (shape(8, 8, 128) || shape(16, 8, 128) || shape(16, 8, 256));
    case MatrixType::f64:
      return info.c == MatrixType::f64 && info.d == MatrixType::f64 &&
             (shape(8, 8, 4) || shape(16, 8, 4) || shape(16, 8, 8) || shape(16, 8, 16));
    default: return false;
  }
}

}  // namespace

void FunctionTranslator::translate_mma() {
  if (!modifiers_->take("sync") || !modifiers_->take("aligned")) unsupported(".sync.aligned is missing");
  MmaInfo info{};
  info.saturate = modifiers_->take("satfinite");
  const std::optional<Shape> shape = parse_shape(modifiers_->take_next());
  if (!shape || !modifiers_->take("row") || !modifiers_->take("col")) unsupported("unknown shape or layout");
  info.a_row = info.b_col = true;
  info.m = static_cast<std::uint16_t>(shape->m);
  info.n = static_cast<std::uint16_t>(shape->n);
  info.k = static_cast<std::uint16_t>(shape->k);
  info.d = take_matrix_type();
  info.a = take_matrix_type();
  info.b = take_matrix_type();
  info.c = take_matrix_type();
  if (info.a == MatrixType::b1) {
    info.bits =
        modifiers_->need_one_of<MmaInfo::Bits>({{"xor", MmaInfo::Bits::bit_xor}, {"and", MmaInfo::Bits::bit_and}});
    if (!modifiers_->take("popc")) unsupported(".popc is missing");
  }
  modifiers_->finish();
  if (!is_known_mma(info)) unsupported("unknown shape or types");
  if (info.saturate && info.d != MatrixType::s32) unsupported("unknown modifier .satfinite");
  expect_operands(4, 4);
  const auto words = [](unsigned rows, unsigned columns, MatrixType type) {
    return static_cast<std::uint8_t>(rows * columns * element_bits(type) / (32 * 32));
  };
  info.a_words = words(info.m, info.k, info.a);
  info.b_words = words(info.k, info.n, info.b);
  info.c_words = words(info.m, info.n, info.c);
  info.d_words = words(info.m, info.n, info.d);

  const bool wide = info.a == MatrixType::f64;
  const unsigned word_bytes = wide ? 8 : 4;
  const auto registers_of = [&](const Operand& list, unsigned word_count) {
    const unsigned count = wide ? word_count / 2 : word_count;
    if (list.kind != OperandKind::vector && count == 1) return std::vector<const Operand*>{&list};
    if (list.kind != OperandKind::vector || list.items.size() != count) {
      invalid(fmt::format("{} registers are needed", count));
    }
    std::vector<const Operand*> result;
    for (const Operand& item : list.items) result.push_back(&item);
    return result;
  };
  Value* const memory = operand_array(4u * (info.a_words + info.b_words + info.c_words + info.d_words));
  std::uint64_t offset = 0;
  const unsigned input_words[] = {info.a_words, info.b_words, info.c_words};
  for (std::size_t i = 0; i < 3; ++i) {
    for (const Operand* item : registers_of(operand(i + 1), input_words[i])) {
      builder_.CreateAlignedStore(read(*item, wide ? Type::b64 : Type::b32), at_offset(memory, offset), llvm::Align(4));
      offset += word_bytes;
    }
  }
  Value* const results = at_offset(memory, offset);
  call(CalleeId::att_mma, {context_, constant(info), memory, results, site()});
  for (const Operand* item : registers_of(operand(0), info.d_words)) {
    write(*item, builder_.CreateAlignedLoad(wide ? builder_.getInt64Ty() : builder_.getInt32Ty(),
                                            at_offset(memory, offset), llvm::Align(4)));
    offset += word_bytes;
  }
}

// -- ldmatrix, stmatrix, movmatrix ------------------------------------------------------------------------------------

FunctionTranslator::MatrixMove FunctionTranslator::take_matrix_move(std::size_t list_index) {
  MatrixMove move;
  if (!modifiers_->take("sync") || !modifiers_->take("aligned") || !modifiers_->take("m8n8")) {
    unsupported(".sync.aligned.m8n8 is missing");
  }
  move.info.count = modifiers_->need_one_of<std::uint8_t>({{"x1", 1}, {"x2", 2}, {"x4", 4}});
  move.info.transpose = modifiers_->take("trans");
  move.info.space = modifiers_->take_space();
  if (modifiers_->need_type() != Type::b16) unsupported("unknown type");
  modifiers_->finish();
  expect_operands(2, 2);
  move.address = shared_address(operand(1 - list_index), &move.info.space);
  const Operand& list = operand(list_index);
  if (list.kind != OperandKind::vector) {
    move.registers.push_back(&list);
  } else {
    for (const Operand& item : list.items) move.registers.push_back(&item);
  }
  if (move.registers.size() != move.info.count) invalid("another number of registers");
  return move;
}

void FunctionTranslator::translate_ldmatrix() {
  MatrixMove move = take_matrix_move(0);
  move.info.may_be_late = late_loads_.contains(statement_);
  Value* const memory = operand_array(16);
  call(CalleeId::att_ldmatrix, {context_, constant(move.info), move.address, memory, site()});
  for (std::size_t i = 0; i < move.registers.size(); ++i) {
    write(*move.registers[i],
          builder_.CreateAlignedLoad(builder_.getInt32Ty(), at_offset(memory, 4 * i), llvm::Align(4)));
  }
}

void FunctionTranslator::translate_stmatrix() {
  const MatrixMove move = take_matrix_move(1);
  Value* const memory = operand_array(16);
  for (std::size_t i = 0; i < move.registers.size(); ++i) {
    builder_.CreateAlignedStore(read(*move.registers[i], Type::b32), at_offset(memory, 4 * i), llvm::Align(4));
  }
  call(CalleeId::att_stmatrix, {context_, constant(move.info), move.address, memory, site()});
}

void FunctionTranslator::translate_movmatrix() {
  const bool known = modifiers_->take("sync") && modifiers_->take("aligned") && modifiers_->take("m8n8") &&
                     modifiers_->take("trans") && modifiers_->take("b16");
  if (!known) unsupported("unknown move");
  modifiers_->finish();
  expect_operands(2, 2);
  write(operand(0), call(CalleeId::att_movmatrix, {context_, read(operand(1), Type::b32), site()}));
}

}  // namespace attune::emulator
