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
        spec_(spec),
        layout_(backward::layout_of(spec)),
        persistent_(spec.config.backward.persistent),
        ring_(spec.config.backward.finish == Finish::ring),
        overlapped_(spec.config.backward.boundary == Boundary::overlapped),
        stored_(spec.config.backward.sums == Sums::stored) {}

  void print() {
    tiles();
    if (persistent_) blocks();
  }

 private:
  void tiles() {
    if (ring_) {
      out_.line(
          "// Two warps take turns at adding what the consumers stage of a block's dQ to its sums: while one waits "
          "until its");
      out_.line("// additions are complete and counts them, the other serves the next step.");
    } else {
      out_.line("// One warp adds what the consumers stage of a block's dQ to its sums in global memory.");
    }
    out_.open(fmt::format(
        "ATTUNE_DEVICE void add_dq_tiles(const BackwardParams& params, uint32_t shared, const KeyBlock& block{}) {{",
        ring_ ? ", int adder, int first" : ""));
    out_.line("const int lane = threadIdx.x & 31;");
    out_.line("QueryTile tile = first_query_tile(block, params);");
    if (ring_) {
      out_.line("if (first == 1) advance(tile, block, params);");
      out_.line(
          "const int pair = block.batch * params.heads_kv + block.head, before = tiles_before_ring(pair, params);");
      out_.line("if (lane == 0 && first < block.steps) wait_for_slot(pair, params);");
    }
    out_.line("#pragma unroll 1");
    out_.open(ring_ ? "for (int step = first; step < block.steps; step += 2) {"
                    : "for (int step = 0; step < block.steps; step++) {");
    if (spec_.deterministic)
      await_turn();
    else if (stored_)
      await_first();
    if (ring_ || stored_) out_.line("__syncwarp();");
    add();
    if (!ring_ && spec_.deterministic) count();
    give_back();
    if (ring_) count();
    if (counts_first()) count_first();
    out_.line("advance(tile, block, params);");
    if (ring_) out_.line("advance(tile, block, params);");
    out_.close();
    if (!counted() && !persistent_) out_.line("if (lane == 0) bulk_wait_group();");
    out_.close();
    out_.line("");
  }

  // The first block of keys alone counts, and only what the others wait for.
  bool counts_first() const { return stored_ && !spec_.deterministic && !ring_; }

  void await_first() {
    out_.line("// The first block of keys stores a tile's sums. It started before this one.");
    out_.open("if (lane == 0 && block.n > 0) {");
    out_.open("while (ld_acquire(params.turns + tile.index) == 0) {");
    out_.close();
    out_.line("fence_proxy_async_all();");
    out_.close();
  }

  // At once, although the warp waits for it: a block that began together with the first one is held up as little.
  void count_first() {
    out_.open("if (lane == 0 && block.n == 0) {");
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
      out_.line("barrier_sync({}{}, 160);  // warpgroup {} has staged its part", 2 + w, ring_ ? " + 8 * adder" : "", w);
      out_.open("if (lane == 0) {");
      if (stored_) {
        out_.line("if (block.n == 0)");
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
      if (ring_ || !spec_.deterministic) out_.line("if (lane == 0) bulk_wait_group_read<{}>();", --left);
      out_.line("__syncwarp();");
      out_.line("{}barrier_arrive({}, 160);", persistent_ ? "" : "if (more) ", 4 + w);
    }
  }

  void blocks() {
    out_.line("// The same for every block that this thread block gets.");
    out_.open(fmt::format("ATTUNE_DEVICE void add_dq_blocks(const BackwardParams& params, uint32_t shared{}) {{",
                          ring_ ? ", int adder" : ""));
    out_.line("int slot = 0, phase_slot = 0;");
    if (ring_ && overlapped_) out_.line("int done = 0;  // the turns go on from block to block");
    out_.open("while (true) {");
    emit_take_item(out_);
    out_.line("add_dq_tiles(params, shared, block{});", !ring_        ? ""
                                                        : overlapped_ ? ", adder, (adder + done) & 1"
                                                                      : ", adder, adder");
    if (ring_ && overlapped_) out_.line("done += block.steps;");
    out_.close();
    if (!counted()) out_.line("if ((threadIdx.x & 31) == 0) bulk_wait_group();");
    out_.close();
    out_.line("");
  }

  // Whoever counts a contribution has waited for it.
  bool counted() const { return spec_.deterministic || ring_; }

  Writer& out_;
  const KernelSpec& spec_;
  const Layout layout_;
  const bool persistent_, ring_, overlapped_, stored_;
};

}  // namespace

void emit_add_dq(Writer& out, const KernelSpec& spec) { AddPrinter(out, spec).print(); }

}  // namespace attune::codegen::backward
