// The cache that spares these tests NVRTC's time must never give what NVRTC would not.
#include <doctest/doctest.h>

#include "tests/emu/ptx_cache.h"
#include "tests/unit/fake_compiler.h"
#include "tests/unit/temporary_folder.h"

namespace attune::emulator::tests {
namespace {

namespace fs = std::filesystem;

/// Its PTX names what it was made of.
struct Echo : attune::tests::FakeCompiler {
  runtime::CompileResult compile(const std::string& source, const std::vector<std::string>& options,
                                 bool) const override {
    ++compiles;
    runtime::CompileResult result;
    result.ptx = source + std::to_string(options.size()) + version();
    return result;
  }
};

TEST_CASE("ptx cache: what differs in anything is compiled, the rest once") {
  const attune::tests::TemporaryFolder folder;
  const auto echo = std::make_shared<Echo>();
  const auto compiled = [&](const std::string& source, const std::vector<std::string>& options) {
    // Another process each time, as far as the cache can tell.
    return CachedCompiler(echo, TextFiles(folder.path() / "cache")).compile(source, options, true).ptx;
  };
  for (int round = 0; round < 2; ++round) {
    CHECK(compiled("a", {}) ==
          "a0"
          "13.0.0");
    CHECK(compiled("a", {"x"}) ==
          "a1"
          "13.0.0");
    CHECK(compiled("b", {"x"}) ==
          "b1"
          "13.0.0");
    CHECK(echo->compiles == 3);
  }
  echo->fake_version = "13.1.0";
  CHECK(compiled("a", {}) ==
        "a0"
        "13.1.0");
  CHECK(echo->compiles == 4);
}

TEST_CASE("ptx cache: damaged files are not there, old ones go when there are too many") {
  const attune::tests::TemporaryFolder folder;
  const TextFiles files(folder.path());
  const std::string text(100'000, 'x');
  files.keep("key", text);
  CHECK(files.find("key") == text);
  CHECK(fs::file_size(folder.path() / "key") < text.size() / 10);
  CHECK(!files.find("other"));
  for (const std::uintmax_t size : {80, 64, 10, 0}) {
    files.keep("key", text);
    fs::resize_file(folder.path() / "key", size);
    CHECK(!files.find("key"));
  }
  files.keep("key", text);
  std::fstream(folder.path() / "key", std::ios::in | std::ios::out | std::ios::binary) << "0123";  // in the digest
  CHECK(!files.find("key"));

  files.keep("key", text);
  files.keep("old", text);
  fs::last_write_time(folder.path() / "old", fs::file_time_type::clock::now() - std::chrono::hours(1));
  const TextFiles trimmed(folder.path(), fs::file_size(folder.path() / "key"));
  CHECK(trimmed.find("key") == text);
  CHECK(!trimmed.find("old"));
}

}  // namespace
}  // namespace attune::emulator::tests
