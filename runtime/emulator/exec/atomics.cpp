// atom and red. Everything runs in one OS thread, so a plain read, change and write is atomic.

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>

#include "runtime/emulator/exec/atomics.h"
#include "runtime/emulator/exec/formats.h"
#include "runtime/emulator/exec/grid.h"
#include "runtime/emulator/exec/memory.h"
#include "runtime/emulator/exec/thread.h"

namespace attune::emulator {

namespace {

/// 128 bits, as compare-and-swap and exchange take them.
using Wide = std::array<std::uint64_t, 2>;

template <typename T>
T integer(AtomicOp op, T old, T value, T swap) {
  switch (op) {
    case AtomicOp::add: return static_cast<T>(static_cast<std::uint64_t>(old) + static_cast<std::uint64_t>(value));
    case AtomicOp::min: return std::min(old, value);
    case AtomicOp::max: return std::max(old, value);
    case AtomicOp::inc: return old >= value ? T{0} : static_cast<T>(old + 1);
    case AtomicOp::dec: return old == 0 || old > value ? value : static_cast<T>(old - 1);
    case AtomicOp::cas: return old == value ? swap : old;
    case AtomicOp::exch: return value;
    case AtomicOp::bit_and: return static_cast<T>(old & value);
    case AtomicOp::bit_or: return static_cast<T>(old | value);
    case AtomicOp::bit_xor: return static_cast<T>(old ^ value);
  }
  return old;
}

/// NaN loses against a number.
template <typename T>
T real(AtomicOp op, T old, T value) {
  switch (op) {
    case AtomicOp::min: return std::fmin(old, value);
    case AtomicOp::max: return std::fmax(old, value);
    default: return old + value;
  }
}

float flushed(float value) { return std::fpclassify(value) == FP_SUBNORMAL ? std::copysign(0.0f, value) : value; }

template <typename Format>
std::uint16_t half(AtomicOp op, std::uint16_t old, std::uint16_t value) {
  return encode<Format>(real<double>(op, decode<Format>(old), decode<Format>(value)));
}

template <typename Format>
std::uint64_t half_pair(AtomicOp op, std::uint64_t old, std::uint64_t value) {
  const auto at = [&](int shift) {
    return std::uint32_t{
               half<Format>(op, static_cast<std::uint16_t>(old >> shift), static_cast<std::uint16_t>(value >> shift))}
           << shift;
  };
  return at(0) | at(16);
}

/// Null after a finding.
std::uint8_t* place(ThreadContext* context, const AtomicInfo& info, std::uint64_t address, std::uint32_t site,
                    bool* global) {
  const std::size_t bytes = atomic_element_bytes(info.type) * std::max<std::size_t>(info.vector, 1);
  Location location;
  if (!check_alignment(context, address, bytes, "atomic", site) ||
      !locate(context, info.space, address, bytes, AccessKind::write, "atomic", site, &location)) {
    return nullptr;
  }
  context->grid().progress();
  check_access(context, location, bytes,
               {.reads = info.op != AtomicOp::exch,
                .writes = true,
                .semantics = info.semantics == Semantics::weak ? Semantics::relaxed : info.semantics},
               site);
  *global = !location.block && !location.local;
  return location.host;
}

}  // namespace

std::size_t atomic_element_bytes(AtomicType type) {
  switch (type) {
    case AtomicType::b16:
    case AtomicType::f16:
    case AtomicType::bf16: return 2;
    case AtomicType::u32:
    case AtomicType::s32:
    case AtomicType::b32:
    case AtomicType::f32:
    case AtomicType::f16x2:
    case AtomicType::bf16x2: return 4;
    case AtomicType::u64:
    case AtomicType::s64:
    case AtomicType::b64:
    case AtomicType::f64: return 8;
    case AtomicType::b128: return 16;
  }
  return 0;
}

std::uint64_t atomic_result(AtomicOp op, AtomicType type, bool flush, std::uint64_t old, std::uint64_t value,
                            std::uint64_t swap) {
  switch (type) {
    case AtomicType::f16: return half<Fp16>(op, static_cast<std::uint16_t>(old), static_cast<std::uint16_t>(value));
    case AtomicType::bf16: return half<Bf16>(op, static_cast<std::uint16_t>(old), static_cast<std::uint16_t>(value));
    case AtomicType::f16x2: return half_pair<Fp16>(op, old, value);
    case AtomicType::bf16x2: return half_pair<Bf16>(op, old, value);
    case AtomicType::f32: {
      auto a = std::bit_cast<float>(static_cast<std::uint32_t>(old));
      auto b = std::bit_cast<float>(static_cast<std::uint32_t>(value));
      if (flush) return std::bit_cast<std::uint32_t>(flushed(real(op, flushed(a), flushed(b))));
      return std::bit_cast<std::uint32_t>(real(op, a, b));
    }
    case AtomicType::f64:
      return std::bit_cast<std::uint64_t>(real(op, std::bit_cast<double>(old), std::bit_cast<double>(value)));
    case AtomicType::s32:
      return static_cast<std::uint32_t>(integer(op, static_cast<std::int32_t>(old), static_cast<std::int32_t>(value),
                                                static_cast<std::int32_t>(swap)));
    case AtomicType::s64:
      return static_cast<std::uint64_t>(integer(op, static_cast<std::int64_t>(old), static_cast<std::int64_t>(value),
                                                static_cast<std::int64_t>(swap)));
    case AtomicType::b16:
      return integer(op, static_cast<std::uint16_t>(old), static_cast<std::uint16_t>(value),
                     static_cast<std::uint16_t>(swap));
    case AtomicType::u32:
    case AtomicType::b32:
      return integer(op, static_cast<std::uint32_t>(old), static_cast<std::uint32_t>(value),
                     static_cast<std::uint32_t>(swap));
    case AtomicType::u64:
    case AtomicType::b64:
    case AtomicType::b128: return integer(op, old, value, swap);
  }
  return old;
}

extern "C" {

std::uint64_t att_atomic(ThreadContext* context, const AtomicInfo* info, std::uint64_t address, std::uint64_t operand,
                         std::uint64_t second, std::uint32_t site) {
  bool global = false;
  std::uint8_t* memory = place(context, *info, address, site, &global);
  if (!memory) return 0;
  const std::size_t bytes = atomic_element_bytes(info->type);
  std::uint64_t old = 0;
  std::memcpy(&old, memory, bytes);
  const std::uint64_t changed = atomic_result(info->op, info->type, global && !info->no_ftz, old, operand, second);
  std::memcpy(memory, &changed, bytes);
  return old;
}

void att_atomic_wide(ThreadContext* context, const AtomicInfo* info, std::uint64_t address, const void* operands,
                     void* old, std::uint32_t site) {
  bool global = false;
  const std::size_t bytes = atomic_element_bytes(info->type);
  const std::size_t elements = std::max<std::size_t>(info->vector, 1);
  std::uint8_t* memory = place(context, *info, address, site, &global);
  if (!memory) {
    if (old) std::memset(old, 0, bytes * elements);
    return;
  }
  if (old) std::memcpy(old, memory, bytes * elements);
  const auto* values = static_cast<const std::uint8_t*>(operands);
  if (info->type == AtomicType::b128) {
    Wide now, compare;
    std::memcpy(&now, memory, sizeof now);
    std::memcpy(&compare, values, sizeof compare);
    if (info->op == AtomicOp::exch) {
      std::memcpy(memory, values, sizeof now);
    } else if (now == compare) {
      std::memcpy(memory, values + sizeof compare, sizeof now);
    }
    return;
  }
  for (std::size_t i = 0; i < elements; ++i) {
    std::uint64_t now = 0, value = 0;
    std::memcpy(&now, memory + i * bytes, bytes);
    std::memcpy(&value, values + i * bytes, bytes);
    const std::uint64_t changed = atomic_result(info->op, info->type, global && !info->no_ftz, now, value);
    std::memcpy(memory + i * bytes, &changed, bytes);
  }
}

}  // extern "C"

}  // namespace attune::emulator
