// Packs: a folder of compiled kernels and one manifest, for machines with no compiler.
//
//   my.pack/manifest.json         problems, configs, launch shapes, numerics, environment, digests
//   my.pack/<sha256>.cubin        named after their content
//
// Whatever is in the folder is taken for hostile: a fault of any kind throws Error(pack) (Error(io) if the system
// refuses to read), before memory is allocated for what the file claims, and nothing outside the folder is touched.
// Problem, config and spec are opaque texts here.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace attune {

/// Limits that a pack must keep; a manifest beyond them is refused.
inline constexpr std::uint64_t kMaxManifestBytes = 16ull << 20;
inline constexpr std::uint64_t kMaxCubinBytes = 256ull << 20;
inline constexpr int kMaxManifestDepth = 16;
inline constexpr int kMaxManifestValues = 1 << 20;
/// Raised when a manifest's members, a kernel's parameters or what a launch relies on in a kernel change.
inline constexpr int kPackSchema = 5;

/// A kernel that is launched before or after an entry's main one, as codegen::SideLaunch has it.
struct PackSideLaunch {
  std::string entry;
  std::int64_t threads = 0;
  std::int64_t shared_bytes = 0;

  bool operator==(const PackSideLaunch&) const = default;
};

/// What the host must know to launch, as codegen::LaunchShape has it. Each number is within [0, 2^31).
struct PackLaunch {
  std::string entry;
  std::int64_t threads = 0;
  std::int64_t shared_bytes = 0;
  std::int64_t block_m = 0;
  std::int64_t block_n = 0;
  std::int64_t q_box_rows = 0;
  std::int64_t kv_box_rows = 0;
  std::int64_t o_box_rows = 0;
  bool counter = false;
  std::vector<PackSideLaunch> before = {}, after = {};
  std::int64_t dq_rows = 0;

  bool operator==(const PackLaunch&) const = default;
};

struct PackEntry {
  std::string problem;
  std::string config;
  std::string spec;
  std::string arch;  ///< "sm_90a"
  PackLaunch launch;
  std::string build_key;     ///< 64 lower-case hexadecimal digits
  std::string cubin_sha256;  ///< 64 lower-case hexadecimal digits; names the file
  std::uint64_t cubin_bytes = 0;
  std::int64_t registers = 0;
  std::string errors;       ///< error against the reference, opaque text (JSON)
  std::string median;       ///< of the time, text with its unit; empty if never measured
  std::string tflops;       ///< text; empty if never measured
  std::string environment;  ///< driver, NVRTC, digest of templates and emitter

  bool operator==(const PackEntry&) const = default;
};

/// A build known to hang or crash in an environment: ships with the kernels.
struct PackQuarantine {
  std::string build_key;
  std::string environment;
  std::string reason;

  bool operator==(const PackQuarantine&) const = default;
};

/// Entries of one problem and arch stand in the order of preference: the first is the winner, the rest alternates.
/// No two entries agree in problem, arch and config.
struct Manifest {
  std::string producer;  ///< "attune 0.1.0"
  std::string created;   ///< a text of the caller's, empty by default so that equal packs are equal bytes
  std::vector<PackEntry> entries;
  std::vector<PackQuarantine> quarantine;

  bool operator==(const Manifest&) const = default;
};

/// The manifest's text: keys sorted, two spaces of indentation, a newline at the end; the same bytes for the same
/// manifest. Throws Error(pack) if the manifest breaks a rule that parse_manifest checks.
std::string to_json(const Manifest& manifest);
/// Throws Error(pack) that names the entry and the field. Unknown keys are allowed (a later version may add some that
/// this one can do without), duplicate keys and a missing newline at the end are not.
Manifest parse_manifest(std::string_view json);

struct PackReadOptions {
  bool allow_unsigned = false;       ///< required as long as packs carry no signature
  bool allow_foreign_files = false;  ///< accept files of other users, or writable by group or world
};

/// An opened pack: the manifest is parsed and checked, cubins are read and verified when asked for. Immutable; any
/// thread may use it. It keeps the folder open, so replacing the folder by another does not mix the two.
class Pack {
 public:
  const std::string& directory() const { return directory_; }
  const Manifest& manifest() const { return manifest_; }
  const std::vector<PackEntry>& entries() const { return manifest_.entries; }
  /// Entries that serve this problem text and arch exactly, the preferred one first.
  std::vector<const PackEntry*> find(std::string_view problem, std::string_view arch) const;
  /// The cubin's bytes: size and SHA-256 were verified on these very bytes. Throws Error(pack).
  std::string cubin(const PackEntry& entry) const;

 private:
  friend Pack read_pack(const std::string& directory, const PackReadOptions& options);
  Pack() = default;

  std::string directory_;
  Manifest manifest_;
  std::shared_ptr<const int> folder_;  ///< descriptor of the folder
  bool allow_foreign_files_ = false;
};

/// Opens a pack. Throws Error(pack), also if allow_unsigned is false: the message says how to go on.
Pack read_pack(const std::string& directory, const PackReadOptions& options = {});

/// Writes a pack in one step: into a temporary folder beside `directory`, then renamed. `cubins` maps a digest to its
/// bytes and must hold each one that an entry names; others are left out. An existing pack is replaced if nothing but a
/// pack's files is in it; anything else of that name (another folder that is not empty, a file, a link) is refused with
/// Error(pack). Error(io) if the disk refuses. After an error nothing has changed.
void write_pack(const std::string& directory, const Manifest& manifest,
                const std::map<std::string, std::string>& cubins);

/// Everything that is wrong with a pack, one line each; empty if it is sound. Goes on after the first problem, and also
/// reports files that no entry names. Does not ask for a signature. Does not throw for what it finds.
std::vector<std::string> verify_pack(const std::string& directory);

/// What a reader of `newer` gains and loses against `older`: one line an entry, sorted.
std::vector<std::string> diff_packs(const Pack& older, const Pack& newer);

/// Union of two packs, written to `directory`. Where both serve a problem, arch and config, `preferred` is kept;
/// its entries come first.
void merge_packs(const Pack& preferred, const Pack& other, const std::string& directory);

}  // namespace attune
