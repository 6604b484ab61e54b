#include "tuner/worker_path.h"

#include <dlfcn.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <system_error>
#include <vector>

#include "base/error.h"

namespace attune::tuner {
namespace {

namespace fs = std::filesystem;

constexpr const char* kName = "attune-worker";

// Folders of the program and of the library that holds this code: the same for a static program.
std::vector<fs::path> own_folders() {
  std::vector<fs::path> folders;
  std::error_code error;
  if (const fs::path program = fs::read_symlink("/proc/self/exe", error); !error)
    folders.push_back(program.parent_path());
  Dl_info info{};
  if (dladdr(reinterpret_cast<const void*>(&find_worker), &info) != 0 && info.dli_fname != nullptr) {
    const fs::path library = fs::canonical(info.dli_fname, error);
    if (!error && library.parent_path() != (folders.empty() ? fs::path() : folders.front()))
      folders.push_back(library.parent_path());
  }
  return folders;
}

bool is_program(const fs::path& path) {
  std::error_code error;
  return fs::is_regular_file(path, error) && access(path.c_str(), X_OK) == 0;
}

}  // namespace

std::string find_worker() {
  if (const char* const given = std::getenv("ATTUNE_WORKER"); given != nullptr && *given != '\0') {
    if (is_program(given)) return given;
    fail(ErrorCode::not_found, "ATTUNE_WORKER: '{}' is no executable file", given);
  }
  std::string tried;
  for (const fs::path& folder : own_folders()) {
    // The last one: a library in lib/<triplet>.
    for (const char* way : {".", "../bin", "../libexec/attune", "../../libexec/attune"}) {
      const fs::path path = (folder / way / kName).lexically_normal();
      if (is_program(path)) return path.string();
      tried += (tried.empty() ? "" : ", ") + path.string();
    }
  }
  fail(ErrorCode::not_found, "worker: {} was not found (tried {}); ATTUNE_WORKER may name it", kName, tried);
}

}  // namespace attune::tuner
