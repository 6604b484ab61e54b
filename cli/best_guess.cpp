#include "cli/best_guess.h"

#include <map>
#include <set>
#include <tuple>

#include "base/error.h"
#include "cli/ranking.h"
#include "cli/wording.h"

namespace attune::cli {
namespace {

constexpr std::size_t kGuesses = 12;
constexpr int kRelatives = 2;

}  // namespace

std::vector<codegen::Config> guesses(const Arch& arch, const Problem& problem) {
  std::vector<codegen::Config> chosen{codegen::default_config(arch, problem)};
  std::set<std::string> kernels{codegen::kernel_part(chosen.front())};
  // What keeps one config from building cleanly usually keeps its closest relatives, too.
  std::map<std::tuple<int, int, codegen::QSource>, int> relatives;
  const auto family = [&](const codegen::Config& c) -> int& { return relatives[{c.consumers, c.block_n, c.q}]; };
  ++family(chosen.front());
  for (const RankedConfig& r : ranked_candidates(arch, problem)) {
    if (chosen.size() == kGuesses) break;
    if (family(r.config) == kRelatives || !kernels.insert(codegen::kernel_part(r.config)).second) continue;
    ++family(r.config);
    chosen.push_back(r.config);
  }
  return chosen;
}

Guess best_guess(runtime::Builder& builder, const Arch& arch, const Problem& problem, Output& output) {
  for (const codegen::Config& config : guesses(arch, problem)) {
    runtime::Build build = builder.build(codegen::specialise(arch, problem, config));
    if (build.info.rejected.empty()) return {config, std::move(build)};
    output.note("rejected, trying the next guess: {}: {}", config_text(config), build.info.rejected);
  }
  fail(ErrorCode::compile_failed, "config: none of the {} best guesses builds cleanly for {}", kGuesses,
       to_string(problem));
}

}  // namespace attune::cli
