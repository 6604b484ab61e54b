#include "codegen/emit_parts.h"

namespace attune::codegen {
namespace {

class ConsumerPrinter {
 public:
  ConsumerPrinter(Writer& out, const KernelSpec& spec, const Program& program)
      : out_(out), spec_(spec), c_(spec.config), program_(program) {}

  void print(const std::string& name) {
    out_.line("// Consumer warpgroup: 64 query rows of every tile of this block.");
    out_.open(
        fmt::format("ATTUNE_DEVICE void {}(const TensorMap* map_o, const ForwardParams& params, uint32_t shared, "
                    "int warpgroup) {{",
                    name));
    state();
    if (turns()) {
      out_.line("const int turn = 1 + warpgroup, next_turn = 1 + (warpgroup + 1) % kConsumers;");
      out_.line("// The last warpgroup grants the first one its first turn.");
      out_.line("if (warpgroup == kConsumers - 1) barrier_arrive(1, 256);");
    }
    out_.line("");
    if (program_.flattened)
      flattened();
    else
      drained();
    out_.close();
    out_.line("");
  }

 private:
  using Kind = Line::Kind;
  bool q_in_registers() const { return q_steps_in_registers(spec_) > 0; }
  bool q_in_shared() const { return c_.q == QSource::shared; }
  bool speculative() const { return c_.softmax != Softmax::exact; }
  bool turns() const { return c_.ping_pong && c_.consumers > 1 && c_.order != Order::serial; }
  bool remembers() const { return c_.softmax == Softmax::zero && c_.remember; }
  bool skips() const { return c_.skips_blocks() && spec_.causal; }
  bool masks_by_row() const { return spec_.causal; }
  // Where the first step of a flattened program has no turn, and all others have one.
  bool counts_steps() const { return c_.skip_idle && turns() && program_.flattened && !c_.first_turn; }
  const char* element() const { return element_name(spec_.dtype); }

  void state() {
    out_.line("const int thread = threadIdx.x & 127, lane = thread & 31, warp = thread >> 5;");
    out_.line("const bool leader = thread == 0;");
    out_.line("float s[kScores], o[kOutputs];");
    out_.line("uint32_t p[kPacked];");
    out_.line("RowState row;");
    if (q_in_registers()) out_.line("uint32_t q[kQRegisters];");
    if (q_in_shared())
      out_.line(
          "const uint64_t q_base = wgmma_descriptor(shared + kSharedQ + warpgroup * (kQkChunks * 64 * 128), 16, "
          "1024);");
    out_.line("const uint64_t k_base = wgmma_descriptor(shared + kSharedK, 16, 1024);");
    out_.line("const uint64_t v_base = wgmma_descriptor(shared + kSharedV, kBlockN * 128, 1024);");
    out_.line("int stage_k = 0, phase_k = 0, stage_v = 0, phase_v = 0, buffer_q = 0, phase_q = 0, slot = 0;");
    out_.line("const float scale_log2 = params.scale_log2;");
    out_.line(
        "const int matrix_row = warp * 16 + (lane & 15);  // row that this lane addresses in ldmatrix and stmatrix");
    out_.line("Tile tile;");
    if (masks_by_row()) out_.line("int first_row = 0;  // this thread's first query row");
    if (skips()) out_.line("int skipped = 0;  // key blocks above this warpgroup's diagonal, still to be passed over");
    if (counts_steps()) out_.line("bool begun = false;  // a step has been taken");
    if (remembers()) out_.line("bool zero_serves = true;  // false once reference 0 failed: such data fails again");
  }

  // Waits for Q of the next tile and takes it over.
  void take_tile(const char* when_done) {
    out_.line("mbarrier_wait(shared + kQFull + 8 * buffer_q, phase_q);");
    out_.line("ld_shared_v4(shared + kSlots + 16 * (slot++ & 3), tile.m, tile.head, tile.batch, tile.blocks);");
    if (c_.grid != Grid::plain) {
      if (std::string_view(when_done) == "return")
        out_.line("if (tile.m < 0) return;");
      else if (*when_done != '\0')
        out_.line("{}", when_done);
    }
  }
  void adopt_tile() {
    if (masks_by_row()) out_.line("first_row = tile.m * kBlockM + warpgroup * 64 + warp * 16 + (lane >> 2);");
    if (skips()) {
      out_.line("const int below = tile.m * kBlockM - params.seqlen_q + params.seqlen_k + warpgroup * 64 + 64;");
      out_.line("const int needed = max(1, (below + kBlockN - 1) / kBlockN);");
      out_.line("skipped = max(0, tile.blocks - needed);");
      out_.line("tile.blocks -= skipped;");
    }
    if (q_in_registers()) {
      out_.line("#pragma unroll");
      out_.line("for (int step = 0; step < kQRegisters / 4; step++)");
      out_.line("  ldmatrix_x4(shared + kSharedQ + buffer_q * kQBytes + warpgroup * (kQkChunks * 64 * 128) +");
      out_.line("                  swizzled(64, matrix_row, 2 * step + (lane >> 4)),");
      out_.line("              q[4 * step], q[4 * step + 1], q[4 * step + 2], q[4 * step + 3]);");
      // Q's buffer is given back by one thread for all.
      if (q_in_shared()) out_.line("barrier_sync(8 + warpgroup, 128);  // every warp has read its rows");
    }
  }
  void next_q_buffer() {
    if (c_.q_buffers > 1) {
      out_.open("if (++buffer_q == kQBuffers) {");
      out_.line("buffer_q = 0;");
      out_.line("phase_q ^= 1;");
      out_.close();
    } else {
      out_.line("phase_q ^= 1;");
    }
  }
  void loops() {
    out_.line("int n = tile.blocks - 2;");
    if (program_.has_second) {
      out_.line("// -- the block after the narrow first one");
      out_.open("if (n >= 0) {");
      segment(program_.second);
      out_.line("accumulate = 1;");
      out_.line("--n;");
      out_.close();
    }
    if (program_.has_masked) {
      out_.line("// -- blocks that cross the diagonal: the top row of this warpgroup does not see all of them");
      out_.line("const int seen_by_top_row = tile.m * kBlockM + warpgroup * 64 - params.seqlen_q + params.seqlen_k;");
      out_.line("#pragma unroll 1");
      out_.open("for (; n >= 0 && (n + 1) * kBlockN - 1 > seen_by_top_row; --n) {");
      segment(program_.masked);
      out_.line("accumulate = 1;");
      out_.close();
    }
    out_.line("// -- one key block");
    out_.line("#pragma unroll 1");
    out_.open("for (; n >= 0; --n) {");
    segment(program_.block);
    out_.line("accumulate = 1;");
    out_.close();
  }

  void turn_over() {
    out_.line("barrier_sync(turn, 256);");
    out_.line("barrier_arrive(next_turn, 256);");
  }

  const char* idle() const { return "tile.m * kBlockM + warpgroup * 64 >= params.seqlen_q"; }

  // Turns and stages as if the tile were computed.
  void pass_over_tile() {
    // A producer that asks for the next Q ahead does so before this tile's later blocks, which the others wait for.
    if (c_.moves_q()) give_q_back();
    out_.line("#pragma unroll 1");
    out_.open("for (int n = 0; n < tile.blocks; n++) {");
    if (c_.first_turn) {
      turn_over();
    } else if (turns()) {
      out_.open(counts_steps() ? "if (begun) {" : "if (n > 0) {");
      turn_over();
      out_.close();
    }
    if (counts_steps()) out_.line("begun = true;");
    out_.line("mbarrier_wait(shared + kKFull + 8 * stage_k, phase_k);");
    order_waits();
    release("k", "K");
    out_.line("mbarrier_wait(shared + kVFull + 8 * stage_v, phase_v);");
    order_waits();
    release("v", "V");
    out_.close();
    if (c_.grid != Grid::plain && !c_.moves_q()) give_q_back();
  }

  // Whoever moves Q to registers does so by warp, and arrives by warp once all of its lanes have.
  void give_q_back() {
    if (c_.moves_q()) out_.line("__syncwarp();");
    out_.line("if ({}) mbarrier_arrive(shared + kQEmpty + 8 * buffer_q);", c_.moves_q() ? "lane == 0" : "leader");
  }

  // Waits for Q of the next tile and takes it over, or ends.
  void take_tile_or_end() {
    take_tile("");
    out_.open("if (tile.m < 0) {");
    end();
  }
  // The rest of a block of code behind which nothing follows.
  void end() {
    finish_stores();
    out_.line("return;");
    out_.close();
  }

  // A stream of blocks across the tiles. Behind a tile that is passed over it begins anew.
  void flattened() {
    take_tile("return");
    if (c_.skip_idle) {
      out_.line("#pragma unroll 1");
      out_.open("while (true) {");
      out_.open(fmt::format("while ({}) {{", idle()));
      pass_over_tile();
      next_q_buffer();
      take_tile_or_end();
      out_.close();
    }
    adopt_tile_scoped();
    if (counts_steps()) {
      out_.open("if (begun) {");
      turn_over();
      out_.close();
      out_.line("begun = true;");
    }
    out_.line("// -- first block of {}", c_.skip_idle ? "a tile behind none" : "the first tile");
    segment(program_.first);
    out_.line("int accumulate = 0;  // 0: the next P V starts a new O");
    if (c_.skip_idle) {
      out_.line("Tile done;");
      out_.line("bool more;");
    }
    out_.line("#pragma unroll 1");
    out_.open("while (true) {");
    loops();
    out_.line("// -- tile boundary: this tile's last product runs beside the next tile's first");
    out_.line("{}done = tile;", c_.skip_idle ? "" : "const Tile ");
    next_q_buffer();
    take_tile(c_.skip_idle ? "more = tile.m >= 0;" : "const bool more = tile.m >= 0;");
    if (c_.skip_idle) {
      out_.line("if (!more || {}) break;", idle());
    } else {
      out_.open("if (!more) {");
      segment(program_.drain);
      end();
    }
    adopt_tile_scoped();
    segment(program_.boundary);
    out_.line("accumulate = 0;");
    out_.close();
    if (c_.skip_idle) {
      segment(program_.drain);
      out_.open("if (!more) {");
      end();
      out_.close();
    }
  }

  void drained() {
    const bool plain = c_.grid == Grid::plain;
    if (plain) {
      take_tile("");
    } else {
      out_.line("#pragma unroll 1");
      out_.open("while (true) {");
      take_tile_or_end();
    }
    if (c_.skip_idle) {
      out_.open(fmt::format("if ({}) {{", idle()));
      pass_over_tile();
      if (plain) {
        out_.line("return;");
      } else {
        next_q_buffer();
        out_.line("continue;");
      }
      out_.close();
    }
    adopt_tile_scoped();
    out_.line("// -- first block");
    segment(program_.first);
    out_.line("int accumulate = 0;  // 0: the next P V starts a new O");
    loops();
    out_.line("// -- last product and output");
    out_.line("const Tile done = tile;");
    segment(program_.drain);
    if (plain) {
      finish_stores();
      return;
    }
    if (c_.o == OBuffer::over_q) {
      out_.open("if (leader) {");
      out_.line("bulk_wait_group_read();  // O lies over Q: the next Q may come once the store has read it");
      out_.line("mbarrier_arrive(shared + kQEmpty + 8 * buffer_q);");
      out_.close();
    }
    next_q_buffer();
    out_.close();
  }

  void finish_stores() {
    if (c_.o == OBuffer::direct) return;
    out_.line("if ({}) bulk_wait_group_read();  // shared memory must outlive the store's reads",
              c_.warp_epilogue ? "lane == 0" : "leader");
  }
  void adopt_tile_scoped() {
    if (skips()) out_.open("{");
    adopt_tile();
    if (skips()) out_.close();
  }

  void segment(const std::vector<Line>& lines) {
    for (const Line& line : lines) print(line);
  }

  void print(const Line& line) {
    switch (line.kind) {
      case Kind::await_k: out_.line("mbarrier_wait(shared + kKFull + 8 * stage_k, phase_k);"); return;
      case Kind::await_v: out_.line("mbarrier_wait(shared + kVFull + 8 * stage_v, phase_v);"); return;
      case Kind::take_turn:
        if (turns()) out_.line("barrier_sync(turn, 256);");
        return;
      case Kind::pass_turn:
        if (turns()) out_.line("barrier_arrive(next_turn, 256);");
        return;
      case Kind::fence:
        if (line.s) out_.line("pin(s);");
        if (line.o) out_.line("pin(o);");
        out_.line("wgmma_fence();");
        return;
      case Kind::issue_qk:
        out_.line("{}(s, {}{}k_base + ((stage_k * kKBytes) >> 4));", product_name(spec_, Product::qk, line.width),
                  q_in_registers() ? "q, " : "",
                  !q_in_shared()     ? ""
                  : c_.q_buffers > 1 ? "q_base + ((buffer_q * kQBytes) >> 4), "
                                     : "q_base, ");
        return;
      case Kind::issue_pv:
        out_.line("{}(o, p, v_base + ((stage_v * kVBytes) >> 4), accumulate);",
                  product_name(spec_, Product::pv, line.width));
        return;
      case Kind::wait:
        out_.line("wgmma_wait_group<{}>();", line.pending);
        if (line.s) out_.line("pin(s);");
        if (line.o) {
          out_.line("pin(o);");
          out_.line("pin(p);");
        }
        return;
      case Kind::release_k: release("k", "K"); return;
      case Kind::release_v: release("v", "V"); return;
      case Kind::release_q:
        if (c_.moves_q()) {
          give_q_back();
          return;
        }
        // The next Q may come during this block's softmax and the last product
        out_.line("if (leader && {} == {}) mbarrier_arrive(shared + kQEmpty + 8 * buffer_q);",
                  line.first ? "tile.blocks" : "n", line.first ? 1 : 0);
        return;
      case Kind::mask: mask(line); return;
      case Kind::softmax: softmax(line); return;
      case Kind::save_row: out_.line("const RowState done_row = row;"); return;
      case Kind::epilogue: epilogue(line.saved ? "done_row" : "row"); return;
      case Kind::skip_k:
        out_.open("for (int i = 0; i < skipped; i++) {");
        if (turns()) turn_over();
        out_.line("mbarrier_wait(shared + kKFull + 8 * stage_k, phase_k);");
        order_waits();
        release("k", "K");
        out_.close();
        return;
      case Kind::skip_v:
        out_.open("for (; skipped > 0; skipped--) {");
        out_.line("mbarrier_wait(shared + kVFull + 8 * stage_v, phase_v);");
        order_waits();
        release("v", "V");
        out_.close();
        return;
    }
  }

  // No product follows that all warps take part in. A warp that is still to see this phase must not find the next one.
  void order_waits() { out_.line("barrier_sync(8 + warpgroup, 128);  // every warp has seen this phase"); }

  void release(const char* lower, const char* upper) {
    if (c_.cluster > 1)
      out_.line("if (thread < kCluster) mbarrier_arrive_at(shared + k{0}Empty + 8 * stage_{1}, thread);", upper, lower);
    else
      out_.line("if (leader) mbarrier_arrive(shared + k{0}Empty + 8 * stage_{1});", upper, lower);
    out_.open(fmt::format("if (++stage_{} == kStages) {{", lower));
    out_.line("stage_{} = 0;", lower);
    out_.line("phase_{} ^= 1;", lower);
    out_.close();
  }

  void mask(const Line& line) {
    out_.open("{");
    out_.line("const int column = {} * kBlockN + 2 * (lane & 3);", line.first ? "(tile.blocks - 1)" : "n");
    if (spec_.causal)
      out_.line("const int limit = first_row - params.seqlen_q + params.seqlen_k - column;");
    else
      out_.line("const int limit = params.seqlen_k - 1 - column;");
    out_.line("mask_columns<{}>(s, limit, limit{});", line.width, spec_.causal ? " + 8" : "");
    out_.close();
  }

  void softmax(const Line& line) {
    const std::string width = std::to_string(line.width);
    switch (line.part) {
      case SoftmaxPart::online: {
        // A masked block may leave a row without any key so far, except where the mask is known to keep one.
        const bool guard = line.masked && (spec_.edge == Edge::length || spec_.causal);
        out_.line("online_softmax<{}, {}, {}>(s, row, scale_log2);", width, line.first, guard);
        if (c_.order == Order::qk_pv) out_.line("pin(s);  // else the exponentials sink below the wait for P V");
        return;
      }
      case SoftmaxPart::convert: out_.line("convert_p<{}, {}>(s, p);", element(), width); return;
      case SoftmaxPart::rescale: out_.line("rescale(o, row.correction[0], row.correction[1]);"); return;
      case SoftmaxPart::speculative: speculative(line); return;
    }
  }

  void speculative(const Line& line) {
    const std::string arguments = fmt::format("<{}, {}>(s, p, ", element(), line.width);
    if (!line.first) {
      out_.line("{}{}o, row, scale_log2);", line.masked ? "next_block_masked" : "next_block", arguments);
      return;
    }
    // A causal tile begins at the diagonal, where rows see few keys.
    const std::string by_zero =
        fmt::format("first_block_by_zero<{}, {}, {}>(s, p, row, scale_log2)", element(), line.width, !spec_.causal);
    if (c_.softmax == Softmax::first_max) {
      out_.line("first_block_by_max{}row, scale_log2);", arguments);
    } else if (remembers()) {
      out_.line("bool served = false;");
      out_.line("if (zero_serves) served = zero_serves = {};", by_zero);
      out_.line("if (__builtin_expect(!served, 0)) first_block_by_max{}row, scale_log2);", arguments);
    } else {
      out_.line("if (__builtin_expect(!{}, 0))", by_zero);
      out_.line("  first_block_by_max{}row, scale_log2);", arguments);
    }
    if (line.width != c_.block_n) out_.line("clear_beyond<{}>(p);", line.width);
  }

  void epilogue(const char* row_state) {
    out_.open("{");
    out_.line("const float sum0 = quad_sum({0}.sum[0]), sum1 = quad_sum({0}.sum[1]);", row_state);
    out_.line("const int top = done.m * kBlockM + warpgroup * 64;");
    if (c_.o == OBuffer::direct)
      store_from_registers();
    else
      store_by_tensor_map();
    out_.line("if (params.lse != nullptr && (lane & 3) == 0)");
    out_.line(
        "  store_lse(params.lse + (static_cast<int64_t>(done.batch) * params.heads + done.head) * params.seqlen_q,");
    out_.line("            top + warp * 16 + (lane >> 2), params.seqlen_q, scale_log2, {}.reference, sum0, sum1);",
              row_state);
    out_.close();
  }

  // The leader alone gives buffers back. Whole-warpgroup staging puts every warp's read of the tile's slot before its
  // later arrivals; without it a barrier has to (turns would not do: a tile of one block takes none).
  void order_slot_reads() {
    if (c_.grid != Grid::plain)
      out_.line("barrier_sync(8 + warpgroup, 128);  // every warp has read the tile's slot: it may be written again");
  }

  void store_from_registers() {
    out_.line("const int row_in_head = top + warp * 16 + (lane >> 2);");
    out_.line("write_output<{}, kHeadDimV>(o, params.o + done.batch * params.o_batch + done.head * params.o_head,",
              element());
    out_.line("                            params.o_row, row_in_head, params.seqlen_q, lane, sum0, sum1);");
    order_slot_reads();
  }

  void store_by_tensor_map() {
    const bool by_warp = c_.warp_epilogue;
    const char* storer = by_warp ? "lane == 0" : "leader";
    const std::string barrier = by_warp ? "__syncwarp();" : "barrier_sync(8 + warpgroup, 128);";
    const std::string buffer = c_.o == OBuffer::own ? "kSharedO"
                               : c_.q_buffers > 1   ? "kSharedQ + buffer_q * kQBytes"
                                                    : "kSharedQ";
    const SharedLayout layout = layout_of(spec_);
    // Over Q each warpgroup keeps to its own rows, which the other one does not read.
    out_.line("const uint32_t buffer = shared + {} + warpgroup * ({} * 64 * 128){};", buffer,
              c_.o == OBuffer::own ? std::to_string(layout.o_chunks) : "kQkChunks",
              by_warp ? fmt::format(" + warp * ({} * 16 * 128)", layout.o_chunks) : "");
    for (int first = 0; first < layout.v_chunks; first += layout.o_chunks) {
      if (c_.o == OBuffer::own)
        out_.line("if ({}) bulk_wait_group_read();  // the previous {} store", storer,
                  first == 0 ? "tile's" : "piece's");
      // Over Q the barrier also says that every warp's QK has read Q.
      out_.line("{}", barrier);
      out_.line("stage_output<{}, kHeadDimV, {}, {}, {}>(o, buffer, {}, lane, sum0, sum1);", element(),
                by_warp ? 16 : 64, first, layout.o_chunks, by_warp ? "lane & 15" : "matrix_row");
      out_.line("fence_proxy_async();");
      out_.line("{}", barrier);
      out_.line("if ({}) store_output<kHeadDimV, {}, {}, {}>(map_o, buffer, top{}, done.head, done.batch);", storer,
                by_warp ? 16 : 64, first, layout.o_chunks, by_warp ? " + warp * 16" : "");
    }
    if (by_warp) order_slot_reads();
  }

  Writer& out_;
  const KernelSpec& spec_;
  const Config& c_;
  const Program& program_;
};

}  // namespace

void emit_consumer(Writer& out, const KernelSpec& spec, const Program& program, const std::string& name) {
  ConsumerPrinter(out, spec, program).print(name);
}

}  // namespace attune::codegen
