// Tensor maps: what is refused, and where the elements of boxes go.
#include <doctest/doctest.h>

#include <attune/emulator.h>

#include <cstring>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "runtime/emulator/exec/formats.h"
#include "runtime/emulator/exec/tensor_map.h"

using namespace attune;
using namespace attune::emulator;

namespace {

alignas(16) std::uint8_t memory[64];

TensorMapDescription plain() {
  TensorMapDescription d;
  d.type = TensorType::bf16;
  d.rank = 3;
  d.base = memory;
  d.dims = {100, 50, 7};
  d.strides = {256, 256 * 50};
  d.box = {64, 8, 1};
  return d;
}

template <typename Change>
std::string refusal(const Change& change) {
  TensorMapDescription d = plain();
  change(&d);
  try {
    encode_tensor_map(d);
  } catch (const Error& error) {
    CHECK(error.code() == ErrorCode::invalid_argument);
    return error.what();
  }
  return "accepted";
}

bool begins(const std::string& text, const std::string& start) { return text.rfind(start, 0) == 0; }

/// Where an element of a box lies in shared memory, straight from the definition of the swizzles: the 16-byte chunk's
/// place in its row of 128 bytes is changed by the number of that row.
std::uint32_t reference_address(std::uint32_t start, std::uint32_t byte, Swizzle swizzle) {
  const std::uint32_t address = start + byte;
  const std::uint32_t line = address / 128, chunk = address / 16 % 8;
  const std::uint32_t bits = swizzle == Swizzle::none ? 0 : (1u << static_cast<unsigned>(swizzle)) - 1;
  return line * 128 + (chunk ^ (line & bits)) * 16 + address % 16;
}

/// A tensor with a value for each element that names it, and a guard around it.
struct Tensor {
  TensorMapDescription map;
  std::vector<std::uint64_t> storage;

  std::uint8_t* bytes() { return reinterpret_cast<std::uint8_t*>(storage.data()); }
};

using Coordinates = std::array<std::int32_t, 5>;

Tensor make_tensor(std::mt19937& random, TensorType type, Swizzle swizzle) {
  Tensor t;
  const auto below = [&](unsigned bound) { return static_cast<std::uint32_t>(random() % bound); };
  TensorMapDescription& d = t.map;
  d.type = type;
  d.swizzle = swizzle;
  d.rank = 1 + static_cast<int>(below(5));
  const std::uint32_t element = element_bytes(type);
  std::uint64_t stride = 0;
  for (std::size_t i = 0; i < static_cast<std::size_t>(d.rank); ++i) {
    d.dims[i] = 1 + below(i == 0 ? 40 : 6);
    d.box[i] = 1 + below(i == 0 ? 4 : 5);
    d.element_strides[i] = i == 0 || below(2) == 0 ? 1 : 1 + below(3);
    if (i == 0) {
      const std::uint32_t most = swizzle_bytes(swizzle) == 0 ? 64 : swizzle_bytes(swizzle);
      d.box[0] = 16 * (1 + below(most / 16)) / element;
      stride = (d.dims[0] * element + 15) / 16 * 16 + 16 * below(2);
    } else {
      d.strides[i - 1] = stride;
      stride *= d.dims[i];
    }
  }
  t.storage.resize((stride + 4096) / 8);
  for (std::uint64_t& word : t.storage) word = random() | std::uint64_t{random()} << 32;
  d.base = t.bytes();
  return t;
}

/// Calls visit(shared byte offset in the packed box, address or null) for each element.
template <typename Visit>
void for_each_element(const TensorMapDescription& d, const Coordinates& at, const Visit& visit) {
  const std::uint32_t element = element_bytes(d.type);
  std::array<std::uint32_t, 5> counts{1, 1, 1, 1, 1};
  for (std::size_t i = 0; i < static_cast<std::size_t>(d.rank); ++i) {
    counts[i] = i == 0 ? d.box[0] : (d.box[i] + d.element_strides[i] - 1) / d.element_strides[i];
  }
  const std::uint32_t pitch = std::max(counts[0] * element, swizzle_bytes(d.swizzle));
  std::array<std::uint32_t, 5> index{};
  std::uint32_t row = 0;
  for (index[4] = 0; index[4] < counts[4]; ++index[4])
    for (index[3] = 0; index[3] < counts[3]; ++index[3])
      for (index[2] = 0; index[2] < counts[2]; ++index[2])
        for (index[1] = 0; index[1] < counts[1]; ++index[1], ++row)
          for (index[0] = 0; index[0] < counts[0]; ++index[0]) {
            bool inside = true;
            std::uint64_t offset = 0;
            for (std::size_t i = 0; i < static_cast<std::size_t>(d.rank); ++i) {
              const std::int64_t step = i == 0 ? 1 : d.element_strides[i];
              const std::int64_t c = at[i] + index[i] * step;
              inside = inside && c >= 0 && c < static_cast<std::int64_t>(d.dims[i]);
              offset += static_cast<std::uint64_t>(c) * (i == 0 ? element : d.strides[i - 1]);
            }
            visit(row * pitch + index[0] * element,
                  inside ? static_cast<const std::uint8_t*>(d.base) + offset : nullptr);
          }
}

}  // namespace

TEST_CASE("a map comes back as it was described, also over another base") {
  const TensorMapDescription d = plain();
  TensorMap map = encode_tensor_map(d);
  auto back = decode_tensor_map(&map);
  REQUIRE(back);
  CHECK(back->type == d.type);
  CHECK(back->rank == 3);
  CHECK(back->base == d.base);
  CHECK(back->dims == d.dims);
  CHECK(back->strides == d.strides);
  CHECK(back->box == d.box);
  replace_tensor_map_base(&map, memory + 32);
  back = decode_tensor_map(&map);
  REQUIRE(back);
  CHECK(back->base == memory + 32);
  CHECK_THROWS_AS(replace_tensor_map_base(&map, memory + 8), Error);
  TensorMap garbage;
  CHECK_FALSE(decode_tensor_map(&garbage));
  CHECK_THROWS_AS(replace_tensor_map_base(&garbage, memory), Error);
  map.opaque[3] ^= 1;
  CHECK_FALSE(decode_tensor_map(&map));
}

TEST_CASE("largest values are kept") {
  TensorMapDescription d = plain();
  d.rank = 5;
  d.dims.fill(std::uint64_t{1} << 32);
  d.strides.fill((std::uint64_t{1} << 40) - 16);
  d.box = {64, 256, 256, 256, 256};
  d.element_strides = {1, 8, 8, 8, 8};
  d.swizzle = Swizzle::bytes128;
  d.fill = OutOfBoundsFill::nan;
  const TensorMap map = encode_tensor_map(d);
  const auto back = decode_tensor_map(&map);
  REQUIRE(back);
  CHECK(back->dims == d.dims);
  CHECK(back->strides == d.strides);
  CHECK(back->box == d.box);
  CHECK(back->element_strides == d.element_strides);
  CHECK(back->swizzle == d.swizzle);
  CHECK(back->fill == d.fill);
}

TEST_CASE("what the driver refuses is refused, by the name of the field") {
  using D = TensorMapDescription;
  CHECK(refusal([](D*) {}) == "accepted");
  CHECK(begins(refusal([](D* d) { d->rank = 0; }), "rank: 0 "));
  CHECK(begins(refusal([](D* d) { d->rank = 6; }), "rank: 6 "));
  CHECK(begins(refusal([](D* d) { d->base = memory + 8; }), "base: "));
  CHECK(begins(refusal([](D* d) { d->base = nullptr; }), "base: "));
  CHECK(begins(refusal([](D* d) { d->dims[1] = 0; }), "dims[1]: 0 "));
  CHECK(begins(refusal([](D* d) { d->dims[2] = (std::uint64_t{1} << 32) + 1; }), "dims[2]: 4294967297 "));
  CHECK(refusal([](D* d) { d->dims[3] = 0; }) == "accepted");
  CHECK(begins(refusal([](D* d) { d->strides[0] = 264; }), "strides[0]: 264 "));
  CHECK(begins(refusal([](D* d) { d->strides[1] = std::uint64_t{1} << 40; }), "strides[1]: "));
  CHECK(begins(refusal([](D* d) { d->box[1] = 0; }), "box[1]: 0 "));
  CHECK(begins(refusal([](D* d) { d->box[2] = 257; }), "box[2]: 257 "));
  CHECK(begins(refusal([](D* d) { d->box[0] = 12; }), "box[0]: 12 elements of bf16 are 24 bytes"));
  CHECK(begins(refusal([](D* d) {
                 d->swizzle = Swizzle::bytes64;
                 d->box[0] = 64;
               }),
               "box[0]: 64 elements of bf16 are 128 bytes"));
  CHECK(begins(refusal([](D* d) { d->element_strides[0] = 0; }), "element_strides[0]: 0 "));
  CHECK(begins(refusal([](D* d) { d->element_strides[1] = 9; }), "element_strides[1]: 9 "));
  CHECK(begins(refusal([](D* d) {
                 d->type = TensorType::u16;
                 d->fill = OutOfBoundsFill::nan;
               }),
               "fill: nan with elements of u16"));
  CHECK(begins(refusal([](D* d) { d->type = static_cast<TensorType>(40); }), "type: 40 "));
  CHECK(begins(refusal([](D* d) { d->swizzle = static_cast<Swizzle>(4); }), "swizzle: 4 "));
  TensorMapDescription interleaved = plain();
  interleaved.interleave = Interleave::bytes32;
  try {
    encode_tensor_map(interleaved);
    FAIL("accepted");
  } catch (const Error& error) {
    CHECK(error.code() == ErrorCode::unsupported);
  }
}

TEST_CASE("boxes of all ranks, types and swizzles are loaded and stored element by element") {
  std::mt19937 random(11);
  for (int trial = 0; trial < 600; ++trial) {
    const auto swizzle = static_cast<Swizzle>(random() % 4);
    const TensorType types[] = {TensorType::u8, TensorType::bf16, TensorType::f32, TensorType::s64};
    Tensor t = make_tensor(random, types[random() % 4], swizzle);
    const std::uint32_t element = element_bytes(t.map.type);
    if (is_floating(t.map.type) && random() % 2 == 0) t.map.fill = OutOfBoundsFill::nan;
    const TensorMap map = encode_tensor_map(t.map);
    Coordinates at{};
    for (std::size_t i = 0; i < 5; ++i) at[i] = static_cast<std::int32_t>(random() % 12) - 5;
    const TensorBox box(*decode_tensor_map(&map), at);

    const std::uint32_t start = 1024 + 128 * static_cast<std::uint32_t>(random() % 8);
    std::vector<std::uint8_t> shared(start + box.span() + 1024, 0xA5);
    std::vector<std::uint8_t> expected = shared;
    std::uint32_t elements = 0;
    for_each_element(t.map, at, [&](std::uint32_t byte, const std::uint8_t* source) {
      std::uint64_t fill = 0;
      if (t.map.fill == OutOfBoundsFill::nan) fill = 0x7FF77FF77FF77FF7;
      std::memcpy(&expected[reference_address(start, byte, swizzle)],
                  source != nullptr ? static_cast<const void*>(source) : &fill, element);
      ++elements;
    });
    CHECK(box.bytes() == elements * element);
    load_box(box, shared.data(), start, [](std::uint64_t address, std::uint32_t) {
      return reinterpret_cast<const std::uint8_t*>(static_cast<std::uintptr_t>(address));
    });
    REQUIRE(shared == expected);

    // And back, over other values.
    std::vector<std::uint64_t> wanted = t.storage;
    for (std::uint8_t& byte : shared) byte = static_cast<std::uint8_t>(random());
    for_each_element(t.map, at, [&](std::uint32_t byte, const std::uint8_t* source) {
      if (source == nullptr) return;
      std::memcpy(reinterpret_cast<std::uint8_t*>(wanted.data()) + (source - t.bytes()),
                  &shared[reference_address(start, byte, swizzle)], element);
    });
    store_box(box, shared.data(), start, [](std::uint64_t address, std::uint32_t) {
      return reinterpret_cast<std::uint8_t*>(static_cast<std::uintptr_t>(address));
    });
    REQUIRE(t.storage == wanted);
  }
}

TEST_CASE("rows that are left out and rows that are combined") {
  std::vector<std::uint32_t> global(64, 5);
  TensorMapDescription d;
  d.type = TensorType::u32;
  d.rank = 2;
  d.base = global.data();
  d.dims = {4, 8};
  d.strides = {16};
  d.box = {4, 4};
  const TensorBox box(d, {0, 2});
  std::vector<std::uint32_t> shared(64, 7);
  auto* bytes = reinterpret_cast<std::uint8_t*>(shared.data());
  store_box(
      box, bytes, 0,
      [&](std::uint64_t address, std::uint32_t length) -> std::uint8_t* {
        CHECK(length == 16);
        const auto row = (address - reinterpret_cast<std::uintptr_t>(global.data())) / 16;
        return row == 3 ? nullptr : reinterpret_cast<std::uint8_t*>(static_cast<std::uintptr_t>(address));
      },
      [](std::uint8_t* destination, const std::uint8_t* source, std::uint32_t length) {
        for (std::uint32_t i = 0; i < length; i += 4) {
          std::uint32_t a, b;
          std::memcpy(&a, destination + i, 4);
          std::memcpy(&b, source + i, 4);
          a += b;
          std::memcpy(destination + i, &a, 4);
        }
      });
  for (std::size_t row = 0; row < 8; ++row) {
    CHECK(global[row * 4 + 1] == (row == 2 || row == 4 || row == 5 ? 12u : 5u));
  }
}

TEST_CASE("rows begin at multiples of 16 bytes, also outside the tensor") {
  TensorMapDescription d = plain();
  const auto starts = [&](std::int32_t x) { return TensorBox(d, {x, 1, 1}).starts_on_chunk(); };
  d.type = TensorType::bf16;
  for (std::int32_t x : {0, 8, -8, 1 << 20}) CHECK(starts(x));
  for (std::int32_t x : {1, 4, -4, -12}) CHECK_FALSE(starts(x));
  d.type = TensorType::s64;
  CHECK(starts(std::numeric_limits<std::int32_t>::min()));
  CHECK_FALSE(starts(std::numeric_limits<std::int32_t>::max()));
}

TEST_CASE("tf32 maps round to nearest even what they load, and ftz maps keep subnormals") {
  alignas(16) float values[4] = {1 + 0x1.8p-10f, 0x1p-130f, -0x1p-130f, 1 + 0x1p-11f};
  TensorMapDescription d;
  d.rank = 1;
  d.base = values;
  d.dims = {4};
  d.box = {4};
  std::array<float, 4> shared{};
  const auto load = [&](TensorType type) {
    d.type = type;
    load_box(TensorBox(d, {}), reinterpret_cast<std::uint8_t*>(shared.data()), 0,
             [](std::uint64_t address, std::uint32_t) {
               return reinterpret_cast<const std::uint8_t*>(static_cast<std::uintptr_t>(address));
             });
  };
  load(TensorType::f32);
  CHECK(std::memcmp(shared.data(), values, 16) == 0);
  load(TensorType::f32_ftz);
  CHECK(std::memcmp(shared.data(), values, 16) == 0);
  for (TensorType type : {TensorType::tf32, TensorType::tf32_ftz}) {
    load(type);
    CHECK(shared == std::array{1 + 0x1p-9f, values[1], values[2], 1.0f});
  }
}
