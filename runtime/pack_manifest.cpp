// The manifest's text: checked before it is parsed, and field by field afterwards.
#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <tuple>

#include "base/error.h"
#include "runtime/pack.h"
#include "runtime/pack_files.h"

namespace attune {
namespace {

using nlohmann::json;
using pack_files::shown;

constexpr std::int64_t kLargestNumber = 0x7fffffff;

// One pass over the bytes bounds what the parser will build, whatever it then thinks of the text.
void check_size(std::string_view text) {
  if (text.size() > kMaxManifestBytes) {
    fail(ErrorCode::pack, "manifest: has {} bytes (allowed: at most {})", text.size(), kMaxManifestBytes);
  }
  int depth = 0;
  int values = 0;
  bool in_string = false;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (in_string) {
      if (c == '\\') {
        ++i;
      } else if (c == '"') {
        in_string = false;
      }
      continue;
    }
    switch (c) {
      case '"': in_string = true; break;
      case '[':
      case '{':
        ++values;
        if (++depth > kMaxManifestDepth) {
          fail(ErrorCode::pack, "manifest: is nested too deeply (allowed: {} levels)", kMaxManifestDepth);
        }
        break;
      case ']':
      case '}': --depth; break;
      case ',': ++values; break;
      default: break;
    }
    if (values > kMaxManifestValues) {
      fail(ErrorCode::pack, "manifest: has too many values (allowed: {})", kMaxManifestValues);
    }
  }
  // So that no proper prefix of a manifest is one.
  if (!text.ends_with('\n')) fail(ErrorCode::pack, "manifest: does not end with a newline: it was cut off");
}

json parse_json(std::string_view text) {
  check_size(text);
  std::vector<std::set<std::string>> keys;
  const auto refuse_duplicates = [&](int, json::parse_event_t event, json& value) {
    if (event == json::parse_event_t::object_start) keys.emplace_back();
    if (event == json::parse_event_t::object_end) keys.pop_back();
    if (event == json::parse_event_t::key && !keys.back().insert(value.get<std::string>()).second) {
      fail(ErrorCode::pack, "manifest: the key {} stands twice in one object", shown(value.get<std::string>()));
    }
    return true;
  };
  try {
    return json::parse(text.begin(), text.end(), refuse_duplicates);
  } catch (const json::exception& error) {
    fail(ErrorCode::pack, "manifest: {}", error.what());
  }
}

// A JSON object together with where it stands, for messages.
class Object {
 public:
  Object(const json& value, std::string where) : value_(value), where_(std::move(where)) {
    if (!value.is_object()) fail(ErrorCode::pack, "{}: is not an object", where_);
  }

  bool has(const char* name) const { return value_.contains(name); }

  const json& at(const char* name) const {
    const auto found = value_.find(name);
    if (found == value_.end()) fail(ErrorCode::pack, "{}: {}: is missing", where_, name);
    return *found;
  }

  std::string text(const char* name) const {
    const json& value = at(name);
    if (!value.is_string()) fail(ErrorCode::pack, "{}: {}: is not a string", where_, name);
    return value.get<std::string>();
  }

  std::int64_t number(const char* name, std::int64_t low, std::int64_t high) const {
    const json& value = at(name);
    // Larger integers become unsigned or floating; neither passes for a small one.
    const bool fits = value.is_number_unsigned()
                          ? value.get<std::uint64_t>() <= static_cast<std::uint64_t>(kLargestNumber)
                          : value.is_number_integer();
    if (!fits || value.get<std::int64_t>() < low || value.get<std::int64_t>() > high) {
      fail(ErrorCode::pack, "{}: {}: {} is not an integer in [{}, {}]", where_, name, shown(value.dump()), low, high);
    }
    return value.get<std::int64_t>();
  }

  bool flag(const char* name) const {
    const json& value = at(name);
    if (!value.is_boolean()) fail(ErrorCode::pack, "{}: {}: is not true or false", where_, name);
    return value.get<bool>();
  }

  const json& array(const char* name) const {
    const json& value = at(name);
    if (!value.is_array()) fail(ErrorCode::pack, "{}: {}: is not an array", where_, name);
    return value;
  }

 private:
  const json& value_;
  std::string where_;
};

// Absent where an entry has one kernel.
std::vector<PackSideLaunch> parse_sides(const Object& launch, const char* name, const std::string& where) {
  std::vector<PackSideLaunch> sides;
  if (!launch.has(name)) return sides;
  for (const json& value : launch.array(name)) {
    const Object side(value, fmt::format("{}: launch: {} {}", where, name, sides.size()));
    sides.push_back({.entry = side.text("entry"),
                     .threads = side.number("threads", 0, kLargestNumber),
                     .shared_bytes = side.number("shared_bytes", 0, kLargestNumber)});
  }
  return sides;
}

json sides_json(const std::vector<PackSideLaunch>& sides) {
  json array = json::array();
  for (const PackSideLaunch& side : sides)
    array.push_back({{"entry", side.entry}, {"threads", side.threads}, {"shared_bytes", side.shared_bytes}});
  return array;
}

PackEntry parse_entry(const json& value, const std::string& where) {
  const Object object(value, where);
  PackEntry entry;
  entry.problem = object.text("problem");
  entry.config = object.text("config");
  entry.spec = object.text("spec");
  entry.arch = object.text("arch");
  entry.build_key = object.text("build_key");
  entry.cubin_sha256 = object.text("cubin_sha256");
  entry.cubin_bytes =
      static_cast<std::uint64_t>(object.number("cubin_bytes", 1, static_cast<std::int64_t>(kMaxCubinBytes)));
  entry.registers = object.number("registers", 0, kLargestNumber);
  entry.errors = object.text("errors");
  entry.median = object.text("median");
  entry.tflops = object.text("tflops");
  entry.environment = object.text("environment");
  const Object launch(object.at("launch"), where + ": launch");
  entry.launch.entry = launch.text("entry");
  entry.launch.threads = launch.number("threads", 0, kLargestNumber);
  entry.launch.shared_bytes = launch.number("shared_bytes", 0, kLargestNumber);
  entry.launch.block_m = launch.number("block_m", 0, kLargestNumber);
  entry.launch.block_n = launch.number("block_n", 0, kLargestNumber);
  entry.launch.q_box_rows = launch.number("q_box_rows", 0, kLargestNumber);
  entry.launch.kv_box_rows = launch.number("kv_box_rows", 0, kLargestNumber);
  entry.launch.o_box_rows = launch.number("o_box_rows", 0, kLargestNumber);
  entry.launch.counter = launch.flag("counter");
  entry.launch.before = parse_sides(launch, "before", where);
  entry.launch.after = parse_sides(launch, "after", where);
  if (launch.has("dq_rows")) entry.launch.dq_rows = launch.number("dq_rows", 0, kLargestNumber);
  return entry;
}

json to_json_value(const PackEntry& entry) {
  const PackLaunch& launch = entry.launch;
  json value{{"problem", entry.problem},
             {"config", entry.config},
             {"spec", entry.spec},
             {"arch", entry.arch},
             {"launch",
              {{"entry", launch.entry},
               {"threads", launch.threads},
               {"shared_bytes", launch.shared_bytes},
               {"block_m", launch.block_m},
               {"block_n", launch.block_n},
               {"q_box_rows", launch.q_box_rows},
               {"kv_box_rows", launch.kv_box_rows},
               {"o_box_rows", launch.o_box_rows},
               {"counter", launch.counter}}},
             {"build_key", entry.build_key},
             {"cubin_sha256", entry.cubin_sha256},
             {"cubin_bytes", entry.cubin_bytes},
             {"registers", entry.registers},
             {"errors", entry.errors},
             {"median", entry.median},
             {"tflops", entry.tflops},
             {"environment", entry.environment}};
  if (!launch.before.empty()) value["launch"]["before"] = sides_json(launch.before);
  if (!launch.after.empty()) value["launch"]["after"] = sides_json(launch.after);
  if (launch.dq_rows != 0) value["launch"]["dq_rows"] = launch.dq_rows;
  return value;
}

void check_text(const std::string& where, const char* name, const std::string& text) {
  // A text with a NUL is one thing to us and another to every C function that it is handed to.
  if (text.find('\0') != std::string::npos) fail(ErrorCode::pack, "{}: {}: holds a NUL", where, name);
}

void check_digest(const std::string& where, const char* name, const std::string& text) {
  if (pack_files::is_digest(text)) return;
  fail(ErrorCode::pack, "{}: {}: {} is not 64 lower-case hexadecimal digits", where, name, shown(text));
}

void check_number(const std::string& where, const char* name, std::int64_t value) {
  if (value >= 0 && value <= kLargestNumber) return;
  fail(ErrorCode::pack, "{}: {}: {} is not in [0, {}]", where, name, value, kLargestNumber);
}

void check_identifier(const std::string& where, const char* name, const std::string& text) {
  const bool fine = !text.empty() && text.size() <= 1024 && !(text[0] >= '0' && text[0] <= '9') &&
                    std::all_of(text.begin(), text.end(), [](char c) {
                      return c == '_' || (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
                    });
  if (!fine) fail(ErrorCode::pack, "{}: {}: {} is not an identifier", where, name, shown(text));
}

// What the types do not say; the same for manifests that are read and that are written.
void check_manifest(const Manifest& manifest) {
  check_text("manifest", "producer", manifest.producer);
  check_text("manifest", "created", manifest.created);
  std::set<std::tuple<std::string, std::string, std::string>> seen;
  std::map<std::string, std::uint64_t> sizes;
  for (std::size_t i = 0; i < manifest.entries.size(); ++i) {
    const PackEntry& entry = manifest.entries[i];
    const std::string where = fmt::format("manifest: entry {}", i);
    check_text(where, "problem", entry.problem);
    check_text(where, "config", entry.config);
    check_text(where, "spec", entry.spec);
    check_text(where, "errors", entry.errors);
    check_text(where, "median", entry.median);
    check_text(where, "tflops", entry.tflops);
    check_text(where, "environment", entry.environment);
    check_identifier(where, "arch", entry.arch);
    check_identifier(where, "launch: entry", entry.launch.entry);
    check_number(where, "launch: threads", entry.launch.threads);
    check_number(where, "launch: shared_bytes", entry.launch.shared_bytes);
    check_number(where, "launch: block_m", entry.launch.block_m);
    check_number(where, "launch: block_n", entry.launch.block_n);
    check_number(where, "launch: q_box_rows", entry.launch.q_box_rows);
    check_number(where, "launch: kv_box_rows", entry.launch.kv_box_rows);
    check_number(where, "launch: o_box_rows", entry.launch.o_box_rows);
    check_number(where, "launch: dq_rows", entry.launch.dq_rows);
    for (const auto* sides : {&entry.launch.before, &entry.launch.after}) {
      for (const PackSideLaunch& side : *sides) {
        check_identifier(where, "launch: entry", side.entry);
        check_number(where, "launch: threads", side.threads);
        check_number(where, "launch: shared_bytes", side.shared_bytes);
      }
    }
    check_number(where, "registers", entry.registers);
    check_digest(where, "build_key", entry.build_key);
    check_digest(where, "cubin_sha256", entry.cubin_sha256);
    if (entry.cubin_bytes < 1 || entry.cubin_bytes > kMaxCubinBytes) {
      fail(ErrorCode::pack, "{}: cubin_bytes: {} is not in [1, {}]", where, entry.cubin_bytes, kMaxCubinBytes);
    }
    if (!seen.emplace(entry.problem, entry.arch, entry.config).second) {
      fail(ErrorCode::pack, "{}: an earlier entry has the same problem, arch and config ({})", where,
           shown(entry.problem));
    }
    if (sizes.emplace(entry.cubin_sha256, entry.cubin_bytes).first->second != entry.cubin_bytes) {
      fail(ErrorCode::pack, "{}: cubin_bytes: an earlier entry gives another size for the same digest", where);
    }
  }
  for (std::size_t i = 0; i < manifest.quarantine.size(); ++i) {
    const PackQuarantine& entry = manifest.quarantine[i];
    const std::string where = fmt::format("manifest: quarantine {}", i);
    check_digest(where, "build_key", entry.build_key);
    check_text(where, "environment", entry.environment);
    check_text(where, "reason", entry.reason);
  }
}

}  // namespace

std::string to_json(const Manifest& manifest) {
  check_manifest(manifest);
  json entries = json::array();
  for (const PackEntry& entry : manifest.entries) entries.push_back(to_json_value(entry));
  json quarantine = json::array();
  for (const PackQuarantine& entry : manifest.quarantine) {
    quarantine.push_back(
        {{"build_key", entry.build_key}, {"environment", entry.environment}, {"reason", entry.reason}});
  }
  const json document = {{"schema", kPackSchema},
                         {"producer", manifest.producer},
                         {"created", manifest.created},
                         {"entries", std::move(entries)},
                         {"quarantine", std::move(quarantine)}};
  std::string text;
  try {
    text = document.dump(2) + "\n";
  } catch (const json::exception& error) {
    fail(ErrorCode::pack, "manifest: {}", error.what());  // a text that is not UTF-8
  }
  check_size(text);
  return text;
}

Manifest parse_manifest(std::string_view text) {
  const json document = parse_json(text);
  const Object object(document, "manifest");
  const std::int64_t schema = object.number("schema", 1, kLargestNumber);
  if (schema != kPackSchema) {
    fail(ErrorCode::pack, "manifest: schema: {} is from {} version of attune (this one reads {}): export the pack anew",
         schema, schema > kPackSchema ? "a later" : "an earlier", kPackSchema);
  }
  Manifest manifest;
  manifest.producer = object.text("producer");
  manifest.created = object.text("created");
  for (const json& value : object.array("entries")) {
    manifest.entries.push_back(parse_entry(value, fmt::format("manifest: entry {}", manifest.entries.size())));
  }
  for (const json& value : object.array("quarantine")) {
    const Object entry(value, fmt::format("manifest: quarantine {}", manifest.quarantine.size()));
    manifest.quarantine.push_back({entry.text("build_key"), entry.text("environment"), entry.text("reason")});
  }
  check_manifest(manifest);
  return manifest;
}

}  // namespace attune
