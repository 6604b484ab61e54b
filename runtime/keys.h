// The two keys of the cache. Content only: no path, no time, no host name.
//
// cache/KEY.md says byte for byte what they are made of, and why.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include <attune/problem.h>

namespace attune::runtime {

inline constexpr int kBuildKeyVersion = 1;
inline constexpr int kPlanKeyVersion = 1;

/// Key of one compile: -> cubin.
/// Throws Error(invalid_argument) if the version or an option holds a NUL.
std::string build_key(std::string_view source, std::string_view nvrtc_version, const std::vector<std::string>& options);

/// Key of one problem on one kind of device: -> winner. Knows no NVRTC version, so a cached plan needs no
/// compiler. `identity` is identity_text() of the device, `emitter` codegen::emitter_digest().
std::string plan_key(const Problem& problem, std::string_view identity, std::string_view emitter);

}  // namespace attune::runtime
