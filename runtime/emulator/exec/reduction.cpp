// The reductions of bulk copies.
#include <cstring>

#include "runtime/emulator/exec/atomics.h"
#include "runtime/emulator/exec/bulk.h"

namespace attune::emulator {
namespace {

bool exists(BulkInfo::Reduce reduce, AtomicType type) {
  switch (type) {
    case AtomicType::u32: return true;
    case AtomicType::s32:
    case AtomicType::u64:
    case AtomicType::s64: return reduce != BulkInfo::Reduce::inc && reduce != BulkInfo::Reduce::dec;
    case AtomicType::b32:
    case AtomicType::b64:
      return reduce == BulkInfo::Reduce::bit_and || reduce == BulkInfo::Reduce::bit_or ||
             reduce == BulkInfo::Reduce::bit_xor;
    case AtomicType::f16:
    case AtomicType::bf16:
      return reduce == BulkInfo::Reduce::add || reduce == BulkInfo::Reduce::min || reduce == BulkInfo::Reduce::max;
    case AtomicType::f32:
    case AtomicType::f64: return reduce == BulkInfo::Reduce::add;
    default: return false;
  }
}

AtomicOp operation(BulkInfo::Reduce reduce) {
  switch (reduce) {
    case BulkInfo::Reduce::min: return AtomicOp::min;
    case BulkInfo::Reduce::max: return AtomicOp::max;
    case BulkInfo::Reduce::inc: return AtomicOp::inc;
    case BulkInfo::Reduce::dec: return AtomicOp::dec;
    case BulkInfo::Reduce::bit_and: return AtomicOp::bit_and;
    case BulkInfo::Reduce::bit_or: return AtomicOp::bit_or;
    case BulkInfo::Reduce::bit_xor: return AtomicOp::bit_xor;
    default: return AtomicOp::add;
  }
}

}  // namespace

void Reduction::operator()(std::uint8_t* destination, const std::uint8_t* source, std::uint32_t bytes) const {
  const auto element = static_cast<std::uint32_t>(atomic_element_bytes(type));
  const bool flush = type == AtomicType::f32;
  for (std::uint32_t at = 0; at < bytes; at += element) {
    std::uint64_t old = 0, value = 0;
    std::memcpy(&old, destination + at, element);
    std::memcpy(&value, source + at, element);
    const std::uint64_t result = atomic_result(op, type, flush, old, value);
    std::memcpy(destination + at, &result, element);
  }
}

std::optional<Reduction> find_reduction(BulkInfo::Reduce reduce, AtomicType type) {
  if (reduce == BulkInfo::Reduce::none || !exists(reduce, type)) return std::nullopt;
  return Reduction{operation(reduce), type};
}

const char* reduce_name(BulkInfo::Reduce reduce) {
  switch (reduce) {
    case BulkInfo::Reduce::none: return "none";
    case BulkInfo::Reduce::add: return "add";
    case BulkInfo::Reduce::min: return "min";
    case BulkInfo::Reduce::max: return "max";
    case BulkInfo::Reduce::inc: return "inc";
    case BulkInfo::Reduce::dec: return "dec";
    case BulkInfo::Reduce::bit_and: return "and";
    case BulkInfo::Reduce::bit_or: return "or";
    case BulkInfo::Reduce::bit_xor: return "xor";
  }
  return "?";
}

}  // namespace attune::emulator
