// From one authored step to straight-line segments.
#include <algorithm>

#include "codegen/backward/schedule.h"

namespace attune::codegen::backward {
namespace {

class Lowering {
 public:
  void apply(const Action& action, int least_step, int least_steps) {
    Line line{.action = action, .pending = 0, .complete = {}, .least_step = least_step, .least_steps = least_steps};
    if (action.kind == Action::Kind::issue) in_flight_.push_back(action.product);
    if (action.kind == Action::Kind::wait && !wait(line)) return;
    // One wait after another: the later one says it all.
    if (action.kind == Action::Kind::wait && !lines_.empty() && lines_.back().action.kind == Action::Kind::wait) {
      line.complete.insert(line.complete.begin(), lines_.back().complete.begin(), lines_.back().complete.end());
      lines_.pop_back();
    }
    lines_.push_back(std::move(line));
  }
  std::vector<Line> take() { return std::move(lines_); }

 private:
  // Groups complete in the order of their commits: waiting for one leaves those issued after it.
  bool wait(Line& line) {
    const auto at = std::ranges::find(in_flight_, line.action.product);
    if (at == in_flight_.end()) return false;
    line.pending = static_cast<int>(in_flight_.end() - at) - 1;
    line.complete.assign(in_flight_.begin(), at + 1);
    in_flight_.erase(in_flight_.begin(), at + 1);
    return true;
  }

  std::vector<Line> lines_;
  std::vector<Product> in_flight_;
};

}  // namespace

Program lower(const Schedule& schedule) {
  Program program;
  int deepest = 0;
  Lowering block, drain;
  for (const Action& action : schedule.step) {
    deepest = std::max(deepest, -action.offset);
    program.primed = program.primed || (action.kind == Action::Kind::issue && action.offset < 0);
    // What leaves the warpgroup has to come from a real step.
    const bool leaves = action.kind == Action::Kind::store_dq || action.kind == Action::Kind::publish_dq;
    block.apply(action, leaves ? -action.offset : 0, 0);
  }
  // Steps beyond the last one, of which only the part on earlier tiles is left.
  for (int beyond = 1; beyond <= deepest; beyond++)
    for (const Action& action : schedule.step)
      if (-action.offset >= beyond) drain.apply(action, 0, -action.offset > beyond ? -action.offset - beyond + 1 : 0);
  program.block = block.take();
  program.drain = drain.take();
  return program;
}

}  // namespace attune::codegen::backward
