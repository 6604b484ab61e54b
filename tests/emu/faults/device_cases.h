// Planted faults as files that on_device.py runs on a GPU: each kernel as a cubin, and everything that its launch
// takes and has to write.
#pragma once

#include <cstddef>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <limits>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "tests/emu/faults/attention_launch.h"

namespace attune::emulator {

/// Buffers, arguments and expected output of one launch, under construction. Buffers keep the order of their creation.
class DeviceLaunch {
 public:
  /// Data go to <folder>/<prefix>-<buffer>.bin.
  DeviceLaunch(std::filesystem::path folder, std::string prefix, const std::string& entry, const LaunchOptions& options)
      : folder_(std::move(folder)), prefix_(std::move(prefix)) {
    json_["entry"] = entry;
    json_["grid"] = {options.grid.x, options.grid.y, options.grid.z};
    json_["cluster"] = {options.cluster.x, options.cluster.y, options.cluster.z};
    json_["block"] = {options.block.x, options.block.y, options.block.z};
    json_["shared_bytes"] = options.dynamic_shared_bytes;
  }

  /// A buffer that the kernel finds filled with what `memory` holds now, or that it is to write.
  void input(const std::string& name, const void* memory, std::size_t bytes) {
    buffers_[memory] = name;
    json_["buffers"].push_back({{"name", name}, {"bytes", bytes}, {"file", write(name, memory, bytes)}});
  }
  /// `type` is "bf16" or "f32". Elements that are expected to be NaN are not compared.
  void output(const std::string& name, const void* memory, std::string_view type, const std::vector<float>& expected,
              double tolerance) {
    buffers_[memory] = name;
    const std::size_t bytes = expected.size() * (type == "bf16" ? 2 : 4);
    json_["buffers"].push_back({{"name", name}, {"bytes", bytes}, {"file", nullptr}});
    json_["expected"].push_back({{"buffer", name},
                                 {"type", type},
                                 {"tolerance", tolerance},
                                 {"file", write(name, expected.data(), expected.size() * sizeof(float))}});
  }

  void pointer(const void* memory) { bytes(&memory, sizeof memory, {0}); }
  /// A parameter with pointers to buffers at `pointers`.
  void bytes(const void* parameter, std::size_t size, const std::vector<std::size_t>& pointers) {
    std::vector<unsigned char> plain(size);
    std::memcpy(plain.data(), parameter, size);
    nlohmann::json places = nlohmann::json::array();
    for (const std::size_t offset : pointers) {
      const void* memory = nullptr;
      std::memcpy(&memory, plain.data() + offset, sizeof memory);
      std::memset(plain.data() + offset, 0, sizeof memory);
      places.push_back({{"offset", offset}, {"buffer", buffers_.at(memory)}});
    }
    std::string hex;
    for (const unsigned char byte : plain) hex += fmt::format("{:02x}", byte);
    json_["arguments"].push_back({{"bytes", hex}, {"pointers", places}});
  }
  void tensor_map(const TensorMapDescription& map) {
    if (map.type != TensorType::bf16 || (map.swizzle != Swizzle::none && map.swizzle != Swizzle::bytes128))
      fail(ErrorCode::unsupported, "a tensor map for a device: bf16 without swizzle or with that of 128 bytes only");
    const auto rank = static_cast<std::size_t>(map.rank);
    json_["arguments"].push_back({{"tensor_map",
                                   {{"buffer", buffers_.at(map.base)},
                                    {"dims", std::vector(map.dims.begin(), map.dims.begin() + map.rank)},
                                    {"strides", std::vector(map.strides.begin(), map.strides.begin() + map.rank - 1)},
                                    {"box", std::vector(map.box.begin(), map.box.begin() + map.rank)},
                                    {"element_strides", std::vector<std::uint32_t>(rank, 1)},
                                    {"swizzle_bytes", map.swizzle == Swizzle::none ? 0 : 128}}}});
  }

  const nlohmann::json& json() const { return json_; }

 private:
  std::string write(const std::string& name, const void* data, std::size_t bytes) const {
    std::string file = fmt::format("{}-{}.bin", prefix_, name);
    std::ofstream out(folder_ / file, std::ios::binary);
    out.write(static_cast<const char*>(data), static_cast<std::streamsize>(bytes));
    if (!out) fail(ErrorCode::io, "{} cannot be written", (folder_ / file).string());
    return file;
  }

  std::filesystem::path folder_;
  std::string prefix_;
  std::map<const void*, std::string> buffers_;
  nlohmann::json json_;
};

/// The folder: cases.json, cubins and data.
class DeviceCases {
 public:
  explicit DeviceCases(std::filesystem::path folder) : folder_(std::move(folder)) {
    std::filesystem::create_directories(folder_);
    json_["compiler"] = runtime::Compiler::get()->version();
    json_["cases"] = nlohmann::json::array();
  }

  const std::filesystem::path& folder() const { return folder_; }

  /// `fault` is empty for the kernel without one. A source that only the emulator's PTX takes is a case as well.
  void add(const std::string& kernel, const std::string& fault, const std::string& emulator, const std::string& source,
           const std::vector<std::string>& definitions, const DeviceLaunch& launch) {
    const std::string id = fmt::format("{:03}", json_["cases"].size());
    nlohmann::json entry{
        {"id", id}, {"kernel", kernel}, {"fault", fault}, {"emulator", emulator}, {"launch", launch.json()}};
    try {
      const std::string cubin = runtime::Compiler::get()->compile(source, compile_options("sm_90a", definitions)).cubin;
      entry["image"] = id + ".cubin";
      std::ofstream(folder_ / (id + ".cubin"), std::ios::binary) << cubin;
    } catch (const Error& error) {
      if (error.code() != ErrorCode::compile_failed) throw;
      entry["compile_error"] = std::string(error.what());
    }
    json_["cases"].push_back(std::move(entry));
  }

  void finish() const {
    std::ofstream out(folder_ / "cases.json");
    out << json_.dump(1) << "\n";
    if (!out) fail(ErrorCode::io, "{} cannot be written", (folder_ / "cases.json").string());
  }

 private:
  std::filesystem::path folder_;
  nlohmann::json json_;
};

/// Of an attention kernel. `expected` may come from another launch of the same problem.
inline DeviceLaunch device_launch(const std::filesystem::path& folder, const std::string& name,
                                  const std::string& entry, const AttentionLaunch& launch,
                                  const AttentionOutput& expected, double tolerance) {
  DeviceLaunch device(folder, name, entry, launch.options);
  device.input("q", launch.q.data, launch.q.elements() * 2);
  device.input("k", launch.k.data, launch.k.elements() * 2);
  device.input("v", launch.v.data, launch.v.elements() * 2);
  device.output("o", launch.o.data, "bf16", {expected.o.begin(), expected.o.end()}, tolerance);
  device.output("lse", launch.params.lse, "f32", {expected.lse.begin(), expected.lse.end()}, tolerance);
  device.input("counter", launch.params.counter, 8);
  for (const TensorMapDescription& map : launch.maps) device.tensor_map(map);
  device.bytes(&launch.params, sizeof launch.params,
               {offsetof(codegen::ForwardParams, lse), offsetof(codegen::ForwardParams, counter),
                offsetof(codegen::ForwardParams, o)});
  return device;
}

}  // namespace attune::emulator
