#include "runtime/pack.h"

#include <set>

#include "base/error.h"
#include "base/sha256.h"
#include "runtime/pack_files.h"

namespace attune {
namespace {

using namespace pack_files;

Manifest read_manifest(const Folder& folder, bool allow_foreign) {
  return parse_manifest(read_file(folder, kManifestName, kMaxManifestBytes, allow_foreign));
}

std::string read_cubin(const Folder& folder, const PackEntry& entry, bool allow_foreign) {
  const std::string name = cubin_name(entry.cubin_sha256);
  std::string bytes = read_file(folder, name, kMaxCubinBytes, allow_foreign);
  if (bytes.size() != entry.cubin_bytes) {
    fail(ErrorCode::pack, "{}: has {} bytes, and the manifest says {}", name, bytes.size(), entry.cubin_bytes);
  }
  if (sha256_hex(bytes) != entry.cubin_sha256) fail(ErrorCode::pack, "{}: its content has another digest", name);
  return bytes;
}

// Calls `work`; what it throws becomes a line.
template <typename Work>
bool note_problem(std::vector<std::string>& problems, const Work& work) {
  try {
    work();
    return true;
  } catch (const Error& error) {
    problems.emplace_back(error.what());
    return false;
  }
}

}  // namespace

std::vector<const PackEntry*> Pack::find(std::string_view problem, std::string_view arch) const {
  std::vector<const PackEntry*> found;
  for (const PackEntry& entry : manifest_.entries) {
    if (entry.problem == problem && entry.arch == arch) found.push_back(&entry);
  }
  return found;
}

std::string Pack::cubin(const PackEntry& entry) const { return read_cubin(folder_, entry, allow_foreign_files_); }

Pack read_pack(const std::string& directory, const PackReadOptions& options) {
  if (!options.allow_unsigned) {
    fail(ErrorCode::pack,
         "{}: this version of attune cannot check signatures, and a pack holds native code; if you trust where it came "
         "from, say so (allow_unsigned in the API, --allow-unsigned on the command line)",
         directory);
  }
  Pack pack;
  pack.directory_ = directory;
  pack.allow_foreign_files_ = options.allow_foreign_files;
  try {
    pack.folder_ = open_folder(directory, options.allow_foreign_files);
    pack.manifest_ = read_manifest(pack.folder_, options.allow_foreign_files);
  } catch (const Error& error) {
    throw Error(error.code(), directory + ": " + error.what());
  }
  return pack;
}

std::vector<std::string> verify_pack(const std::string& directory) {
  std::vector<std::string> problems;
  Folder folder;
  Manifest manifest;
  note_problem(problems, [&] { open_folder(directory, false); });  // whether others may write it
  if (!note_problem(problems, [&] { folder = open_folder(directory, true); })) {
    problems.erase(problems.begin());  // the same again
    return problems;
  }
  if (!note_problem(problems, [&] { manifest = read_manifest(folder, false); })) {
    // Perhaps only its permissions are wrong; then there is more to say.
    try {
      manifest = read_manifest(folder, true);
    } catch (const Error&) {
      return problems;
    }
  }
  std::set<std::string> named;
  for (const PackEntry& entry : manifest.entries) {
    if (!named.insert(entry.cubin_sha256).second) continue;
    note_problem(problems, [&] { read_cubin(folder, entry, false); });
  }
  note_problem(problems, [&] {
    for (const std::string& name : list_folder(folder)) {
      if (name == kManifestName || named.count(digest_of_name(name)) > 0) continue;
      problems.push_back(shown(name) + ": no entry names this file");
    }
  });
  return problems;
}

}  // namespace attune
