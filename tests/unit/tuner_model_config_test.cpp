#include <doctest/doctest.h>

#include <filesystem>
#include <fstream>
#include <functional>

#include "base/error.h"
#include "tests/unit/temporary_folder.h"
#include "tuner/model_config.h"

namespace attune::tuner {
namespace {

ModelConfig model(const std::string& name) {
  return load_model_config(std::filesystem::path(ATTUNE_TEST_DATA) / "models" / (name + ".json"));
}

std::string refusal(const std::function<void()>& body, ErrorCode code = ErrorCode::invalid_argument) {
  try {
    body();
  } catch (const Error& error) {
    CHECK(error.code() == code);
    return error.what();
  }
  return "accepted";
}

TEST_CASE("models as they are published") {
  struct Expected {
    const char* name;
    int heads, heads_kv, head_dim;
    std::int64_t longest;
    std::size_t problems;
  };
  for (const Expected& e :
       {Expected{"llama-3.1-8b", 32, 8, 128, 16384, 6}, Expected{"llama-3.1-70b", 64, 8, 128, 16384, 6},
        Expected{"qwen3-8b", 32, 8, 128, 16384, 6}, Expected{"mistral-7b-v0.3", 32, 8, 128, 16384, 6},
        Expected{"gemma-7b", 16, 16, 256, 8192, 5}, Expected{"gemma-2b", 8, 1, 256, 8192, 5},
        Expected{"gemma-3-4b", 8, 4, 256, 16384, 6}, Expected{"gpt-oss-20b", 64, 8, 64, 16384, 6}}) {
    CAPTURE(e.name);
    const ModelConfig m = model(e.name);
    CHECK(m.heads == e.heads);
    CHECK(m.heads_kv == e.heads_kv);
    CHECK(m.head_dim == e.head_dim);
    CHECK(m.head_dim_v == e.head_dim);
    CHECK(m.dtype == DType::bf16);
    const std::vector<Problem> problems = problems_of(m);
    REQUIRE(problems.size() == e.problems);
    CHECK(problems.front().seqlen_q == 512);
    CHECK(problems.front().batch == 32);
    CHECK(problems.back().seqlen_k == e.longest);
    for (const Problem& p : problems) {
      CHECK(p.causal);
      CHECK(p.batch * p.seqlen_q == 16384);
    }
  }
  CHECK(model("gpt-oss-20b").notes.size() == 2);  // no dtype, a sliding window
  CHECK(model("llama-3.1-8b").notes.empty());
}

TEST_CASE("latent attention, other ranges, other types") {
  const ModelConfig m = parse_model_config(
      R"({"num_attention_heads": 128, "num_key_value_heads": 128, "kv_lora_rank": 512, "qk_nope_head_dim": 128,
          "qk_rope_head_dim": 64, "v_head_dim": 128, "torch_dtype": "float16"})");
  CHECK(m.head_dim == 192);
  CHECK(m.head_dim_v == 128);
  CHECK(m.dtype == DType::fp16);
  ProblemRange range;
  range.tokens = 1000;
  range.min_seqlen = 300;
  range.causal = false;
  range.dtype = DType::bf16;
  const std::vector<Problem> problems = problems_of(m, range);
  REQUIRE(problems.size() == 2);
  CHECK(problems[1].seqlen_q == 600);
  CHECK(problems[1].batch == 1);
  CHECK(problems[0].batch == 3);
  CHECK(!problems[0].causal);
  CHECK(problems[0].dtype == DType::bf16);
  range.min_seqlen = 2000;
  CHECK(refusal([&] { problems_of(m, range); }).find("seqlen: no length between 2000 and 1000") == 0);
}

TEST_CASE("errors name the file, the field, the value and what is allowed") {
  const auto parse = [](const char* text) { return refusal([&] { parse_model_config(text, "m.json"); }); };
  CHECK(parse("{").find("m.json: not JSON") == 0);
  CHECK(parse("[1]") == "m.json: a JSON array (allowed: an object)");
  CHECK(parse("{}") == "m.json: num_attention_heads: missing (allowed: 1 to 65536)");
  CHECK(parse(R"({"num_attention_heads": "32"})") == "m.json: num_attention_heads: \"32\" (allowed: 1 to 65536)");
  CHECK(parse(R"({"num_attention_heads": 0})") == "m.json: num_attention_heads: 0 (allowed: 1 to 65536)");
  CHECK(parse(R"({"num_attention_heads": 18446744073709551615})").find("(allowed: 1 to 65536)") != std::string::npos);
  CHECK(parse(R"({"num_attention_heads": 32, "num_key_value_heads": 5})") ==
        "m.json: num_key_value_heads: 5 does not divide num_attention_heads = 32");
  CHECK(parse(R"({"text_config": {"num_attention_heads": 32}})") ==
        "m.json: text_config.hidden_size: missing (allowed: 1 to 16777216)");
  CHECK(
      parse(R"({"num_attention_heads": 32, "hidden_size": 100})").find("not a multiple of num_attention_heads = 32") !=
      std::string::npos);
  CHECK(parse(R"({"num_attention_heads": 2, "hidden_size": 256, "torch_dtype": "int8"})") ==
        "m.json: torch_dtype: 'int8' (allowed: bfloat16, float16, float32)");
  std::string deep(200, '[');
  CHECK(parse(("{\"a\":" + deep).c_str()) == "m.json: nested deeper than 64 levels");
  CHECK(refusal([] { load_model_config("/nowhere/config.json"); }, ErrorCode::io) ==
        "/nowhere/config.json: cannot be read");
  const ModelConfig odd = parse_model_config(R"({"num_attention_heads": 2, "head_dim": 129})");
  CHECK(refusal([&] { problems_of(odd); }).find("head_dim: 129") == 0);
}

TEST_CASE("a huge file is refused, a folder is taken for the one that holds config.json") {
  const tests::TemporaryFolder folder;
  const std::filesystem::path file = folder.path() / "config.json";
  std::ofstream(file) << R"({"num_attention_heads": 2, "head_dim": 64})";
  CHECK(load_model_config(folder.path()).heads == 2);
  std::ofstream(file) << std::string((4u << 20) + 1, ' ');
  CHECK(refusal([&] { load_model_config(file); }).find("(allowed: up to 4194304)") != std::string::npos);
}

}  // namespace
}  // namespace attune::tuner
