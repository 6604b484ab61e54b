#include "tuner/model_config.h"

#include <fmt/format.h>

#include <algorithm>
#include <fstream>
#include <limits>
#include <nlohmann/json.hpp>
#include <sstream>

#include "base/error.h"

namespace attune::tuner {
namespace {

using Json = nlohmann::json;

constexpr std::size_t kLargestText = 4u << 20;
constexpr int kDeepest = 64;

// Stops at the first value that is nested too deeply, before it is built.
Json parse_bounded(std::string_view text, std::string_view name) {
  if (text.size() > kLargestText) {
    fail(ErrorCode::invalid_argument, "{}: {} bytes (allowed: up to {})", name, text.size(), kLargestText);
  }
  const auto shallow = [&](int depth, Json::parse_event_t, Json&) {
    if (depth > kDeepest) fail(ErrorCode::invalid_argument, "{}: nested deeper than {} levels", name, kDeepest);
    return true;
  };
  Json json;
  try {
    json = Json::parse(text, shallow);
  } catch (const Json::exception& error) {
    fail(ErrorCode::invalid_argument, "{}: not JSON: {}", name, error.what());
  }
  if (!json.is_object())
    fail(ErrorCode::invalid_argument, "{}: a JSON {} (allowed: an object)", name, json.type_name());
  return json;
}

// The fields of one object, with errors that name file and field.
class Fields {
 public:
  Fields(const Json& json, std::string_view name, std::string prefix)
      : json_(json), name_(name), prefix_(std::move(prefix)) {}

  bool has(const char* field) const {
    const auto it = json_.find(field);
    return it != json_.end() && !it->is_null();
  }

  std::optional<std::int64_t> integer(const char* field, std::int64_t low, std::int64_t high) const {
    if (!has(field)) return std::nullopt;
    const Json& value = json_.at(field);
    const bool fits =
        value.is_number_integer() && (!value.is_number_unsigned() || value.get<std::uint64_t>() <= INT64_MAX);
    if (!fits || value.get<std::int64_t>() < low || value.get<std::int64_t>() > high) {
      fail(ErrorCode::invalid_argument, "{}: {}{}: {} (allowed: {} to {})", name_, prefix_, field, shown(value), low,
           high);
    }
    return value.get<std::int64_t>();
  }

  std::int64_t required(const char* field, std::int64_t low, std::int64_t high) const {
    const std::optional<std::int64_t> value = integer(field, low, high);
    if (!value)
      fail(ErrorCode::invalid_argument, "{}: {}{}: missing (allowed: {} to {})", name_, prefix_, field, low, high);
    return *value;
  }

  std::optional<std::string> text(const char* field) const {
    if (!has(field)) return std::nullopt;
    const Json& value = json_.at(field);
    if (!value.is_string()) {
      fail(ErrorCode::invalid_argument, "{}: {}{}: {} (allowed: a string)", name_, prefix_, field, shown(value));
    }
    return value.get<std::string>();
  }

  std::string path(const char* field) const { return fmt::format("{}: {}{}", name_, prefix_, field); }

 private:
  static std::string shown(const Json& value) {
    std::string text = value.dump(-1, ' ', false, Json::error_handler_t::replace);
    if (text.size() > 40) text = text.substr(0, 40) + "...";
    return text;
  }

  const Json& json_;
  std::string_view name_;
  std::string prefix_;
};

DType dtype_of(const Fields& fields, const char* field, const std::string& text, std::vector<std::string>& notes) {
  if (text == "bfloat16" || text == "bf16") return DType::bf16;
  if (text == "float16" || text == "fp16" || text == "half") return DType::fp16;
  if (text == "float32" || text == "auto") {
    notes.push_back(fmt::format("{} is {}: taken for bf16", field, text));
    return DType::bf16;
  }
  fail(ErrorCode::invalid_argument, "{}: '{}' (allowed: bfloat16, float16, float32)", fields.path(field), text);
}

void read_heads(const Fields& fields, ModelConfig& model) {
  constexpr int kMost = 1 << 16;
  model.heads = static_cast<int>(fields.required("num_attention_heads", 1, kMost));
  if (fields.has("kv_lora_rank")) {
    // Latent attention as prefill runs it: every head has keys of its own, wider than its values.
    model.heads_kv = model.heads;
    model.head_dim =
        static_cast<int>(fields.required("qk_nope_head_dim", 1, kMost) + fields.required("qk_rope_head_dim", 0, kMost));
    model.head_dim_v = static_cast<int>(fields.required("v_head_dim", 1, kMost));
    model.notes.emplace_back("kv_lora_rank: latent attention is taken in its expanded form, as in prefill");
    return;
  }
  model.heads_kv = static_cast<int>(fields.integer("num_key_value_heads", 1, kMost).value_or(model.heads));
  if (model.heads % model.heads_kv != 0) {
    fail(ErrorCode::invalid_argument, "{}: {} does not divide num_attention_heads = {}",
         fields.path("num_key_value_heads"), model.heads_kv, model.heads);
  }
  if (const auto head_dim = fields.integer("head_dim", 1, kMost)) {
    model.head_dim = static_cast<int>(*head_dim);
  } else {
    const std::int64_t hidden = fields.required("hidden_size", 1, 1 << 24);
    if (hidden % model.heads != 0) {
      fail(ErrorCode::invalid_argument, "{}: {} is not a multiple of num_attention_heads = {}, and head_dim is missing",
           fields.path("hidden_size"), hidden, model.heads);
    }
    model.head_dim = static_cast<int>(hidden / model.heads);
  }
  model.head_dim_v = static_cast<int>(fields.integer("v_head_dim", 1, kMost).value_or(model.head_dim));
}

}  // namespace

ModelConfig parse_model_config(std::string_view json, std::string_view name) {
  const Json document = parse_bounded(json, name);
  const auto nested = document.find("text_config");
  const bool is_nested = nested != document.end() && nested->is_object();
  const Fields outer(document, name, "");
  const Fields fields = is_nested ? Fields(*nested, name, "text_config.") : outer;

  ModelConfig model;
  model.model_type = fields.text("model_type").value_or("");
  read_heads(fields, model);
  bool stated = false;
  for (const Fields* place : {&fields, &outer}) {
    for (const char* field : {"torch_dtype", "dtype"}) {
      if (stated) break;
      if (const auto text = place->text(field)) {
        model.dtype = dtype_of(*place, field, *text, model.notes);
        stated = true;
      }
    }
  }
  if (!stated) model.notes.emplace_back("torch_dtype is missing: taken for bf16");
  model.max_position_embeddings =
      fields.integer("max_position_embeddings", 1, std::numeric_limits<std::int32_t>::max()).value_or(0);
  if (fields.has("sliding_window")) {
    model.notes.emplace_back("sliding_window: layers with a window are not covered, only those with full attention");
  }
  return model;
}

ModelConfig load_model_config(const std::filesystem::path& path) {
  std::error_code error;
  const std::filesystem::path file = std::filesystem::is_directory(path, error) ? path / "config.json" : path;
  std::ifstream stream(file, std::ios::binary);
  if (!stream) fail(ErrorCode::io, "{}: cannot be read", file.string());
  // One byte more than allowed is enough to be refused.
  std::string text(kLargestText + 1, '\0');
  stream.read(text.data(), static_cast<std::streamsize>(text.size()));
  if (stream.bad()) fail(ErrorCode::io, "{}: cannot be read", file.string());
  text.resize(static_cast<std::size_t>(stream.gcount()));
  return parse_model_config(text, file.string());
}

std::vector<Problem> problems_of(const ModelConfig& model, const ProblemRange& range) {
  if (range.tokens < 1) fail(ErrorCode::invalid_argument, "tokens: {} (allowed: 1 and more)", range.tokens);
  if (range.min_seqlen < 1) fail(ErrorCode::invalid_argument, "min_seqlen: {} (allowed: 1 and more)", range.min_seqlen);
  std::int64_t longest = std::min(range.max_seqlen, range.tokens);
  if (model.max_position_embeddings > 0) longest = std::min(longest, model.max_position_embeddings);
  std::vector<Problem> problems;
  for (std::int64_t length = range.min_seqlen; length <= longest; length *= 2) {
    Problem p{.dtype = range.dtype.value_or(model.dtype),
              .head_dim = model.head_dim,
              .head_dim_v = model.head_dim_v,
              .heads = model.heads,
              .heads_kv = model.heads_kv,
              .causal = range.causal,
              .batch = range.tokens / length,
              .seqlen_q = length,
              .seqlen_k = length};
    validate(p);
    problems.push_back(p);
  }
  if (problems.empty()) {
    fail(ErrorCode::invalid_argument,
         "seqlen: no length between {} and {} (tokens: {}, max_seqlen: {}, the model's max_position_embeddings: {})",
         range.min_seqlen, longest, range.tokens, range.max_seqlen, model.max_position_embeddings);
  }
  return problems;
}

}  // namespace attune::tuner
