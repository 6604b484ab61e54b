// What NVRTC made of a source, kept in the build folder: most of these tests' time is NVRTC's, and most sources are the
// same from run to run and from process to process.
#pragma once

#include <unistd.h>
#include <zstd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/sha256.h"
#include "runtime/compiler.h"
#include "runtime/cpu/ptx_compiler.h"

namespace attune::emulator::tests {

/// Texts under keys, compressed, a file each. What cannot be read back whole is as good as not there; what cannot be
/// written is not kept.
class TextFiles {
 public:
  /// Files that were not used for longest go when all together have more than `most_bytes`.
  explicit TextFiles(std::filesystem::path folder, std::uintmax_t most_bytes = std::uintmax_t{256} << 20)
      : folder_(std::move(folder)) {
    std::error_code ignored;
    std::filesystem::create_directories(folder_, ignored);
    trim(most_bytes);
  }

  std::optional<std::string> find(const std::string& key) const {
    std::ifstream in(folder_ / key, std::ios::binary);
    const std::string file{std::istreambuf_iterator<char>(in), {}};
    if (file.size() < kDigest) return std::nullopt;
    const std::string_view packed = std::string_view(file).substr(kDigest);
    const unsigned long long size = ZSTD_getFrameContentSize(packed.data(), packed.size());
    if (size > kMostText) return std::nullopt;  // unknown and damaged ones, too
    std::string text(size, '\0');
    if (ZSTD_decompress(text.data(), size, packed.data(), packed.size()) != size) return std::nullopt;
    if (sha256_hex(text) != file.substr(0, kDigest)) return std::nullopt;
    std::error_code ignored;
    std::filesystem::last_write_time(folder_ / key, std::filesystem::file_time_type::clock::now(), ignored);
    return text;
  }

  void keep(const std::string& key, const std::string& text) const {
    std::string packed(ZSTD_compressBound(text.size()), '\0');
    const std::size_t size = ZSTD_compress(packed.data(), packed.size(), text.data(), text.size(), 1);
    if (ZSTD_isError(size)) return;
    packed.resize(size);
    const std::filesystem::path beside = folder_ / (key + ".part-" + std::to_string(getpid()));
    std::ofstream out(beside, std::ios::binary);
    out << sha256_hex(text) << packed;
    out.close();
    std::error_code failed;
    if (out) std::filesystem::rename(beside, folder_ / key, failed);
    if (!out || failed) std::filesystem::remove(beside, failed);
  }

 private:
  static constexpr std::size_t kDigest = 64, kMostText = std::size_t{64} << 20;

  void trim(std::uintmax_t most_bytes) const {
    struct File {
      std::filesystem::file_time_type used;
      std::uintmax_t bytes;
      std::filesystem::path path;
    };
    std::vector<File> files;
    std::uintmax_t all = 0;
    std::error_code failed;  // another process trims too
    for (const auto& entry : std::filesystem::directory_iterator(folder_, failed)) {
      const File file{entry.last_write_time(failed), entry.file_size(failed), entry.path()};
      if (failed) continue;
      all += file.bytes;
      files.push_back(file);
    }
    std::ranges::sort(files, {}, &File::used);
    for (const File& file : files) {
      if (all <= most_bytes) return;
      all -= file.bytes;
      std::filesystem::remove(file.path, failed);
    }
  }

  std::filesystem::path folder_;
};

/// A compiler for PTX that asks another one for what it does not have.
class CachedCompiler : public runtime::Compiler {
 public:
  CachedCompiler(std::shared_ptr<const runtime::Compiler> inner, TextFiles files)
      : inner_(std::move(inner)), files_(std::move(files)) {}

  const std::string& version() const override { return inner_->version(); }
  const std::string& nvrtc_path() const override { return inner_->nvrtc_path(); }
  std::vector<std::string> effective_options(std::vector<std::string> options) const override {
    return inner_->effective_options(std::move(options));
  }
  /// Without the log of what was compiled before: warnings at most, as errors are thrown and not kept.
  runtime::CompileResult compile(const std::string& source, const std::vector<std::string>& options,
                                 bool want_ptx) const override {
    std::string identity = "1\n" + version() + "\n";
    for (const std::string& option : inner_->effective_options(options)) identity += option + "\n";
    const std::string key = sha256_hex(identity + "\n" + source);
    runtime::CompileResult result;
    if (std::optional<std::string> ptx = files_.find(key)) {
      result.ptx = *std::move(ptx);
    } else {
      result = inner_->compile(source, options, /*want_ptx=*/true);
      files_.keep(key, result.ptx);
    }
    result.cubin = result.ptx;
    if (!want_ptx) result.ptx.clear();
    return result;
  }

 private:
  std::shared_ptr<const runtime::Compiler> inner_;
  TextFiles files_;
};

/// runtime::ptx_compiler() with the files of the build folder. Throws Error(unsupported) without NVRTC.
inline std::shared_ptr<const runtime::Compiler> ptx_compiler() {
  static const auto compiler =
      std::make_shared<const CachedCompiler>(runtime::ptx_compiler(), TextFiles(ATTUNE_TEST_PTX_CACHE));
  return compiler;
}

}  // namespace attune::emulator::tests
