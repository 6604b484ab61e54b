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
        by_step_(adds_by_step(spec)),
        by_part_(adds_by_part(spec)),
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
    if (by_step_) {
      out_.line(
          "// Two warps take turns at adding what the consumers stage of a block's dQ to its sums: while one waits "
          "until its");
      out_.line("// additions are complete and counts them, the other serves the next step.");
    } else if (by_part_) {
      out_.line("// A warp for each warpgroup adds what that stages of a block's dQ to its sums in global memory.");
    } else {
      out_.line("// One warp adds what the consumers stage of a block's dQ to its sums in global memory.");
    }
    out_.open(fmt::format(
        "ATTUNE_DEVICE void add_dq_tiles(const BackwardParams& params, uint32_t shared, const KeyBlock& block{}) {{",
        by_step_   ? ", int adder, int first"
        : by_part_ ? ", int part"
                   : ""));
    out_.line("const int lane = threadIdx.x & 31;");
    out_.line("QueryTile tile = first_query_tile<kDescending>(block, params);");
    if (by_step_) out_.line("if (first == 1) advance<kDescending>(tile, block, params);");
    if (ring_) {
      out_.line(
          "const int pair = block.batch * params.heads_kv + block.head, before = tiles_before_ring(pair, params);");
      out_.line("if (lane == 0 && first < block.steps) wait_for_slot(pair, params);");
    }
    if (claims_) out_.line("uint32_t stored = 0;  // of this tile and the next ones");
    out_.line("#pragma unroll 1");
    out_.open(by_step_ ? "for (int step = first; step < block.steps; step += 2) {"
                       : "for (int step = 0; step < block.steps; step++) {");
    if (in_order_) await_turn();
    if (claims_) look_at_turns();
    if (by_step_ || claims_) out_.line("__syncwarp();");
    add();
    give_back();
    if (by_step_) count();
    if (claims_) show_stored();
    out_.line("advance<kDescending>(tile, block, params);");
    if (by_step_) out_.line("advance<kDescending>(tile, block, params);");
    out_.close();
    if (!by_step_ && !persistent_) out_.line("if (lane == 0) bulk_wait_group();");
    out_.close();
    out_.line("");
  }

  std::string turn(const char* tile = "tile.index") const {
    return by_part_ ? fmt::format("params.turns + 2 * {} + part", tile) : fmt::format("params.turns + {}", tile);
  }

  // Usually the sums have been stored long ago, and one look, while the dQ is computed, tells so of many tiles.
  void look_at_turns() {
    out_.line(
        "// Who comes first stores a tile's sums, and the others wait until it has: 0 before, 1 meanwhile, 2 and");
    out_.line("// more after that.");
    out_.open("if ((stored & 1) == 0) {");
    out_.line("uint32_t turn = 0;");
    out_.line("if (lane <= (kDescending ? tile.m - block.first_m : params.tiles_m - 1 - tile.m))");
    out_.line("  turn = ld_acquire({});", turn("(tile.index + (kDescending ? -lane : lane))"));
    out_.line("stored = __ballot_sync(kFullWarp, turn >= 2);");
    out_.line("__syncwarp();  // a vote orders no memory");
    out_.line("if (lane == 0) fence_proxy_async_all();");
    out_.close();
    out_.line("bool stores = false;");
  }

  // With the dQ in hand, or its first part where one warp serves both: whoever waits for the store waits for a thread
  // block that waits for no other one meanwhile, so no wait ends in a circle.
  void claim() {
    out_.open("if (lane == 0 && (stored & 1) == 0) {");
    out_.line("uint32_t turn = atom_acquire_or({}, 1);", turn());
    out_.line("stores = turn == 0;");
    out_.line("while (turn == 1) turn = ld_acquire({});", turn());
    out_.line("if (!stores) fence_proxy_async_all();");
    out_.close();
  }

  // At once, although the warp waits for it: blocks that began together wait the less.
  void show_stored() {
    out_.open("if (stores) {");
    out_.line("bulk_wait_group();");
    out_.line("red_release_add({}, 1);", turn());
    out_.close();
    out_.line("stored >>= 1;");
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
    if (by_part_) {
      out_.line("barrier_sync(2 + part, 160);  // the warpgroup has staged its part");
      claim();
      const auto by_part = [](int first, int second) {
        return first == second ? std::to_string(first) : fmt::format("(part == 0 ? {} : {})", first, second);
      };
      const int start = layout_.dq_start(1);
      move(fmt::format(" + part * {}", start), fmt::format(" + part * {}", 4 * start),
           by_part(4 * layout_.dq[0].floats(), 4 * layout_.dq[1].floats()));
      return;
    }
    bool first = true;
    for (int w = 0; w < kConsumers; w++) {
      const DqPart& part = layout_.dq[static_cast<std::size_t>(w)];
      if (part.width == 0) continue;
      out_.line("barrier_sync({}{}, 160);  // warpgroup {} has staged its part", 2 + w, by_step_ ? " + 8 * adder" : "",
                w);
      if (claims_ && first) {
        claim();
        out_.line("__syncwarp();");
      }
      first = false;
      move(w == 0 ? "" : fmt::format(" + {}", layout_.dq_start(w)),
           w == 0 ? "" : fmt::format(" + {}", 4 * layout_.dq_start(w)), std::to_string(4 * part.floats()));
    }
  }

  // By one thread, to where a part's sums start in those of a tile.
  void move(const std::string& start, const std::string& start_bytes, const std::string& bytes) {
    const auto print = [&](const char* how) {
      out_.line(
          "{}(params.dq_sums + static_cast<int64_t>(tile.index{}) * kDqFloats{}, shared + kSharedDq{}, {}, "
          "kEvictLast);",
          how, ring_ ? " - before" : "", start, start_bytes, bytes);
    };
    out_.open("if (lane == 0) {");
    if (stored_) {
      out_.line("if ({})", claims_ ? "stores" : "block.n == 0");
      print("  bulk_store");
      out_.line("else");
    }
    print(stored_ ? "  bulk_reduce_add" : "bulk_reduce_add");
    out_.line("bulk_commit_group();");
    out_.close();
  }

  void count() {
    out_.open("if (lane == 0) {");
    // What the async proxy has completed is there for the other one as well; a fence more would be late for the next
    // step.
    out_.line("bulk_wait_group();");
    out_.line("red_release_add(params.turns + tile.index, 1);");
    out_.close();
  }

  // Where dK leaves from here, too, the consumers wait for the last part as well.
  void give_back() {
    if (!persistent_) out_.line("const bool more = step + 1 < block.steps;  // staged again");
    const auto back = [&](int left, const std::string& barrier) {
      out_.line("if (lane == 0) bulk_wait_group_read<{}>();", left);
      out_.line("__syncwarp();");
      out_.line("{}barrier_arrive({}, 160);", persistent_ ? "" : "if (more) ", barrier);
    };
    if (by_part_) {
      back(0, "4 + part");
      return;
    }
    int left = parts();
    for (int w = 0; w < kConsumers; w++)
      if (layout_.dq[static_cast<std::size_t>(w)].width > 0) back(--left, std::to_string(4 + w));
  }

  void blocks() {
    out_.line("// The same for every block that this thread block gets.");
    out_.open(fmt::format("ATTUNE_DEVICE void add_dq_blocks(const BackwardParams& params, uint32_t shared{}) {{",
                          by_step_   ? ", int adder"
                          : by_part_ ? ", int part"
                                     : ""));
    out_.line("int slot = 0, phase_slot = 0;");
    if (by_step_ && overlapped_) out_.line("int done = 0;  // the turns go on from block to block");
    out_.open("while (true) {");
    emit_take_item(out_);
    out_.line("add_dq_tiles(params, shared, block{});", by_part_      ? ", part"
                                                        : !by_step_   ? ""
                                                        : overlapped_ ? ", adder, (adder + done) & 1"
                                                                      : ", adder, adder");
    if (by_step_ && overlapped_) out_.line("done += block.steps;");
    out_.close();
    // Whoever counts a contribution has waited for it.
    if (!by_step_) out_.line("if ((threadIdx.x & 31) == 0) bulk_wait_group();");
    out_.close();
    out_.line("");
  }

  Writer& out_;
  const Layout layout_;
  const bool persistent_, ring_, by_step_, by_part_, in_order_, claims_, overlapped_, stored_;
};

}  // namespace

void emit_add_dq(Writer& out, const KernelSpec& spec) { AddPrinter(out, spec).print(); }

}  // namespace attune::codegen::backward
