// ldmatrix, stmatrix and movmatrix: 8x8 matrices of 16-bit elements between shared memory and the registers of a warp.
#include <array>
#include <cstring>

#include "runtime/emulator/check/checker.h"
#include "runtime/emulator/exec/memory.h"
#include "runtime/emulator/exec/thread.h"

namespace attune::emulator {
namespace {

constexpr std::uint32_t kRows = 8;
constexpr std::uint32_t kRowBytes = 16;

/// A matrix as rows of 8 elements. Each lane holds two neighbours of a row, in one register.
using Matrix = std::array<std::array<std::uint16_t, kRows>, kRows>;

std::uint32_t fragment(const Matrix& matrix, std::uint32_t lane, bool transpose) {
  const std::uint32_t row = lane / 4, column = lane % 4 * 2;
  const std::uint32_t low = transpose ? matrix[column][row] : matrix[row][column];
  const std::uint32_t high = transpose ? matrix[column + 1][row] : matrix[row][column + 1];
  return low | high << 16;
}

void set_fragment(Matrix* matrix, std::uint32_t lane, bool transpose, std::uint32_t word) {
  const std::uint32_t row = lane / 4, column = lane % 4 * 2;
  (transpose ? (*matrix)[column][row] : (*matrix)[row][column]) = static_cast<std::uint16_t>(word);
  (transpose ? (*matrix)[column + 1][row] : (*matrix)[row][column + 1]) = static_cast<std::uint16_t>(word >> 16);
}

struct MoveCall {
  const MatrixMoveInfo* info;
  std::uint64_t address;
  std::uint32_t* registers;
  std::uint32_t site;
};

/// Where the row that a lane names lies; null after a finding. `load`: AccessTraits::load.
std::uint8_t* row_memory(ThreadContext* thread, const MoveCall& call, bool write, std::uint32_t load = 0) {
  const char* what = write ? "row of stmatrix" : "row of ldmatrix";
  Location location;
  if (!check_alignment(thread, call.address, kRowBytes, what, call.site) ||
      !locate(thread, call.info->space, call.address, kRowBytes, write ? AccessKind::write : AccessKind::read, what,
              call.site, &location)) {
    return nullptr;
  }
  check_access(thread, location, kRowBytes, {.reads = !write, .writes = write, .load = load}, call.site);
  return location.host;
}

const MatrixMoveInfo& info_of(const Gathering& gathering) {
  std::uint32_t lane = 0;
  while (!gathering.has(lane)) ++lane;
  return *gathering.operand<MoveCall>(lane)->info;
}

/// One load for all lanes: what one of them uses has come to all.
std::uint32_t begin_load(const Gathering& gathering) {
  Checker* checker = gathering.threads->checker();
  if (!checker || !info_of(gathering).may_be_late) return 0;
  const std::uint32_t load = checker->begin_load();
  for (std::uint32_t lane = 0; lane < kWarpSize; ++lane) {
    if (!gathering.has(lane)) continue;
    ThreadContext* thread = gathering.thread(lane);
    thread->unused_loads = checker->fill(thread->agent(), gathering.operand<MoveCall>(lane)->site, load);
  }
  return load;
}

bool load(Gathering& gathering) {
  const MatrixMoveInfo& info = info_of(gathering);
  const std::uint32_t late = begin_load(gathering);
  for (std::uint32_t i = 0; i < info.count; ++i) {
    Matrix matrix{};
    for (std::uint32_t row = 0; row < kRows; ++row) {
      const std::uint32_t lane = i * kRows + row;
      if (!gathering.has(lane)) continue;
      const std::uint8_t* memory = row_memory(gathering.thread(lane), *gathering.operand<MoveCall>(lane), false, late);
      if (memory != nullptr) std::memcpy(matrix[row].data(), memory, kRowBytes);
    }
    for (std::uint32_t lane = 0; lane < kWarpSize; ++lane) {
      if (gathering.has(lane)) {
        gathering.operand<MoveCall>(lane)->registers[i] = fragment(matrix, lane, info.transpose);
      }
    }
  }
  return true;
}

bool store(Gathering& gathering) {
  const MatrixMoveInfo& info = info_of(gathering);
  for (std::uint32_t i = 0; i < info.count; ++i) {
    Matrix matrix{};
    for (std::uint32_t lane = 0; lane < kWarpSize; ++lane) {
      if (gathering.has(lane)) {
        set_fragment(&matrix, lane, info.transpose, gathering.operand<MoveCall>(lane)->registers[i]);
      }
    }
    for (std::uint32_t row = 0; row < kRows; ++row) {
      const std::uint32_t lane = i * kRows + row;
      if (!gathering.has(lane)) continue;
      std::uint8_t* memory = row_memory(gathering.thread(lane), *gathering.operand<MoveCall>(lane), true);
      if (memory != nullptr) std::memcpy(memory, matrix[row].data(), kRowBytes);
    }
  }
  return true;
}

bool transpose(Gathering& gathering) {
  Matrix matrix{};
  for (std::uint32_t lane = 0; lane < kWarpSize; ++lane) {
    if (gathering.has(lane)) set_fragment(&matrix, lane, false, *gathering.operand<std::uint32_t>(lane));
  }
  for (std::uint32_t lane = 0; lane < kWarpSize; ++lane) {
    if (gathering.has(lane)) *gathering.operand<std::uint32_t>(lane) = fragment(matrix, lane, true);
  }
  return true;
}

}  // namespace

extern "C" {

void att_ldmatrix(ThreadContext* context, const MatrixMoveInfo* info, std::uint64_t address, std::uint32_t* registers,
                  std::uint32_t site) {
  MoveCall call{info, address, registers, site};
  gather_warp(context, "ldmatrix", site, &call, load);
}

void att_stmatrix(ThreadContext* context, const MatrixMoveInfo* info, std::uint64_t address,
                  const std::uint32_t* registers, std::uint32_t site) {
  std::array<std::uint32_t, 4> values{};
  std::memcpy(values.data(), registers, info->count * sizeof(std::uint32_t));
  MoveCall call{info, address, values.data(), site};
  gather_warp(context, "stmatrix", site, &call, store);
}

std::uint32_t att_movmatrix(ThreadContext* context, std::uint32_t value, std::uint32_t site) {
  gather_warp(context, "movmatrix", site, &value, transpose);
  return value;
}

}  // extern "C"

}  // namespace attune::emulator
