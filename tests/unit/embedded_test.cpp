#include "templates/embedded.h"

#include <doctest/doctest.h>

#include <algorithm>

#include "base/error.h"
#include "base/sha256.h"

namespace templates = attune::templates;

TEST_CASE("embedded: files are sorted by name and carry the digest of their text") {
  const auto files = templates::files();
  CHECK(std::ranges::is_sorted(files, {}, &templates::File::name));
  for (const templates::File& file : files) {
    CAPTURE(file.name);
    CHECK(attune::sha256_hex(file.text) == file.sha256);
    CHECK(&templates::file(file.name) == &file);
  }
}

TEST_CASE("embedded: the common digest covers every file's digest and name") {
  std::string listing;
  for (const templates::File& file : templates::files()) {
    listing += fmt::format("{}  {}\n", file.sha256, file.name);
  }
  CHECK(attune::sha256_hex(listing) == templates::digest());
}

TEST_CASE("embedded: an unknown name is an error that says so") {
  CHECK_THROWS_WITH_AS(templates::file("no/such.cuh"), "no embedded device code is named no/such.cuh", attune::Error);
}
