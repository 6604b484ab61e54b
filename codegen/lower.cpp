// From one authored step to the straight-line segments of a warpgroup.
#include <algorithm>

#include "base/error.h"
#include "codegen/schedule.h"

namespace attune::codegen {
namespace {

struct SegmentKind {
  bool current = true;    ///< actions on block 0 (QK, softmax)
  bool previous = true;   ///< actions on block -1 (PV)
  bool boundary = false;  ///< block -1 belongs to the previous tile: its output is finished here
  bool first = false;     ///< block 0 is the first of its tile
  bool masked = false;
  bool passes_late = false;  ///< its turn ends with its scores complete, else with their product issued
  int qk_width = 0, pv_width = 0;
};

class Lowering {
 public:
  Lowering(const KernelSpec& spec, const SegmentKind& kind) : spec_(spec), kind_(kind) {}

  std::vector<Line> run(const Schedule& schedule) {
    // Skipped blocks have turns of their own, so they are passed over before this step takes one.
    if (skips()) add({.kind = Kind::skip_k});
    // With nothing of the old tile under way, their V blocks can go at once; else after the old tile's last V.
    if (skips() && !kind_.previous) add({.kind = Kind::skip_v});
    for (const Action& action : schedule.step) apply(action);
    if (kind_.previous && (kind_.boundary || !kind_.current) && !finished_) finish_output();
    return std::move(lines_);
  }

 private:
  using Kind = Line::Kind;
  bool takes(Product product) const { return product == Product::qk ? kind_.current : kind_.previous; }
  // The last product of a stream of blocks has nothing to take turns about, nor has its first one, unless the softmax
  // behind it is to have the exponentials to itself.
  bool has_turn() const { return kind_.current && (kind_.previous || spec_.config.first_turn); }
  bool finishes() const { return kind_.previous && (kind_.boundary || !kind_.current); }
  bool skips() const { return kind_.first && spec_.config.skips_blocks(); }

  void add(Line line) { lines_.push_back(line); }

  void apply(const Action& action) {
    switch (action.kind) {
      case Action::Kind::await: return await(action.buffer);
      case Action::Kind::issue: return issue(action.product);
      case Action::Kind::wait: return wait(action);
      case Action::Kind::release: return release(action.buffer);
      case Action::Kind::softmax: return softmax(action.part);
      case Action::Kind::take_turn:
        if (has_turn()) add({.kind = Kind::take_turn});
        return;
      case Action::Kind::pass_turn:
        if (has_turn() && !kind_.passes_late) add({.kind = Kind::pass_turn});
        return;
    }
  }

  void await(Buffer buffer) {
    if (buffer == Buffer::k && kind_.current) {
      add({.kind = Kind::await_k});
    }
    if (buffer == Buffer::v && kind_.previous) add({.kind = Kind::await_v});
  }

  void issue(Product product) {
    if (!takes(product)) return;
    if (!settled_) {
      add({.kind = Kind::fence, .s = kind_.current, .o = kind_.previous});
      settled_ = true;
    }
    if (product == Product::qk)
      add({.kind = Kind::issue_qk, .width = kind_.qk_width});
    else
      add({.kind = Kind::issue_pv, .width = kind_.pv_width});
    in_flight_.push_back(product);
  }

  // Groups complete in the order of their commits: waiting for one leaves those issued after it.
  void wait_for(Product product) {
    const auto at = std::find(in_flight_.begin(), in_flight_.end(), product);
    if (at == in_flight_.end()) return;
    const int pending = static_cast<int>(in_flight_.end() - at) - 1;
    Line line{.kind = Kind::wait, .pending = pending};
    for (auto done = in_flight_.begin(); done <= at; ++done) (*done == Product::qk ? line.s : line.o) = true;
    in_flight_.erase(in_flight_.begin(), at + 1);
    add(line);
    if (kind_.passes_late && product == Product::qk) add({.kind = Kind::pass_turn});
    settled_ = false;
    release_used_q();
  }

  // A warp barrier while products are under way would serialise them (C7520).
  void release_used_q() {
    if (!holds_q_ || !in_flight_.empty()) return;
    add({.kind = Kind::release_q, .first = true});
    holds_q_ = false;
  }

  void wait(const Action& action) {
    if (!action.both) {
      wait_for(action.product);
      return;
    }
    if (!finishes() || !kind_.current) {  // nothing to do between the two
      if (!in_flight_.empty()) wait_for(in_flight_.back());
      return;
    }
    // At a tile boundary the old tile's output is finished while QK of the new one runs on.
    if (in_flight_.empty() || in_flight_.front() != Product::pv)
      fail(ErrorCode::internal, "schedule: wait_all at a tile boundary needs PV before QK");
    wait_for(Product::pv);
    if (!v_released_) release_v();
    finish_output();
    wait_for(Product::qk);
  }

  void release(Buffer buffer) {
    if (buffer == Buffer::k && kind_.current) {
      add({.kind = Kind::release_k});
      if (spec_.config.releases_q_early()) add({.kind = Kind::release_q, .first = kind_.first});
      // The product has used what ldmatrix delivered. An arrive right behind the ldmatrix can overtake it.
      holds_q_ = kind_.first && spec_.config.moves_q();
      release_used_q();
    }
    if (buffer == Buffer::v && kind_.previous && !v_released_) {
      release_v();
      if (finishes() && !finished_) finish_output();
    }
  }

  void release_v() {
    add({.kind = Kind::release_v});
    v_released_ = true;
    if (skips()) add({.kind = Kind::skip_v});
  }

  void finish_output() {
    add({.kind = Kind::epilogue});
    finished_ = true;
  }

  void softmax(SoftmaxPart part) {
    if (!kind_.current) return;
    if (part == SoftmaxPart::rescale && kind_.first) return;  // a new tile starts from zero
    if ((part == SoftmaxPart::online || part == SoftmaxPart::speculative) && kind_.masked)
      add({.kind = Kind::mask, .width = kind_.qk_width, .first = kind_.first});
    add({.kind = Kind::softmax, .width = kind_.qk_width, .part = part, .first = kind_.first, .masked = kind_.masked});
  }

  const KernelSpec& spec_;
  const SegmentKind& kind_;
  std::vector<Line> lines_;
  std::vector<Product> in_flight_;
  bool settled_ = false, v_released_ = false, finished_ = false, holds_q_ = false;
};

// Where the new tile's softmax comes before the old tile's output, the old row state is set aside first.
void keep_old_row(std::vector<Line>& boundary) {
  const auto softmax =
      std::find_if(boundary.begin(), boundary.end(), [](const Line& line) { return line.kind == Line::Kind::softmax; });
  const auto epilogue = std::find_if(boundary.begin(), boundary.end(),
                                     [](const Line& line) { return line.kind == Line::Kind::epilogue; });
  if (epilogue < softmax) return;
  epilogue->saved = true;
  boundary.insert(softmax, Line{.kind = Line::Kind::save_row});
}

}  // namespace

int first_width(const KernelSpec& spec, int warpgroup) {
  const Config& c = spec.config;
  if (spec.edge == Edge::tail) return spec.tail;
  // Aligned 128x128 tiles: the upper warpgroup's rows end where the left half of the diagonal block does.
  if (spec.edge == Edge::diagonal && c.diagonal == Diagonal::trimmed && warpgroup == 0) return c.block_n / 2;
  return c.block_n;
}

Program lower(const KernelSpec& spec, const Schedule& schedule, int width) {
  const int n = spec.config.block_n;
  const bool first_masked = spec.edge == Edge::length || spec.causal;
  Program program;
  program.first_width = width;
  program.flattened = spec.config.boundary == Boundary::overlapped && spec.config.grid != Grid::plain;
  program.has_second = width != n;
  program.has_masked = spec.edge == Edge::diagonals;
  const auto segment = [&](const SegmentKind& kind) { return Lowering(spec, kind).run(schedule); };
  // Measured (docs/kernels/NOTES.md, 53): later is better where the first block is as wide as the others and the stream
  // goes on over tiles, worse elsewhere.
  program.first = segment({.current = true,
                           .previous = false,
                           .first = true,
                           .masked = first_masked,
                           .passes_late = spec.config.first_turn && program.flattened && width == n,
                           .qk_width = width,
                           .pv_width = n});
  if (program.has_second) program.second = segment({.qk_width = n, .pv_width = width});
  if (program.has_masked) program.masked = segment({.masked = true, .qk_width = n, .pv_width = n});
  program.block = segment({.qk_width = n, .pv_width = n});
  // The last product runs at full width also for a tile of one narrow block: convert_p zeroes the rest of P, and one
  // width at this place avoids a join that makes ptxas serialise the products (C7511).
  if (program.flattened) {
    program.boundary =
        segment({.boundary = true, .first = true, .masked = first_masked, .qk_width = width, .pv_width = n});
    keep_old_row(program.boundary);
  }
  program.drain = segment({.current = false, .previous = true, .qk_width = n, .pv_width = n});
  return program;
}

}  // namespace attune::codegen
