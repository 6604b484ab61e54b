// A device without a GPU: memory is the host's, kernels are not run but recorded.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "base/error.h"
#include "codegen/backward/params.h"
#include "codegen/kernel_spec.h"
#include "runtime/device.h"

namespace attune::tests {

struct RecordedLaunch {
  std::string entry;
  const void* function = nullptr;
  runtime::LaunchConfig config;
  std::vector<runtime::TensorMap> maps;  // q, k, v, o, or q, k, v, dO, dK, dV
  codegen::ForwardParams params;         // of a forward kernel
  codegen::BackwardParams backward;      // of a backward kernel
};

// What FakeDevice::encode writes into a map's 128 bytes.
struct FakeMap {
  std::uint64_t base, dims[4], strides[3], box_rows, dtype;
};
inline FakeMap fake_map(const runtime::TensorMap& map) {
  FakeMap fields;
  std::memcpy(&fields, map.opaque.data(), sizeof fields);
  return fields;
}

class FakeDevice : public runtime::Device {
 public:
  runtime::DeviceProperties fake{.ordinal = 0,
                                 .name = "Fake H200",
                                 .uuid = "",
                                 .compute_capability = 90,
                                 .sms = 132,
                                 .l2_bytes = 50 << 20,
                                 .memory_bytes = 140ll << 30,
                                 .shared_per_block = 232448,
                                 .registers_per_sm = 65536,
                                 .clock_khz = 1980000,
                                 .memory_clock_khz = 3201000,
                                 .memory_bus_bits = 6144,
                                 .driver_version = 13000};
  std::vector<RecordedLaunch> launches;
  std::set<runtime::Stream> captured;
  std::map<const void*, runtime::PointerKind> kinds;
  int backward_maps = 6;  // that attune_backward takes; one more where it finishes dQ itself
  std::atomic<int> encodes = 0, replacements = 0, loads = 0, allocations = 0, queries = 0;

  const runtime::DeviceProperties& properties() const override { return fake; }
  void make_current() override {}
  void* allocate(std::size_t bytes) override {
    ++allocations;
    return bytes == 0 ? nullptr : std::aligned_alloc(256, (bytes + 255) / 256 * 256);
  }
  void free(void* memory) noexcept override { std::free(memory); }
  void* allocate_shared(std::size_t bytes) override {
    void* const memory = allocate(bytes);
    if (memory != nullptr) std::memset(memory, 0, bytes);
    return memory;
  }
  void free_shared(void* memory) noexcept override { free(memory); }
  void copy_to_device(void* to, const void* from, std::size_t bytes) override { std::memcpy(to, from, bytes); }
  void copy_to_host(void* to, const void* from, std::size_t bytes) override { std::memcpy(to, from, bytes); }
  void copy_on_device(void* to, const void* from, std::size_t bytes, runtime::Stream) override {
    std::memcpy(to, from, bytes);
  }
  void fill8(void* memory, std::uint8_t value, std::size_t count, runtime::Stream) override {
    std::memset(memory, value, count);
  }
  void fill32(void* memory, std::uint32_t value, std::size_t count, runtime::Stream) override {
    std::fill_n(static_cast<std::uint32_t*>(memory), count, value);
  }
  std::size_t free_memory() override { return 1ull << 37; }

  std::unique_ptr<runtime::Module> load(std::string_view) override {
    struct FakeModule : runtime::Module {
      runtime::Function function(const std::string& entry, int) override {
        return {const_cast<std::string*>(&*names.insert(entry).first)};
      }
      std::set<std::string> names;
    };
    ++loads;
    return std::make_unique<FakeModule>();
  }

  void launch(runtime::Function function, const runtime::LaunchConfig& config, void** arguments) override {
    RecordedLaunch l;
    l.entry = *static_cast<const std::string*>(function.handle);
    l.function = function.handle;
    l.config = config;
    const bool backward = l.entry.starts_with("attune_backward");
    const int maps = l.entry == "attune_forward" ? 4 : l.entry == "attune_backward" ? backward_maps : 0;
    for (int i = 0; i < maps; ++i) l.maps.push_back(*static_cast<const runtime::TensorMap*>(arguments[i]));
    if (backward)
      l.backward = *static_cast<const codegen::BackwardParams*>(arguments[maps]);
    else
      l.params = *static_cast<const codegen::ForwardParams*>(arguments[maps]);
    launches.push_back(l);
  }

  runtime::Stream create_stream() override { return nullptr; }
  void destroy_stream(runtime::Stream) noexcept override {}
  void synchronize(runtime::Stream) override {}
  void synchronize() override {}
  std::unique_ptr<runtime::Event> create_event() override { fail(ErrorCode::unsupported, "no events here"); }
  bool capturing(runtime::Stream stream) override {
    ++queries;
    return captured.contains(stream);
  }

  void encode(const runtime::TensorMapGeometry& g, const void* base, runtime::TensorMap* map) override {
    ++encodes;
    const FakeMap fields{reinterpret_cast<std::uint64_t>(base),
                         {g.dims[0], g.dims[1], g.dims[2], g.dims[3]},
                         {g.strides[0], g.strides[1], g.strides[2]},
                         g.box_rows,
                         static_cast<std::uint64_t>(g.dtype)};
    std::memcpy(map->opaque.data(), &fields, sizeof fields);
  }
  void replace_base(runtime::TensorMap* map, const void* base) override {
    ++replacements;
    map->opaque[0] = reinterpret_cast<std::uint64_t>(base);
  }
  runtime::PointerKind pointer_kind(const void* pointer) override {
    ++queries;
    const auto it = kinds.find(pointer);
    return it == kinds.end() ? runtime::PointerKind::this_device : it->second;
  }
};

// The smallest ELF file that read_cubin() takes for a cubin with these kernels.
inline std::string fake_cubin(const std::vector<std::string>& entries, int sm = 90) {
  struct Header {
    unsigned char ident[16];
    std::uint16_t type, machine;
    std::uint32_t version;
    std::uint64_t entry, phoff, shoff;
    std::uint32_t flags;
    std::uint16_t ehsize, phentsize, phnum, shentsize, shnum, shstrndx;
  };
  struct Section {
    std::uint32_t name, type;
    std::uint64_t flags, addr, offset, size;
    std::uint32_t link, info;
    std::uint64_t align, entsize;
  };
  static_assert(sizeof(Header) == 64 && sizeof(Section) == 64);
  constexpr std::size_t kCode = 32;
  std::string names("\0.shstrtab\0", 11);
  std::vector<Section> sections(2);
  for (const std::string& entry : entries) {
    const std::size_t at = sizeof(Header) + kCode * (sections.size() - 2);
    sections.push_back({static_cast<std::uint32_t>(names.size()), 1, 6, 0, at, kCode, 0, 0, 16, 0});
    names += ".text." + entry + '\0';
  }
  const std::size_t names_at = sizeof(Header) + kCode * entries.size();
  sections[1] = {1, 3, 0, 0, names_at, names.size(), 0, 0, 1, 0};
  const std::size_t sections_at = (names_at + names.size() + 7) / 8 * 8;
  Header header{{0x7f, 'E', 'L', 'F', 2, 1, 1, 0x41, 8}, 2,  190, 1, 0,  0, sections_at,
                static_cast<std::uint32_t>(sm << 8),     64, 0,   0, 64, 3, 1};
  header.shnum = static_cast<std::uint16_t>(sections.size());
  std::string bytes(sections_at + sections.size() * sizeof(Section), '\0');
  std::memcpy(bytes.data(), &header, sizeof header);
  std::memcpy(bytes.data() + names_at, names.data(), names.size());
  std::memcpy(bytes.data() + sections_at, sections.data(), sections.size() * sizeof(Section));
  return bytes;
}
inline std::string fake_cubin(const std::string& entry = "attune_forward", int sm = 90) {
  return fake_cubin(std::vector{entry}, sm);
}

}  // namespace attune::tests
