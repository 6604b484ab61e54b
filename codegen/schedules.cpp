// The schedules there are. A new one is a function here and a value of Order.
#include "codegen/schedule.h"

namespace attune::codegen {
namespace {

// FlashAttention-3's overlap: softmax of this block runs under the product of the block before.
Schedule overlap_softmax_with_pv(const Config& c) {
  Schedule s{.name = "qk_pv", .step = {}};
  s.await(Buffer::k);
  if (c.ping_pong) s.take_turn();
  s.issue(Product::qk).await(Buffer::v).issue(Product::pv);
  if (c.ping_pong) s.pass_turn();
  s.wait(Product::qk).release(Buffer::k).softmax(SoftmaxPart::online);
  s.wait(Product::pv).release(Buffer::v).softmax(SoftmaxPart::convert).softmax(SoftmaxPart::rescale);
  return s;
}

// Both products back to back, then softmax with the tensor cores left to the other warpgroup. S is intact when the
// exponentials are taken, so they may speculate.
Schedule products_then_softmax(const Config& c) {
  Schedule s{.name = "pv_qk", .step = {}};
  s.await(Buffer::v);
  if (c.ping_pong) s.take_turn();
  s.issue(Product::pv).await(Buffer::k).issue(Product::qk);
  if (c.ping_pong) s.pass_turn();
  s.wait_all().release(Buffer::v).release(Buffer::k);
  if (c.softmax == Softmax::exact)
    s.softmax(SoftmaxPart::online).softmax(SoftmaxPart::convert).softmax(SoftmaxPart::rescale);
  else
    s.softmax(SoftmaxPart::speculative);
  return s;
}

// No overlap inside a warpgroup.
Schedule one_product_at_a_time(const Config& c) {
  Schedule s{.name = "serial", .step = {}};
  s.await(Buffer::v).issue(Product::pv).wait(Product::pv).release(Buffer::v);
  s.await(Buffer::k).issue(Product::qk).wait(Product::qk).release(Buffer::k);
  if (c.softmax == Softmax::exact)
    s.softmax(SoftmaxPart::online).softmax(SoftmaxPart::convert).softmax(SoftmaxPart::rescale);
  else
    s.softmax(SoftmaxPart::speculative);
  return s;
}

}  // namespace

Schedule schedule_for(const Config& config) {
  switch (config.order) {
    case Order::qk_pv: return overlap_softmax_with_pv(config);
    case Order::pv_qk: return products_then_softmax(config);
    case Order::serial: return one_product_at_a_time(config);
  }
  return {};
}

bool loads_v_first(const Schedule& schedule) {
  for (const Action& action : schedule.step)
    if (action.kind == Action::Kind::await) return action.buffer == Buffer::v;
  return false;
}

}  // namespace attune::codegen
