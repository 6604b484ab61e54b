// Where the worker executable is.
#pragma once

#include <string>

namespace attune::tuner {

/// $ATTUNE_WORKER, which, when set, is the only place; else `attune-worker` beside this program or library, in ../bin,
/// or in ../libexec/attune. Throws Error(not_found) that lists the places.
std::string find_worker();

}  // namespace attune::tuner
