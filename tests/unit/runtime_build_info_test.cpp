#include <doctest/doctest.h>

#include <attune/error.h>

#include "runtime/build_info.h"

namespace attune::runtime {
namespace {

BuildInfo example() {
  BuildInfo info;
  info.spec = "arch=sm_90a,dtype=bf16";
  info.shape = {.entry = "attune_forward",
                .threads = 384,
                .shared_bytes = 200000,
                .block_m = 128,
                .block_n = 128,
                .q_box_rows = 64,
                .kv_box_rows = 128,
                .o_box_rows = 64,
                .counter = true};
  info.registers = 168;
  info.nvrtc = "13.0.88";
  info.compile_ms = 812.5;
  return info;
}

std::string without(std::string text, const std::string& part, const std::string& replacement = "") {
  const std::size_t at = text.find(part);
  REQUIRE(at != std::string::npos);
  return text.replace(at, part.size(), replacement);
}

TEST_CASE("build metadata survive the round trip") {
  BuildInfo info = example();
  CHECK(parse_build_info(to_json(info)) == info);
  info.rejected = "registers spill: \"24\" bytes\n";
  CHECK(parse_build_info(to_json(info)) == info);
}

TEST_CASE("build metadata: kernels before and after the main one") {
  BuildInfo info = example();
  info.shape.before = {{.entry = "prepare", .threads = 256, .shared_bytes = 16}};
  info.shape.after = {{.entry = "finish", .threads = 128}, {.entry = "last", .threads = 32}};
  info.shape.dq_rows = 128;
  const std::string text = to_json(info);
  CHECK(parse_build_info(text) == info);
  CHECK(parse_build_info(text).shape == info.shape);
  for (const std::string& bad :
       {without(text, "\"threads\":256", "\"threads\":0"), without(text, ",\"threads\":32"),
        without(text, "\"before\":[{", "\"before\":[7,{"), without(to_json(example()), "{", R"({"after":7,)")}) {
    CAPTURE(bad);
    CHECK_THROWS_AS(parse_build_info(bad), Error);
  }
}

TEST_CASE("build metadata: members of a later version are ignored") {
  const std::string text = to_json(example());
  CHECK(parse_build_info(without(text, "{", R"({"later":[1,2],)")) == example());
}

TEST_CASE("build metadata: whatever is wrong is a typed error") {
  const std::string text = to_json(example());
  for (const std::string& bad :
       {std::string(), std::string("[]"), std::string("{"), std::string(100000, '['), std::string(2 << 20, ' '),
        without(text, "\"format\":1", "\"format\":2"), without(text, ",\"threads\":384"),
        without(text, "\"threads\":384", "\"threads\":0"), without(text, "\"threads\":384", "\"threads\":\"384\""),
        without(text, "\"threads\":384", "\"threads\":384.5"),
        without(text, "\"threads\":384", "\"threads\":18446744073709551615"),
        without(text, "\"shared_bytes\":200000", "\"shared_bytes\":-1"),
        without(text, "\"entry\":\"attune_forward\"", "\"entry\":7")}) {
    CAPTURE(bad.substr(0, 80));
    try {
      parse_build_info(bad);
      FAIL("accepted");
    } catch (const Error& error) {
      CHECK(error.code() == ErrorCode::cache);
    }
  }
}

TEST_CASE("build metadata: every truncation is a typed error") {
  const std::string text = to_json(example());
  for (std::size_t size = 0; size < text.size(); ++size) {
    CHECK_THROWS_AS(parse_build_info(text.substr(0, size)), Error);
  }
}

}  // namespace
}  // namespace attune::runtime
