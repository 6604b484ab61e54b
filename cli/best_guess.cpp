#include "cli/best_guess.h"

#include "base/error.h"
#include "cli/wording.h"
#include "codegen/space.h"

namespace attune::cli {

Guess best_guess(runtime::Builder& builder, const Arch& arch, const Problem& problem, Output& output) {
  const std::vector<codegen::Config> guesses = codegen::default_configs(arch, problem);
  for (const codegen::Config& config : guesses) {
    runtime::Build build = builder.build(codegen::specialise(arch, problem, config));
    if (build.info.rejected.empty()) return {config, std::move(build)};
    output.note("rejected, trying the next guess: {}: {}", config_text(config), build.info.rejected);
  }
  fail(ErrorCode::compile_failed, "config: none of the {} best guesses builds cleanly for {}", guesses.size(),
       to_string(problem));
}

}  // namespace attune::cli
