// The order of a consumer warpgroup's steps in the backward pass, as data. A step visits one query tile (offset 0; -1:
// the tile of the step before). Wait counts, guards and the drain are derived from it by lower().
#pragma once

#include <string>
#include <vector>

#include "codegen/kernel_spec.h"

namespace attune::codegen::backward {

enum class Product {
  s,   ///< S^T = K Q^T
  dp,  ///< dP^T = V dO^T
  dv,  ///< dV += P^T dO
  dq,  ///< dQ = dS K
  dk,  ///< dK += dS^T Q
};
enum class Buffer {
  q,    ///< Q and LSE, from the producer
  d_o,  ///< dO and delta, from the producer
  ds,   ///< dS, from one warpgroup to both
  k,    ///< K of the block of keys before, in the first step (released alone)
  v,    ///< V of the block of keys, awaited in its first step, released in its last one
};

struct Action {
  enum class Kind {
    await,          ///< until a buffer is full
    claim,          ///< until a buffer of dS may be written
    issue,          ///< a product
    wait,           ///< for a product, if this step issued it, and those before it
    load,           ///< LSE (Buffer::q) or delta (Buffer::d_o) into registers
    probabilities,  ///< S becomes P
    gradients,      ///< dS from P and dP; P and dS packed
    reclaim,        ///< what the block before left in the buffers of dS and dQ has gone (first step alone)
    store,          ///< dS, and P where it goes through shared memory, to its buffer
    fence,          ///< what was stored is shown to the async proxy
    signal,         ///< a buffer of dS is full
    meet,           ///< barrier of the consumers
    take_turn,
    pass_turn,
    release,          ///< a buffer
    store_gradients,  ///< dK and dV of the block of keys before leave (first step alone)
    store_dq,         ///< staged, or added to the sums
    publish_dq,       ///< the staged dQ may be added to the sums
  };
  Kind kind;
  Product product = Product::s;
  Buffer buffer = Buffer::q;
  int offset = 0;
};

struct Schedule {
  std::string name;
  std::vector<Action> step;

  Schedule& await(Buffer buffer, int offset = 0) {
    return add({.kind = Action::Kind::await, .buffer = buffer, .offset = offset});
  }
  Schedule& claim(Buffer buffer) { return add({.kind = Action::Kind::claim, .buffer = buffer}); }
  Schedule& issue(Product product, int offset = 0) {
    return add({.kind = Action::Kind::issue, .product = product, .offset = offset});
  }
  Schedule& wait(Product product, int offset = 0) {
    return add({.kind = Action::Kind::wait, .product = product, .offset = offset});
  }
  Schedule& load(Buffer buffer) { return add({.kind = Action::Kind::load, .buffer = buffer}); }
  Schedule& probabilities() { return add({.kind = Action::Kind::probabilities}); }
  Schedule& gradients() { return add({.kind = Action::Kind::gradients}); }
  Schedule& reclaim() { return add({.kind = Action::Kind::reclaim}); }
  Schedule& store() { return add({.kind = Action::Kind::store}); }
  Schedule& fence() { return add({.kind = Action::Kind::fence}); }
  Schedule& signal(Buffer buffer) { return add({.kind = Action::Kind::signal, .buffer = buffer}); }
  Schedule& meet() { return add({.kind = Action::Kind::meet}); }
  Schedule& take_turn() { return add({.kind = Action::Kind::take_turn}); }
  Schedule& pass_turn() { return add({.kind = Action::Kind::pass_turn}); }
  Schedule& release(Buffer buffer, int offset = 0) {
    return add({.kind = Action::Kind::release, .buffer = buffer, .offset = offset});
  }
  Schedule& store_gradients() { return add({.kind = Action::Kind::store_gradients, .offset = -1}); }
  Schedule& store_dq(int offset = 0) { return add({.kind = Action::Kind::store_dq, .offset = offset}); }
  Schedule& publish_dq(int offset = 0) { return add({.kind = Action::Kind::publish_dq, .offset = offset}); }

 private:
  Schedule& add(Action action) {
    step.push_back(action);
    return *this;
  }
};

/// The schedule that the tunables ask for.
Schedule schedule_for(const Tunables& tunables);

/// One line of straight-line code: an action with what lowering found out about it.
struct Line {
  Action action;
  int pending = 0;                ///< wait: products that may go on
  std::vector<Product> complete;  ///< wait: products whose accumulators are complete now
  int least_step = 0;             ///< in a loop: only from this step on (0: always)
  int least_steps = 0;            ///< in the drain: only if there were so many steps (0: always)
};

/// A block of keys is block*, drain. No branch may stand around a product, so the products of the step before are
/// issued in the first step, too: `primed` says that there is a buffer of dS, full of zeros, for them.
struct Program {
  bool primed = false;
  std::vector<Line> block, drain;
};
Program lower(const Schedule& schedule);

}  // namespace attune::codegen::backward
