// FunctionTranslator: asynchronous copies.
#include <cstddef>

#include "runtime/emulator/translate/function.h"

namespace attune::emulator {

using ptx::Operand;
using ptx::OperandKind;
using ptx::Type;

namespace {

std::uint32_t immediate_of(const Operand& operand, const ptx::Instruction& instruction) {
  if (operand.kind != OperandKind::immediate || operand.is_float) {
    fail_at(ErrorCode::invalid_argument, instruction, "a number is needed");
  }
  return static_cast<std::uint32_t>(operand.bits);
}

std::size_t position(const ptx::Instruction& instruction, std::string_view modifier) {
  return static_cast<std::size_t>(std::ranges::find(instruction.modifiers, modifier) - instruction.modifiers.begin());
}

}  // namespace

void FunctionTranslator::translate_cp() {
  const bool reduce = modifiers_->take("reduce");
  if (!modifiers_->take("async")) unsupported("only asynchronous copies are known");
  if (modifiers_->take("bulk")) return translate_bulk(reduce);
  if (reduce) unsupported("unknown copy");
  if (modifiers_->take("commit_group")) {
    modifiers_->finish();
    expect_operands(0, 0);
    call(CalleeId::att_cp_async_commit, {context_, site()});
  } else if (modifiers_->take("wait_group")) {
    modifiers_->finish();
    expect_operands(1, 1);
    call(CalleeId::att_cp_async_wait, {context_, i32(immediate_of(operand(0), *instruction_)), site()});
  } else if (modifiers_->take("wait_all")) {
    modifiers_->finish();
    expect_operands(0, 0);
    call(CalleeId::att_cp_async_wait, {context_, i32(~0u), site()});
  } else if (modifiers_->take("mbarrier")) {
    if (!modifiers_->take("arrive")) unsupported("unknown copy");
    const bool no_increment = modifiers_->take("noinc");
    AddressSpace space = modifiers_->take_space();
    if (modifiers_->need_type() != Type::b64) unsupported("unknown type");
    modifiers_->finish();
    expect_operands(1, 1);
    Value* const where = shared_address(operand(0), &space);
    call(CalleeId::att_mbarrier_arrive_on_copies, {context_, where, i32(no_increment), site()});
  } else {
    translate_cp_async();
  }
}

/// cp.async.ca.shared.global [shared], [global], size{, source size or ignore-source}{, policy}
void FunctionTranslator::translate_cp_async() {
  const bool all_levels = instruction_->has("ca");
  if (!all_levels && !instruction_->has("cg")) unsupported("the cache operator is missing");
  const bool policy = modifiers_->take_cache_hints();
  const bool spaces = (modifiers_->take("shared") || modifiers_->take("shared::cta")) && modifiers_->take("global");
  modifiers_->finish();
  if (!spaces) unsupported("unknown state spaces");
  const std::size_t extra = policy ? 1 : 0;
  expect_operands(3 + extra, 4 + extra);
  const std::uint32_t bytes = immediate_of(operand(2), *instruction_);
  if (bytes != 16 && (!all_levels || (bytes != 4 && bytes != 8))) invalid("the size is not 4, 8 or 16");
  Value* source_bytes = i32(bytes);
  if (instruction_->operands.size() == 4 + extra) {
    const Operand& limit = operand(3);
    const bool ignore = limit.kind == OperandKind::reg && register_type(limit) == Type::pred;
    source_bytes = ignore ? choose(read_predicate(limit), i32(0), i32(bytes)) : read(limit, Type::u32);
  }
  call(CalleeId::att_cp_async, {context_, address(operand(0), AddressSpace::shared),
                                address(operand(1), AddressSpace::global), i32(bytes), source_bytes, site()});
}

// -- bulk copies --------------------------------------------------------------------------------------------------

/// Direction and spaces, from the order in which the spaces are named.
void FunctionTranslator::take_bulk_spaces(BulkInfo* info) {
  using Direction = BulkInfo::Direction;
  const std::size_t global = position(*instruction_, "global");
  const std::size_t cta = position(*instruction_, "shared::cta");
  const bool has_global = modifiers_->take("global"), has_cta = modifiers_->take("shared::cta"),
             has_cluster = modifiers_->take("shared::cluster");
  info->destination_space = AddressSpace::shared;
  if (info->direction == Direction::prefetch) {
    if (!has_global || has_cta || has_cluster || !modifiers_->take("L2")) unsupported("unknown state spaces");
  } else if (has_cluster && has_global && !has_cta) {
    info->direction = Direction::global_to_shared;
    info->destination_space = AddressSpace::shared_cluster;
  } else if (has_cta && has_global && !has_cluster) {
    info->direction = cta < global ? Direction::global_to_shared : Direction::shared_to_global;
  } else if (has_cluster && has_cta && !has_global) {
    info->direction = Direction::shared_to_shared_cluster;
    info->destination_space = AddressSpace::shared_cluster;
  } else {
    unsupported("unknown state spaces");
  }
}

void FunctionTranslator::take_bulk_reduction(BulkInfo* info, bool tensor) {
  using Reduce = BulkInfo::Reduce;
  info->reduce = modifiers_->need_one_of<Reduce>({{"add", Reduce::add},
                                                  {"min", Reduce::min},
                                                  {"max", Reduce::max},
                                                  {"inc", Reduce::inc},
                                                  {"dec", Reduce::dec},
                                                  {"and", Reduce::bit_and},
                                                  {"or", Reduce::bit_or},
                                                  {"xor", Reduce::bit_xor}});
  if (tensor) return;
  const bool no_ftz = modifiers_->take("noftz");
  info->reduce_type = modifiers_->need_one_of<AtomicType>({{"f16", AtomicType::f16},
                                                           {"bf16", AtomicType::bf16},
                                                           {"b32", AtomicType::b32},
                                                           {"u32", AtomicType::u32},
                                                           {"s32", AtomicType::s32},
                                                           {"b64", AtomicType::b64},
                                                           {"u64", AtomicType::u64},
                                                           {"s64", AtomicType::s64},
                                                           {"f32", AtomicType::f32},
                                                           {"f64", AtomicType::f64}});
  const bool half = info->reduce_type == AtomicType::f16 || info->reduce_type == AtomicType::bf16;
  if ((half && info->reduce == Reduce::add) != no_ftz) unsupported("unknown reduction");
}

/// [map, {x, y, ...}]
void FunctionTranslator::read_tensor_address(const Operand& where, std::uint8_t rank, BulkValues* values) {
  if (where.kind != OperandKind::address || where.items.size() != 2 || where.items[1].items.size() != rank) {
    invalid("a tensor map with as many coordinates as dimensions is needed");
  }
  values->map = address(where, AddressSpace::generic);
  for (const Operand& item : where.items[1].items) values->coordinates.push_back(read(item, Type::s32));
}

void FunctionTranslator::translate_bulk(bool reduce) {
  using Direction = BulkInfo::Direction;
  if (!reduce && modifiers_->take("commit_group")) {
    modifiers_->finish();
    expect_operands(0, 0);
    call(CalleeId::att_bulk_commit, {context_, site()});
    return;
  }
  if (!reduce && modifiers_->take("wait_group")) {
    const bool read_only = modifiers_->take("read");
    modifiers_->finish();
    expect_operands(1, 1);
    call(CalleeId::att_bulk_wait, {context_, i32(immediate_of(operand(0), *instruction_)), i32(read_only), site()});
    return;
  }
  BulkInfo info{};
  if (!reduce && modifiers_->take("prefetch")) info.direction = Direction::prefetch;
  const bool tensor = modifiers_->take("tensor");
  bool offsets = false;
  if (tensor) {
    info.rank = modifiers_->need_one_of<std::uint8_t>({{"1d", 1}, {"2d", 2}, {"3d", 3}, {"4d", 4}, {"5d", 5}});
    if (modifiers_->take("im2col")) {
      info.mode = BulkInfo::Mode::im2col;
      offsets = true;
    } else if (modifiers_->take("im2col_no_offs")) {
      info.mode = BulkInfo::Mode::im2col;
    } else {
      modifiers_->take("tile");
    }
    if (info.mode == BulkInfo::Mode::im2col && info.rank < 3) unsupported(".im2col needs three dimensions");
    info.offsets = offsets ? static_cast<std::uint8_t>(info.rank - 2) : 0;
  }
  take_bulk_spaces(&info);
  info.mbarrier = modifiers_->take("mbarrier::complete_tx::bytes");
  const bool group = modifiers_->take("bulk_group");
  info.multicast = modifiers_->take("multicast::cluster");
  const bool policy = modifiers_->take_cache_hints();
  if (reduce) take_bulk_reduction(&info, tensor);
  modifiers_->finish();

  const bool to_shared =
      info.direction == Direction::global_to_shared || info.direction == Direction::shared_to_shared_cluster;
  const bool to_global = info.direction == Direction::shared_to_global;
  if (info.mbarrier != to_shared || group != to_global || info.mbarrier == group) {
    if (info.direction != Direction::prefetch || info.mbarrier || group) unsupported("unknown way of completion");
  }
  if (info.multicast && info.direction != Direction::global_to_shared)
    unsupported("unknown modifier .multicast::cluster");
  if (tensor && info.direction == Direction::shared_to_shared_cluster) unsupported("unknown state spaces");
  if (reduce && info.direction == Direction::global_to_shared) unsupported("unknown state spaces");
  if (offsets != (info.mode == BulkInfo::Mode::im2col && !to_global)) unsupported("unknown tensor mode");

  BulkValues values;
  std::size_t next = 0;
  const AddressSpace global = AddressSpace::global;
  if (to_shared) values.destination = address(operand(next++), info.destination_space);
  if (to_global && !tensor) values.destination = address(operand(next++), global);
  if (tensor) read_tensor_address(operand(next++), info.rank, &values);
  if (to_global || info.direction == Direction::shared_to_shared_cluster) {
    values.source = address(operand(next++), AddressSpace::shared);
  } else if (!tensor) {
    values.source = address(operand(next++), global);
  }
  if (!tensor) values.bytes = builder_.CreateZExt(read(operand(next++), Type::u32), builder_.getInt64Ty());
  if (info.mbarrier) values.mbarrier = address(operand(next++), info.destination_space);
  if (info.offsets != 0) {
    const Operand& list = operand(next++);
    if (list.kind != OperandKind::vector || list.items.size() != info.offsets) invalid("im2col offsets are needed");
    for (const Operand& item : list.items) values.offsets.push_back(read(item, Type::u16));
  }
  if (info.multicast) values.mask = builder_.CreateZExt(read(operand(next++), Type::u16), builder_.getInt64Ty());
  if (policy) ++next;
  expect_operands(next, next);
  call(CalleeId::att_bulk_copy, {context_, constant(info), store_bulk_operands(values), site()});
}

llvm::Value* FunctionTranslator::store_bulk_operands(const BulkValues& values) {
  Value* const memory = operand_array(sizeof(BulkOperands));
  const auto store = [&](Value* value, std::size_t offset) {
    builder_.CreateAlignedStore(value, at_offset(memory, offset), llvm::Align(1));
  };
  const auto store_or_zero = [&](Value* value, std::size_t offset) { store(value ? value : i64(0), offset); };
  store_or_zero(values.destination, offsetof(BulkOperands, destination));
  store_or_zero(values.source, offsetof(BulkOperands, source));
  store_or_zero(values.map, offsetof(BulkOperands, map));
  store_or_zero(values.mbarrier, offsetof(BulkOperands, mbarrier));
  store_or_zero(values.bytes, offsetof(BulkOperands, bytes));
  store_or_zero(values.mask, offsetof(BulkOperands, mask));
  for (std::size_t i = 0; i < 5; ++i) {
    store(i < values.coordinates.size() ? values.coordinates[i] : i32(0), offsetof(BulkOperands, coordinates) + 4 * i);
  }
  for (std::size_t i = 0; i < 3; ++i) {
    store(i < values.offsets.size() ? values.offsets[i] : builder_.getInt16(0),
          offsetof(BulkOperands, offsets) + 2 * i);
  }
  return memory;
}

}  // namespace attune::emulator
