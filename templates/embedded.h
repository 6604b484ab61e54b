// The device code in templates/**/*.cuh, embedded at build time.

#pragma once

#include <span>
#include <string_view>

namespace attune::templates {

struct File {
  std::string_view name;  // relative to templates/, e.g. "ptx/wgmma.cuh"
  std::string_view text;
  std::string_view sha256;  // of the text, in lower-case hexadecimal digits
};

// All files, by name. They live as long as the program; safe from any thread.
std::span<const File> files();

// Throws attune::Error if there is no file of that name.
const File& file(std::string_view name);

// SHA-256 over every file's digest and name.
std::string_view digest();

}  // namespace attune::templates
