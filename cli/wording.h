// How numbers, problems and configs are said in a few words.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include <attune/problem.h>

#include "cli/output.h"
#include "codegen/config.h"

namespace attune::cli {

/// "412.3 us", "1.234 ms"
std::string seconds_text(double seconds);
/// "64 B", "1.5 KiB"
std::string bytes_text(std::int64_t bytes);
/// "2025-11-29 14:07" in UTC; empty for 0.
std::string time_text(std::int64_t milliseconds_since_1970);
/// "701"
std::string tflops_text(const Problem& problem, double seconds);
double tflops(const Problem& problem, double seconds);
/// "bf16 d128 causal gqa 4 32h 4x4096"
std::string problem_text(const Problem& problem);
/// "d128 causal 4x4096"
std::string short_problem_text(const Problem& problem);
/// "128x176x2 zero pv_qk ping-pong overlapped dynamic exact_tail": the tile, the stages, and what else is not the
/// default. Backward: "64x128x2/2/2 rows lag ping_pong", with the stages of Q, dO and dS.
std::string config_text(const codegen::Config& config);
/// "0.000737620 s", as packs have it, in the unit that suits it.
std::string pack_time_text(const std::string& text);
/// The errors of a trial (JSON) in a few words: "O 0.0016 relative L2, LSE 9.5e-07; small problems at most 39% of their
/// bounds". Empty for an empty text, the text itself if it is of another kind.
std::string errors_text(const std::string& errors);
/// The same as a value of a document.
Json errors_json(const std::string& errors);
/// The first characters of a digest.
std::string short_key(const std::string& key);

}  // namespace attune::cli
