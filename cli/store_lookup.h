// Finding rows of the cache by what people type.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <attune/problem.h>

#include "cache/store.h"

namespace attune::cli {

/// Whether a text can be the beginning of a key: 4 to 64 lower-case hexadecimal digits.
bool looks_like_key(std::string_view text);

/// The kernel whose build key begins so. Throws Error(not_found) for none, Error(invalid_argument) for several.
cache::KernelRow kernel_by_prefix(cache::Store& store, const std::string& prefix);

/// A row of the listing of plans, with what its problem means. `current` is false for plans of another emitter, which
/// this version does not use.
struct KnownPlan {
  cache::PlanRow row;
  std::optional<Problem> problem;  ///< nothing if another version wrote it
  bool current = false;
};
std::vector<KnownPlan> plans_of(cache::Store& store);

/// The chip that a device identity's text names. Throws Error(unsupported).
Arch arch_of_identity(const std::string& identity);

/// "NVIDIA_H200" from an identity; the identity itself if it has no name.
std::string device_name(const std::string& identity);

/// The device meant by `wanted`, a name or an identity; the only one that has plans if `wanted` is empty, or nothing if
/// there are no plans. Throws Error(invalid_argument) listing the identities if there are several.
std::string choose_identity(const std::vector<KnownPlan>& plans, const std::string& wanted);

}  // namespace attune::cli
