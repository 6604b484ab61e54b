// Findings of the emulator as the documents of commands have them.
#pragma once

#include <string>
#include <vector>

#include <attune/emulator.h>

#include "cli/output.h"

namespace attune::cli {

/// {"kind", "message", "count", "thread", "at"}, and where two accesses conflict "other_thread" and "other_at".
Json finding_json(const emulator::Finding& finding);
/// "race (templates/forward/epilogue.cuh:19)"
std::string short_text(const emulator::Finding& finding);
/// One paragraph a finding, but only one for all that have kind and source lines in common; no newline at the end.
std::string long_text(const std::vector<emulator::Finding>& findings);

}  // namespace attune::cli
