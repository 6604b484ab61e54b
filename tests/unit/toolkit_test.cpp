#include "runtime/toolkit.h"

#include <doctest/doctest.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <map>
#include <optional>
#include <string>

namespace {

namespace fs = std::filesystem;

// An empty folder, and an environment in which nothing is set but what a test sets; both restored at the end.
class Sandbox {
 public:
  Sandbox() {
    std::string name = (fs::temp_directory_path() / "attune_toolkit_XXXXXX").string();
    REQUIRE(mkdtemp(name.data()) != nullptr);
    root_ = name;
    for (const char* variable : {"ATTUNE_NVRTC", "ATTUNE_TOOLKIT_DIR", "CUDA_HOME", "XDG_DATA_HOME", "HOME"}) {
      const char* value = std::getenv(variable);
      saved_[variable] = value ? std::optional<std::string>(value) : std::nullopt;
      unsetenv(variable);
    }
  }
  ~Sandbox() {
    for (const auto& [variable, value] : saved_) {
      if (value) {
        setenv(variable.c_str(), value->c_str(), 1);
      } else {
        unsetenv(variable.c_str());
      }
    }
    fs::remove_all(root_);
  }
  Sandbox(const Sandbox&) = delete;
  Sandbox& operator=(const Sandbox&) = delete;

  fs::path operator/(const char* name) const { return root_ / name; }

  void set(const char* variable, const fs::path& value) const { setenv(variable, value.c_str(), 1); }

  // Makes empty libraries <folder>/libnvrtc.so.<soname> and its builtins of this version.
  fs::path add_library(const char* folder, const std::string& soname, const std::string& version) const {
    fs::create_directories(root_ / folder);
    std::ofstream(root_ / folder / ("libnvrtc-builtins.so." + version));
    const fs::path path = root_ / folder / ("libnvrtc.so." + soname);
    std::ofstream{path};
    return path;
  }

  std::vector<attune::Toolkit> find() const { return attune::find_toolkits(root_); }

  std::vector<fs::path> installed() const { return of("installed toolkit"); }

  std::vector<fs::path> of(const std::string& origin) const {
    std::vector<fs::path> paths;
    for (const attune::Toolkit& toolkit : find()) {
      if (toolkit.origin == origin) paths.push_back(toolkit.nvrtc_library);
    }
    return paths;
  }

 private:
  fs::path root_;
  std::map<std::string, std::optional<std::string>> saved_;
};

using Paths = std::vector<fs::path>;

}  // namespace

TEST_CASE("toolkit: ATTUNE_NVRTC is the only candidate, whether it exists or not") {
  const Sandbox sandbox;
  sandbox.add_library("cuda/lib64", "13", "13.0");
  sandbox.set("ATTUNE_NVRTC", "/nowhere/libnvrtc.so.13");
  const auto found = sandbox.find();
  REQUIRE(found.size() == 1);
  CHECK(found[0].nvrtc_library == "/nowhere/libnvrtc.so.13");
  CHECK(found[0].origin == "environment");
}

TEST_CASE("toolkit: CUDA_HOME comes first, then installed toolkits, the newest first") {
  const Sandbox sandbox;
  const fs::path v12_8 = sandbox.add_library("cuda-12.8/lib64", "12", "12.8.93");
  const fs::path v12_9 = sandbox.add_library("cuda-12.9/lib64", "12", "12.9");
  const fs::path v12_10 = sandbox.add_library("cuda-12.10/lib", "12", "12.10");
  const fs::path home = sandbox.add_library("opt/cuda/lib64", "13", "13.0");
  sandbox.set("CUDA_HOME", sandbox / "opt/cuda");
  CHECK(sandbox.installed() == Paths{home, v12_10, v12_9, v12_8});
}

TEST_CASE("toolkit: the same library by two paths is one candidate") {
  const Sandbox sandbox;
  sandbox.add_library("cuda-13.0/lib64", "13", "13.0");
  fs::create_directory_symlink("cuda-13.0", sandbox / "cuda");
  sandbox.set("CUDA_HOME", sandbox / "cuda-13.0");
  CHECK(sandbox.installed() == Paths{sandbox / "cuda-13.0/lib64/libnvrtc.so.13"});
}

TEST_CASE("toolkit: what is older than 12.8 or does not tell its version is left out") {
  const Sandbox sandbox;
  sandbox.add_library("cuda-12.4/lib64", "12", "12.4");
  sandbox.add_library("cuda-11.8/lib64", "11.2", "11.8");
  fs::create_directories(sandbox / "cuda-14.0/lib64");
  std::ofstream(sandbox / "cuda-14.0/lib64/libnvrtc.so.14");
  sandbox.add_library("cuda-broken/lib64", "x", "y");
  std::ofstream(sandbox / "cuda");
  CHECK(sandbox.installed().empty());
}

TEST_CASE("toolkit: the soname is preferred to longer names, and other libraries are no candidates") {
  const Sandbox sandbox;
  const fs::path soname = sandbox.add_library("cuda/lib64", "12", "12.8.93");
  sandbox.add_library("cuda/lib64", "12.8.93", "12.8");
  std::ofstream(sandbox / "cuda/lib64/libnvrtc.alt.so.12");
  std::ofstream(sandbox / "cuda/lib64/libnvrtc.so");
  CHECK(sandbox.installed() == Paths{soname});
}

TEST_CASE("toolkit: wheels are found below ATTUNE_TOOLKIT_DIR and the user's data folder") {
  const Sandbox sandbox;
  const fs::path own = sandbox.add_library("own/nvidia/cu13/lib", "13", "13.0");
  const fs::path home = sandbox.add_library("home/.local/share/attune/toolkit/nvidia/cu13/lib", "13", "13.0");
  const fs::path data = sandbox.add_library("data/attune/toolkit/nvidia/cuda_nvrtc/lib", "12", "12.8");
  sandbox.set("HOME", sandbox / "home");
  auto wheels = sandbox.of("wheels");
  REQUIRE(wheels.size() >= 1);
  CHECK(wheels[0] == home);

  sandbox.set("XDG_DATA_HOME", sandbox / "data");
  sandbox.set("ATTUNE_TOOLKIT_DIR", sandbox / "own");
  wheels = sandbox.of("wheels");
  REQUIRE(wheels.size() >= 2);
  CHECK(wheels[0] == own);
  CHECK(wheels[1] == data);
  CHECK(std::find(wheels.begin(), wheels.end(), home) == wheels.end());
}

TEST_CASE("toolkit: the dynamic loader comes last, the newer soname first") {
  const Sandbox sandbox;
  const fs::path installed = sandbox.add_library("cuda/lib64", "13", "13.0");
  const auto found = sandbox.find();
  REQUIRE(found.size() >= 3);
  CHECK(found.front().nvrtc_library == installed);
  CHECK(found[found.size() - 2].nvrtc_library == "libnvrtc.so.13");
  CHECK(found.back().nvrtc_library == "libnvrtc.so.12");
  CHECK(found.back().origin == "dynamic loader");
}

TEST_CASE("toolkit: the help names what was looked for") {
  const Sandbox sandbox;
  sandbox.set("CUDA_HOME", "/opt/some-cuda");
  sandbox.set("ATTUNE_TOOLKIT_DIR", "/opt/some-wheels");
  std::string help = attune::toolkit_help();
  for (const char* part : {"12.8", "/opt/some-cuda", "/opt/some-wheels", "ATTUNE_NVRTC", "pip install"}) {
    CAPTURE(part);
    CHECK(help.find(part) != std::string::npos);
  }
  CHECK(help.find('\n') == std::string::npos);

  sandbox.set("ATTUNE_NVRTC", "/opt/one.so");
  help = attune::toolkit_help();
  CHECK(help.find("/opt/one.so") != std::string::npos);
}
