#include <algorithm>
#include <tuple>

#include "codegen/backward/emit_parts.h"
#include "codegen/emit_parts.h"

namespace attune::codegen::backward {
namespace {

class ConsumerPrinter {
 public:
  /// warpgroup -1: a function for both, which takes the warpgroup as an argument.
  ConsumerPrinter(Writer& out, const KernelSpec& spec, int warpgroup)
      : out_(out), spec_(spec), t_(spec.config.backward), layout_(backward::layout_of(spec)), warpgroup_(warpgroup) {
    const auto own = static_cast<std::size_t>(std::max(warpgroup, 0));
    dq_ = layout_.dq[own];
    dk_ = rows() ? Columns{0, spec.head_dim} : layout_.dk[own];
    dv_ = rows() ? Columns{0, spec.head_dim_v} : layout_.dv[own];
  }

  void print() {
    Schedule schedule = schedule_for(t_);
    std::erase_if(schedule.step, [this](const Action& action) { return has_no_part_in(action); });
    const Program program = lower(schedule);
    Program unseen;
    if (t_.skip) {
      std::erase_if(schedule.step, needs_keys);
      unseen = lower(schedule);
    }
    const bool both = warpgroup_ < 0;
    out_.line("// Consumer warpgroup{}: {}.", both ? "" : fmt::format(" {}", warpgroup_),
              rows() ? "64 keys of the block" : "half of the queries' scores, then its columns of the gradients");
    out_.open(
        fmt::format("ATTUNE_DEVICE void consume{}(const TensorMap* map_dk, const TensorMap* map_dv, const "
                    "BackwardParams& params,\n                           uint32_t shared{}{}) {{",
                    both ? "" : fmt::format("_{}", warpgroup_), t_.persistent ? "" : ", const KeyBlock& block",
                    both ? ", int warpgroup" : ""));
    state();
    if (program.primed) prime();
    if (t_.persistent) {
      out_.line("int slot = 0, phase_slot = 0, phase_keys = 0;");
      if (overlapped())
        out_.line("int done = 0;  // steps, of all blocks");
      else
        out_.line("bool staged = false;  // {} of the block before {} leaving", from_registers() ? "dQ" : "dK and dV",
                  from_registers() ? "is" : "are");
      out_.line("#pragma unroll 1");
      out_.open("while (true) {");
      emit_take_item(out_, overlapped());
    }
    block_state();
    out_.line("// -- one query tile");
    out_.line("#pragma unroll 1");
    out_.open("for (int step = 0; step < block.steps; step++) {");
    if (t_.skip) {
      // Whoever sees no tile at all has keys beyond the last one, whose gradients are not stored.
      out_.open(fmt::format("if (tile.m * kBlockM + kBlockM - 1 + offset >= {}) {{", first_key()));
      segment(program.block, Segment::block);
      out_.line("accumulate = 1;");
      out_.reopen("} else {  // it sees none of this warpgroup's keys");
      segment(unseen.block, Segment::unseen);
      out_.close();
    } else {
      segment(program.block, Segment::block);
    }
    advance();
    if (!t_.skip) out_.line("accumulate = 1;");
    out_.close();
    if (overlapped()) {
      out_.close();
      out_.line("if (done == 0) return;");
    }
    if (!program.drain.empty()) {
      out_.line("// -- what is left of the last query tile");
      out_.open("{");
      segment(program.drain, Segment::drain);
      out_.close();
    }
    if (overlapped())
      out_.line("barrier_sync({}, 160);  // every arrival is met", barrier(4));
    else if (from_registers())
      direct_epilogue();
    else if (t_.persistent)
      persistent_epilogue();
    else
      epilogue();
    if (t_.persistent && !overlapped()) {
      out_.close();
      if (from_registers())
        out_.line("if (staged) barrier_sync({}, 160);  // every arrival is met", barrier(4));
      else
        out_.line("if (thread == 0) bulk_wait_group_read<0>();  // shared memory must outlive the store's reads");
    }
    out_.close();
    out_.line("");
  }

 private:
  using Kind = Action::Kind;
  bool rows() const { return t_.split == Split::rows; }
  bool bulk() const { return t_.dq == DqPath::bulk; }
  bool two_keys() const { return t_.k_stages > 1; }
  // Where K of this block lies, as an offset of descriptors.
  const char* key_buffer() const { return two_keys() ? " + ((stage_k * kKBytes) >> 4)" : ""; }
  const char* keys_empty() const { return two_keys() ? "shared + kKEmpty + 8 * stage_k" : "shared + kKEmpty"; }
  // How dK and dV leave.
  bool from_registers() const { return t_.dkv != DkvPath::staged; }
  bool parts() const { return t_.dkv == DkvPath::parts; }
  bool overlapped() const { return t_.boundary == Boundary::overlapped; }
  // Steps so far, as far back as the products that are computed late reach.
  const char* steps_before() const { return overlapped() ? "done" : "step"; }
  const char* steps_in_all() const { return overlapped() ? "done" : "block.steps"; }
  const char* element() const { return element_name(spec_.dtype); }

  // An offset in bytes that depends on the warpgroup.
  std::string by_warpgroup(int first, int second) const {
    const int fixed = warpgroup_ == 1 ? second : first;
    std::string text = fixed == 0 ? "" : fmt::format(" + {}", fixed);
    if (warpgroup_ < 0 && first != second) text += fmt::format(" + warpgroup * {}", second - first);
    return text;
  }
  std::string own_rows() const { return rows() ? by_warpgroup(0, 64 * 128) : ""; }
  std::string own_queries() const { return rows() ? "" : by_warpgroup(0, t_.block_m / 2 * 128); }
  std::string first_key() const { return "block.n * kBlockN" + (rows() ? by_warpgroup(0, 64) : ""); }
  std::string number() const { return warpgroup_ < 0 ? "warpgroup" : std::to_string(warpgroup_); }
  std::string barrier(int base) const {
    return warpgroup_ < 0 ? fmt::format("{} + warpgroup", base) : std::to_string(base + warpgroup_);
  }

  void descriptor(const char* name, const char* buffer, const std::string& offset, const char* leading) {
    out_.line("const uint64_t {} = wgmma_descriptor(shared + {}{}, {}, 1024);", name, buffer, offset, leading);
  }

  void state() {
    out_.line("const int thread = threadIdx.x & 127, lane = thread & 31, warp = thread >> 5;");
    if (dk_.count > 0) out_.line("float dk[{}];", dk_.count / 2);
    if (dv_.count > 0) out_.line("float dv[{}];", dv_.count / 2);
    out_.line("// Left operands of S and dP, and the right ones: rows of queries.");
    descriptor("k_rows", "kSharedK", own_rows(), "16");
    if (!t_.v_in_registers) descriptor("v_rows", "kSharedV", own_rows(), "16");
    descriptor("q_rows", "kSharedQ", own_queries(), "16");
    descriptor("do_rows", "kSharedDo", own_queries(), "16");
    out_.line("// Right operands of dK and dV.");
    if (dk_.count > 0) descriptor("q_columns", "kSharedQ", chunk_offset(dk_, t_.block_m), "kBlockM * 128");
    if (dv_.count > 0) descriptor("do_columns", "kSharedDo", chunk_offset(dv_, t_.block_m), "kBlockM * 128");
    if (!rows()) {
      out_.line("// Left operands of dK and dV.");
      descriptor("ds_columns", "kSharedDs", "", "kBlockM * 128");
      descriptor("p_columns", "kSharedP", "", "kBlockM * 128");
    }
    if (dq_.width > 0) {
      out_.line("// Operands of dQ.");
      const auto& [first, second] = layout_.dq;
      descriptor("ds_rows", "kSharedDs", by_warpgroup(first.row * 128, second.row * 128), "16");
      descriptor("k_columns", "kSharedK", by_warpgroup(key_columns(first), key_columns(second)), "kBlockN * 128");
    }
    out_.line("const uint32_t ds_address = transposed_address(shared + kSharedDs{}, warp, lane);",
              rows() ? by_warpgroup(0, t_.block_m * 128) : own_queries());
    const std::string statistics = rows() ? "" : by_warpgroup(0, t_.block_m / 2 * 4);
    out_.line("const uint32_t lse_address = shared + kSharedLse{} + 8 * (lane & 3);", statistics);
    out_.line("const uint32_t delta_address = shared + kSharedDelta{} + 8 * (lane & 3);", statistics);
    if (dq_.width > 0 && bulk())
      out_.line("const uint32_t dq_address = shared + kSharedDq{} + 16 * thread;",
                by_warpgroup(0, 4 * layout_.dq_start(1)));
    if (spec_.causal)
      out_.line("const int offset = params.seqlen_k - params.seqlen_q;  // query i sees the keys up to i + offset");
    out_.line("int stage_q = 0, phase_q = 0;{}", one_ring() ? "  // of dO, too" : "");
    if (!one_ring()) out_.line("int stage_do = 0, phase_do = 0;");
    if (t_.ds_stages > 1) out_.line("int stage_ds = 0;");
    if (t_.lag) out_.line("int phase_ds = 1;");
    if (overlapped()) out_.line("int stage_k_before = 0;  // of the step before");
    if (t_.ping_pong) {
      out_.line("const int turn = 8 + {0}, next_turn = 9 - {0};", number());
      out_.line("if ({} == 1) barrier_arrive(8, 256);  // the first turn is the first warpgroup's", number());
    }
  }

  // What begins anew with each block of keys.
  void block_state() {
    const std::string key = first_key() + " + warp * 16 + (lane >> 2)";
    if (spec_.edge == Edge::length) out_.line("const int key = {};  // this thread's first row", key);
    if (spec_.edge == Edge::diagonals) {
      out_.line("// Distance of this thread's first key from the last one that its first query of tile 0 sees.");
      out_.line("const int limit = {} - offset - (2 * (lane & 3){});", key,
                rows() ? "" : by_warpgroup(0, t_.block_m / 2));
    }
    if (tracks_tile()) out_.line("QueryTile tile = first_query_tile<kDescending>(block, params);");
    if (!bulk() && t_.lag) out_.line("QueryTile before = tile;");
    out_.line("int accumulate = 0;  // 0: the next product starts a new dK or dV");
    if (two_keys()) {
      out_.line("const int stage_k = slot ^ 1;  // two blocks, two buffers");
      out_.line("mbarrier_wait(shared + kKFull + 8 * stage_k, phase_slot ^ stage_k);");
    } else {
      out_.line("mbarrier_wait(shared + kKFull, {});", t_.persistent ? "phase_keys" : "0");
    }
    if (!awaits_v_late()) out_.line("mbarrier_wait(shared + kVFull, {});", t_.persistent ? "phase_keys" : "0");
    if (t_.persistent) out_.line("phase_keys ^= 1;");
    // Nothing is under way, which ptxas has to be told: it would wait for S before the gradients leave beside it
    // (C7517).
    if (overlapped()) out_.line("wgmma_wait_group<0>();");
    if (!t_.v_in_registers) return;
    out_.line("uint32_t v[4 * kVSteps];");
    out_.line("load_rows<kVSteps>(v, shared + kSharedV{}, kBlockN * 128, warp, lane);", own_rows());
    if (!t_.persistent) return;
    out_.line("const uint32_t zero = zero_after(v);");
    arrive("shared + kVEmpty + zero");
  }

  // In the step itself, behind the product that needs K alone.
  bool awaits_v_late() const { return overlapped() && !t_.v_in_registers; }

  // The first step finds the dS of a step before it, all zeros.
  void prime() {
    out_.line("for (int i = threadIdx.x - 128; i < static_cast<int>(kDsBytes / 16); i += 256)");
    out_.line("  st_shared_v4(shared + kSharedDs + 16 * i, 0, 0, 0, 0);");
    out_.line("fence_proxy_async();");
    arrive("shared + kDsFull");
    out_.line("stage_ds = 1;");
  }

  // Rings of one size turn together.
  bool one_ring() const { return t_.q_stages == t_.do_stages; }
  const char* stage_do() const { return one_ring() ? "stage_q" : "stage_do"; }

  // The direct path needs the tile for its address, a causal mask for its rows.
  bool tracks_tile() const { return spec_.causal || !bulk(); }

  static std::string chunk_offset(const Columns& columns, int tile_rows) {
    return columns.first == 0 ? "" : fmt::format(" + {}", columns.first / 64 * tile_rows * 128);
  }
  // Where a part's columns of K start: a chunk, or the second half of one.
  int key_columns(const DqPart& part) const { return part.column / 64 * t_.block_n() * 128 + part.column % 64 * 2; }

  void advance() {
    if (t_.ds_stages > 1) {
      out_.open("if (++stage_ds == kDsStages) {");
      out_.line("stage_ds = 0;");
      if (t_.lag) out_.line("phase_ds ^= 1;");
      out_.close();
    }
    if (!bulk() && t_.lag) out_.line("before = tile;");
    if (overlapped()) out_.line("stage_k_before = stage_k;");
    if (overlapped()) out_.line("++done;");
    if (tracks_tile()) out_.line("advance<kDescending>(tile, block, params);");
  }

  enum class Segment { block, unseen, drain };

  void segment(const std::vector<Line>& lines, Segment kind) {
    segment_ = kind;
    declare(lines);
    for (const Line& line : lines) {
      if (line.least_step > 0) out_.open(fmt::format("if ({} >= {}) {{", steps_before(), line.least_step));
      if (line.least_steps > 0) out_.open(fmt::format("if ({} >= {}) {{", steps_in_all(), line.least_steps));
      print(line);
      if (kind == Segment::drain && from_registers() && !overlapped()) beside_drain(line);
      if (line.least_step > 0) out_.close();
      if (line.least_steps > 0) out_.close();
    }
  }

  bool has_no_part_in(const Action& action) const {
    switch (action.kind) {
      case Kind::issue:
        return (action.product == Product::dk && dk_.count == 0) || (action.product == Product::dv && dv_.count == 0) ||
               (action.product == Product::dq && dq_.width == 0);
      case Kind::store_dq: return dq_.width == 0;
      case Kind::publish_dq: return dq_.width == 0 || !bulk();
      case Kind::reclaim: return from_registers();
      default: return false;
    }
  }

  // What a tile without visible keys has no part in: its dS is zero.
  static bool needs_keys(const Action& action) {
    switch (action.kind) {
      case Kind::issue:
      case Kind::wait: return action.product != Product::dq;
      case Kind::load:
      case Kind::probabilities:
      case Kind::gradients: return true;
      default: return false;
    }
  }

  // Registers that live within a step.
  void declare(const std::vector<Line>& lines) {
    const auto has = [&](Kind kind) {
      return std::ranges::any_of(lines, [&](const Line& line) { return line.action.kind == kind; });
    };
    if (has(Kind::gradients)) {
      out_.line("float s[kScores], dp[kScores];");
      out_.line("uint32_t p[kPacked], ds[kPacked];");
    }
    if (segment_ == Segment::unseen) out_.line("const uint32_t ds[kPacked] = {};");
    if (has(Kind::load)) out_.line("float2 statistics[kScores / 4];");
    if (has(Kind::store_dq)) out_.line("float dq[{}];", dq_.width / 2);
    if (t_.lag && std::ranges::any_of(lines, [](const Line& line) { return line.action.offset == -1; })) {
      out_.line("const int stage_before = stage_ds == 0 ? kDsStages - 1 : stage_ds - 1;");
      out_.line("const int phase_before = stage_ds == 0 ? phase_ds : phase_ds ^ 1;");
    }
  }

  std::string ds_stage(const Action& action) const {
    return action.offset < 0 ? "stage_before" : t_.ds_stages > 1 ? "stage_ds" : "0";
  }

  void print(const Line& line) {
    const Action& a = line.action;
    switch (a.kind) {
      case Kind::await: await(a); return;
      case Kind::claim: out_.line("mbarrier_wait(shared + kDsEmpty + 8 * stage_ds, phase_ds);"); return;
      case Kind::issue: issue(a); return;
      case Kind::wait: wait(line); return;
      case Kind::load: out_.line("load_statistics(statistics, {});", statistics_address(a.buffer)); return;
      case Kind::probabilities: probabilities(); return;
      case Kind::gradients:
        out_.line("score_gradients<{}>(s, dp, {}, ds);", element(),
                  t_.prefetch ? "statistics" : statistics_address(Buffer::d_o));
        out_.line("pack<{}>(s, p);", element());
        return;
      case Kind::reclaim:
        out_.open("if (step == 0 && staged) {");
        out_.line("if (thread == 0) bulk_wait_group_read<0>();");
        out_.line("barrier_sync(1, 256);");
        out_.close();
        return;
      case Kind::store:
        out_.line("store_transposed(ds, ds_address + {} * kDsBytes);", ds_stage(a));
        if (!rows()) out_.line("store_transposed(p, ds_address + (kSharedP - kSharedDs) + {} * kPBytes);", ds_stage(a));
        return;
      case Kind::fence: out_.line("fence_proxy_async();"); return;
      case Kind::signal: arrive("shared + kDsFull + 8 * stage_ds"); return;
      case Kind::meet: out_.line("barrier_sync(1, 256);"); return;
      case Kind::take_turn: out_.line("barrier_sync(turn, 256);"); return;
      case Kind::pass_turn: out_.line("barrier_arrive(next_turn, 256);"); return;
      case Kind::release: release(a); return;
      case Kind::store_gradients: store_gradients(); return;
      case Kind::store_dq: store_dq(a); return;
      case Kind::publish_dq:
        out_.line("fence_proxy_async();");
        out_.line("barrier_arrive({}{}, 160);", barrier(2), adder(line));
        return;
    }
  }

  // Two warps that take turns at the steps of a block have barriers of their own.
  std::string adder(const Line& line) const {
    if (!adds_by_step(spec_)) return "";
    const auto parity = [](const char* steps, bool odd) {
      return odd ? fmt::format(" + 8 * (({} + 1) & 1)", steps) : fmt::format(" + 8 * ({} & 1)", steps);
    };
    if (segment_ != Segment::drain) return parity(steps_before(), line.action.offset % 2 != 0);
    return parity(steps_in_all(), std::max(line.least_steps, 1) % 2 != 0);  // so many steps before the end
  }

  std::string statistics_address(Buffer buffer) const {
    return buffer == Buffer::q ? "lse_address + stage_q * kStatisticsBytes"
                               : fmt::format("delta_address + {} * kStatisticsBytes", stage_do());
  }

  void await(const Action& a) {
    switch (a.buffer) {
      case Buffer::q: out_.line("mbarrier_wait(shared + kQFull + 8 * stage_q, phase_q);"); return;
      case Buffer::d_o:
        out_.line("mbarrier_wait(shared + kDoFull + 8 * {}, {});", stage_do(), one_ring() ? "phase_q" : "phase_do");
        return;
      case Buffer::ds: out_.line("mbarrier_wait(shared + kDsFull + 8 * stage_before, phase_before);"); return;
      case Buffer::k: return;
      case Buffer::v: out_.line("if (step == 0) mbarrier_wait(shared + kVFull, phase_keys ^ 1);"); return;
    }
  }

  void issue(const Action& a) {
    out_.line("wgmma_fence();");
    switch (a.product) {
      case Product::s:
        out_.line("issue_scores<kQkSteps>(s, k_rows{}, q_rows + ((stage_q * kQBytes) >> 4));", key_buffer());
        return;
      case Product::dp:
        out_.line("{} do_rows + (({} * kDoBytes) >> 4));",
                  t_.v_in_registers ? "issue_dp(dp, v," : "issue_scores<kVSteps>(dp, v_rows,", stage_do());
        return;
      case Product::dv:
        out_.line("{}(dv, {}, do_columns + (({} * kDoBytes) >> 4), accumulate);", issue_gradient_name(dv_.count),
                  rows() ? "p" : fmt::format("p_columns + (({} * kPBytes) >> 4)", ds_stage(a)), stage_do());
        return;
      case Product::dk:
        out_.line("{}(dk, {}, q_columns + ((stage_q * kQBytes) >> 4), accumulate);", issue_gradient_name(dk_.count),
                  rows() ? "ds" : fmt::format("ds_columns + (({} * kDsBytes) >> 4)", ds_stage(a)));
        return;
      case Product::dq:
        out_.line("{}(dq, ds_rows + (({} * kDsBytes) >> 4), k_columns{});", issue_dq_name(dq_.width), ds_stage(a),
                  overlapped() ? " + ((stage_k_before * kKBytes) >> 4)" : key_buffer());
        return;
    }
  }

  void wait(const Line& line) {
    out_.line("wgmma_wait_group<{}>();", line.pending);
    // dK and dV are read when the block ends.
    for (Product product : line.complete) {
      if (product == Product::s) out_.line("pin(s);");
      if (product == Product::dp) out_.line("pin(dp);");
      if (product == Product::dq) out_.line("pin(dq);");
    }
  }

  void probabilities() {
    if (spec_.edge == Edge::diagonals) {
      out_.line("if (block.n * kBlockN + kBlockN - 1 > tile.m * kBlockM + offset)");
      out_.line("  mask_queries(s, limit - tile.m * kBlockM);");
    } else if (spec_.edge == Edge::length) {
      out_.line("if ((block.n + 1) * kBlockN > params.seqlen_k) mask_keys(s, key, params.seqlen_k);");
    }
    out_.line("probabilities(s, {}, params.scale_log2);", t_.prefetch ? "statistics" : statistics_address(Buffer::q));
  }

  void arrive(const char* barrier_address) {
    out_.line("__syncwarp();");
    out_.line("if (lane == 0) mbarrier_arrive({});", barrier_address);
  }

  void release(const Action& a) {
    if (a.buffer == Buffer::k) {
      if (segment_ == Segment::drain) return;
      out_.open("if (step == 0 && done > 0) {");
      arrive("shared + kKEmpty + 8 * stage_k_before");
      out_.close();
      return;
    }
    if (a.buffer == Buffer::v) {
      out_.open("if (step == block.steps - 1) {  // the last product with V");
      arrive("shared + kVEmpty");
      out_.close();
      return;
    }
    if (a.buffer == Buffer::ds) {
      // The buffer stays full for the first step of the next block, which looks at it once more.
      if (segment_ == Segment::drain && t_.persistent) return;
      arrive("shared + kDsEmpty + 8 * stage_before");
      return;
    }
    const bool q = a.buffer == Buffer::q;
    if (!q && one_ring()) {  // Q, released later in the step, takes the ring on
      arrive("shared + kDoEmpty + 8 * stage_q");
      return;
    }
    const char *stage = q ? "stage_q" : "stage_do", *phase = q ? "phase_q" : "phase_do";
    arrive(q ? "shared + kQEmpty + 8 * stage_q" : "shared + kDoEmpty + 8 * stage_do");
    if ((q ? t_.q_stages : t_.do_stages) > 1) {
      out_.open(fmt::format("if (++{} == {}) {{", stage, q ? "kQStages" : "kDoStages"));
      out_.line("{} = 0;", stage);
      out_.line("{} ^= 1;", phase);
      out_.close();
    } else {
      out_.line("{} ^= 1;", phase);
    }
  }

  void store_dq(const Action& a) {
    if (!bulk()) {
      out_.line("add_dq(dq, params.dq_sums + static_cast<int64_t>({}.index) * kDqFloats{} + 4 * thread);",
                a.offset < 0 ? "before" : "tile", by_warpgroup(0, layout_.dq_start(1)));
      return;
    }
    // The step that stages first finds the buffer empty.
    const std::string other = t_.persistent && from_registers() && !overlapped() ? " || staged" : "";
    if (segment_ == Segment::drain)
      out_.line("if ({} >= 2{}) barrier_sync({}, 160);  // the part before has left", steps_in_all(), other,
                barrier(4));
    else
      out_.line("if ({} >= {}{}) barrier_sync({}, 160);  // the part before has left", steps_before(), 1 - a.offset,
                other, barrier(4));
    out_.line("stage_dq(dq, dq_address);");
  }

  // While the last dQ is computed: dV is complete. Once it is, K may go.
  void beside_drain(const Line& line) {
    if (line.action.kind == Kind::issue) write("dv", dv_, "1.f");
    if (line.action.kind == Kind::wait && t_.persistent) arrive(keys_empty());
  }

  // dK and dV from registers, but for what beside_drain() has done.
  void direct_epilogue() {
    if (!t_.lag) {
      if (t_.persistent) arrive(keys_empty());
      write("dv", dv_, "1.f");
    }
    write("dk", dk_, "params.scale");
    if (t_.persistent) out_.line("staged = true;");
  }

  // Of the block before, which its slot still tells. The one before the first block has none.
  void store_gradients() {
    const bool last = segment_ == Segment::drain;
    out_.open(last ? "{" : "if (step == 0 && done > 0) {");
    out_.line("const KeyBlock block = load_key_block(shared + kItems + 32 * {});", last ? "(slot ^ 1)" : "slot");
    write("dv", dv_, "1.f");
    write("dk", dk_, "params.scale");
    if (!last) arrive("shared + kItemEmpty + 8 * slot");
    out_.close();
  }

  void write(const std::string& name, const Columns& columns, const char* factor) {
    if (columns.count == 0) return;
    out_.line("pin({});", name);
    if (parts()) {
      out_.line(
          "write_part({}, part_of<{}, {}>(params, block.batch * params.heads_kv + block.head, block.n, {}){} + 4 * "
          "thread);",
          name, spec_.head_dim, spec_.head_dim_v, number(),
          name == "dk" ? fmt::format(" + {}", 64 * spec_.head_dim_v) : "");
      return;
    }
    out_.line(
        "write_gradient<{0}, {1}>({2}, params.d_{3} + block.batch * params.{2}_batch + block.head * "
        "params.{2}_head{4}, params.{2}_row,",
        element(), columns.count, name, name.substr(1), columns.first == 0 ? "" : fmt::format(" + {}", columns.first));
    out_.line("    block.n * kBlockN{} + warp * 16 + (lane >> 2), params.seqlen_k, lane, {});",
              rows() ? by_warpgroup(0, 64) : "", factor);
  }

  void epilogue() {
    out_.line("// -- dV and dK, over V and K");
    if (dv_.count > 0) out_.line("pin(dv);");
    if (dk_.count > 0) out_.line("pin(dk);");
    out_.line("barrier_sync(1, 256);  // nobody reads K and V any more");
    gradient("dv", "kSharedV", dv_, "1.f");
    gradient("dk", "kSharedK", dk_, "params.scale");
    out_.line("fence_proxy_async();");
    out_.line("barrier_sync({}, 128);", barrier(6));
    out_.open("if (thread == 0) {");
    store("dv", "kSharedV", dv_);
    store("dk", "kSharedK", dk_);
    out_.line("bulk_wait_group_read<0>();  // shared memory must outlive the store's reads");
    out_.close();
  }

  void persistent_epilogue() {
    out_.line("// -- dV and dK, from the buffers of dS and dQ, while K and V of the next block come");
    arrive(keys_empty());
    out_.line("pin(dv);");
    out_.line("pin(dk);");
    const std::string dv = "shared + kSharedDs" + by_warpgroup(0, layout_.v_chunks * 64 * 128),
                      dk = "shared + kSharedDq" + by_warpgroup(0, 4 * layout_.dq_start(1));
    out_.line("barrier_sync(1, 256);  // nobody reads dS any more");
    out_.line("stage_gradient<{}, {}>(dv, {}, 64 * 128, warp, lane, 1.f);", element(), dv_.count, dv);
    out_.line("barrier_sync({}, 160);  // the last part of dQ has left", barrier(4));
    out_.line("stage_gradient<{}, {}>(dk, {}, 64 * 128, warp, lane, params.scale);", element(), dk_.count, dk);
    out_.line("fence_proxy_async();");
    out_.line("barrier_sync({}, 128);", barrier(6));
    out_.open("if (thread == 0) {");
    for (const auto& [name, from, columns] : {std::tuple{"dv", dv, dv_.count}, {"dk", dk, dk_.count}})
      out_.line("store_gradient<{}>(map_{}, {}, 64 * 128, 0, block.n * kBlockN{}, block.head, block.batch);", columns,
                name, from, by_warpgroup(0, 64));
    out_.close();
    out_.line("staged = true;");
  }

  std::string gradient_buffer(const char* buffer, const Columns& columns) const {
    return fmt::format("shared + {}{}{}", buffer, own_rows(), chunk_offset(columns, t_.block_n()));
  }
  void gradient(const char* name, const char* buffer, const Columns& columns, const char* factor) {
    if (columns.count == 0) return;
    out_.line("stage_gradient<{}, {}>({}, {}, kBlockN * 128, warp, lane, {});", element(), columns.count, name,
              gradient_buffer(buffer, columns), factor);
  }
  void store(const char* name, const char* buffer, const Columns& columns) {
    if (columns.count == 0) return;
    out_.line("store_gradient<{}>(map_{}, {}, kBlockN * 128, {}, block.n * kBlockN{}, block.head, block.batch);",
              columns.count, name, gradient_buffer(buffer, columns), columns.first, rows() ? by_warpgroup(0, 64) : "");
  }

  Writer& out_;
  const KernelSpec& spec_;
  const Tunables& t_;
  const Layout layout_;
  const int warpgroup_;
  DqPart dq_;
  Columns dk_, dv_;  // what this warpgroup accumulates
  Segment segment_ = Segment::block;
};

}  // namespace

bool consumers_are_alike(const KernelSpec& spec) {
  const Layout l = backward::layout_of(spec);
  return spec.config.backward.split == Split::rows && l.dq[0].width == l.dq[1].width;
}

void emit_consumers(Writer& out, const KernelSpec& spec) {
  if (consumers_are_alike(spec)) {
    ConsumerPrinter(out, spec, -1).print();
    return;
  }
  for (int w = 0; w < kConsumers; w++) ConsumerPrinter(out, spec, w).print();
}

}  // namespace attune::codegen::backward
