// attune emulate: one kernel of a file, launched once for each seed.
#include <cxxabi.h>

#include <algorithm>
#include <filesystem>
#include <memory>

#include "base/error.h"
#include "base/fields.h"
#include "cli/emulator.h"
#include "cli/emulator/finding_output.h"
#include "cli/emulator/kernel_arguments.h"
#include "cli/files.h"
#include "cli/interrupt.h"
#include "cli/problem_flags.h"
#include "runtime/cpu/ptx_compiler.h"

namespace attune::cli {
namespace {

namespace fs = std::filesystem;

constexpr std::int64_t kMostSeeds = 1'000'000;

// -- what the command line says

emulator::Dim3 parse_dimensions(const char* name, const std::string& text) {
  const std::vector<std::int64_t> sizes = parse_counts(name, text);
  if (sizes.size() > 3)
    fail(ErrorCode::invalid_argument, "{}: '{}' has {} dimensions (allowed: 1 to 3, X,Y,Z)", name, text, sizes.size());
  const auto size = [&](std::size_t i) { return i < sizes.size() ? static_cast<unsigned>(sizes[i]) : 1; };
  return {size(0), size(1), size(2)};
}

struct Save {
  std::size_t argument;
  std::string file;
};

Save parse_save(const std::string& text, const KernelArguments& arguments) {
  const std::size_t colon = text.find(':');
  if (colon == std::string::npos || colon + 1 == text.size())
    fail(ErrorCode::invalid_argument, "save: '{}' (allowed: N:FILE, N: the place of a buffer among --arg, from 0)",
         text);
  const auto index = static_cast<std::size_t>(parse_int("save", text.substr(0, colon), 0, 1 << 20));
  if (!arguments.is_buffer(index))
    fail(ErrorCode::invalid_argument, "save: argument {} is no buffer (allowed: the place of a buf:... among --arg)",
         index);
  return {index, text.substr(colon + 1)};
}

emulator::LaunchOptions launch_options(const EmulateRequest& request) {
  emulator::LaunchOptions options;
  options.grid = parse_dimensions("grid", request.grid);
  options.block = parse_dimensions("block", request.block);
  options.cluster = parse_dimensions("cluster", request.cluster);
  options.dynamic_shared_bytes = static_cast<std::size_t>(parse_bytes("shared", request.shared));
  options.resident_blocks = static_cast<int>(parse_count("resident_blocks", request.resident_blocks, 1, 1 << 16));
  options.instruction_limit =
      static_cast<std::uint64_t>(parse_count("instruction_limit", request.instruction_limit, 1, 1ll << 60));
  return options;
}

// -- the kernel

// Beside the library, where toolkits and wheels have them; else the source must do without them.
void add_toolkit_headers(const runtime::Compiler& compiler, std::vector<std::string>& options) {
  std::error_code error;
  const fs::path library = fs::canonical(compiler.nvrtc_path(), error);
  for (fs::path folder = library; !error && folder.has_relative_path(); folder = folder.parent_path()) {
    if (!fs::exists(folder / "include" / "cuda_fp16.h", error)) continue;
    options.push_back("--include-path=" + (folder / "include").string());
    return;
  }
}

std::string escaped(std::string_view text) {
  std::string result;
  for (const char c : text) {
    if (c == '"' || c == '\\') result += '\\';
    result += c;
  }
  return result;
}

std::string ptx_of(const EmulateRequest& request) {
  const std::string extension = fs::path(request.file).extension().string();
  if (extension != ".ptx" && extension != ".cu")
    fail(ErrorCode::invalid_argument, "file: '{}' is of an unknown kind (allowed: *.ptx, *.cu)", request.file);
  if (extension == ".ptx" && !request.compile_options.empty())
    fail(ErrorCode::invalid_argument, "compile_option: {} is PTX, which is not compiled (allowed with: *.cu)",
         request.file);
  std::string text = read_file(request.file);
  if (extension == ".ptx") return text;
  const auto nvrtc = runtime::Compiler::get();
  std::vector<std::string> options{"--gpu-architecture=sm_90a", "--std=c++17"};
  add_toolkit_headers(*nvrtc, options);
  options.insert(options.end(), request.compile_options.begin(), request.compile_options.end());
  return runtime::ptx_compiler(nvrtc)
      ->compile(fmt::format("#line 1 \"{}\"\n{}", escaped(request.file), text), options)
      .cubin;
}

// "void scale<float>(float*)" of "_Z5scaleIfEvPT_"; the name itself where it is not mangled.
std::string demangled(const std::string& name) {
  int status = 0;
  const std::unique_ptr<char, decltype(&std::free)> text(abi::__cxa_demangle(name.c_str(), nullptr, nullptr, &status),
                                                         &std::free);
  return status == 0 ? std::string(text.get()) : name;
}

// "scale<float>" of "void scale<float>(float*)".
std::string plain_name(const std::string& name) {
  const std::string text = demangled(name);
  std::size_t begin = 0;
  int depth = 0;
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (text[i] == '<') ++depth;
    if (text[i] == '>') --depth;
    if (depth > 0) continue;
    if (text[i] == ' ') begin = i + 1;
    if (text[i] == '(') return text.substr(begin, i - begin);
  }
  return text;
}

const emulator::KernelInfo& choose_kernel(const emulator::Program& program, const EmulateRequest& request) {
  const std::vector<emulator::KernelInfo>& all = program.kernels();
  std::string known;
  for (const emulator::KernelInfo& kernel : all) {
    const std::string plain = plain_name(kernel.name);
    known += known.empty() ? "" : ", ";
    known += plain == kernel.name ? plain : fmt::format("{} ({})", plain, kernel.name);
  }
  if (all.empty()) fail(ErrorCode::not_found, "kernel: {} has none", request.file);
  if (request.kernel.empty()) {
    if (all.size() > 1)
      fail(ErrorCode::invalid_argument, "kernel: missing, and {} has several (allowed: {})", request.file, known);
    return all.front();
  }
  if (const auto found = std::ranges::find(all, request.kernel, &emulator::KernelInfo::name); found != all.end())
    return *found;
  const auto fits = [&](const emulator::KernelInfo& kernel) { return plain_name(kernel.name) == request.kernel; };
  const auto found = std::ranges::find_if(all, fits);
  if (found == all.end())
    fail(ErrorCode::not_found, "kernel: {} has no '{}' (it has: {})", request.file, request.kernel, known);
  if (std::ranges::count_if(all, fits) > 1)
    fail(ErrorCode::invalid_argument, "kernel: '{}' is overloaded in {} (allowed: a mangled name; it has: {})",
         request.kernel, request.file, known);
  return *found;
}

// -- launches

class Launches {
 public:
  explicit Launches(Output& output) : output_(output) {}

  /// Whether nothing was found.
  bool add(std::uint64_t seed, emulator::Report report) {
    instructions_ += report.instructions;
    seconds_ += report.seconds;
    if (!report.output.empty()) {
      output_.line("printed by the kernel (seed {}):", seed);
      output_.raw(report.output);
      if (!report.output.ends_with('\n')) output_.line();
    }
    Json findings = Json::array();
    for (const emulator::Finding& finding : report.findings) findings.push_back(finding_json(finding));
    list_.push_back({{"seed", seed},
                     {"instructions", report.instructions},
                     {"seconds", report.seconds},
                     {"output", report.output},
                     {"findings", std::move(findings)}});
    if (report.clean()) return true;
    faulty_ = seed;
    output_.line("found with seed {}:", seed);
    output_.line(std::string_view(long_text(report.findings)));
    output_.line();
    return false;
  }

  ExitCode finish() {
    const double rate = seconds_ > 0 ? static_cast<double>(instructions_) / seconds_ : 0;
    output_.line("{} PTX instructions in {} launch{}: {:.3f} s, {:.1f} million a second", instructions_, list_.size(),
                 list_.size() == 1 ? "" : "es", seconds_, rate * 1e-6);
    Json& document = output_.document();
    document["ok"] = !faulty_;
    document["instructions"] = instructions_;
    document["seconds"] = seconds_;
    document["instructions_per_second"] = rate;
    document["launches"] = std::move(list_);
    if (!faulty_) return ExitCode::ok;
    output_.error(
        fmt::format("emulate: the emulator found a fault in the kernel (this launch alone: --seeds 1 "
                    "--first-seed {})",
                    *faulty_));
    return ExitCode::failure;
  }

 private:
  Output& output_;
  Json list_ = Json::array();
  std::uint64_t instructions_ = 0;
  double seconds_ = 0;
  std::optional<std::uint64_t> faulty_;
};

}  // namespace

ExitCode emulate(const EmulateRequest& request, Output& output) {
  // What the command line alone has wrong comes to light before anything is compiled.
  emulator::LaunchOptions options = launch_options(request);
  const std::int64_t seeds = parse_count("seeds", request.seeds, 1, kMostSeeds);
  const auto first_seed = static_cast<std::uint64_t>(parse_count("first_seed", request.first_seed, 0, 1ll << 60));
  std::vector<KernelArgument> parsed;
  for (const std::string& text : request.arguments) parsed.push_back(parse_kernel_argument(parsed.size(), text));

  output.progress(fmt::format("{}  compiling", request.file), true);
  const auto program = emulator::Program::load(ptx_of(request));
  const emulator::KernelInfo& kernel = choose_kernel(*program, request);
  const auto machine = emulator::Machine::create();
  KernelArguments arguments(*machine, kernel, std::move(parsed));
  std::vector<Save> saves;
  for (const std::string& text : request.saves) saves.push_back(parse_save(text, arguments));

  const Interrupt interrupt;
  options.stop = interrupt.token();
  Launches launches(output);
  bool clean = true;
  for (std::int64_t i = 0; i < seeds && clean; ++i) {
    output.progress(fmt::format("{}  launch {}/{}", plain_name(kernel.name), i + 1, seeds), true);
    options.seed = first_seed + static_cast<std::uint64_t>(i);
    arguments.reset();
    program->reset_variables();
    clean = launches.add(options.seed, machine->launch(*program, kernel.name, options, arguments.addresses()));
  }
  for (const Save& save : saves) write_file(save.file, arguments.contents(save.argument));
  output.document()["device"] = "cpu";
  output.document()["file"] = request.file;
  output.document()["kernel"] = kernel.name;
  return launches.finish();
}

}  // namespace attune::cli
