// The schedules there are.
#include "codegen/backward/schedule.h"

namespace attune::codegen::backward {
namespace {

// FlashAttention-3's order: the warpgroups meet once a step, when dS is in shared memory.
Schedule meeting(const Tunables& t) {
  Schedule s{.name = "meeting", .step = {}};
  s.await(Buffer::q).issue(Product::s).await(Buffer::d_o).issue(Product::dp);
  if (t.late_fences) s.publish_dq(-1);
  if (t.prefetch) s.load(Buffer::q);
  s.wait(Product::s).probabilities();
  if (t.prefetch) s.load(Buffer::d_o);
  s.wait(Product::dp);
  if (t.persistent && !t.v_in_registers) s.release(Buffer::v);
  s.gradients();
  if (t.persistent) s.reclaim();
  if (t.ds_stages == 1) s.meet();  // the other warpgroup has read the step before's dS
  s.store();
  if (t.split == Split::rows) s.issue(Product::dv);
  s.fence().meet();
  if (t.split == Split::columns) s.issue(Product::dv);
  s.issue(Product::dq).issue(Product::dk);
  s.wait(Product::dv).wait(Product::dq).release(Buffer::d_o).store_dq();
  if (!t.late_fences) s.publish_dq();
  s.wait(Product::dk).release(Buffer::q);
  return s;
}

// dQ one step late: the warpgroups may drift apart by most of a step, and take turns at the elementwise part.
Schedule lagging(const Tunables& t) {
  const bool overlapped = t.boundary == Boundary::overlapped;
  Schedule s{.name = "lagging", .step = {}};
  s.await(Buffer::q).issue(Product::s);
  if (overlapped) {
    if (t.late_fences) s.publish_dq(-2);  // its fence must not wait for the stores of dK and dV
    s.store_gradients();                  // while V comes
  }
  s.await(Buffer::d_o);
  if (overlapped && !t.v_in_registers) s.await(Buffer::v);
  s.issue(Product::dp);
  if (t.late_fences && !overlapped) s.publish_dq(-2);
  if (t.prefetch) s.load(Buffer::q);
  s.wait(Product::s);
  if (t.persistent) s.reclaim();  // the warpgroups meet there, so neither may have the turn
  if (t.ping_pong) s.take_turn();
  s.probabilities();
  if (t.prefetch) s.load(Buffer::d_o);
  s.wait(Product::dp);
  if (t.persistent && !t.v_in_registers) s.release(Buffer::v);
  s.gradients();
  s.claim(Buffer::ds).store();
  if (!t.late_fences) s.fence().signal(Buffer::ds);
  if (t.ping_pong) s.pass_turn();
  s.issue(Product::dv).await(Buffer::ds, -1).issue(Product::dq, -1);
  if (t.late_fences) s.fence().signal(Buffer::ds);
  s.issue(Product::dk).wait(Product::dv).wait(Product::dq, -1).release(Buffer::d_o).release(Buffer::ds, -1);
  if (overlapped) s.release(Buffer::k, -1);
  s.store_dq(-1);
  if (!t.late_fences) s.publish_dq(-1);
  s.wait(Product::dk).release(Buffer::q);
  return s;
}

}  // namespace

Schedule schedule_for(const Tunables& t) { return t.lag ? lagging(t) : meeting(t); }

}  // namespace attune::codegen::backward
