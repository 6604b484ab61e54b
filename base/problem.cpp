#include <attune/problem.h>

#include <algorithm>

#include "base/error.h"
#include "base/fields.h"

namespace attune {
namespace {

constexpr std::int64_t kMaxLength = 1ll << 31;  // TMA coordinates are 32-bit

void check_head_dim(const char* name, int value) {
  if (value <= 0 || value % 8 != 0)
    fail(ErrorCode::invalid_argument, "{}: {} is not a multiple of 8 (allowed: 8, 16, ..., 256)", name, value);
  if (value > 256) fail(ErrorCode::invalid_argument, "{}: {} is above 256 (allowed: 8, 16, ..., 256)", name, value);
}

void check_range(const char* name, std::int64_t value, std::int64_t low, std::int64_t high) {
  if (value < low || value > high)
    fail(ErrorCode::invalid_argument, "{}: {} is out of range (allowed: {} to {})", name, value, low, high);
}

}  // namespace

std::optional<Problem> peaked_twin(const Problem& problem) {
  if (problem.op != Op::forward || problem.scores != ScoreKind::any) return std::nullopt;
  Problem twin = problem;
  twin.scores = ScoreKind::peaked;
  return twin;
}

void validate(const Problem& p) {
  check_head_dim("head_dim", p.head_dim);
  check_head_dim("head_dim_v", p.head_dim_v);
  check_range("heads", p.heads, 1, 1 << 20);
  check_range("heads_kv", p.heads_kv, 1, 1 << 20);
  if (p.heads % p.heads_kv != 0)
    fail(ErrorCode::invalid_argument, "heads_kv: {} does not divide heads = {} (allowed: a divisor of heads)",
         p.heads_kv, p.heads);
  check_range("batch", p.batch, 0, 1ll << 24);
  check_range("seqlen_q", p.seqlen_q, 0, kMaxLength - 1024);
  check_range("seqlen_k", p.seqlen_k, 0, kMaxLength - 1024);
  if (p.deterministic && p.op == Op::forward)
    fail(ErrorCode::invalid_argument,
         "deterministic: 1 with op = forward, each of whose kernels always is (allowed: 0; or op = backward)");
  if (p.scores != ScoreKind::any && p.op == Op::backward)
    fail(ErrorCode::invalid_argument,
         "scores: {} with op = backward, whose kernels do not depend on them (allowed: any; or op = forward)",
         to_string(p.scores));
  if (p.batch * p.heads > (1ll << 30))
    fail(ErrorCode::invalid_argument, "batch: {} x heads = {} is above 2^30 (query head, sequence) pairs", p.batch,
         p.heads);
}

const char* to_string(DType dtype) noexcept { return dtype == DType::bf16 ? "bf16" : "fp16"; }
const char* to_string(Op op) noexcept { return op == Op::forward ? "forward" : "backward"; }
const char* to_string(Layout layout) noexcept { return layout == Layout::bshd ? "bshd" : "bhsd"; }
const char* to_string(ScoreKind scores) noexcept { return scores == ScoreKind::any ? "any" : "peaked"; }

Op parse_op(std::string_view text) {
  if (text == "forward") return Op::forward;
  if (text == "backward") return Op::backward;
  fail(ErrorCode::unsupported, "op: '{}' is unknown (allowed: forward, backward)", text);
}

DType parse_dtype(std::string_view text) {
  if (text == "bf16" || text == "bfloat16") return DType::bf16;
  if (text == "fp16" || text == "float16" || text == "half") return DType::fp16;
  if (text == "fp32" || text == "float32" || text == "float")
    fail(ErrorCode::invalid_argument,
         "dtype: {} is not supported; convert Q, K and V to bf16 (same range as float32) or fp16 (allowed: bf16, fp16)",
         text);
  fail(ErrorCode::invalid_argument, "dtype: '{}' is unknown (allowed: bf16, fp16)", text);
}

Layout parse_layout(std::string_view text) {
  if (text == "bshd") return Layout::bshd;
  if (text == "bhsd") return Layout::bhsd;
  fail(ErrorCode::invalid_argument, "layout: '{}' is unknown (allowed: bshd, bhsd)", text);
}

ScoreKind parse_score_kind(std::string_view text) {
  if (text == "any") return ScoreKind::any;
  if (text == "peaked") return ScoreKind::peaked;
  fail(ErrorCode::invalid_argument, "scores: '{}' is unknown (allowed: any, peaked)", text);
}

std::string to_string(const Problem& p) {
  Fields fields{{"op", to_string(p.op)},
                {"dtype", to_string(p.dtype)},
                {"head_dim", std::to_string(p.head_dim)},
                {"head_dim_v", std::to_string(p.head_dim_v)},
                {"heads", std::to_string(p.heads)},
                {"heads_kv", std::to_string(p.heads_kv)},
                {"causal", p.causal ? "1" : "0"},
                {"batch", std::to_string(p.batch)},
                {"seqlen_q", std::to_string(p.seqlen_q)},
                {"seqlen_k", std::to_string(p.seqlen_k)},
                {"layout", to_string(p.layout)}};
  if (p.op == Op::backward) fields.emplace_back("deterministic", p.deterministic ? "1" : "0");
  if (p.scores != ScoreKind::any) fields.emplace_back("scores", to_string(p.scores));
  return join_fields(fields);
}

Problem parse_problem(std::string_view text) {
  Problem p;
  bool has_dim_v = false, has_kv = false, has_k = false;
  const auto small = [](const std::string& key, const std::string& value) {
    return static_cast<int>(parse_int(key, value, 0, 1 << 30));
  };
  for (const auto& [key, value] : parse_fields("problem", text)) {
    if (key == "op") {
      p.op = parse_op(value);
    } else if (key == "dtype") {
      p.dtype = parse_dtype(value);
    } else if (key == "head_dim") {
      p.head_dim = small(key, value);
    } else if (key == "head_dim_v") {
      p.head_dim_v = small(key, value), has_dim_v = true;
    } else if (key == "heads") {
      p.heads = small(key, value);
    } else if (key == "heads_kv") {
      p.heads_kv = small(key, value), has_kv = true;
    } else if (key == "causal") {
      p.causal = parse_bool(key, value);
    } else if (key == "batch") {
      p.batch = parse_int(key, value, 0, kMaxLength);
    } else if (key == "seqlen_q") {
      p.seqlen_q = parse_int(key, value, 0, kMaxLength);
    } else if (key == "seqlen_k") {
      p.seqlen_k = parse_int(key, value, 0, kMaxLength), has_k = true;
    } else if (key == "layout") {
      p.layout = parse_layout(value);
    } else if (key == "deterministic") {
      p.deterministic = parse_bool(key, value);
    } else if (key == "scores") {
      p.scores = parse_score_kind(value);
    } else {
      fail(ErrorCode::invalid_argument,
           "problem: key '{}' is unknown (allowed: op, dtype, head_dim, head_dim_v, heads, heads_kv, causal, batch, "
           "seqlen_q, seqlen_k, layout, deterministic, scores)",
           key);
    }
  }
  if (!has_dim_v) p.head_dim_v = p.head_dim;
  if (!has_kv) p.heads_kv = p.heads;
  if (!has_k) p.seqlen_k = p.seqlen_q;
  validate(p);
  return p;
}

double flops(const Problem& p) {
  const double q = static_cast<double>(p.seqlen_q), k = static_cast<double>(p.seqlen_k);
  double pairs = q * k;
  if (p.causal) {
    // Rows i see min(k, max(0, i + k - q)) keys, the diagonal ignored so that q == k counts one half.
    const double visible_rows = std::min(q, k);
    pairs = q <= k ? q * (k - q) + q * q / 2 : visible_rows * visible_rows / 2;
  }
  const int columns = p.op == Op::forward ? p.head_dim + p.head_dim_v : 3 * p.head_dim + 2 * p.head_dim_v;
  return 2.0 * static_cast<double>(p.batch) * p.heads * pairs * columns;
}

Arch parse_arch(std::string_view name) {
  if (name == "sm_90a" || name == "sm_90") return Arch{};
  fail(ErrorCode::unsupported, "arch: '{}' is not supported (allowed: sm_90a)", name);
}

}  // namespace attune
