// What two packs have in common.
#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <set>
#include <tuple>

#include "runtime/pack.h"

namespace attune {
namespace {

using Identity = std::tuple<std::string, std::string, std::string>;

Identity identity_of(const PackEntry& entry) { return {entry.problem, entry.arch, entry.config}; }

std::map<Identity, const PackEntry*> index_of(const Pack& pack) {
  std::map<Identity, const PackEntry*> index;
  for (const PackEntry& entry : pack.entries()) index.emplace(identity_of(entry), &entry);
  return index;
}

std::string line_of(char sign, const PackEntry& entry) {
  return fmt::format("{} {} {} {}", sign, entry.problem, entry.arch, entry.config);
}

std::string changes_between(const PackEntry& older, const PackEntry& newer) {
  std::vector<std::string> changes;
  if (older.cubin_sha256 != newer.cubin_sha256) changes.emplace_back("cubin");
  if (older.build_key != newer.build_key) changes.emplace_back("build key");
  if (older.spec != newer.spec) changes.emplace_back("spec");
  if (!(older.launch == newer.launch)) changes.emplace_back("launch");
  if (older.median != newer.median) changes.push_back(fmt::format("median {} -> {}", older.median, newer.median));
  if (older.tflops != newer.tflops) changes.push_back(fmt::format("tflops {} -> {}", older.tflops, newer.tflops));
  if (older.environment != newer.environment) changes.emplace_back("environment");
  if (older.errors != newer.errors) changes.emplace_back("errors");
  if (older.registers != newer.registers) changes.emplace_back("registers");
  return fmt::format("{}", fmt::join(changes, ", "));
}

}  // namespace

std::vector<std::string> diff_packs(const Pack& older, const Pack& newer) {
  const auto before = index_of(older);
  const auto after = index_of(newer);
  std::vector<std::string> lines;
  for (const auto& [identity, entry] : before) {
    if (after.count(identity) == 0) lines.push_back(line_of('-', *entry));
  }
  for (const auto& [identity, entry] : after) {
    const auto found = before.find(identity);
    if (found == before.end()) {
      lines.push_back(line_of('+', *entry));
    } else if (const std::string changes = changes_between(*found->second, *entry); !changes.empty()) {
      lines.push_back(fmt::format("{} ({})", line_of('~', *entry), changes));
    }
  }
  // By entry, not by sign.
  std::sort(lines.begin(), lines.end(), [](const std::string& a, const std::string& b) {
    return std::string_view(a).substr(1) < std::string_view(b).substr(1);
  });
  return lines;
}

void merge_packs(const Pack& preferred, const Pack& other, const std::string& directory) {
  Manifest manifest = preferred.manifest();
  std::map<std::string, std::string> cubins;
  for (const PackEntry& entry : manifest.entries) {
    if (cubins.count(entry.cubin_sha256) == 0) cubins.emplace(entry.cubin_sha256, preferred.cubin(entry));
  }
  const auto index = index_of(preferred);
  for (const PackEntry& entry : other.entries()) {
    if (index.count(identity_of(entry)) > 0) continue;
    if (cubins.count(entry.cubin_sha256) == 0) cubins.emplace(entry.cubin_sha256, other.cubin(entry));
    manifest.entries.push_back(entry);
  }
  std::set<std::pair<std::string, std::string>> quarantined;
  for (const PackQuarantine& entry : manifest.quarantine) quarantined.emplace(entry.build_key, entry.environment);
  for (const PackQuarantine& entry : other.manifest().quarantine) {
    if (quarantined.emplace(entry.build_key, entry.environment).second) manifest.quarantine.push_back(entry);
  }
  write_pack(directory, manifest, cubins);
}

}  // namespace attune
