// mma.sync: products of matrices in the registers of a warp.
#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <vector>

#include "runtime/emulator/exec/formats.h"
#include "runtime/emulator/exec/matrix_layout.h"
#include "runtime/emulator/exec/tensor_core.h"
#include "runtime/emulator/exec/thread.h"

namespace attune::emulator {
namespace {

constexpr std::uint32_t kColumns = 8;  ///< N of all shapes
constexpr std::uint32_t kMostRows = 16;
constexpr std::uint32_t kPitch = 16;  ///< of accumulator tiles

struct MmaCall {
  const MmaInfo* info;
  const std::uint32_t* a;
  const std::uint32_t* b;
  const std::uint32_t* c;
  std::uint32_t* d;
};

template <typename Visit>
void for_each_lane(const Gathering& gathering, const Visit& visit) {
  for (std::uint32_t lane = 0; lane < kWarpSize; ++lane) {
    if (gathering.has(lane)) visit(*gathering.operand<MmaCall>(lane), lane);
  }
}

/// Operands as rows of A and of B transposed, `k_bytes` each.
struct Fragments {
  std::vector<std::uint8_t> a, b;
};

Fragments gather_fragments(const Gathering& gathering, const MmaInfo& info, std::uint32_t k_bytes) {
  Fragments f{std::vector<std::uint8_t>(info.m * k_bytes), std::vector<std::uint8_t>(kColumns * k_bytes)};
  for_each_lane(gathering, [&](const MmaCall& call, std::uint32_t lane) {
    for (std::uint32_t i = 0; i < info.a_words; ++i) {
      const FragmentPlace place = a_fragment(lane, i, info.m);
      std::memcpy(f.a.data() + place.row * k_bytes + place.byte, &call.a[i], 4);
    }
    for (std::uint32_t i = 0; i < info.b_words; ++i) {
      const FragmentPlace place = b_fragment(lane, i);
      std::memcpy(f.b.data() + place.row * k_bytes + place.byte, &call.b[i], 4);
    }
  });
  return f;
}

using FloatTile = std::array<float, kMostRows * kPitch>;
using IntegerTile = std::array<std::int32_t, kMostRows * kPitch>;

void with_floats(const Gathering& gathering, const MmaInfo& info, const PackedRows& a, const PackedRows& b) {
  FloatTile tile{};
  for_each_lane(gathering, [&](const MmaCall& call, std::uint32_t lane) {
    for (std::uint32_t i = 0; i < info.c_words; ++i) {
      const bool half = info.c == MatrixType::f16;
      const AccumulatorPlace place = accumulator_fragment(lane, i, half, info.m);
      float* at = &tile[place.row * kPitch + place.column];
      if (half) {
        at[0] = fp16_to_float(static_cast<std::uint16_t>(call.c[i]));
        at[1] = fp16_to_float(static_cast<std::uint16_t>(call.c[i] >> 16));
      } else {
        std::memcpy(at, &call.c[i], 4);
      }
    }
  });
  multiply_mma(a, b, info.k, info.d, tile.data(), kPitch);
  for_each_lane(gathering, [&](const MmaCall& call, std::uint32_t lane) {
    for (std::uint32_t i = 0; i < info.d_words; ++i) {
      const bool half = info.d == MatrixType::f16;
      const AccumulatorPlace place = accumulator_fragment(lane, i, half, info.m);
      const float* at = &tile[place.row * kPitch + place.column];
      if (half) {
        const std::uint32_t low = encode<Fp16>(double{at[0]}), high = encode<Fp16>(double{at[1]});
        call.d[i] = low | high << 16;
      } else {
        std::memcpy(&call.d[i], at, 4);
      }
    }
  });
}

template <typename Multiply>
void with_integers(const Gathering& gathering, const MmaInfo& info, const Multiply& multiply) {
  IntegerTile tile{};
  for_each_lane(gathering, [&](const MmaCall& call, std::uint32_t lane) {
    for (std::uint32_t i = 0; i < info.c_words; ++i) {
      const AccumulatorPlace place = accumulator_fragment(lane, i, false, info.m);
      tile[place.row * kPitch + place.column] = static_cast<std::int32_t>(call.c[i]);
    }
  });
  multiply(tile.data());
  for_each_lane(gathering, [&](const MmaCall& call, std::uint32_t lane) {
    for (std::uint32_t i = 0; i < info.d_words; ++i) {
      const AccumulatorPlace place = accumulator_fragment(lane, i, false, info.m);
      call.d[i] = static_cast<std::uint32_t>(tile[place.row * kPitch + place.column]);
    }
  });
}

double double_at(const std::uint32_t* words, std::uint32_t index) {
  double value;
  std::memcpy(&value, words + 2 * index, sizeof value);
  return value;
}

/// f64: one fused multiply-add after the other, along K.
void multiply_doubles(const Gathering& gathering, const MmaInfo& info) {
  constexpr std::uint32_t kMostK = 16;
  std::array<std::array<double, kMostK>, kMostRows> a{};
  std::array<std::array<double, kMostK>, kColumns> b{};
  const std::uint32_t row_groups = info.m / 8;
  for_each_lane(gathering, [&](const MmaCall& call, std::uint32_t lane) {
    for (std::uint32_t i = 0; i < info.a_words / 2u; ++i) {
      a[lane / 4 + i % row_groups * 8][i / row_groups * 4 + lane % 4] = double_at(call.a, i);
    }
    for (std::uint32_t i = 0; i < info.b_words / 2u; ++i) b[lane / 4][i * 4 + lane % 4] = double_at(call.b, i);
  });
  for_each_lane(gathering, [&](const MmaCall& call, std::uint32_t lane) {
    for (std::uint32_t i = 0; i < info.d_words / 2u; ++i) {
      const std::size_t row = lane / 4 + i / 2 * 8, column = lane % 4 * 2 + i % 2;
      double sum = double_at(call.c, i);
      for (std::size_t k = 0; k < info.k; ++k) sum = std::fma(a[row][k], b[column][k], sum);
      std::memcpy(call.d + 2 * i, &sum, sizeof sum);
    }
  });
}

bool perform(Gathering& gathering) {
  std::uint32_t first = 0;
  while (!gathering.has(first)) ++first;
  const MmaInfo& info = *gathering.operand<MmaCall>(first)->info;
  if (info.a == MatrixType::f64) {
    multiply_doubles(gathering, info);
    return true;
  }
  const auto k_bytes = static_cast<std::uint32_t>(info.k * element_bits(info.a) / 8);
  const Fragments fragments = gather_fragments(gathering, info, k_bytes);
  if (info.a == MatrixType::b1) {
    with_integers(gathering, info, [&](std::int32_t* tile) {
      multiply_bits(fragments.a.data(), info.m, fragments.b.data(), kColumns, k_bytes,
                    info.bits == MmaInfo::Bits::bit_xor, tile, kPitch);
    });
    return true;
  }
  if (!is_integer(info.a)) {
    with_floats(gathering, info, {info.a, fragments.a.data(), info.m}, {info.b, fragments.b.data(), kColumns});
    return true;
  }
  FloatOperand a, b;
  a.resize(info.m, info.k);
  b.resize(info.k, kColumns);
  for (std::uint32_t row = 0; row < info.m; ++row) {
    decode_row(info.a, fragments.a.data() + row * k_bytes, info.k, false, &a, row);
  }
  for (std::uint32_t column = 0; column < kColumns; ++column) {
    decode_column(info.b, fragments.b.data() + column * k_bytes, info.k, false, &b, 0, column);
  }
  with_integers(gathering, info, [&](std::int32_t* tile) { multiply_integers(a, b, info.saturate, tile, kPitch); });
  return true;
}

}  // namespace

extern "C" {

void att_mma(ThreadContext* context, const MmaInfo* info, const std::uint32_t* abc, std::uint32_t* d,
             std::uint32_t site) {
  const std::uint32_t* b = abc + info->a_words;
  MmaCall call{info, abc, b, b + info->b_words, d};
  gather_warp(context, "mma.sync", site, &call, perform);
}

}  // extern "C"

}  // namespace attune::emulator
