// How dQ's parts, which the consumers stage, get to their sums.
#include <algorithm>

#include "codegen/backward/emit_parts.h"

namespace attune::codegen::backward {

void emit_take_item(Writer& out, bool keep) {
  out.line("mbarrier_wait(shared + kItemFull + 8 * slot, phase_slot);");
  out.line("const KeyBlock block = load_key_block(shared + kItems + 32 * slot);");
  out.line("if (block.steps == 0) break;");
  if (!keep) {
    out.line("__syncwarp();");
    out.line("if ((threadIdx.x & 31) == 0) mbarrier_arrive(shared + kItemEmpty + 8 * slot);");
  }
  out.line("slot ^= 1;");
  out.line("if (slot == 0) phase_slot ^= 1;");
}

namespace {

class AddPrinter {
 public:
  AddPrinter(Writer& out, const KernelSpec& spec)
      : out_(out),
        layout_(backward::layout_of(spec)),
        persistent_(spec.config.backward.persistent),
        ring_(spec.config.backward.finish == Finish::ring),
        two_(adders(spec) == 2),
        in_order_(takes_turns(spec)),
        claims_(claims_tiles(spec)),
        overlapped_(spec.config.backward.boundary == Boundary::overlapped),
        stored_(spec.config.backward.sums == Sums::stored) {}

  void print() {
    tiles();
    if (persistent_) blocks();
  }

 private:
  void tiles() {
    if (two_) {
      out_.line(
          "// Two warps take turns at adding what the consumers stage of a block's dQ to its sums: while one waits "
          "until its");
      out_.line("// additions are complete and counts them, the other serves the next step.");
    } else {
      out_.line("// One warp adds what the consumers stage of a block's dQ to its sums in global memory.");
    }
    out_.open(fmt::format(
        "ATTUNE_DEVICE void add_dq_tiles(const BackwardParams& params, uint32_t shared, const KeyBlock& block{}) {{",
        two_ ? ", int adder, int first" : ""));
    out_.line("const int lane = threadIdx.x & 31;");
    out_.line("QueryTile tile = first_query_tile<kDescending>(block, params);");
    if (two_) out_.line("if (first == 1) advance<kDescending>(tile, block, params);");
    if (ring_) {
      out_.line(
          "const int pair = block.batch * params.heads_kv + block.head, before = tiles_before_ring(pair, params);");
      out_.line("if (lane == 0 && first < block.steps) wait_for_slot(pair, params);");
    }
    out_.line("#pragma unroll 1");
    out_.open(two_ ? "for (int step = first; step < block.steps; step += 2) {"
                   : "for (int step = 0; step < block.steps; step++) {");
    if (in_order_) await_turn();
    if (claims_) claim();
    if (two_ || claims_) out_.line("__syncwarp();");
    add();
    give_back();
    if (two_) count();
    if (claims_) show_stored();
    out_.line("advance<kDescending>(tile, block, params);");
    if (two_) out_.line("advance<kDescending>(tile, block, params);");
    out_.close();
    if (!two_ && !persistent_) out_.line("if (lane == 0) bulk_wait_group();");
    out_.close();
    out_.line("");
  }

  // Before the dQ is staged, so that the answer is there by then. Meanwhile this warp waits for its own thread block
  // alone, so whoever waits for it does not wait for ever.
  void claim() {
    out_.line(
        "// Who comes first stores a tile's sums, and the others wait until it has. Turns: 0, 1 once somebody is");
    out_.line("// about to store them, 2 and more once they are there.");
    out_.line("bool stores = false;");
    out_.open("if (lane == 0) {");
    out_.line("uint32_t turn = atom_acquire_or(params.turns + tile.index, 1);");
    out_.line("stores = turn == 0;");
    out_.line("while (turn == 1) turn = ld_acquire(params.turns + tile.index);");
    out_.line("fence_proxy_async_all();");
    out_.close();
  }

  // At once, although the warp waits for it: blocks that began together wait the less.
  void show_stored() {
    out_.open("if (stores) {");
    out_.line("bulk_wait_group();");
    out_.line("fence_proxy_async_all();");
    out_.line("red_release_add(params.turns + tile.index, 1);");
    out_.close();
  }

  int parts() const {
    return static_cast<int>(std::ranges::count_if(layout_.dq, [](const DqPart& part) { return part.width > 0; }));
  }

  void await_turn() {
    out_.line("// The blocks of a head add in their order. They started in it, too, so whoever is waited for runs.");
    out_.open("if (lane == 0) {");
    out_.open("while (ld_acquire(params.turns + tile.index) != block.n) {");
    out_.close();
    out_.line("fence_proxy_async_all();");
    out_.close();
  }

  void add() {
    for (int w = 0; w < kConsumers; w++) {
      const DqPart& part = layout_.dq[static_cast<std::size_t>(w)];
      if (part.width == 0) continue;
      const std::string start = w == 0 ? "" : fmt::format(" + {}", layout_.dq_start(w)),
                        start_bytes = w == 0 ? "" : fmt::format(" + {}", 4 * layout_.dq_start(w));
      out_.line("barrier_sync({}{}, 160);  // warpgroup {} has staged its part", 2 + w, two_ ? " + 8 * adder" : "", w);
      out_.open("if (lane == 0) {");
      if (stored_) {
        out_.line("if ({})", claims_ ? "stores" : "block.n == 0");
        move("  bulk_store", start, start_bytes, part);
        out_.line("else");
      }
      move(stored_ ? "  bulk_reduce_add" : "bulk_reduce_add", start, start_bytes, part);
      out_.line("bulk_commit_group();");
      out_.close();
    }
  }

  void move(const char* how, const std::string& start, const std::string& start_bytes, const DqPart& part) {
    out_.line(
        "{}(params.dq_sums + static_cast<int64_t>(tile.index{}) * kDqFloats{}, shared + kSharedDq{}, {}, kEvictLast);",
        how, ring_ ? " - before" : "", start, start_bytes, 4 * part.floats());
  }

  void count() {
    out_.open("if (lane == 0) {");
    // What the async proxy has completed is there for the other one as well; a fence more would be late for the next
    // step.
    out_.line("bulk_wait_group();");
    if (!ring_) out_.line("fence_proxy_async_all();");
    out_.line("red_release_add(params.turns + tile.index, 1);");
    out_.close();
  }

  // Where dK leaves from here, too, the consumers wait for the last part as well.
  void give_back() {
    if (!persistent_) out_.line("const bool more = step + 1 < block.steps;  // staged again");
    int left = parts();
    for (int w = 0; w < kConsumers; w++) {
      if (layout_.dq[static_cast<std::size_t>(w)].width == 0) continue;
      out_.line("if (lane == 0) bulk_wait_group_read<{}>();", --left);
      out_.line("__syncwarp();");
      out_.line("{}barrier_arrive({}, 160);", persistent_ ? "" : "if (more) ", 4 + w);
    }
  }

  void blocks() {
    out_.line("// The same for every block that this thread block gets.");
    out_.open(fmt::format("ATTUNE_DEVICE void add_dq_blocks(const BackwardParams& params, uint32_t shared{}) {{",
                          two_ ? ", int adder" : ""));
    out_.line("int slot = 0, phase_slot = 0;");
    if (two_ && overlapped_) out_.line("int done = 0;  // the turns go on from block to block");
    out_.open("while (true) {");
    emit_take_item(out_);
    out_.line("add_dq_tiles(params, shared, block{});", !two_         ? ""
                                                        : overlapped_ ? ", adder, (adder + done) & 1"
                                                                      : ", adder, adder");
    if (two_ && overlapped_) out_.line("done += block.steps;");
    out_.close();
    // Whoever counts a contribution has waited for it.
    if (!two_) out_.line("if ((threadIdx.x & 31) == 0) bulk_wait_group();");
    out_.close();
    out_.line("");
  }

  Writer& out_;
  const Layout layout_;
  const bool persistent_, ring_, two_, in_order_, claims_, overlapped_, stored_;
};

}  // namespace

void emit_add_dq(Writer& out, const KernelSpec& spec) { AddPrinter(out, spec).print(); }

}  // namespace attune::codegen::backward
