#include "runtime/toolkit.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <optional>
#include <string_view>
#include <utility>

#include "base/environment.h"

namespace attune {
namespace {

namespace fs = std::filesystem;

using Version = std::pair<int, int>;  // major, minor

constexpr Version kOldest{12, 8};
constexpr std::string_view kLibrary = "libnvrtc.so.";
constexpr std::string_view kBuiltins = "libnvrtc-builtins.so.";

// "12.8.93" -> {12, 8}, "13" -> {13, 0}; nothing for what does not start with a number.
std::optional<Version> parse_version(std::string_view text) {
  Version version{0, 0};
  const char* end = text.data() + text.size();
  const auto major = std::from_chars(text.data(), end, version.first);
  if (major.ec != std::errc{}) return std::nullopt;
  if (major.ptr != end && *major.ptr == '.') std::from_chars(major.ptr + 1, end, version.second);
  return version;
}

// The version in the name of an entry "<prefix><version>".
std::optional<Version> version_in_name(const fs::path& entry, std::string_view prefix) {
  const std::string name = entry.filename().string();
  if (!name.starts_with(prefix)) return std::nullopt;
  return parse_version(std::string_view(name).substr(prefix.size()));
}

std::vector<fs::path> entries(const fs::path& folder) {
  std::vector<fs::path> found;
  std::error_code error;
  for (fs::directory_iterator it(folder, error), end; !error && it != end; it.increment(error)) {
    found.push_back(it->path());
  }
  std::ranges::sort(found);
  return found;
}

// The newest NVRTC in a folder of libraries. "libnvrtc.so.12" does not say which 12 it is; the builtins
// beside it, without which it cannot compile, always do.
std::optional<fs::path> nvrtc_in(const fs::path& folder) {
  std::optional<fs::path> library;
  Version newest = kOldest;
  const std::vector<fs::path> files = entries(folder);
  for (const fs::path& builtins : files) {
    const auto version = version_in_name(builtins, kBuiltins);
    if (!version || *version < newest) continue;
    // Sorted names: the shortest one, which is the soname, comes first.
    const auto matching = std::ranges::find_if(files, [&](const fs::path& file) {
      const auto own = version_in_name(file, kLibrary);
      return own && own->first == version->first;
    });
    if (matching == files.end()) continue;
    newest = *version;
    library = *matching;
  }
  return library;
}

class Candidates {
 public:
  // The first of these folders that has an NVRTC gives one candidate, unless it is known by another path
  // already.
  void add(const std::vector<fs::path>& folders, std::string_view origin) {
    for (const fs::path& folder : folders) {
      const auto library = nvrtc_in(folder);
      if (!library) continue;
      std::error_code error;
      const fs::path real = fs::canonical(*library, error);
      if (!error && std::ranges::find(real_, real) == real_.end()) {
        real_.push_back(real);
        found_.push_back({*library, std::string(origin)});
      }
      return;
    }
  }

  void add_installed(const fs::path& root) { add({root / "lib64", root / "lib"}, "installed toolkit"); }

  // Wheels unpack to nvidia/cu13/lib or nvidia/cuda_nvrtc/lib.
  void add_wheels(const fs::path& folder) {
    std::vector<fs::path> libraries;
    for (const fs::path& part : entries(folder / "nvidia")) libraries.push_back(part / "lib");
    add(libraries, "wheels");
  }

  std::vector<Toolkit> found() && { return std::move(found_); }

  void add_name(const char* name) { found_.push_back({name, "dynamic loader"}); }

 private:
  std::vector<Toolkit> found_;
  std::vector<fs::path> real_;
};

// <installed>/cuda-13.0, <installed>/cuda-12.9, ...
std::vector<fs::path> versioned_folders(const fs::path& installed) {
  std::vector<std::pair<Version, fs::path>> found;
  for (const fs::path& entry : entries(installed)) {
    if (const auto version = version_in_name(entry, "cuda-")) found.emplace_back(*version, entry);
  }
  std::ranges::sort(found, std::greater{});
  std::vector<fs::path> folders;
  for (auto& [version, folder] : found) folders.push_back(std::move(folder));
  return folders;
}

std::vector<fs::path> wheel_folders() {
  std::vector<fs::path> folders;
  if (const auto folder = environment_variable("ATTUNE_TOOLKIT_DIR")) folders.emplace_back(*folder);
  if (const auto data = environment_variable("XDG_DATA_HOME")) {
    folders.push_back(fs::path(*data) / "attune/toolkit");
  } else if (const auto home = environment_variable("HOME")) {
    folders.push_back(fs::path(*home) / ".local/share/attune/toolkit");
  }
#ifdef ATTUNE_SOURCE_TOOLKIT
  folders.emplace_back(ATTUNE_SOURCE_TOOLKIT);
#endif
  return folders;
}

std::string described(const char* variable) {
  const auto value = environment_variable(variable);
  return value ? fmt::format("${} ({})", variable, *value) : fmt::format("${} (not set)", variable);
}

}  // namespace

std::vector<Toolkit> find_toolkits(const fs::path& installed) {
  if (const auto library = environment_variable("ATTUNE_NVRTC")) return {{*library, "environment"}};

  Candidates candidates;
  if (const auto home = environment_variable("CUDA_HOME")) candidates.add_installed(*home);
  candidates.add_installed(installed / "cuda");
  for (const fs::path& folder : versioned_folders(installed)) candidates.add_installed(folder);
  for (const fs::path& folder : wheel_folders()) candidates.add_wheels(folder);
  candidates.add_name("libnvrtc.so.13");
  candidates.add_name("libnvrtc.so.12");
  return std::move(candidates).found();
}

std::string toolkit_help() {
  if (const auto library = environment_variable("ATTUNE_NVRTC")) {
    return fmt::format(
        "$ATTUNE_NVRTC names the NVRTC library to use ({}), so no other was looked for. It must be the path "
        "of a "
        "libnvrtc.so of version {}.{} or newer; unset it to search the usual places.",
        *library, kOldest.first, kOldest.second);
  }
  std::string wheels;
  for (const fs::path& folder : wheel_folders()) wheels += fmt::format("{}, ", folder.string());
  return fmt::format(
      "Compiling needs NVRTC {}.{} or newer. Looked in {}, {}, /usr/local/cuda and /usr/local/cuda-*, then "
      "for wheels "
      "in {}then asked the dynamic loader for libnvrtc.so.13 and libnvrtc.so.12. To get one: install a CUDA "
      "toolkit; "
      "or run `python3 -m pip install --no-deps --target ~/.local/share/attune/toolkit "
      "'nvidia-cuda-nvrtc==13.0.*'`; "
      "or set ATTUNE_NVRTC to the path of a libnvrtc.so. Kernels from a cache or a pack need no NVRTC.",
      kOldest.first, kOldest.second, described("ATTUNE_NVRTC"), described("CUDA_HOME"), wheels);
}

}  // namespace attune
