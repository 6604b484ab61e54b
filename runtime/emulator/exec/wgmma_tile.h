// One wgmma product: operands from shared memory and registers, the arithmetic, results to registers.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "runtime/emulator/exec/intrinsics.h"
#include "runtime/emulator/exec/tensor_core.h"

namespace attune::emulator {

struct ThreadContext;

constexpr std::uint32_t kARegisters = 4;
/// 32-bit accumulator registers of a thread.
inline std::uint32_t accumulator_words(const WgmmaInfo& info) { return info.n / (info.d == MatrixType::f16 ? 4u : 2u); }

/// Buffers are kept from one product to the next.
class WgmmaTile {
 public:
  /// This OS thread's.
  static WgmmaTile& scratch();

  /// `shared`: memory at shared address 0. `threads`: 128, of which those in `lanes` take part.
  void begin(const WgmmaInfo& info, const std::uint8_t* shared, ThreadContext* threads,
             const std::array<std::uint32_t, 4>& lanes);
  void load_a(std::uint64_t descriptor);
  void load_b(std::uint64_t descriptor);
  /// From the registers, or zeros.
  void load_accumulators(bool from_registers);
  void multiply();
  void store_accumulators();

 private:
  template <typename Visit>
  void for_each_thread(const Visit& visit);
  bool is_bits() const { return info_->a == MatrixType::b1; }
  void gather_rows(std::uint64_t descriptor, std::uint32_t rows, std::vector<std::uint8_t>* bytes);

  const WgmmaInfo* info_ = nullptr;
  const std::uint8_t* shared_ = nullptr;
  ThreadContext* threads_ = nullptr;
  std::array<std::uint32_t, 4> lanes_{};
  std::uint32_t pitch_ = 0;                      ///< of d_ and d_integers_
  std::vector<std::uint8_t> a_bytes_, b_bytes_;  ///< rows of 32 bytes along K
  FloatOperand a_, b_;
  std::vector<float> d_;
  std::vector<std::int32_t> d_integers_;
};

}  // namespace attune::emulator
