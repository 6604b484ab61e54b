// Source of one kernel from its spec.
#include <algorithm>
#include <set>

#include "base/error.h"
#include "base/sha256.h"
#include "codegen/backward/emit_parts.h"
#include "codegen/emit_parts.h"
#include "codegen/space.h"
#include "templates/embedded.h"

namespace attune::codegen {
namespace {

// Raised whenever the emitter prints something else for the same spec and templates.
constexpr const char* kEmitterVersion = "6";

constexpr std::string_view kNeeds = "// needs:";

void append_template(const std::string& name, std::set<std::string>& done, std::string& text) {
  if (!done.insert(name).second) return;
  const std::string_view source = templates::file(name).text;
  std::string_view body = source;
  int first_line = 1;
  if (body.starts_with(kNeeds)) {
    const std::size_t end = body.find('\n');
    std::string_view list = body.substr(kNeeds.size(), end - kNeeds.size());
    while (true) {
      const std::size_t start = list.find_first_not_of(' ');
      if (start == std::string_view::npos) break;
      list.remove_prefix(start);
      const std::size_t length = std::min(list.find(' '), list.size());
      append_template(std::string(list.substr(0, length)), done, text);
      list.remove_prefix(length);
    }
    body.remove_prefix(end + 1);
    first_line = 2;
  }
  text += fmt::format("#line {} \"templates/{}\"\n{}\n", first_line, name, body);
}

void emit_reference_entry(Writer& out, const KernelSpec& spec, const std::string& entry, const char* params,
                          const char* function) {
  out.open(fmt::format("extern \"C\" __global__ void __launch_bounds__(kReferenceThreads) {}(const {} params) {{",
                       entry, params));
  out.line("{}<{}, {}, {}, {}>(params);", function, element_name(spec.dtype), spec.head_dim, spec.head_dim_v,
           spec.causal);
  out.close();
}

void emit_reference(Writer& out, const KernelSpec& spec) {
  const LaunchShape shape = launch_shape(spec);
  if (spec.config.family == Family::reference) {
    emit_reference_entry(out, spec, shape.entry, "ReferenceParams", "reference_forward");
    return;
  }
  emit_reference_entry(out, spec, shape.before.front().entry, "ReferenceBackwardParams", "reference_backward_rows");
  out.line("");
  emit_reference_entry(out, spec, shape.entry, "ReferenceBackwardParams", "reference_backward_keys");
}

}  // namespace

void mark_own_lines(Writer& out) { out.line("#line {} \"kernel.cu\"", out.lines() + 2); }

std::string problem_words(const KernelSpec& spec) {
  std::string words = fmt::format("{}  {}  d{}", spec.arch, to_string(spec.dtype), spec.head_dim);
  if (spec.head_dim_v != spec.head_dim) words += fmt::format("/{}", spec.head_dim_v);
  if (spec.causal) words += "  causal";
  return words;
}

std::string assemble_templates(const std::vector<std::string>& names) {
  std::string text;
  std::set<std::string> done;
  for (const std::string& name : names) append_template(name, done, text);
  return text;
}

void emit_header_comment(Writer& out, const KernelSpec& spec) {
  const Config& c = spec.config;
  if (is_reference(c.family)) {
    out.line("// attune reference {}  {}  |  float64 accumulation, one thread block a row", to_string(op_of(c.family)),
             problem_words(spec));
  } else {
    out.line("// attune forward  {}  |  {}x{}, {} stages, {} consumers, {}{} softmax, {}{}", problem_words(spec),
             c.block_m(), c.block_n, c.stages, c.consumers, c.ping_pong ? "ping-pong, " : "",
             c.softmax == Softmax::exact       ? "exact"
             : c.softmax == Softmax::first_max ? "speculative (first block's maximum)"
                                               : "speculative (reference 0)",
             c.grid == Grid::plain        ? "one tile a block"
             : c.grid == Grid::persistent ? "persistent"
                                          : "longest tile first",
             c.cluster > 1 ? fmt::format(", clusters of {}", c.cluster) : "");
  }
  out.line("// spec: {}", to_string(spec));
  out.line("// reproduce: attune emit --spec {}", to_string(spec));
  out.line("");
}

void emit_constants(Writer& out, const KernelSpec& spec) {
  const Config& c = spec.config;
  const SharedLayout l = layout_of(spec);
  const int steps = (spec.head_dim + 15) / 16;
  out.line("constexpr int kConsumers = {}, kBlockM = {}, kBlockN = {}, kStages = {}, kQBuffers = {};", c.consumers,
           c.block_m(), c.block_n, c.stages, c.q_buffers);
  if (c.cluster > 1) out.line("constexpr int kCluster = {};  // thread blocks that load K and V together", c.cluster);
  out.line("constexpr int kHeadDimV = {};", spec.head_dim_v);
  out.line("constexpr int kQkChunks = {}, kVChunks = {};  // 64 columns each, zero-filled beyond the head dim",
           l.qk_chunks, l.v_chunks);
  out.line("constexpr int kQkSteps = {};  // of 16 columns", steps);
  out.line("constexpr int kScores = {}, kOutputs = {}, kPacked = {}, kQRegisters = {};  // registers a thread",
           c.block_n / 2, spec.head_dim_v / 2, c.block_n / 4, 4 * q_steps_in_registers(spec));
  out.line("");
  out.line("// Shared memory, bytes from the first 1024-byte boundary.");
  out.line("constexpr uint32_t kQBytes = {}, kKBytes = {}, kVBytes = {};", l.q_bytes, l.k_bytes, l.v_bytes);
  out.line("constexpr uint32_t kSharedQ = {}, kSharedO = {}, kSharedK = {}, kSharedV = {};", l.q_at, l.o_at, l.k_at,
           l.v_at);
  out.line("constexpr uint32_t kKFull = {}, kKEmpty = kKFull + 8 * kStages;", l.barriers_at);
  out.line("constexpr uint32_t kVFull = kKEmpty + 8 * kStages, kVEmpty = kVFull + 8 * kStages;");
  out.line("constexpr uint32_t kQFull = kVEmpty + 8 * kStages, kQEmpty = kQFull + 8 * kQBuffers;");
  out.line("constexpr uint32_t kSlots = {};  // ring of four tiles, producer to consumers", l.slots_at);
  if (c.tells_claims()) {
    out.line("constexpr uint32_t kToldClaim = kQEmpty + 8 * kQBuffers, kReadClaims = kToldClaim + 8 * {};", l.claims);
    out.line("constexpr uint32_t kClaims = {}, kClaimPlaces = {};  // ring of indices of tiles", l.claims_at, l.claims);
  }
  out.line("");
}

void emit_kernel(Writer& out, const KernelSpec& spec, bool two_consumers) {
  const Config& c = spec.config;
  const LaunchShape shape = launch_shape(spec);
  const RegisterSplit registers = register_split(spec);
  // Q is released by each warp once its fragments are in registers, else by each warpgroup once it is done with it.
  const bool q_by_warp = c.moves_q();
  const bool speculates = c.softmax != Softmax::exact;
  const char* readers = c.cluster > 1 ? "kCluster * kConsumers" : "kConsumers";
  out.line("extern \"C\" __global__ void __launch_bounds__({}, 1)", shape.threads);
  out.open(
      fmt::format("{}(const __grid_constant__ TensorMap map_q, const __grid_constant__ TensorMap map_k,\n"
                  "               const __grid_constant__ TensorMap map_v, const __grid_constant__ TensorMap map_o,\n"
                  "               const __grid_constant__ ForwardParams params) {{",
                  shape.entry));
  out.line("extern __shared__ uint8_t shared_memory[];");
  out.line("const uint32_t shared = (shared_address(shared_memory) + 1023) & ~1023u;");
  out.line("const int warpgroup = __shfl_sync(kFullWarp, threadIdx.x >> 7, 0);  // uniform, and known to be");
  out.open("if (threadIdx.x == 0) {");
  // Worth a fraction of a microsecond, as overlapping is, so where that is wanted.
  if (c.dependent_launch)
    for (const char* map : {"k", "q", "v", "o"}) out.line("prefetch_tensormap(&map_{});", map);
  out.open("for (int i = 0; i < kStages; i++) {");
  out.line("mbarrier_init(shared + kKFull + 8 * i, 1);");
  out.line("mbarrier_init(shared + kKEmpty + 8 * i, {});", readers);
  out.line("mbarrier_init(shared + kVFull + 8 * i, 1);");
  out.line("mbarrier_init(shared + kVEmpty + 8 * i, {});", readers);
  out.close();
  out.open("for (int i = 0; i < kQBuffers; i++) {");
  out.line("mbarrier_init(shared + kQFull + 8 * i, 1);");
  out.line("mbarrier_init(shared + kQEmpty + 8 * i, {}kConsumers);", q_by_warp ? "4 * " : "");
  out.close();
  if (c.tells_claims()) {
    out.line("for (int i = 0; i < kClaimPlaces; i++) mbarrier_init(shared + kToldClaim + 8 * i, 1);");
    out.line("mbarrier_init(shared + kReadClaims, kCluster - 1);");
  }
  if (speculates) out.line("tally = 0;");
  out.line("fence_mbarrier_init();");
  if (c.early_copies) {
    if (c.dependent_launch) out.line("follow_closely();");
    out.line("begin(&map_q, &map_k, params, shared);");
  }
  out.close();
  out.line("{}", c.cluster > 1 ? "cluster_sync();" : "__syncthreads();");
  if (c.dependent_launch) out.line("follow_closely();");
  out.open("if (warpgroup == 0) {");
  out.line("setmaxnreg_dec<{}>();", registers.producer);
  out.open("if (threadIdx.x == 0) {");
  out.line("produce(&map_q, &map_k, &map_v, params, shared);");
  out.line("if (blockIdx.x == 0) report_start(params);  // here nobody waits for it");
  out.close();
  out.reopen("} else {");
  out.line("setmaxnreg_inc<{}>();", registers.consumer);
  if (two_consumers) {
    out.open("if (warpgroup == 1) {");
    out.line("consume_upper(&map_o, params, shared, 0);");
    out.reopen("} else {");
    out.line("consume(&map_o, params, shared, warpgroup - 1);");
    out.close();
  } else {
    out.line("consume(&map_o, params, shared, warpgroup - 1);");
  }
  if (speculates) out.line("add_failures<4 * kConsumers>(params);");
  out.close();
  out.close();
}

EmittedKernel emit(const KernelSpec& spec) {
  if (spec.config.family == Family::sm90_backward) return backward::emit(spec);
  EmittedKernel kernel;
  kernel.shape = launch_shape(spec);
  Writer out;
  emit_header_comment(out, spec);
  if (is_reference(spec.config.family)) {
    out.raw(assemble_templates(
        {spec.config.family == Family::reference ? "reference/forward.cuh" : "reference/backward.cuh"}));
    mark_own_lines(out);
    emit_reference(out, spec);
    kernel.source = out.take();
    return kernel;
  }
  if (const auto reason = violates(parse_arch(spec.arch), spec))
    fail(ErrorCode::invalid_argument, "config: {}", *reason);
  if (const std::string fault = simulate(spec); !fault.empty())
    fail(ErrorCode::internal, "schedule {}: {}", schedule_for(spec.config).name, fault);
  std::vector<std::string> parts{"ptx/mbarrier.cuh", "ptx/registers.cuh",    "ptx/shared.cuh",    "ptx/wgmma.cuh",
                                 "forward/tile.cuh", "forward/epilogue.cuh", "forward/report.cuh"};
  if (spec.config.softmax != Softmax::exact) parts.push_back("forward/speculative.cuh");
  if (spec.config.dependent_launch) parts.push_back("ptx/grid.cuh");
  if (spec.config.cluster > 1) parts.push_back("ptx/cluster.cuh");
  out.raw(assemble_templates(parts));
  mark_own_lines(out);
  const Schedule schedule = schedule_for(spec.config);
  emit_constants(out, spec);
  emit_products(out, spec);
  emit_producer(out, spec, schedule);
  const bool two_consumers = first_width(spec, 0) != first_width(spec, spec.config.consumers - 1);
  if (two_consumers) emit_consumer(out, spec, lower(spec, schedule, first_width(spec, 0)), "consume_upper");
  emit_consumer(out, spec, lower(spec, schedule, first_width(spec, spec.config.consumers - 1)), "consume");
  emit_kernel(out, spec, two_consumers);
  kernel.source = out.take();
  return kernel;
}

std::vector<std::string> compile_options(const KernelSpec& spec) {
  return {"--gpu-architecture=" + spec.arch, "--std=c++17", "-default-device", "--ptxas-options=-v"};
}

std::string emitter_digest() {
  return sha256_hex(std::string(kEmitterVersion) + " " + std::string(templates::digest()));
}

}  // namespace attune::codegen
