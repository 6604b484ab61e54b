#include "runtime/build_info.h"

#include <nlohmann/json.hpp>

#include "base/error.h"

namespace attune::runtime {
namespace {

using nlohmann::json;

constexpr int kFormat = 1;
constexpr std::size_t kMaxBytes = 1 << 20;  // a document is below 2 KiB; larger ones are damaged

// The parser recurses, so depth is bounded before it sees the text. The documents are almost flat: arrays of objects
// at most.
bool flat(std::string_view text) {
  int depth = 0;
  bool quoted = false;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (quoted) {
      if (c == '\\')
        ++i;
      else if (c == '"')
        quoted = false;
    } else if (c == '"') {
      quoted = true;
    } else if (c == '{' || c == '[') {
      if (++depth > 4) return false;
    } else if (c == '}' || c == ']') {
      --depth;
    }
  }
  return true;
}

std::string text_of(const json& object, const char* key) {
  const auto it = object.find(key);
  if (it == object.end() || !it->is_string()) {
    fail(ErrorCode::cache, "build metadata: '{}' is missing or no text", key);
  }
  return it->get<std::string>();
}

int number_of(const json& object, const char* key, int low, int high) {
  const auto it = object.find(key);
  if (it == object.end() || !it->is_number_integer()) {
    fail(ErrorCode::cache, "build metadata: '{}' is missing or no integer", key);
  }
  // Beyond 2^63 the library holds an unsigned number; as a signed one it would wrap into the range.
  const bool huge = it->is_number_unsigned() && it->get<std::uint64_t>() > static_cast<std::uint64_t>(high);
  const std::int64_t value = huge ? -1 : it->get<std::int64_t>();
  if (huge || value < low || value > high) {
    fail(ErrorCode::cache, "build metadata: '{}' is {} (allowed: {} to {})", key, it->dump(), low, high);
  }
  return static_cast<int>(value);
}

json sides_json(const std::vector<codegen::SideLaunch>& sides) {
  json array = json::array();
  for (const codegen::SideLaunch& side : sides)
    array.push_back({{"entry", side.entry}, {"threads", side.threads}, {"shared_bytes", side.shared_bytes}});
  return array;
}

constexpr int kLarge = 1 << 30;

// Absent where a build has one kernel.
std::vector<codegen::SideLaunch> sides_of(const json& object, const char* key) {
  std::vector<codegen::SideLaunch> sides;
  const auto it = object.find(key);
  if (it == object.end()) return sides;
  if (!it->is_array()) fail(ErrorCode::cache, "build metadata: '{}' is no array", key);
  for (const json& side : *it) {
    if (!side.is_object()) fail(ErrorCode::cache, "build metadata: '{}' holds what is no object", key);
    sides.push_back({.entry = text_of(side, "entry"),
                     .threads = number_of(side, "threads", 1, 1024),
                     .shared_bytes = number_of(side, "shared_bytes", 0, kLarge)});
  }
  return sides;
}

}  // namespace

bool BuildInfo::operator==(const BuildInfo& other) const { return to_json(*this) == to_json(other); }

std::string to_json(const BuildInfo& info) {
  const codegen::LaunchShape& s = info.shape;
  json object{{"format", kFormat},
              {"spec", info.spec},
              {"entry", s.entry},
              {"threads", s.threads},
              {"shared_bytes", s.shared_bytes},
              {"block_m", s.block_m},
              {"block_n", s.block_n},
              {"q_box_rows", s.q_box_rows},
              {"kv_box_rows", s.kv_box_rows},
              {"o_box_rows", s.o_box_rows},
              {"counter", s.counter ? 1 : 0},
              {"registers", info.registers},
              {"spill_stores", info.spill_stores},
              {"spill_loads", info.spill_loads},
              {"stack", info.stack},
              {"nvrtc", info.nvrtc},
              {"compile_ms", info.compile_ms},
              {"rejected", info.rejected}};
  if (!s.before.empty()) object["before"] = sides_json(s.before);
  if (!s.after.empty()) object["after"] = sides_json(s.after);
  if (s.dq_rows != 0) object["dq_rows"] = s.dq_rows;
  return object.dump();
}

BuildInfo parse_build_info(std::string_view text) {
  if (text.size() > kMaxBytes || !flat(text)) {
    fail(ErrorCode::cache, "build metadata: {} bytes of text are too large or nested too deep", text.size());
  }
  const json object = json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (!object.is_object()) fail(ErrorCode::cache, "build metadata: not a JSON object");
  number_of(object, "format", kFormat, kFormat);

  BuildInfo info;
  info.spec = text_of(object, "spec");
  info.shape.entry = text_of(object, "entry");
  info.shape.threads = number_of(object, "threads", 1, 1024);
  info.shape.shared_bytes = number_of(object, "shared_bytes", 0, kLarge);
  info.shape.block_m = number_of(object, "block_m", 0, kLarge);
  info.shape.block_n = number_of(object, "block_n", 0, kLarge);
  info.shape.q_box_rows = number_of(object, "q_box_rows", 0, 256);
  info.shape.kv_box_rows = number_of(object, "kv_box_rows", 0, 256);
  info.shape.o_box_rows = number_of(object, "o_box_rows", 0, 256);
  info.shape.counter = number_of(object, "counter", 0, 1) == 1;
  info.shape.before = sides_of(object, "before");
  info.shape.after = sides_of(object, "after");
  if (object.contains("dq_rows")) info.shape.dq_rows = number_of(object, "dq_rows", 1, 256);
  info.registers = number_of(object, "registers", 0, 255);
  info.spill_stores = number_of(object, "spill_stores", 0, kLarge);
  info.spill_loads = number_of(object, "spill_loads", 0, kLarge);
  info.stack = number_of(object, "stack", 0, kLarge);
  info.nvrtc = text_of(object, "nvrtc");
  info.rejected = text_of(object, "rejected");
  if (const auto it = object.find("compile_ms"); it != object.end() && it->is_number()) {
    info.compile_ms = it->get<double>();
  }
  return info;
}

}  // namespace attune::runtime
