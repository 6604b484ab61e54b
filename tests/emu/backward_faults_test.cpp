// Faults that are planted into backward kernels must be found or make a gradient wrong.
#include <doctest/doctest.h>
#include <fmt/format.h>

#include <algorithm>
#include <string>

#include "base/error.h"
#include "tests/emu/backward_data.h"
#include "tests/nvrtc.h"

namespace attune::emulator {
namespace {

struct Fault {
  const char* what;
  const char* config;
  const char* find;  ///< once in the source
  const char* replace;
  const char* finding;  ///< its kind; "": nothing is found, but a gradient is wrong
};

constexpr const char* kMeeting = "family=sm90_backward";
constexpr const char* kLagging = "family=sm90_backward,lag=1,ping_pong=1,late_fences=1,persistent=1,registers=232";

constexpr const char* kPasses = "family=sm90_backward,split=products,dq=pass,ds_stages=1";
constexpr const char* kRing =
    "family=sm90_backward,lag=1,ping_pong=1,late_fences=1,persistent=1,finish=ring,registers=224";

constexpr const char* kDirect =
    "family=sm90_backward,lag=1,ping_pong=1,late_fences=1,persistent=1,registers=232,dkv=direct";

constexpr const char* kVInRegisters =
    "family=sm90_backward,lag=1,ping_pong=1,late_fences=1,persistent=1,registers=232,v_in_registers=1";

constexpr const char* kTwoKeys =
    "family=sm90_backward,lag=1,ping_pong=1,late_fences=1,persistent=1,registers=232,dkv=direct,k_stages=2";

constexpr const char* kOverlapped =
    "family=sm90_backward,lag=1,ping_pong=1,late_fences=1,persistent=1,registers=224,dkv=direct,k_stages=2,"
    "boundary=overlapped";

constexpr const char* kDescending = "family=sm90_backward,lag=1,ping_pong=1,visits=descending";

constexpr const char* kOrdered = "family=sm90_backward,lag=1,ping_pong=1,visits=descending,sums=stored";

constexpr const char* kStored = "family=sm90_backward,lag=1,ping_pong=1,sums=stored";

constexpr const char* kInside =
    "family=sm90_backward,lag=1,ping_pong=1,late_fences=1,persistent=1,registers=232,prepare=inside";

constexpr const char* kParts = "family=sm90_backward,lag=1,ping_pong=1,late_fences=1,dkv=parts";

constexpr Fault kFaults[] = {
    {"dS is read before it is shown to the async proxy", kMeeting,
     "    fence_proxy_async();\n    barrier_sync(1, 256);\n", "    barrier_sync(1, 256);\n", "proxy_race"},
    {"dS is read before both warpgroups have stored it", kMeeting,
     "    fence_proxy_async();\n    barrier_sync(1, 256);\n", "    fence_proxy_async();\n", "race"},
    {"dK is staged over K while it is read", kMeeting, "  barrier_sync(1, 256);  // nobody reads K and V any more\n",
     "", "race"},
    {"dQ is read while its product goes on", kMeeting, "    wgmma_wait_group<1>();\n    pin(dq);\n", "    pin(dq);\n",
     "register_hazard"},
    {"dQ's buffer is given back before it was read", kMeeting, "    if (lane == 0) bulk_wait_group_read<1>();\n", "",
     "race"},
    {"dV leaves from dS's buffers while these are written", kLagging,
     "        if (thread == 0) bulk_wait_group_read<0>();\n", "", "race"},
    {"a release too few", kLagging, "    if (lane == 0) mbarrier_arrive(shared + kDsEmpty + 8 * stage_before);\n", "",
     "deadlock"},
    {"the diagonal is off by one", kMeeting, "mask_queries(s, limit - tile.m", "mask_queries(s, limit - 1 - tile.m",
     ""},
    {"P is read by the other warpgroup before it is there", kPasses,
     "    mbarrier_wait(shared + kPFull + 8 * stage_p, phase_p);\n    load_fragments", "    load_fragments", "race"},
    {"P is written over before it was read", kPasses,
     "    mbarrier_wait(shared + kPEmpty + 8 * stage_p, phase_p);\n    store_fragments", "    store_fragments", "race"},
    {"another buffer of K is given back", kPasses,
     "      if (lane == 0) mbarrier_arrive(shared + kRingKEmpty + 8 * stage_of<kKStages>(step));",
     "      if (lane == 0) mbarrier_arrive(shared + kRingKEmpty + 8 * stage_of<kKStages>(next));", "deadlock"},
    {"keys beyond the diagonal count for dQ", kPasses, "        mask_unseen(s, upper, upper - 8)",
     "        mask_unseen(s, upper - 1, upper - 9)", ""},
    {"an addition to dQ is counted before it is complete", kRing,
     "      bulk_wait_group();\n      red_release_add(params.turns", "      red_release_add(params.turns", "race"},
    {"sums are added to before they are stored", kStored,
     "      while (turn == 1) turn = ld_acquire(params.turns + 2 * tile.index + part);\n", "", "race"},
    {"two blocks of keys store the sums of a tile", kStored, "      stores = turn == 0;\n",
     "      stores = turn < 2;\n", ""},
    {"stored sums are said to be there before they are complete", kStored,
     "      bulk_wait_group();\n      red_release_add(params.turns", "      red_release_add(params.turns", "race"},
    {"a block of keys adds to dQ before its turn", kOrdered, "!= block.n) {", "== ~0u) {", "race"},
    {"the next query head begins at another one's last tile", kDescending,
     "tile.index += 2 * params.tiles_m - block.first_m", "tile.index += params.tiles_m - block.first_m", ""},
    {"V is read before it has come", kOverlapped,
     "      if (step == 0) mbarrier_wait(shared + kVFull, phase_keys ^ 1);\n", "", "race"},
    {"this block's K is given back for that of the block before", kOverlapped,
     "mbarrier_arrive(shared + kKEmpty + 8 * stage_k_before)", "mbarrier_arrive(shared + kKEmpty + 8 * stage_k)",
     "deadlock"},
    {"a block's last dQ is computed with the next block's K", kOverlapped, "stage_k_before = stage_k;",
     "stage_k_before = stage_k ^ 1;", "race"},
    {"gradients are stored as the next block's", kOverlapped,
     "if (step == 0 && done > 0) {\n        const KeyBlock block = load_key_block(shared + kItems + 32 * slot);",
     "if (step == 0 && done > 0) {\n        const KeyBlock block = load_key_block(shared + kItems + 32 * (slot ^ 1));",
     ""},
    {"a slot is added to before its last pair is finished", kRing,
     "  if (lane == 0 && first < block.steps) wait_for_slot(pair, params);\n", "", "race"},
    {"a slot's zeros are not shown to the async proxy", kRing, "  fence_proxy_async_all();\n}\n", "}\n", "proxy_race"},
    {"a slot is not zeroed for its next pair", kRing, "zeroed[32 * i] = make_float4(0.f, 0.f, 0.f, 0.f);",
     "static_cast<void>(zeroed);", ""},
    {"a tile is finished one block of keys too early", kRing, "!= wanted) __nanosleep", "< wanted - 1) __nanosleep",
     "race"},
    {"K is given back while the last dQ's product reads it", kDirect,
     "      wgmma_wait_group<0>();\n      pin(dq);\n      __syncwarp();\n      if (lane == 0) mbarrier_arrive(shared + "
     "kKEmpty);\n",
     "      __syncwarp();\n      if (lane == 0) mbarrier_arrive(shared + kKEmpty);\n      wgmma_wait_group<0>();\n     "
     " pin(dq);\n",
     "race"},
    {"both blocks' K in one buffer", kTwoKeys, "kSharedK + stage_k * kKBytes", "kSharedK", "race"},
    {"dQ is staged over the part of the block before", kDirect,
     "if (step >= 2 || staged) barrier_sync(4 + warpgroup, 160);", "if (step >= 2) barrier_sync(4 + warpgroup, 160);",
     "race"},
    {"V is given back before its loads are over", kVInRegisters, "const uint32_t zero = zero_after(v);",
     "const uint32_t zero = 0;", "late_load"},
    {"a query tile is read before it is prepared", kInside,
     "  while (ld_acquire(params.ready + index) == 0) __nanosleep(20);\n", "", "race"},
    {"a query tile is said to be prepared before all lanes are done", kInside,
     "  __syncwarp();\n  if (lane_index() == 0) {\n    st_release(params.ready",
     "  if (lane_index() == 0) {\n    st_release(params.ready", "race"},
    {"what was prepared is not shown to the async proxy", kInside,
     "  fence_proxy_async_all();  // bulk copies read the rows' values\n", "", "proxy_race"},
    {"a share of the query heads is left out of dK and dV", kParts, "part < parts; part++", "part < parts - 1; part++",
     ""},
    {"a share reads another KV head's keys", kParts, "  block.head /= params.parts;\n", "", ""},
    {"dK is added up where dV is", kParts, "(first + 64 * kHeadDimV, stride", "(first, stride", ""},
    {"a block of keys starts on what the one before summed", kLagging, "    accumulate = 1;\n", "    accumulate = 0;\n",
     ""},
};

const char* problem_of(const Fault& fault) {
  // More tiles than the kernel before the main one prepares.
  if (fault.config == kInside) return "op=backward,head_dim=64,heads=4,batch=1,seqlen_q=400,seqlen_k=200";
  // With two heads a KV head, so that a block of keys goes on to the next one.
  if (fault.config == kDescending)
    return "op=backward,head_dim=64,heads=2,heads_kv=1,batch=1,seqlen_q=200,seqlen_k=300,causal=1";
  if (fault.config == kOrdered)
    return "op=backward,head_dim=64,heads=2,heads_kv=1,batch=1,seqlen_q=200,seqlen_k=300,causal=1,deterministic=1";
  // Few blocks of keys, so that there are shares.
  if (fault.config == kParts) return "op=backward,head_dim=64,heads=4,heads_kv=1,batch=1,seqlen_q=100,seqlen_k=100";
  // A ring needs more pairs than it has slots.
  if (fault.config == kRing) return "op=backward,head_dim=64,heads=6,batch=1,seqlen_q=130,seqlen_k=200";
  // In two steps a block the producer waits for nothing that comes behind the use of V.
  if (fault.config == kVInRegisters) return "op=backward,head_dim=64,heads=2,batch=2,seqlen_q=128,seqlen_k=256";
  return "op=backward,head_dim=64,heads=2,seqlen_q=200,seqlen_k=300,causal=1";
}

std::string replaced(std::string source, const Fault& fault) {
  const std::string find = fault.find;
  const std::size_t at = source.find(find);
  REQUIRE(at != std::string::npos);
  REQUIRE(source.find(find, at + 1) == std::string::npos);
  return source.replace(at, find.size(), fault.replace);
}

}  // namespace

TEST_CASE("backward: planted faults are found") {
  if (!attune::tests::nvrtc()) return;
  for (const Fault& fault : kFaults) {
    const Problem p = parse_problem(problem_of(fault));
    CAPTURE(std::string(fault.what));
    const codegen::KernelSpec spec = codegen::specialise(parse_arch("sm_90a"), p, codegen::parse_config(fault.config));
    const auto program = Program::load(ptx_of(replaced(codegen::emit(spec).source, fault)));
    const std::string expected = fault.finding;
    bool found = false, wrong = false;
    std::string others;
    // Some faults depend on who comes first.
    for (std::uint64_t seed = 0; seed < 4 && !found && !wrong; ++seed) {
      const std::unique_ptr<Machine> machine = Machine::create();
      BackwardData data(*machine, p);
      data.reset();
      for (const Report& report : launch_backward(*machine, *program, spec, p, data, seed))
        for (const Finding& finding : report.findings) {
          found = found || finding_kind_name(finding.kind) == expected;
          others += fmt::format("{} ", finding_kind_name(finding.kind));
        }
      if (!expected.empty()) continue;
      CHECK(others == "");
      const Gradients got = data.results(), exact = gradients(p, data.inputs, data.forward, Rounding::none);
      wrong = relative_error(got.q, exact.q) > 0.02 || relative_error(got.k, exact.k) > 0.02 ||
              relative_error(got.v, exact.v) > 0.02;
    }
    CHECK_MESSAGE((expected.empty() ? wrong : found), "expected '" << expected << "', found: " << others);
  }
}

}  // namespace attune::emulator
