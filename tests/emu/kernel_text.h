// PTX texts of small kernels, for tests that need no NVRTC.
#pragma once

#include <string>

namespace attune::emulator::tests {

inline std::string module_text(const std::string& body) {
  return ".version 8.6\n.target sm_90a\n.address_size 64\n" + body;
}

/// scale(float* data, float factor): data[i] *= factor for the threads of a grid of one dimension.
inline std::string scale_text() {
  return module_text(R"(
.visible .entry scale(.param .u64 data, .param .f32 factor)
{
  .reg .b64 %rd<4>;
  .reg .b32 %r<4>;
  .reg .f32 %f<4>;
  ld.param.u64 %rd0, [data];
  ld.param.f32 %f0, [factor];
  mov.u32 %r0, %ctaid.x;
  mov.u32 %r1, %ntid.x;
  mov.u32 %r2, %tid.x;
  mad.lo.s32 %r3, %r0, %r1, %r2;
  mul.wide.u32 %rd1, %r3, 4;
  add.s64 %rd2, %rd0, %rd1;
  ld.global.f32 %f1, [%rd2];
  mul.f32 %f2, %f1, %f0;
  st.global.f32 [%rd2], %f2;
  ret;
}
)");
}

/// spin(): never ends.
inline std::string spin_text() { return module_text(".visible .entry spin()\n{\n$again:\n  bra $again;\n}\n"); }

/// count(u32* out): adds 1 to the variable `counter`, which begins as 5, and stores what it is then.
inline std::string count_text() {
  return module_text(R"(
.global .align 4 .u32 counter = 5;
.const .align 4 .u32 step = 1;
.visible .entry count(.param .u64 out)
{
  .reg .b64 %rd<2>;
  .reg .b32 %r<4>;
  ld.param.u64 %rd0, [out];
  ld.global.u32 %r0, [counter];
  ld.const.u32 %r1, [step];
  add.u32 %r2, %r0, %r1;
  st.global.u32 [counter], %r2;
  st.global.u32 [%rd0], %r2;
  ret;
}
)");
}

/// stage(u32* out): 64 threads pass numbers on through shared memory, an mbarrier, an atomic and a bulk copy of 256
/// bytes to `out`.
inline std::string stage_text() {
  return module_text(R"(
.visible .entry stage(.param .u64 out)
{
  .shared .align 128 .b8 box[256];
  .shared .align 8 .b64 arrived;
  .reg .b64 %rd<4>;
  .reg .b32 %r<12>;
  .reg .pred %p<4>;
  ld.param.u64 %rd0, [out];
  mov.u32 %r0, %tid.x;
  mov.u32 %r1, box;
  mov.u32 %r2, arrived;
  setp.ne.u32 %p0, %r0, 0;
  @%p0 bra $ready;
  mbarrier.init.shared.b64 [%r2], 64;
$ready:
  bar.sync 0;
  shl.b32 %r3, %r0, 2;
  add.u32 %r4, %r1, %r3;
  st.shared.u32 [%r4], 0;
  atom.shared.add.u32 %r5, [%r4], %r0;
  fence.proxy.async.shared::cta;
  mbarrier.arrive.shared.b64 %rd1, [%r2];
$wait:
  mbarrier.try_wait.parity.shared.b64 %p1, [%r2], 0;
  @!%p1 bra $wait;
  @%p0 bra $done;
  cp.async.bulk.global.shared::cta.bulk_group [%rd0], [%r1], 256;
  cp.async.bulk.commit_group;
  cp.async.bulk.wait_group 0;
$done:
  ret;
}
)");
}

}  // namespace attune::emulator::tests
