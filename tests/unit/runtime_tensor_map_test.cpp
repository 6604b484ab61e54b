#include <doctest/doctest.h>

#include <functional>

#include <attune/error.h>

#include "runtime/tensor_map.h"

namespace attune::runtime {
namespace {

const codegen::LaunchShape kShape{.entry = "f",
                                  .threads = 384,
                                  .shared_bytes = 0,
                                  .block_m = 128,
                                  .block_n = 96,
                                  .q_box_rows = 64,
                                  .kv_box_rows = 96,
                                  .o_box_rows = 16};

Problem problem() {
  return {.head_dim = 128, .head_dim_v = 64, .heads = 8, .heads_kv = 2, .batch = 3, .seqlen_q = 100, .seqlen_k = 200};
}

std::string words(const std::function<void()>& body) {
  try {
    body();
  } catch (const Error& error) {
    CHECK(error.code() == ErrorCode::invalid_argument);
    return error.what();
  }
  return "accepted";
}

TEST_CASE("tensor maps: dense layouts") {
  Problem p = problem();
  CHECK(default_strides(p, Operand::q) == Strides{.batch = 100 * 8 * 128, .head = 128, .row = 8 * 128});
  CHECK(default_strides(p, Operand::v) == Strides{.batch = 200 * 2 * 64, .head = 64, .row = 2 * 64});
  p.layout = Layout::bhsd;
  CHECK(default_strides(p, Operand::k) == Strides{.batch = 2 * 200 * 128, .head = 200 * 128, .row = 128});
  CHECK(default_strides(p, Operand::o) == Strides{.batch = 8 * 100 * 64, .head = 100 * 64, .row = 64});
}

TEST_CASE("tensor maps: geometry is (head_dim, rows, heads, batch), K and V with heads_kv") {
  const Problem p = problem();
  const auto q = geometry(p, kShape, Operand::q, default_strides(p, Operand::q));
  CHECK(q.dims == std::array<std::uint64_t, 4>{128, 100, 8, 3});
  CHECK(q.strides == std::array<std::uint64_t, 3>{8 * 128 * 2, 128 * 2, 100 * 8 * 128 * 2});
  CHECK(q.box_rows == 64);
  const auto v = geometry(p, kShape, Operand::v, default_strides(p, Operand::v));
  CHECK(v.dims == std::array<std::uint64_t, 4>{64, 200, 2, 3});
  CHECK(v.box_rows == 96);
  CHECK(geometry(p, kShape, Operand::o, default_strides(p, Operand::o)).box_rows == 16);
}

TEST_CASE("tensor maps: a dimension of length 1 may have any stride") {
  Problem p = problem();
  p.batch = 1;
  p.heads_kv = 1;
  const auto k = geometry(p, kShape, Operand::k, {.batch = -5, .head = 3, .row = 128});
  CHECK(k.strides[0] == 256);
  for (const std::uint64_t stride : k.strides) CHECK(stride % 16 == 0);
  for (const std::uint64_t stride : k.strides) CHECK(stride > 0);
}

TEST_CASE("tensor maps: no keys at all become one row of Q's memory") {
  Problem p = problem();
  p.seqlen_k = 0;
  p.head_dim = 64;
  p.head_dim_v = 256;
  const auto v = geometry(p, kShape, Operand::v, {.batch = 1, .head = 1, .row = 1});
  CHECK(v.dims == std::array<std::uint64_t, 4>{64, 1, 1, 1});
}

TEST_CASE("tensor maps: bad strides are named") {
  const Problem p = problem();
  const Strides good = default_strides(p, Operand::k);
  const auto with = [&](Operand operand, Strides strides) {
    return words([&] { check_strides(p, operand, strides); });
  };
  CHECK(with(Operand::k, good) == "accepted");
  CHECK(with(Operand::k, {good.batch, good.head, 129}) ==
        "k: the row stride of 129 elements is not supported (allowed: multiples of 8 from 8 to below 2^39)");
  CHECK(with(Operand::v, {good.batch, -8, good.row}).starts_with("v: the head stride of -8 elements"));
  CHECK(with(Operand::q, {0, good.head, good.row}).starts_with("q: the batch stride of 0 elements"));
  CHECK(with(Operand::k, {1ll << 39, good.head, good.row}).starts_with("k: the batch stride of 549755813888"));
  CHECK(with(Operand::k, {(1ll << 39) - 8, good.head, good.row}) == "accepted");
  CHECK(with(Operand::o, {100 * 8 * 64, 64, 8 * 64}) == "accepted");
  CHECK(with(Operand::o, {100 * 8 * 64, 56, 8 * 64}) ==
        "o: with a head stride of 56 elements its elements would overlap (allowed: 64 and more)");
  CHECK(with(Operand::o, {64, 64, 8 * 64}).find("would overlap") != std::string::npos);
}

TEST_CASE("tensor maps: an extent beyond 64 bits is an error, no wrap-around") {
  Problem p = problem();
  p.batch = 1 << 24;
  p.seqlen_k = (1ll << 31) - 1024;
  const Strides huge{.batch = (1ll << 39) - 8, .head = 128, .row = (1ll << 39) - 8};
  CHECK(words([&] { check_strides(p, Operand::k, huge); }).find("reach beyond 2^63 bytes") != std::string::npos);
}

TEST_CASE("tensor maps: base addresses") {
  CHECK(words([] { check_base(Operand::q, nullptr); }) == "q: null (allowed: device memory aligned to 16 bytes)");
  CHECK(words([] { check_base(Operand::o, reinterpret_cast<void*>(0x7f0000001008)); }) ==
        "o: address 0x7f0000001008 is not aligned to 16 bytes");
  CHECK(words([] { check_base(Operand::v, reinterpret_cast<void*>(0x7f0000001010)); }) == "accepted");
}

}  // namespace
}  // namespace attune::runtime
