// Sizes that would wrap around: refused, or large enough to be out of every bound.
#include <doctest/doctest.h>

#include <attune/emulator.h>

#include <limits>
#include <string>

#include "runtime/emulator/exec/tensor_map.h"
#include "tests/emu/refusal.h"

using namespace attune;
using namespace attune::emulator;
using attune::emulator::tests::refusal;

TEST_CASE("limits: allocations whose end would wrap") {
  MachineOptions options;
  options.memory_limit = std::numeric_limits<std::size_t>::max();
  const auto machine = Machine::create(options);
  for (const std::size_t bytes : {std::numeric_limits<std::size_t>::max() - 100, std::size_t{1} << 63}) {
    CAPTURE(bytes);
    CHECK(refusal(ErrorCode::out_of_memory, [&] { machine->allocate(bytes); }).starts_with(std::to_string(bytes)));
  }
  CHECK(machine->allocated() == 0);
}

TEST_CASE("limits: shared memory that 24-bit offsets do not reach") {
  MachineOptions options;
  options.shared_bytes_per_block = 40 << 20;
  CHECK(refusal(ErrorCode::invalid_argument, [&] {
          Machine::create(options);
        }).starts_with("shared_bytes_per_block: 41943040"));
}

TEST_CASE("limits: blocks larger than any device's") {
  const auto kernel = [](const std::string& directives) {
    return ".version 9.0\n.target sm_90a\n.address_size 64\n.visible .entry k()\n" + directives + "\n{ ret; }\n";
  };
  CHECK_NOTHROW(Program::load(kernel(".maxntid 1024, 1, 1\n.minnctapersm 2")));
  CHECK(refusal(ErrorCode::invalid_argument, [&] {
          Program::load(kernel(".maxntid 1024, 64, 64"));
        }).starts_with("ptx:5:"));
  CHECK(refusal(ErrorCode::invalid_argument, [&] {
          Program::load(kernel(".reqntid 65536, 65536, 4"));
        }).starts_with("ptx:5:"));
  CHECK(refusal(ErrorCode::invalid_argument, [&] {
          Program::load(kernel(".minnctapersm 1048576"));
        }).starts_with("ptx:5:"));
}

TEST_CASE("limits: a box of 2^36 bytes is larger than shared memory, not empty") {
  alignas(16) static std::uint8_t memory[16];
  TensorMapDescription map;
  map.type = TensorType::u8;
  map.rank = 5;
  map.base = memory;
  map.dims = {16, 256, 256, 256, 16};
  map.strides = {16, 16, 16, 16};
  map.box = {16, 256, 256, 256, 16};
  map.element_strides = {1, 1, 1, 1, 1};
  CHECK_NOTHROW(encode_tensor_map(map));
  const TensorBox box(map, {0, 0, 0, 0, 0});
  CHECK(box.span() > (1u << 24));
  CHECK(box.bytes() > (1u << 24));
}
