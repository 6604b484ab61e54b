#include "runtime/keys.h"

#include "base/error.h"
#include "base/sha256.h"

namespace attune::runtime {
namespace {

constexpr char kNul = '\0';

void append(std::string& bytes, std::string_view what, std::string_view field) {
  if (field.find(kNul) != std::string_view::npos) {
    fail(ErrorCode::invalid_argument, "{}: holds a NUL byte, which no key can carry", what);
  }
  bytes.append(field).push_back(kNul);
}

}  // namespace

std::string build_key(std::string_view source, std::string_view nvrtc_version,
                      const std::vector<std::string>& options) {
  std::string bytes;
  append(bytes, "build key", "attune build");
  append(bytes, "build key", std::to_string(kBuildKeyVersion));
  append(bytes, "NVRTC version", nvrtc_version);
  append(bytes, "build key", std::to_string(options.size()));
  for (const std::string& option : options) append(bytes, "compile option", option);
  bytes.append(source);
  return sha256_hex(bytes);
}

std::string plan_key(const Problem& problem, std::string_view identity, std::string_view emitter) {
  std::string bytes;
  append(bytes, "plan key", "attune plan");
  append(bytes, "plan key", std::to_string(kPlanKeyVersion));
  append(bytes, "problem", to_string(problem));
  append(bytes, "device identity", identity);
  bytes.append(emitter);
  return sha256_hex(bytes);
}

}  // namespace attune::runtime
