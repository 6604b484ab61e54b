// Two passes in one launch: thread blocks of keys compute dK and dV, those of queries dQ, each with scores of its own.
// That costs seven products instead of five and no sum of dQ leaves an SM: at large head dims, where a block has few
// keys, the additions are more than the way to L2 can take.
#include "codegen/backward/emit_parts.h"
#include "codegen/emit_parts.h"

namespace attune::codegen::backward {
namespace {

class PassPrinter {
 public:
  PassPrinter(Writer& out, const KernelSpec& spec, const LaunchShape& shape)
      : out_(out), spec_(spec), t_(spec.config.backward), layout_(backward::layout_of(spec)), shape_(shape) {}

  void print() {
    constants();
    value_consumer();
    key_consumer();
    query_producer();
    query_consumer();
    main_kernel();
  }

 private:
  const char* element() const { return element_name(spec_.dtype); }

  void constants() {
    const QueryLayout q = query_layout_of(spec_);
    out_.line("// P on its way from one warpgroup to the other: full and empty.");
    out_.line("constexpr uint32_t kPFull = kDsFull, kPEmpty = kDsEmpty;");
    out_.line("// A thread block of queries: each warpgroup's Q and dO, then rings of K and V.");
    out_.line("constexpr int kQueryRows = {}, kKStages = {}, kVStages = {};", kQueryRows, q.k_stages, q.v_stages);
    out_.line("constexpr uint32_t kKBytes = {}, kVBytes = {};", layout_.k_bytes, layout_.v_bytes);
    out_.line("constexpr uint32_t kQueryQ = {}, kQueryDo = {}, kQueryK = {}, kQueryV = {};", q.q_at, q.do_at, q.k_at,
              q.v_at);
    out_.line("constexpr uint32_t kQueryQFull = {}, kQueryDoFull = kQueryQFull + 16;", layout_.barriers_at);
    out_.line("constexpr uint32_t kRingKFull = kQueryDoFull + 16, kRingKEmpty = kRingKFull + 8 * kKStages;");
    out_.line("constexpr uint32_t kRingVFull = kRingKEmpty + 8 * kKStages, kRingVEmpty = kRingVFull + 8 * kVStages;");
    out_.line("");
  }

  void arrive(const std::string& barrier) {
    out_.line("__syncwarp();");
    out_.line("if (lane == 0) mbarrier_arrive({});", barrier);
  }

  void next(const char* stage, const char* phase, const char* stages) {
    out_.open(fmt::format("if (++{} == {}) {{", stage, stages));
    out_.line("{} = 0;", stage);
    out_.line("{} ^= 1;", phase);
    out_.close();
  }

  void position() { out_.line("const int thread = threadIdx.x & 127, lane = thread & 31, warp = thread >> 5;"); }

  void rings_of_queries() { out_.line("int stage_q = 0, phase_q = 0, stage_do = 0, phase_do = 0, stage_p = 0;"); }

  // P of this step, masked.
  void key_probabilities() {
    if (spec_.edge == Edge::diagonals) {
      out_.line("if (block.n * kBlockN + kBlockN - 1 > tile.m * kBlockM + offset)");
      out_.line("  mask_queries(s, limit - tile.m * kBlockM);");
    } else if (spec_.edge == Edge::length) {
      out_.line("if ((block.n + 1) * kBlockN > params.seqlen_k) mask_keys(s, key, params.seqlen_k);");
    }
    out_.line("probabilities(s, lse_address + stage_q * kStatisticsBytes, params.scale_log2);");
    arrive("shared + kQEmpty + 8 * stage_q");
    next("stage_q", "phase_q", "kQStages");
    out_.line("mbarrier_wait(shared + kPEmpty + 8 * stage_p, phase_p);");
    out_.line("store_fragments(s, p_address + stage_p * kPBytes);");
    arrive("shared + kPFull + 8 * stage_p");
    next("stage_p", "phase_p", "kDsStages");
    out_.line("pack<{}>(s, p);", element());
    if (spec_.causal) out_.line("advance<kDescending>(tile, block, params);");
    out_.line("mbarrier_wait(shared + kDoFull + 8 * stage_do, phase_do);");
    out_.line("wgmma_fence();");
    out_.line("{}(dv, p, do_columns + ((stage_do * kDoBytes) >> 4), accumulate);",
              issue_gradient_name(spec_.head_dim_v));
  }

  void issue_key_scores() {
    out_.line("mbarrier_wait(shared + kQFull + 8 * stage_q, phase_q);");
    out_.line("wgmma_fence();");
    out_.line("issue_scores<kQkSteps>(s, k_rows, q_rows + ((stage_q * kQBytes) >> 4));");
  }

  void value_consumer() {
    out_.line("// One warpgroup of a block of keys: S^T = K Q^T, P, dV += P^T dO.");
    out_.open(
        "ATTUNE_DEVICE void consume_values(const TensorMap* map_dv, const BackwardParams& params, uint32_t shared, "
        "const KeyBlock& block) {");
    position();
    out_.line("float dv[{}], s[kScores];", spec_.head_dim_v / 2);
    out_.line("uint32_t p[kPacked];");
    out_.line("const uint64_t k_rows = wgmma_descriptor(shared + kSharedK, 16, 1024);");
    out_.line("const uint64_t q_rows = wgmma_descriptor(shared + kSharedQ, 16, 1024);");
    out_.line("const uint64_t do_columns = wgmma_descriptor(shared + kSharedDo, kBlockM * 128, 1024);");
    out_.line("const uint32_t lse_address = shared + kSharedLse + 8 * (lane & 3);");
    out_.line("const uint32_t p_address = shared + kSharedP + 16 * thread;");
    const std::string key = "block.n * kBlockN + warp * 16 + (lane >> 2)";
    if (spec_.edge == Edge::length) out_.line("const int key = {};  // this thread's first row", key);
    if (spec_.edge == Edge::diagonals) {
      out_.line("const int offset = params.seqlen_k - params.seqlen_q;  // query i sees the keys up to i + offset");
      out_.line("// Distance of this thread's first key from the last one that its first query of tile 0 sees.");
      out_.line("const int limit = {} - offset - 2 * (lane & 3);", key);
    }
    if (spec_.causal) out_.line("QueryTile tile = first_query_tile<kDescending>(block, params);");
    rings_of_queries();
    out_.line("int phase_p = 1, accumulate = 0;  // 0: the next product starts a new dV");
    out_.line("mbarrier_wait(shared + kKFull, 0);");
    issue_key_scores();
    out_.line("wgmma_wait_group<0>();");
    out_.line("pin(s);");
    out_.line("#pragma unroll 1");
    out_.open("for (int step = 1; step < block.steps; step++) {");
    key_probabilities();
    out_.line("accumulate = 1;");
    issue_key_scores();
    out_.line("wgmma_wait_group<0>();");
    out_.line("pin(s);");
    arrive("shared + kDoEmpty + 8 * stage_do");
    next("stage_do", "phase_do", "kDoStages");
    out_.close();
    key_probabilities();
    gradient_epilogue("dv", "kSharedV", spec_.head_dim_v, "1.f", 6);
    out_.close();
    out_.line("");
  }

  void issue_value_scores() {
    out_.line("mbarrier_wait(shared + kDoFull + 8 * stage_do, phase_do);");
    out_.line("wgmma_fence();");
    out_.line("issue_scores<kVSteps>(dp, v_rows, do_rows + ((stage_do * kDoBytes) >> 4));");
  }

  // dS of this step.
  void key_gradients() {
    out_.line("mbarrier_wait(shared + kPFull + 8 * stage_p, phase_p);");
    out_.line("load_fragments(p, p_address + stage_p * kPBytes);");
    arrive("shared + kPEmpty + 8 * stage_p");
    next("stage_p", "phase_p", "kDsStages");
    out_.line("score_gradients<{}>(p, dp, delta_address + stage_do * kStatisticsBytes, ds);", element());
    out_.line("mbarrier_wait(shared + kQFull + 8 * stage_q, phase_q);");
    out_.line("wgmma_fence();");
    out_.line("{}(dk, ds, q_columns + ((stage_q * kQBytes) >> 4), accumulate);", issue_gradient_name(spec_.head_dim));
    // Behind the product, which has used what was made of the deltas: they have been read for certain.
    arrive("shared + kDoEmpty + 8 * stage_do");
    next("stage_do", "phase_do", "kDoStages");
  }

  void key_consumer() {
    out_.line("// The other one: dP^T = V dO^T, dS with the first one's P, dK += dS^T Q.");
    out_.open(
        "ATTUNE_DEVICE void consume_keys(const TensorMap* map_dk, const BackwardParams& params, uint32_t shared, "
        "const KeyBlock& block) {");
    position();
    out_.line("float dk[{}], dp[kScores], p[kScores];", spec_.head_dim / 2);
    out_.line("uint32_t ds[kPacked];");
    out_.line("const uint64_t v_rows = wgmma_descriptor(shared + kSharedV, 16, 1024);");
    out_.line("const uint64_t do_rows = wgmma_descriptor(shared + kSharedDo, 16, 1024);");
    out_.line("const uint64_t q_columns = wgmma_descriptor(shared + kSharedQ, kBlockM * 128, 1024);");
    out_.line("const uint32_t delta_address = shared + kSharedDelta + 8 * (lane & 3);");
    out_.line("const uint32_t p_address = shared + kSharedP + 16 * thread;");
    rings_of_queries();
    out_.line("int phase_p = 0, accumulate = 0;  // 0: the next product starts a new dK");
    out_.line("mbarrier_wait(shared + kVFull, 0);");
    issue_value_scores();
    out_.line("wgmma_wait_group<0>();");
    out_.line("pin(dp);");
    out_.line("#pragma unroll 1");
    out_.open("for (int step = 1; step < block.steps; step++) {");
    key_gradients();
    out_.line("accumulate = 1;");
    issue_value_scores();
    out_.line("wgmma_wait_group<0>();");
    out_.line("pin(dp);");
    arrive("shared + kQEmpty + 8 * stage_q");
    next("stage_q", "phase_q", "kQStages");
    out_.close();
    key_gradients();
    gradient_epilogue("dk", "kSharedK", spec_.head_dim, "params.scale", 7);
    out_.close();
    out_.line("");
  }

  void gradient_epilogue(const char* name, const char* buffer, int columns, const char* factor, int barrier) {
    out_.line("wgmma_wait_group<0>();");
    out_.line("pin({});", name);
    out_.line("barrier_sync(1, 256);  // nobody reads K and V any more");
    out_.line("stage_gradient<{}, {}>({}, shared + {}, kBlockN * 128, warp, lane, {});", element(), columns, name,
              buffer, factor);
    out_.line("fence_proxy_async();");
    out_.line("barrier_sync({}, 128);", barrier);
    out_.open("if (thread == 0) {");
    out_.line("store_gradient<{}>(map_{}, shared + {}, kBlockN * 128, 0, block.n * kBlockN, block.head, block.batch);",
              columns, name, buffer);
    out_.line("bulk_wait_group_read<0>();  // shared memory must outlive the store's reads");
    out_.close();
  }

  void query_producer() {
    out_.line("// Producer of a block of queries: Q and dO of both warpgroups, K and V block by block.");
    out_.open(
        "ATTUNE_DEVICE void produce_queries(const TensorMap* map_q, const TensorMap* map_k, const TensorMap* map_v, "
        "const TensorMap* map_do,\n                                   const BackwardParams& params, uint32_t shared) "
        "{");
    out_.line("const QueryBlock block = this_query_block<kQueryRows>({}, params);", spec_.causal);
    out_.line("const int steps = (block.keys + kBlockN - 1) / kBlockN;");
    out_.line("const int head = block.head / params.group;");
    out_.line("#pragma unroll 1");
    out_.open("for (int step = 0; step < steps; step++) {");
    out_.open("if (step == 0) {");
    load_queries("Q", "map_q", "kQkChunks", "kQBytes");
    out_.close();
    load_step("K", "map_k", "kQkChunks");
    out_.open("if (step == 0) {");
    load_queries("Do", "map_do", "kVChunks", "kDoBytes");
    out_.close();
    load_step("V", "map_v", "kVChunks");
    out_.close();
    out_.close();
    out_.line("");
  }

  // Not for a warpgroup whose rows see no key: it does not wait for them.
  void load_queries(const char* name, const char* map, const char* chunks, const char* bytes) {
    out_.line("for (int w = 0; w < 2; w++) {");
    if (spec_.causal) out_.line("  if (keys_seen(block.row + 64 * w + 64, true, params) == 0) continue;");
    out_.line("  load_rows_of<{}, 64>({}, shared + kQuery{} + w * {}, shared + kQuery{}Full + 8 * w,", chunks, map,
              name, bytes, name);
    out_.line("                      block.row + 64 * w, block.head, block.batch, kEvictFirst);");
    out_.line("}");
  }

  void load_step(const char* name, const char* map, const char* chunks) {
    out_.line("mbarrier_wait(shared + kRing{0}Empty + 8 * stage_of<k{0}Stages>(step), phase_of<k{0}Stages>(step) ^ 1);",
              name);
    out_.line("load_rows_of<{}, kBlockN>({}, shared + kQuery{} + stage_of<k{}Stages>(step) * k{}Bytes,", chunks, map,
              name, name, name);
    out_.line(
        "                       shared + kRing{0}Full + 8 * stage_of<k{0}Stages>(step), step * kBlockN, head, "
        "block.batch, kEvictLast);",
        name);
  }

  // S and dP of a step, P of it, and dP complete: of the first one, or of `next`, the one behind `step`.
  void query_scores(bool first) {
    const std::string step = first ? "0" : "next", columns = first ? "" : "next * kBlockN + ";
    if (first) {
      out_.line("mbarrier_wait(shared + kQueryQFull + 8 * warpgroup, 0);");
    } else {
      out_.line("const int next = step + 1;");
      out_.line("forget(q_rows);");
      out_.line("forget(do_rows);");
    }
    out_.line("mbarrier_wait(shared + kRingKFull + 8 * stage_of<kKStages>({0}), phase_of<kKStages>({0}));", step);
    out_.line("wgmma_fence();");
    out_.line("issue_scores<kQkSteps>(s, q_rows, k_rows + ((stage_of<kKStages>({}) * kKBytes) >> 4));", step);
    if (first) out_.line("mbarrier_wait(shared + kQueryDoFull + 8 * warpgroup, 0);");
    out_.line("mbarrier_wait(shared + kRingVFull + 8 * stage_of<kVStages>({0}), phase_of<kVStages>({0}));", step);
    out_.line("issue_scores<kVSteps>(dp, do_rows, v_rows + ((stage_of<kVStages>({}) * kVBytes) >> 4));", step);
    out_.line("wgmma_wait_group<1>();");
    out_.line("pin(s);");
    if (!first) {
      out_.line("// dQ of the step before, too, is complete: its K may go.");
      arrive("shared + kRingKEmpty + 8 * stage_of<kKStages>(step)");
    }
    const char* const end = first ? "kBlockN" : "(next + 1) * kBlockN";
    if (spec_.edge == Edge::diagonals) {
      out_.open(fmt::format("if ({} > first_row + 1 + offset) {{", end));
      out_.line("const int upper = {}2 * (lane & 3) - (first_row + warp * 16 + (lane >> 2)) - offset;", columns);
      out_.line("mask_unseen(s, upper, upper - 8);");
      out_.close();
    } else if (spec_.edge == Edge::length) {
      out_.open(fmt::format("if ({} > keys) {{", end));
      out_.line("const int beyond = {}2 * (lane & 3) - keys + 1;", columns);
      out_.line("mask_unseen(s, beyond, beyond);");
      out_.close();
    }
    out_.line("query_probabilities(s, rows, params.scale_log2);");
    out_.line("wgmma_wait_group<0>();");
    out_.line("pin(dp);");
    arrive(fmt::format("shared + kRingVEmpty + 8 * stage_of<kVStages>({})", step));
  }

  void issue_query_gradient() {
    out_.line("query_gradients<{}>(s, dp, rows, ds);", element());
    out_.line("wgmma_fence();");
    out_.line("{}(dq, ds, k_columns + ((stage_of<kKStages>(step) * kKBytes) >> 4), step > 0);",
              issue_gradient_name(spec_.head_dim));
  }

  void query_consumer() {
    out_.line("// Each warpgroup of a block of queries has 64 rows: S = Q K^T, dP = dO V^T, dQ += dS K.");
    out_.open("ATTUNE_DEVICE void consume_queries(const BackwardParams& params, uint32_t shared, int warpgroup) {");
    position();
    out_.line("const QueryBlock block = this_query_block<kQueryRows>({}, params);", spec_.causal);
    out_.line("const int first_row = block.row + 64 * warpgroup;");
    if (spec_.causal) {
      out_.line("const int offset = params.seqlen_k - params.seqlen_q;  // query i sees the keys up to i + offset");
    }
    out_.line("const int keys = keys_seen(first_row + 64, {}, params);", spec_.causal);
    out_.line("const int steps = (keys + kBlockN - 1) / kBlockN;");
    out_.open("if (steps == 0) {");
    out_.line("store_no_gradient<{}>(params, block, first_row, thread);", spec_.head_dim);
    out_.reopen("} else {");
    out_.line("float dq[{}], s[kScores], dp[kScores];", spec_.head_dim / 2);
    out_.line("uint32_t ds[kPacked];");
    out_.line("const uint32_t own_q = shared + kQueryQ + warpgroup * kQBytes;");
    out_.line("uint64_t q_rows = wgmma_descriptor(own_q, 16, 1024);");
    out_.line("uint64_t do_rows = wgmma_descriptor(shared + kQueryDo + warpgroup * kDoBytes, 16, 1024);");
    out_.line("const uint64_t k_rows = wgmma_descriptor(shared + kQueryK, 16, 1024);");
    out_.line("const uint64_t v_rows = wgmma_descriptor(shared + kQueryV, 16, 1024);");
    out_.line("const uint64_t k_columns = wgmma_descriptor(shared + kQueryK, kBlockN * 128, 1024);");
    out_.line("const QueryRows rows =");
    out_.line("    load_query_rows<kBlockM>(block, first_row + warp * 16 + (lane >> 2), params);");
    query_scores(true);
    out_.line("int step = 0;");
    out_.line("#pragma unroll 1");
    out_.open("for (; step + 1 < steps; step++) {");
    issue_query_gradient();
    query_scores(false);
    out_.close();
    issue_query_gradient();
    out_.line("wgmma_wait_group<0>();");
    out_.line("pin(dq);");
    arrive("shared + kRingKEmpty + 8 * stage_of<kKStages>(step)");
    out_.line("const int warp_of_block = thread_index() >> 5, own = warp_of_block / 4 - 1;");
    out_.line("barrier_sync(6 + own, 128);  // Q has been read by all warps, and dQ goes over it");
    out_.line("const uint32_t buffer = shared + kQueryQ + own * kQBytes;");
    out_.line("stage_gradient<{}, {}>(dq, buffer, 64 * 128, warp_of_block % 4, lane, params.scale);", element(),
              spec_.head_dim);
    out_.line("const QueryBlock to = this_query_block<kQueryRows>({}, params);", spec_.causal);
    out_.line("store_query_rows<{}>(params, to, to.row + 64 * own, buffer, warp_of_block % 4, lane);", spec_.head_dim);
    out_.close();
    if (spec_.causal) {
      out_.line("// What only the other warpgroup's rows see.");
      out_.line("const int all_keys = this_query_block<kQueryRows>(true, params).keys;");
      out_.open("for (int step = steps; step * kBlockN < all_keys; step++) {");
      for (const char* ring : {"K", "V"}) {
        out_.line("mbarrier_wait(shared + kRing{0}Full + 8 * stage_of<k{0}Stages>(step), phase_of<k{0}Stages>(step));",
                  ring);
        arrive(fmt::format("shared + kRing{0}Empty + 8 * stage_of<k{0}Stages>(step)", ring));
      }
      out_.close();
    }
    out_.close();
    out_.line("");
  }

  void ring(const char* stages, const char* full, const char* empty, const char* full_count, int count) {
    out_.open(fmt::format("for (int i = 0; i < {}; i++) {{", stages));
    out_.line("mbarrier_init(shared + {} + 8 * i, {});", full, full_count);
    out_.line("mbarrier_init(shared + {} + 8 * i, {});  // one arrival a warp", empty, count);
    out_.close();
  }

  void main_kernel() {
    open_main(out_, shape_);
    const std::string block_at = fmt::format("key_block_at<kBlockM, kBlockN, {}>", spec_.causal);
    emit_no_queries(out_, block_at);
    out_.line("const int warpgroup = __shfl_sync(kFullWarp, threadIdx.x >> 7, 0);  // uniform, and known to be");
    out_.line("const int key_blocks = params.tiles_n * params.pairs;");
    out_.line("const bool of_keys = blockIdx.x < key_blocks;");
    out_.open("if (threadIdx.x == 0) {");
    out_.open("if (of_keys) {");
    out_.line("mbarrier_init(shared + kKFull, 1);");
    out_.line("mbarrier_init(shared + kVFull, 1);");
    ring("kQStages", "kQFull", "kQEmpty", "1", 8);
    ring("kDoStages", "kDoFull", "kDoEmpty", "1", 8);
    ring("kDsStages", "kPFull", "kPEmpty", "4", 4);
    out_.reopen("} else {");
    out_.open("for (int w = 0; w < 2; w++) {");
    out_.line("mbarrier_init(shared + kQueryQFull + 8 * w, 1);");
    out_.line("mbarrier_init(shared + kQueryDoFull + 8 * w, 1);");
    out_.close();
    ring("kKStages", "kRingKFull", "kRingKEmpty", "1", 8);
    ring("kVStages", "kRingVFull", "kRingVEmpty", "1", 8);
    out_.close();
    out_.line("fence_mbarrier_init();");
    out_.close();
    out_.line("__syncthreads();");
    out_.line("follow_closely();");
    out_.open("if (of_keys) {");
    out_.line("const KeyBlock block = {}(blockIdx.x, params);", block_at);
    role("produce(&map_q, &map_k, &map_v, &map_do, params, shared, block);",
         "consume_values(&map_dv, params, shared, block);", "consume_keys(&map_dk, params, shared, block);");
    out_.reopen("} else {");
    role("produce_queries(&map_q, &map_k, &map_v, &map_do, params, shared);",
         "consume_queries(params, shared, warpgroup - 1);", "");
    out_.close();
    out_.close();
  }

  void role(const std::string& produce, const std::string& first, const std::string& second) {
    out_.open("if (warpgroup == 0) {");
    out_.line("setmaxnreg_dec<{}>();", t_.producer_registers());
    out_.line("if (threadIdx.x == 0) {}", produce);
    out_.reopen("} else {");
    out_.line("setmaxnreg_inc<{}>();", t_.registers);
    if (second.empty()) {
      out_.line("{}", first);
    } else {
      out_.open("if (warpgroup == 1) {");
      out_.line("{}", first);
      out_.reopen("} else {");
      out_.line("{}", second);
      out_.close();
    }
    out_.close();
  }

  Writer& out_;
  const KernelSpec& spec_;
  const Tunables& t_;
  const Layout layout_;
  const LaunchShape& shape_;
};

}  // namespace

void emit_passes(Writer& out, const KernelSpec& spec, const LaunchShape& shape) {
  emit_key_producer(out, false);
  PassPrinter(out, spec, shape).print();
}

}  // namespace attune::codegen::backward
