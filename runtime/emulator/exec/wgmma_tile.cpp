#include "runtime/emulator/exec/wgmma_tile.h"

#include <algorithm>
#include <cstring>

#include "runtime/emulator/exec/formats.h"
#include "runtime/emulator/exec/matrix_layout.h"
#include "runtime/emulator/exec/thread.h"

namespace attune::emulator {
namespace {

/// Copies between a thread's accumulator registers and a row-major tile, 2 neighbours at a time.
template <typename Element>
void read_registers(const std::uint32_t* slots, const std::uint16_t* list, std::uint32_t n, Element* at,
                    std::uint32_t pitch) {
  static_assert(sizeof(Element) == 4);
  for (std::uint32_t column = 0; column < n; column += 8, list += 4, at += 8) {
    std::memcpy(at, &slots[list[0]], 4);
    std::memcpy(at + 1, &slots[list[1]], 4);
    std::memcpy(at + 8 * pitch, &slots[list[2]], 4);
    std::memcpy(at + 8 * pitch + 1, &slots[list[3]], 4);
  }
}

template <typename Element>
void write_registers(std::uint32_t* slots, const std::uint16_t* list, std::uint32_t n, const Element* at,
                     std::uint32_t pitch) {
  static_assert(sizeof(Element) == 4);
  for (std::uint32_t column = 0; column < n; column += 8, list += 4, at += 8) {
    std::memcpy(&slots[list[0]], at, 4);
    std::memcpy(&slots[list[1]], at + 1, 4);
    std::memcpy(&slots[list[2]], at + 8 * pitch, 4);
    std::memcpy(&slots[list[3]], at + 8 * pitch + 1, 4);
  }
}

void read_halves(const std::uint32_t* slots, const std::uint16_t* list, std::uint32_t n, float* at,
                 std::uint32_t pitch) {
  for (std::uint32_t column = 0; column < n; column += 8, list += 2, at += 8) {
    for (std::uint32_t i = 0; i < 2; ++i) {
      const std::uint32_t word = slots[list[i]];
      at[8 * i * pitch] = fp16_to_float(static_cast<std::uint16_t>(word));
      at[8 * i * pitch + 1] = fp16_to_float(static_cast<std::uint16_t>(word >> 16));
    }
  }
}

void write_halves(std::uint32_t* slots, const std::uint16_t* list, std::uint32_t n, const float* at,
                  std::uint32_t pitch) {
  for (std::uint32_t column = 0; column < n; column += 8, list += 2, at += 8) {
    for (std::uint32_t i = 0; i < 2; ++i) {
      const std::uint32_t low = encode<Fp16>(double{at[8 * i * pitch]});
      const std::uint32_t high = encode<Fp16>(double{at[8 * i * pitch + 1]});
      slots[list[i]] = low | high << 16;
    }
  }
}

}  // namespace

WgmmaTile& WgmmaTile::scratch() {
  thread_local WgmmaTile tile;
  return tile;
}

template <typename Visit>
void WgmmaTile::for_each_thread(const Visit& visit) {
  for (std::uint32_t lane = 0; lane < kWarpgroupSize; ++lane) {
    if ((lanes_[lane / kWarpSize] >> lane % kWarpSize & 1) != 0) visit(&threads_[lane], lane);
  }
}

void WgmmaTile::begin(const WgmmaInfo& info, const std::uint8_t* shared, ThreadContext* threads,
                      const std::array<std::uint32_t, 4>& lanes) {
  info_ = &info;
  shared_ = shared;
  threads_ = threads;
  lanes_ = lanes;
}

void WgmmaTile::gather_rows(std::uint64_t descriptor, std::uint32_t rows, std::vector<std::uint8_t>* bytes) {
  const MatrixDescriptor d = decode_descriptor(descriptor);
  bytes->resize(rows * kWgmmaKBytes);
  for (std::uint32_t row = 0; row < rows; ++row) {
    for (std::uint32_t half = 0; half < 2; ++half) {
      std::memcpy(bytes->data() + row * kWgmmaKBytes + half * kChunkBytes, shared_ + k_major_chunk(d, row, half),
                  kChunkBytes);
    }
  }
}

void WgmmaTile::load_a(std::uint64_t descriptor) {
  const bool negate = info_->scale_a < 0;
  const std::uint32_t k = info_->k;
  if (!is_bits()) a_.resize(kWgmmaRows, k);
  if (!info_->a_in_registers && info_->transpose_a) {
    const MatrixDescriptor d = decode_descriptor(descriptor);
    for (std::uint32_t i = 0; i < k; ++i) {
      for (std::uint32_t chunk = 0; chunk < kWgmmaRows / 8; ++chunk) {
        decode_column(info_->a, shared_ + mn_major_chunk(d, chunk, i), 8, negate, &a_, chunk * 8, i);
      }
    }
    return;
  }
  if (info_->a_in_registers) {
    a_bytes_.assign(kWgmmaRows * kWgmmaKBytes, 0);
    for_each_thread([&](const ThreadContext* thread, std::uint32_t lane) {
      for (std::uint32_t i = 0; i < kARegisters; ++i) {
        const FragmentPlace place = a_fragment(lane % kWarpSize, i, 16);
        const std::uint32_t row = lane / kWarpSize * 16 + place.row;
        std::memcpy(a_bytes_.data() + row * kWgmmaKBytes + place.byte, &thread->slots[info_->a_slots[i]], 4);
      }
    });
  } else {
    gather_rows(descriptor, kWgmmaRows, &a_bytes_);
  }
  if (is_bits()) return;
  for (std::uint32_t row = 0; row < kWgmmaRows; ++row) {
    decode_row(info_->a, a_bytes_.data() + row * kWgmmaKBytes, k, negate, &a_, row);
  }
}

void WgmmaTile::load_b(std::uint64_t descriptor) {
  const bool negate = info_->scale_b < 0;
  const std::uint32_t k = info_->k, n = info_->n;
  if (is_bits()) return gather_rows(descriptor, n, &b_bytes_);
  b_.resize(k, n);
  const MatrixDescriptor d = decode_descriptor(descriptor);
  if (info_->transpose_b) {
    for (std::uint32_t i = 0; i < k; ++i) {
      for (std::uint32_t chunk = 0; chunk < n / 8; ++chunk) {
        decode_row(info_->b, shared_ + mn_major_chunk(d, chunk, i), 8, negate, &b_, i, chunk * 8);
      }
    }
    return;
  }
  std::array<std::uint8_t, kWgmmaKBytes> bytes;
  for (std::uint32_t column = 0; column < n; ++column) {
    for (std::uint32_t half = 0; half < 2; ++half) {
      std::memcpy(bytes.data() + half * kChunkBytes, shared_ + k_major_chunk(d, column, half), kChunkBytes);
    }
    decode_column(info_->b, bytes.data(), k, negate, &b_, 0, column);
  }
}

void WgmmaTile::load_accumulators(bool from_registers) {
  const std::uint32_t n = info_->n;
  pitch_ = (n + 15) / 16 * 16;
  const bool integers = info_->d == MatrixType::s32;
  // Columns beyond n are computed and never used, but must not look like special values.
  if (integers) {
    d_integers_.assign(std::size_t{kWgmmaRows} * pitch_, 0);
  } else if (!from_registers || pitch_ != n) {
    d_.assign(std::size_t{kWgmmaRows} * pitch_, 0.0f);
  } else {
    d_.resize(std::size_t{kWgmmaRows} * pitch_);
  }
  if (!from_registers) return;
  for_each_thread([&](const ThreadContext* thread, std::uint32_t lane) {
    const std::uint32_t row = lane / kWarpSize * 16 + lane % kWarpSize / 4, column = lane % 4 * 2;
    const std::size_t at = std::size_t{row} * pitch_ + column;
    if (integers) {
      read_registers(thread->slots, info_->d_slots, n, d_integers_.data() + at, pitch_);
    } else if (info_->d == MatrixType::f16) {
      read_halves(thread->slots, info_->d_slots, n, d_.data() + at, pitch_);
    } else {
      read_registers(thread->slots, info_->d_slots, n, d_.data() + at, pitch_);
    }
  });
}

void WgmmaTile::multiply() {
  if (is_bits()) {
    multiply_bits(a_bytes_.data(), kWgmmaRows, b_bytes_.data(), info_->n, kWgmmaKBytes, false, d_integers_.data(),
                  pitch_);
  } else if (info_->d == MatrixType::s32) {
    multiply_integers(a_, b_, info_->saturate, d_integers_.data(), pitch_);
  } else {
    multiply_floats(a_, b_, sum_model(info_->a, info_->d), d_.data(), pitch_);
  }
}

void WgmmaTile::store_accumulators() {
  const std::uint32_t n = info_->n;
  for_each_thread([&](ThreadContext* thread, std::uint32_t lane) {
    const std::uint32_t row = lane / kWarpSize * 16 + lane % kWarpSize / 4, column = lane % 4 * 2;
    const std::size_t at = std::size_t{row} * pitch_ + column;
    if (info_->d == MatrixType::s32) {
      write_registers(thread->slots, info_->d_slots, n, d_integers_.data() + at, pitch_);
    } else if (info_->d == MatrixType::f16) {
      write_halves(thread->slots, info_->d_slots, n, d_.data() + at, pitch_);
    } else {
      write_registers(thread->slots, info_->d_slots, n, d_.data() + at, pitch_);
    }
  });
}

}  // namespace attune::emulator
