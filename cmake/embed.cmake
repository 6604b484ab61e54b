# Writes OUTPUT, a C++ source with the text and SHA-256 of each of FILES (separated by |, relative to ROOT).
# A raw string's delimiter is cut from its own text's digest, so no text can hold it.

string(REPLACE "|" ";" FILES "${FILES}")
list(LENGTH FILES count)
set(listing "")

file(WRITE ${OUTPUT}.new "// Generated from the .cuh files in templates/.

#include \"templates/embedded.h\"

#include <array>

namespace attune::templates {
namespace {

constexpr std::array<File, ${count}> kFiles{{
")
foreach(name IN LISTS FILES)
  file(READ ${ROOT}/${name} text)
  file(SHA256 ${ROOT}/${name} sha256)
  string(SUBSTRING ${sha256} 0 15 delimiter)
  file(APPEND ${OUTPUT}.new "    {\"${name}\", R\"_${delimiter}(${text})_${delimiter}\",\n     \"${sha256}\"},\n")
  string(APPEND listing "${sha256}  ${name}\n")
endforeach()
string(SHA256 digest "${listing}")
file(APPEND ${OUTPUT}.new "}};

}  // namespace

std::span<const File> files() { return kFiles; }

std::string_view digest() { return \"${digest}\"; }

}  // namespace attune::templates
")
file(RENAME ${OUTPUT}.new ${OUTPUT})
