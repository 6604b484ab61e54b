// What a caller needs computed, and on what kind of chip. No tunables here.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include <attune/export.h>

namespace attune {

enum class Op { forward, backward };
enum class DType { bf16, fp16 };
/// Order of the dimensions of Q, K, V and O in memory; the last one (head dim) is contiguous.
/// It sets the default strides and what the tuner measures with; a launch may pass any strides.
enum class Layout { bshd, bhsd };
/// What is known of the scores, in nats. It changes no result, only which kernel is fastest. Kernels that fix the
/// reference of the exponentials beforehand lose time where a row's largest scores stand far out.
enum class ScoreKind {
  any,    ///< nothing
  peaked  ///< a standard deviation of about 10 and more: kernels that follow the row maximum exactly, tuned at 20
};

/// softmax(scale * Q K^T + mask) V, with its log-sum-exp.
///   Q [batch, seqlen_q, heads, head_dim]         K [batch, seqlen_k, heads_kv, head_dim]
///   V [batch, seqlen_k, heads_kv, head_dim_v]    O [batch, seqlen_q, heads, head_dim_v]
///   LSE [batch, heads, seqlen_q] float32, natural logarithm
/// Query head h reads KV head h / (heads / heads_kv). A causal mask is aligned to the bottom right: query i sees
/// keys j <= i + seqlen_k - seqlen_q. A row that sees no key gives O = 0 and LSE = -inf.
///
/// Op::backward: the gradients dQ, dK and dV, of the shapes of Q, K and V, from Q, K, V, O, LSE, dO (of O's shape) and,
/// if the caller has it, dLSE (of LSE's). dK and dV are summed over the query heads that read a KV head. What sees
/// nothing and what nothing sees has a gradient of 0.
struct Problem {
  Op op = Op::forward;
  DType dtype = DType::bf16;
  int head_dim = 128;    ///< of Q and K: 8, 16, ..., 256
  int head_dim_v = 128;  ///< of V and O: 8, 16, ..., 256
  int heads = 32;
  int heads_kv = 32;  ///< divides heads
  bool causal = false;
  std::int64_t batch = 1;
  std::int64_t seqlen_q = 4096;
  std::int64_t seqlen_k = 4096;
  Layout layout = Layout::bshd;
  bool deterministic = false;         ///< backward: dQ is summed in one order, the same bits in every run (slower)
  ScoreKind scores = ScoreKind::any;  ///< forward: what the kernel is chosen for

  bool operator==(const Problem&) const = default;
};

/// The problem for which a plan's second kernel is chosen, the one of launches whose scores are peaked: of a forward
/// problem of any scores the same one of peaked scores, else nothing.
ATTUNE_API std::optional<Problem> peaked_twin(const Problem& problem);

/// Throws Error(invalid_argument) that names the field, its value and what is allowed.
ATTUNE_API void validate(const Problem& problem);

/// Canonical text: "op=forward,dtype=bf16,head_dim=128,head_dim_v=128,heads=32,heads_kv=8,causal=1,batch=4,
/// seqlen_q=4096,seqlen_k=4096,layout=bshd" (one line, no spaces, always all keys in this order; op=backward has
/// "deterministic=0" behind them, which a forward problem, each of whose kernels is, lacks, and
/// scores=peaked has "scores=peaked" at the end).
ATTUNE_API std::string to_string(const Problem& problem);
/// Inverse of to_string; keys may come in any order and be left out (defaults; head_dim_v defaults to head_dim,
/// heads_kv to heads, seqlen_k to seqlen_q). Throws on unknown keys and malformed values. The result is validated.
ATTUNE_API Problem parse_problem(std::string_view text);

ATTUNE_API const char* to_string(DType dtype) noexcept;
ATTUNE_API const char* to_string(Op op) noexcept;
ATTUNE_API const char* to_string(Layout layout) noexcept;
ATTUNE_API const char* to_string(ScoreKind scores) noexcept;
/// "forward" or "backward"; else Error(unsupported).
ATTUNE_API Op parse_op(std::string_view text);
/// "bf16" or "fp16"; for float32 the error says what to convert to.
ATTUNE_API DType parse_dtype(std::string_view text);
ATTUNE_API Layout parse_layout(std::string_view text);
ATTUNE_API ScoreKind parse_score_kind(std::string_view text);

/// Floating-point operations counted as the field does: 2 * batch * heads * seqlen_q * seqlen_k * (head_dim +
/// head_dim_v), where a causal mask counts the pairs it leaves (half when seqlen_q == seqlen_k, ignoring the diagonal).
/// The backward pass has three products of head_dim and two of head_dim_v instead of one and one.
ATTUNE_API double flops(const Problem& problem);

/// What a chip offers. The emitter reads name and compute capability; the cost model reads the rest.
struct Arch {
  std::string name = "sm_90a";  ///< as NVRTC's --gpu-architecture takes it
  int compute_capability = 90;  ///< major * 10 + minor
  int sms = 132;
  int shared_per_block = 232448;  ///< bytes a block may use (opt-in limit)
  int registers_per_sm = 65536;
  std::int64_t l2_bytes = 50ll << 20;
  double clock_ghz = 1.755;  ///< sustained SM clock for the cost model
  double hbm_bytes_per_second = 4.0e12;

  bool operator==(const Arch&) const = default;
};

/// "sm_90a" -> figures of an H200. Throws Error(unsupported) for an unknown name, listing the known ones.
ATTUNE_API Arch parse_arch(std::string_view name);

}  // namespace attune
