// From a model's config.json, as Hugging Face writes it, to the attention problems that serving it meets.
#pragma once

#include <attune/problem.h>

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace attune::tuner {

struct ModelConfig {
  std::string model_type;  ///< "llama"; empty if not stated
  int heads = 0;           ///< num_attention_heads
  int heads_kv = 0;        ///< num_key_value_heads, else heads
  int head_dim = 0;        ///< head_dim, else hidden_size / num_attention_heads
  int head_dim_v = 0;      ///< v_head_dim, else head_dim
  DType dtype = DType::bf16;
  std::int64_t max_position_embeddings = 0;  ///< 0: not stated
  std::vector<std::string> notes;            ///< what was assumed or left out, for the user
};

/// Fields may stand in a nested text_config. Throws Error(invalid_argument) that names the file (`name`), the field,
/// its value and what is allowed. Texts beyond 4 MiB or nested deeper than 64 are refused.
ModelConfig parse_model_config(std::string_view json, std::string_view name = "config.json");
/// Also throws Error(io). A directory is taken for one that holds config.json.
ModelConfig load_model_config(const std::filesystem::path& path);

struct ProblemRange {
  std::int64_t tokens = 16384;  ///< batch * seqlen of each problem
  std::int64_t min_seqlen = 512;
  std::int64_t max_seqlen = 16384;  ///< clipped to the model's and to `tokens`; lengths double from min_seqlen
  bool causal = true;
  std::optional<DType> dtype;  ///< instead of the model's
};

/// One problem for each length. Throws Error(invalid_argument) if the range holds no length, or if the model's
/// attention is none that attune can do.
std::vector<Problem> problems_of(const ModelConfig& model, const ProblemRange& range = {});

}  // namespace attune::tuner
