// The fuzzer's corpus through the parser, whole and damaged in a fixed way.
#include <doctest/doctest.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <random>
#include <string>
#include <vector>

#include <attune/error.h>

#include "runtime/emulator/ptx/parser.h"

namespace attune::emulator::ptx {
namespace {

struct File {
  std::string name;
  std::string text;
};

std::vector<File> corpus() {
  std::vector<File> files;
  for (const auto& entry : std::filesystem::directory_iterator(ATTUNE_TEST_DATA "/../fuzz/corpus/ptx")) {
    std::ifstream in(entry.path(), std::ios::binary);
    files.push_back({entry.path().filename().string(), {std::istreambuf_iterator<char>(in), {}}});
  }
  return files;
}

/// Whatever the bytes: a tree or a typed error with a position in the text. Returns whether it was a tree.
bool parses(std::string_view text) {
  try {
    parse(text);
    return true;
  } catch (const Error& error) {
    const std::string_view message = error.what();
    const bool typed = error.code() == ErrorCode::invalid_argument || error.code() == ErrorCode::unsupported;
    if (!typed || !message.starts_with("ptx:")) FAIL(error.what());
    return false;
  }
}

TEST_CASE("corpus: every file parses") {
  const std::vector<File> files = corpus();
  CHECK(files.size() >= 12);
  for (const File& file : files) {
    CAPTURE(file.name);
    CHECK_NOTHROW(parse(file.text));
  }
}

TEST_CASE("corpus: cut off after every byte") {
  for (const File& file : corpus()) {
    for (std::size_t size = 0; size < file.text.size(); ++size) parses(std::string_view(file.text).substr(0, size));
  }
}

TEST_CASE("corpus: bytes changed, lost, doubled and moved") {
  std::mt19937 random(20240229);
  const auto below = [&random](std::size_t limit) { return random() % limit; };
  const std::string_view frequent = "{}[](),;:.%@!+-0123456789abcdefx_<>|\"/*\n ";
  int trees = 0, errors = 0;
  for (const File& file : corpus()) {
    for (int round = 0; round < 2000; ++round) {
      std::string text = file.text;
      for (std::size_t change = 0; change <= below(3); ++change) {
        const std::size_t at = below(text.size()), length = 1 + below(40);
        switch (below(5)) {
          case 0: text[at] = static_cast<char>(below(256)); break;
          case 1: text[at] = frequent[below(frequent.size())]; break;
          case 2: text.erase(at, length); break;
          case 3: text.insert(below(text.size()), text.substr(at, length)); break;
          default: text.insert(at, 1, frequent[below(frequent.size())]); break;
        }
        if (text.empty()) text = " ";
      }
      ++(parses(text) ? trees : errors);
    }
  }
  // Neither is rare: the changes reach behind the first error and leave most of a file standing.
  CHECK(trees > 1000);
  CHECK(errors > 1000);
}

}  // namespace
}  // namespace attune::emulator::ptx
