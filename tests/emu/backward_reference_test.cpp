// The reference's gradients: against plain loops on the host, and these against finite differences.
#include <doctest/doctest.h>

#include "tests/emu/backward_data.h"
#include "tests/nvrtc.h"

namespace attune::emulator {
namespace {

double loss(const Problem& p, const Inputs& in) {
  const Outputs out = attention(p, in);
  double sum = 0;
  for (std::size_t i = 0; i < out.o.data.size(); ++i) sum += in.d_o.data[i] * out.o.data[i];
  for (std::size_t i = 0; i < out.lse.data.size(); ++i)
    if (std::isfinite(out.lse.data[i])) sum += in.d_lse.data[i] * out.lse.data[i];
  return sum;
}

// (loss(x + h) - loss(x - h)) / 2h against the gradient, for every element of one tensor.
double worst_difference(const Problem& p, Inputs in, Values Inputs::* tensor, const Values& gradient) {
  constexpr double kStep = 1e-5;
  double worst = 0;
  for (std::size_t i = 0; i < gradient.data.size(); ++i) {
    double& x = (in.*tensor).data[i];
    const double kept = x;
    x = kept + kStep;
    const double above = loss(p, in);
    x = kept - kStep;
    const double below = loss(p, in);
    x = kept;
    worst = std::max(worst, std::abs((above - below) / (2 * kStep) - gradient.data[i]));
  }
  return worst;
}

const char* const kProblems[] = {
    "op=backward,head_dim=8,heads=2,seqlen_q=5,seqlen_k=7,batch=1",
    "op=backward,head_dim=16,head_dim_v=8,heads=4,heads_kv=2,causal=1,seqlen_q=6,seqlen_k=9,batch=2,dtype=fp16",
    "op=backward,head_dim=8,head_dim_v=24,heads=3,heads_kv=1,causal=1,seqlen_q=9,seqlen_k=4,batch=1,layout=bhsd",
};

}  // namespace

TEST_CASE("backward: the host's gradients are the loss's derivatives") {
  for (const char* text : kProblems) {
    CAPTURE(text);
    const Problem p = parse_problem(text);
    const std::unique_ptr<Machine> machine = Machine::create();
    const BackwardData data(*machine, p, {.d_lse = true});
    const Gradients g = gradients(p, data.inputs, data.forward, Rounding::none);
    CHECK(worst_difference(p, data.inputs, &Inputs::q, g.q) < 1e-7);
    CHECK(worst_difference(p, data.inputs, &Inputs::k, g.k) < 1e-7);
    CHECK(worst_difference(p, data.inputs, &Inputs::v, g.v) < 1e-7);
  }
}

TEST_CASE("backward: the reference kernels agree with the host, and nothing is found") {
  if (!attune::tests::nvrtc()) return;
  const char* const larger =
      "op=backward,head_dim=136,head_dim_v=64,heads=2,heads_kv=1,causal=1,seqlen_q=6,seqlen_k=133,batch=1";
  const char* const no_keys = "op=backward,head_dim=8,heads=1,seqlen_q=3,seqlen_k=0,batch=1";
  const char* const no_rows = "op=backward,head_dim=8,heads=1,seqlen_q=0,seqlen_k=3,batch=1";
  for (const char* text : {kProblems[0], kProblems[1], kProblems[2], larger, no_keys, no_rows}) {
    CAPTURE(text);
    const Problem p = parse_problem(text);
    const codegen::KernelSpec spec =
        codegen::specialise(parse_arch("sm_90a"), p, {.family = codegen::Family::reference_backward});
    const auto program = Program::load(ptx_of(codegen::emit(spec).source));
    for (const bool d_lse : {false, true}) {
      const std::unique_ptr<Machine> machine = Machine::create();
      BackwardData data(*machine, p, {.gaps = d_lse, .d_lse = d_lse});
      data.reset();
      for (const Report& report : launch_reference(*machine, *program, codegen::launch_shape(spec), p, data))
        CHECK_MESSAGE(report.clean(), report.text());
      const Gradients got = data.results(), exact = gradients(p, data.inputs, data.forward, Rounding::none);
      const double allowed = p.dtype == DType::bf16 ? 2.5e-3 : 4e-4;  // of one rounding
      CHECK(relative_error(got.q, exact.q) < allowed);
      CHECK(relative_error(got.k, exact.k) < allowed);
      CHECK(relative_error(got.v, exact.v) < allowed);
      CHECK(data.damage() == "");
    }
  }
}

}  // namespace attune::emulator
