#include "runtime/cpu/ptx_compiler.h"

#include <algorithm>
#include <filesystem>
#include <system_error>

namespace attune::runtime {
namespace {

constexpr std::string_view kArchitecture = "--gpu-architecture=";

// NVRTC takes the names that #line states for paths below the current folder. They are the templates' own names.
void shorten_file_names(std::string& ptx) {
  std::error_code error;
  std::string prefix = std::filesystem::current_path(error).string();
  if (error) return;
  if (!prefix.ends_with('/')) prefix += '/';
  constexpr std::string_view kDirective = "\n\t.file\t";
  for (std::size_t at = 0; (at = ptx.find(kDirective, at)) != std::string::npos; ++at) {
    const std::size_t name = ptx.find('"', at) + 1;
    if (name != 0 && ptx.compare(name, prefix.size(), prefix) == 0) ptx.erase(name, prefix.size());
  }
}

class PtxCompiler : public Compiler {
 public:
  explicit PtxCompiler(std::shared_ptr<const Compiler> nvrtc) : nvrtc_(std::move(nvrtc)) {}

  const std::string& version() const override { return nvrtc_->version(); }
  const std::string& nvrtc_path() const override { return nvrtc_->nvrtc_path(); }

  std::vector<std::string> effective_options(std::vector<std::string> options) const override {
    std::erase_if(options, [](const std::string& option) { return option.starts_with("--ptxas-options"); });
    for (std::string& option : options) {
      const std::string real = std::string(kArchitecture) + "sm_";
      if (option.starts_with(real)) option = std::string(kArchitecture) + "compute_" + option.substr(real.size());
    }
    // A finding names the line of the template that it comes from.
    constexpr std::string_view kLines = "--generate-line-info";
    if (std::ranges::find(options, kLines) == options.end()) options.emplace_back(kLines);
    return options;
  }

  CompileResult compile(const std::string& source, const std::vector<std::string>& options,
                        bool want_ptx) const override {
    CompileResult result = nvrtc_->compile(source, effective_options(options), /*want_ptx=*/true);
    shorten_file_names(result.ptx);
    result.cubin = result.ptx;
    if (!want_ptx) result.ptx.clear();
    return result;
  }

 private:
  std::shared_ptr<const Compiler> nvrtc_;
};

}  // namespace

std::shared_ptr<const Compiler> ptx_compiler(std::shared_ptr<const Compiler> nvrtc) {
  return std::make_shared<PtxCompiler>(std::move(nvrtc));
}

}  // namespace attune::runtime
