// The C interface: translates structs, statuses and lifetimes, nothing else.
#include <attune/attune_c.h>

#include <algorithm>
#include <cstring>
#include <new>
#include <nlohmann/json.hpp>

#include <attune/attune.h>

#include "base/error.h"

struct attune_runtime {
  attune::Runtime runtime;
};
struct attune_plan {
  attune::Plan plan;
};

namespace {

using attune::ErrorCode;
using attune::fail;

attune_status status_of(ErrorCode code) noexcept {
  switch (code) {
    case ErrorCode::invalid_argument: return ATTUNE_INVALID_ARGUMENT;
    case ErrorCode::unsupported: return ATTUNE_UNSUPPORTED;
    case ErrorCode::no_device: return ATTUNE_NO_DEVICE;
    case ErrorCode::not_found: return ATTUNE_NOT_FOUND;
    case ErrorCode::not_prepared: return ATTUNE_NOT_PREPARED;
    case ErrorCode::compile_failed: return ATTUNE_COMPILE_FAILED;
    case ErrorCode::driver: return ATTUNE_DRIVER;
    case ErrorCode::out_of_memory: return ATTUNE_OUT_OF_MEMORY;
    case ErrorCode::wrong_result: return ATTUNE_WRONG_RESULT;
    case ErrorCode::timeout: return ATTUNE_TIMEOUT;
    case ErrorCode::cache: return ATTUNE_CACHE;
    case ErrorCode::pack: return ATTUNE_PACK;
    case ErrorCode::io: return ATTUNE_IO;
    case ErrorCode::interrupted: return ATTUNE_INTERRUPTED;
    case ErrorCode::internal: return ATTUNE_INTERNAL;
  }
  return ATTUNE_INTERNAL;
}

// A fixed array: saying why memory ran out must not need memory.
thread_local char last_error[4096];

void remember(const char* words) noexcept {
  const std::size_t length = std::min(std::strlen(words), sizeof last_error - 1);
  std::memcpy(last_error, words, length);
  last_error[length] = '\0';
}

// Runs the body and turns every exception into a status and the thread's last error.
template <typename Body>
attune_status guarded(const Body& body) noexcept {
  try {
    body();
    return ATTUNE_OK;
  } catch (const attune::Error& error) {
    remember(error.what());
    return status_of(error.code());
  } catch (const std::bad_alloc&) {
    remember("host memory ran out");
    return ATTUNE_OUT_OF_MEMORY;
  } catch (const std::exception& error) {
    remember(error.what());
    return ATTUNE_INTERNAL;
  } catch (...) {
    remember("an exception of an unknown type");
    return ATTUNE_INTERNAL;
  }
}

void require(const void* pointer, const char* name) {
  if (pointer == nullptr) fail(ErrorCode::invalid_argument, "{}: null", name);
}

// The caller's struct as ours: an older, shorter one keeps our defaults behind its end; a newer, longer one may say
// nothing (but zeros) that we do not know.
template <typename Struct>
Struct read_struct(const Struct* given, const Struct& defaults, const char* name) {
  Struct result = defaults;
  if (given == nullptr) return result;
  std::size_t size = 0;
  std::memcpy(&size, given, sizeof size);
  // A caller who forgot to set the size has zero there or garbage.
  constexpr std::size_t kLimit = 16 * sizeof(Struct);
  if (size < 2 * sizeof(std::size_t) || size > kLimit) {
    fail(ErrorCode::invalid_argument,
         "{}.struct_size: {} (allowed: sizeof of the struct, {} here; set it by ATTUNE_INIT_...)", name, size,
         sizeof(Struct));
  }
  const char* bytes = reinterpret_cast<const char*>(given);
  for (std::size_t i = sizeof(Struct); i < size; ++i) {
    if (bytes[i] != 0) {
      fail(ErrorCode::unsupported, "{}.struct_size: {} bytes, of which this library knows {}; those beyond are in use",
           name, size, sizeof(Struct));
    }
  }
  std::memcpy(&result, given, std::min(size, sizeof(Struct)));
  return result;
}

template <typename Struct>
void write_struct(Struct* to, std::size_t size, const Struct& value) noexcept {
  if (to == nullptr || size < sizeof value.struct_size) return;
  std::memset(to, 0, size);
  std::memcpy(to, &value, std::min(size, sizeof value));
  std::memcpy(to, &size, sizeof size);
}

attune_runtime_options default_runtime_options() {
  attune_runtime_options o{};
  o.struct_size = sizeof o;
  o.device = -1;
  o.use_cache = 1;
  o.allow_compiler = 1;
  return o;
}

attune_problem default_problem() {
  const attune::Problem p;
  attune_problem c{};
  c.struct_size = sizeof c;
  c.head_dim = p.head_dim;
  c.heads = p.heads;
  c.batch = p.batch;
  c.seqlen_q = p.seqlen_q;
  c.seqlen_k = p.seqlen_k;
  return c;
}

attune_plan_options default_plan_options() {
  attune_plan_options o{};
  o.struct_size = sizeof o;
  o.tune_seconds = attune::PlanOptions{}.tune_seconds;
  return o;
}

attune_forward_args default_forward_args() {
  attune_forward_args a{};
  a.struct_size = sizeof a;
  return a;
}

attune_backward_args default_backward_args() {
  attune_backward_args a{};
  a.struct_size = sizeof a;
  return a;
}

// An enumerator from its number.
template <typename Enum>
Enum checked(std::int32_t value, Enum last, const char* name) {
  if (value < 0 || value > static_cast<std::int32_t>(last)) {
    fail(ErrorCode::invalid_argument, "{}: {} (allowed: 0 to {})", name, value, static_cast<int>(last));
  }
  return static_cast<Enum>(value);
}

bool flag(std::int32_t value, const char* name) { return checked(value, 1, name) == 1; }

attune::RuntimeOptions convert(const attune_runtime_options& c) {
  attune::RuntimeOptions o;
  o.device = c.device;
  o.use_cache = flag(c.use_cache, "use_cache");
  if (c.cache_directory != nullptr) o.cache_directory = c.cache_directory;
  if (c.pack_count > 0) require(c.packs, "packs");
  for (std::size_t i = 0; i < c.pack_count; ++i) {
    require(c.packs[i], "packs[i]");
    o.packs.emplace_back(c.packs[i]);
  }
  o.allow_unsigned_packs = flag(c.allow_unsigned_packs, "allow_unsigned_packs");
  o.allow_compiler = flag(c.allow_compiler, "allow_compiler");
  o.check_pointers = flag(c.check_pointers, "check_pointers");
  if (c.on_warning != nullptr) {
    o.on_warning = [callback = c.on_warning, user = c.on_warning_user](const std::string& text) {
      callback(text.c_str(), user);
    };
  }
  return o;
}

attune::Problem convert(const attune_problem& c) {
  attune::Problem p;
  p.dtype = checked(c.dtype, attune::DType::fp16, "dtype");
  p.layout = checked(c.layout, attune::Layout::bhsd, "layout");
  p.head_dim = c.head_dim;
  p.head_dim_v = c.head_dim_v == 0 ? c.head_dim : c.head_dim_v;
  p.heads = c.heads;
  p.heads_kv = c.heads_kv == 0 ? c.heads : c.heads_kv;
  p.causal = flag(c.causal, "causal");
  p.op = checked(c.op, attune::Op::backward, "op");
  p.deterministic = flag(c.deterministic, "deterministic");
  p.scores = checked(c.scores, attune::ScoreKind::peaked, "scores");
  p.batch = c.batch;
  p.seqlen_q = c.seqlen_q;
  p.seqlen_k = c.seqlen_k;
  return p;
}

attune::PlanOptions convert(const attune_plan_options& c) {
  attune::PlanOptions o;
  o.on_miss = checked(c.on_miss, attune::MissPolicy::fail, "on_miss");
  o.tune_seconds = c.tune_seconds;
  if (flag(c.has_stream, "has_stream")) o.stream = c.stream;
  o.pinned = flag(c.pinned, "pinned");
  if (c.reserved != 0) fail(ErrorCode::invalid_argument, "options.reserved: {} (allowed: 0)", c.reserved);
  return o;
}

attune::Strides convert(const attune_strides& c) { return {.batch = c.batch, .head = c.head, .row = c.row}; }

attune::ForwardArgs convert(const attune_forward_args& c) {
  return {.q = c.q,
          .k = c.k,
          .v = c.v,
          .o = c.o,
          .lse = c.lse,
          .q_strides = convert(c.q_strides),
          .k_strides = convert(c.k_strides),
          .v_strides = convert(c.v_strides),
          .o_strides = convert(c.o_strides),
          .scale = c.scale,
          .workspace = c.workspace,
          .workspace_bytes = c.workspace_bytes,
          .stream = c.stream};
}

attune::BackwardArgs convert(const attune_backward_args& c) {
  return {.q = c.q,
          .k = c.k,
          .v = c.v,
          .o = c.o,
          .d_o = c.d_o,
          .lse = c.lse,
          .d_lse = c.d_lse,
          .d_q = c.d_q,
          .d_k = c.d_k,
          .d_v = c.d_v,
          .q_strides = convert(c.q_strides),
          .k_strides = convert(c.k_strides),
          .v_strides = convert(c.v_strides),
          .o_strides = convert(c.o_strides),
          .d_o_strides = convert(c.d_o_strides),
          .d_q_strides = convert(c.d_q_strides),
          .d_k_strides = convert(c.d_k_strides),
          .d_v_strides = convert(c.d_v_strides),
          .scale = c.scale,
          .workspace = c.workspace,
          .workspace_bytes = c.workspace_bytes,
          .stream = c.stream};
}

std::string json_of(const attune::PlanInfo& info) {
  nlohmann::json j{{"problem", info.problem},     {"config", info.config},
                   {"spec", info.spec},           {"kernel", info.kernel},
                   {"build_key", info.build_key}, {"origin", attune::to_string(info.origin)},
                   {"registers", info.registers}, {"shared_bytes", info.shared_bytes},
                   {"threads", info.threads},     {"blocks", info.blocks},
                   {"expected_seconds", nullptr}, {"errors", nullptr},
                   {"peaked_config", nullptr}};
  if (!info.peaked_config.empty()) j["peaked_config"] = info.peaked_config;
  if (info.expected_seconds) j["expected_seconds"] = *info.expected_seconds;
  if (!info.errors.empty()) {
    auto errors = nlohmann::json::parse(info.errors, nullptr, /*allow_exceptions=*/false);
    j["errors"] = errors.is_discarded() ? nlohmann::json(info.errors) : std::move(errors);
  }
  return j.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

std::string text_of(const attune::PlanInfo& info, attune_info what) {
  switch (what) {
    case ATTUNE_INFO_PROBLEM: return info.problem;
    case ATTUNE_INFO_CONFIG: return info.config;
    case ATTUNE_INFO_SPEC: return info.spec;
    case ATTUNE_INFO_KERNEL: return info.kernel;
    case ATTUNE_INFO_BUILD_KEY: return info.build_key;
    case ATTUNE_INFO_ORIGIN: return attune::to_string(info.origin);
    case ATTUNE_INFO_JSON: return json_of(info);
  }
  fail(ErrorCode::invalid_argument, "what: {} (allowed: 0 to {})", static_cast<int>(what),
       static_cast<int>(ATTUNE_INFO_JSON));
}

// Both kinds of launch.
template <typename Args>
attune_status launch(const attune_plan* plan, const Args* args, const Args& defaults) noexcept {
  return guarded([&] {
    require(plan, "plan");
    require(args, "args");
    const Args read = read_struct(args, defaults, "args");
    if (read.reserved != 0) fail(ErrorCode::invalid_argument, "args.reserved: {} (allowed: 0)", read.reserved);
    plan->plan.launch(convert(read));
  });
}

attune_status create_plan(attune_runtime* runtime, const attune_problem* problem, const attune::PlanOptions& options,
                          attune_plan** plan) {
  require(runtime, "runtime");
  require(problem, "problem");
  const attune::Problem converted = convert(read_struct(problem, default_problem(), "problem"));
  *plan = new attune_plan{runtime->runtime.plan(converted, options)};
  return ATTUNE_OK;
}

}  // namespace

extern "C" {

const char* attune_version(void) { return attune::version(); }

const char* attune_status_name(attune_status status) {
  if (status == ATTUNE_OK) return "ok";
  for (int code = 0; code <= static_cast<int>(ErrorCode::internal); ++code) {
    if (status_of(static_cast<ErrorCode>(code)) == status) return attune::error_code_name(static_cast<ErrorCode>(code));
  }
  return "unknown";
}

const char* attune_last_error(void) { return last_error; }

void attune_runtime_options_init(attune_runtime_options* options, size_t struct_size) {
  write_struct(options, struct_size, default_runtime_options());
}
void attune_problem_init(attune_problem* problem, size_t struct_size) {
  write_struct(problem, struct_size, default_problem());
}
void attune_plan_options_init(attune_plan_options* options, size_t struct_size) {
  write_struct(options, struct_size, default_plan_options());
}
void attune_forward_args_init(attune_forward_args* args, size_t struct_size) {
  write_struct(args, struct_size, default_forward_args());
}
void attune_backward_args_init(attune_backward_args* args, size_t struct_size) {
  write_struct(args, struct_size, default_backward_args());
}

attune_status attune_runtime_create(const attune_runtime_options* options, attune_runtime** runtime) {
  return guarded([&] {
    require(runtime, "runtime");
    *runtime = nullptr;
    const attune_runtime_options read = read_struct(options, default_runtime_options(), "options");
    *runtime = new attune_runtime{attune::Runtime(convert(read))};
  });
}

void attune_runtime_destroy(attune_runtime* runtime) { delete runtime; }

attune_status attune_plan_create(attune_runtime* runtime, const attune_problem* problem,
                                 const attune_plan_options* options, attune_plan** plan) {
  return guarded([&] {
    require(plan, "plan");
    *plan = nullptr;
    create_plan(runtime, problem, convert(read_struct(options, default_plan_options(), "options")), plan);
  });
}

attune_status attune_plan_with_config(attune_runtime* runtime, const attune_problem* problem, const char* config,
                                      attune_plan** plan) {
  return guarded([&] {
    require(plan, "plan");
    *plan = nullptr;
    require(config, "config");
    if (*config == '\0') fail(ErrorCode::invalid_argument, "config: empty (allowed: \"consumers=2,block_n=128,...\")");
    create_plan(runtime, problem, {.config = config}, plan);
  });
}

attune_status attune_plan_launch(const attune_plan* plan, const attune_forward_args* args) {
  return launch(plan, args, default_forward_args());
}

attune_status attune_plan_launch_backward(const attune_plan* plan, const attune_backward_args* args) {
  return launch(plan, args, default_backward_args());
}

attune_status attune_plan_workspace_bytes(const attune_plan* plan, size_t* bytes) {
  return guarded([&] {
    require(plan, "plan");
    require(bytes, "bytes");
    *bytes = plan->plan.workspace_bytes();
  });
}

attune_status attune_plan_info(const attune_plan* plan, attune_info what, char* text, size_t capacity, size_t* length) {
  return guarded([&] {
    require(plan, "plan");
    if (capacity > 0) require(text, "text");
    const std::string full = text_of(plan->plan.info(), what);
    if (length != nullptr) *length = full.size();
    if (capacity == 0) return;
    const std::size_t copied = std::min(full.size(), capacity - 1);
    std::memcpy(text, full.data(), copied);
    text[copied] = '\0';
  });
}

void attune_plan_destroy(attune_plan* plan) { delete plan; }

}  // extern "C"
