#include "cli/emulator/tensor_map_argument.h"

#include <algorithm>
#include <array>
#include <string>
#include <vector>

#include "base/error.h"
#include "base/fields.h"

namespace attune::cli {
namespace {

using emulator::OutOfBoundsFill;
using emulator::Swizzle;
using emulator::TensorType;

struct TypeName {
  std::string_view name;
  TensorType type;
  std::size_t bytes;
  std::string_view random;  ///< the type of random contents; empty: there are none
};
constexpr std::array kTypes{TypeName{"u8", TensorType::u8, 1, ""},      TypeName{"u16", TensorType::u16, 2, ""},
                            TypeName{"u32", TensorType::u32, 4, ""},    TypeName{"i32", TensorType::s32, 4, ""},
                            TypeName{"u64", TensorType::u64, 8, ""},    TypeName{"i64", TensorType::s64, 8, ""},
                            TypeName{"f16", TensorType::f16, 2, "f16"}, TypeName{"bf16", TensorType::bf16, 2, "bf16"},
                            TypeName{"f32", TensorType::f32, 4, "f32"}, TypeName{"tf32", TensorType::tf32, 4, "f32"},
                            TypeName{"f64", TensorType::f64, 8, "f64"}};

constexpr std::array<std::pair<std::string_view, Swizzle>, 4> kSwizzles{
    {{"none", Swizzle::none}, {"32", Swizzle::bytes32}, {"64", Swizzle::bytes64}, {"128", Swizzle::bytes128}}};
constexpr std::array<std::pair<std::string_view, OutOfBoundsFill>, 2> kFills{
    {{"zeros", OutOfBoundsFill::zeros}, {"nan", OutOfBoundsFill::nan}}};

template <typename Names, typename NameOf>
const auto& named(const char* key, const std::string& text, const Names& names, const NameOf& name_of) {
  const auto found = std::ranges::find_if(names, [&](const auto& each) { return name_of(each) == text; });
  if (found != names.end()) return *found;
  std::string allowed;
  for (const auto& each : names) allowed += (allowed.empty() ? "" : ", ") + std::string(name_of(each));
  fail(ErrorCode::invalid_argument, "{}: '{}' is unknown (allowed: {})", key, text, allowed);
}

// "64x128"
std::vector<std::int64_t> sizes(const char* key, const std::string& text, std::int64_t most) {
  std::vector<std::int64_t> all;
  for (std::size_t start = 0; start <= text.size();) {
    const std::size_t end = std::min(text.find('x', start), text.size());
    all.push_back(parse_int(key, text.substr(start, end - start), 1, most));
    start = end + 1;
  }
  return all;
}

class MapParser {
 public:
  MapParser(std::string_view text, std::uint64_t seed) : fields_(parse_fields("map", text)), seed_(seed) {}

  TensorMapText parse() {
    constexpr std::array kKeys{"type", "dims", "box", "strides", "swizzle", "fill", "buffer", "contents"};
    for (const auto& [key, value] : fields_) named("map", key, kKeys, [](const char* name) { return name; });
    const TypeName& type = named("type", need("type"), kTypes, [](const TypeName& t) { return t.name; });
    map_.description.type = type.type;
    parse_sizes(type);
    const auto first = [](const auto& pair) { return pair.first; };
    if (const auto text = find("swizzle")) map_.description.swizzle = named("swizzle", *text, kSwizzles, first).second;
    if (const auto text = find("fill")) map_.description.fill = named("fill", *text, kFills, first).second;
    parse_memory(type);
    return map_;
  }

 private:
  std::optional<std::string> find(std::string_view key) const {
    for (const auto& [name, value] : fields_)
      if (name == key) return value;
    return std::nullopt;
  }
  std::string need(const char* key) const {
    const auto value = find(key);
    if (!value) fail(ErrorCode::invalid_argument, "{}: missing (allowed: type=TYPE,dims=NxN,box=NxN,...)", key);
    return *value;
  }

  void parse_sizes(const TypeName& type) {
    constexpr std::int64_t kMostElements = std::int64_t{1} << 32, kMostStride = std::int64_t{1} << 40;
    emulator::TensorMapDescription& d = map_.description;
    const std::vector<std::int64_t> dims = sizes("dims", need("dims"), kMostElements);
    if (dims.size() > d.dims.size())
      fail(ErrorCode::invalid_argument, "dims: {} dimensions (allowed: 1 to {})", dims.size(), d.dims.size());
    const std::vector<std::int64_t> box = sizes("box", need("box"), 256);
    if (box.size() != dims.size())
      fail(ErrorCode::invalid_argument, "box: {} dimensions, but dims has {}", box.size(), dims.size());
    std::vector<std::int64_t> strides;
    if (const auto text = find("strides")) {
      strides = sizes("strides", *text, kMostStride);
      if (strides.size() + 1 != dims.size())
        fail(ErrorCode::invalid_argument, "strides: {} are given, but dims has {} dimensions (allowed: one less)",
             strides.size(), dims.size());
    }
    d.rank = static_cast<int>(dims.size());
    const std::uint64_t room = emulator::MachineOptions().memory_limit;
    std::uint64_t extent = type.bytes * static_cast<std::uint64_t>(dims[0]), dense = extent;
    for (std::size_t i = 0; i < dims.size(); ++i) {
      d.dims[i] = static_cast<std::uint64_t>(dims[i]);
      d.box[i] = static_cast<std::uint32_t>(box[i]);
      if (i > 0) {
        d.strides[i - 1] = strides.empty() ? dense : static_cast<std::uint64_t>(strides[i - 1]);
        // Neither factor has more than 40 bits: what would wrap is refused before.
        if (d.dims[i] - 1 > room / d.strides[i - 1])
          fail(ErrorCode::invalid_argument, "dims: the tensor has more than {} bytes", room);
        extent += (d.dims[i] - 1) * d.strides[i - 1];
        dense = d.strides[i - 1] * d.dims[i];
      }
      if (extent > room) fail(ErrorCode::invalid_argument, "dims: the tensor has more than {} bytes", room);
    }
    map_.bytes = static_cast<std::size_t>(extent);
  }

  void parse_memory(const TypeName& type) {
    const auto buffer = find("buffer");
    std::optional<std::string> contents = find("contents");
    if (buffer) {
      if (contents)
        fail(ErrorCode::invalid_argument, "contents: excludes buffer, whose memory has contents of its own");
      map_.buffer = static_cast<std::size_t>(parse_int("buffer", *buffer, 0, 1 << 20));
      return;
    }
    if (!contents) return;
    if (contents->starts_with('@')) {
      map_.contents = read_bytes(contents->substr(1));
      if (map_.contents->size() != map_.bytes)
        fail(ErrorCode::invalid_argument, "contents: {} has {} bytes, but the tensor {}", contents->substr(1),
             map_.contents->size(), map_.bytes);
      return;
    }
    constexpr std::string_view kRandom = "random";
    if (contents->starts_with(kRandom)) {
      if (type.random.empty())
        fail(ErrorCode::invalid_argument, "contents: there are no random ones of {} (allowed: zero, @FILE)", type.name);
      contents->insert(kRandom.size(), ":" + std::string(type.random));
    }
    map_.contents = buffer_bytes(map_.bytes, *contents, seed_);
  }

  Fields fields_;
  std::uint64_t seed_;
  TensorMapText map_;
};

}  // namespace

TensorMapText parse_tensor_map(std::string_view text, std::uint64_t seed) { return MapParser(text, seed).parse(); }

emulator::TensorMap encode(const TensorMapText& map, const void* base) {
  emulator::TensorMapDescription description = map.description;
  description.base = base;
  return emulator::encode_tensor_map(description);
}

}  // namespace attune::cli
