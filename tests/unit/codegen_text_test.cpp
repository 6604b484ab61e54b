// Canonical texts: printed, parsed back, refused when wrong.
#include <doctest/doctest.h>

#include <string>

#include "base/error.h"
#include "codegen/kernel_spec.h"
#include "codegen/space.h"

using namespace attune;
using namespace attune::codegen;

namespace {

std::string message_of(const auto& action) {
  try {
    action();
  } catch (const Error& error) {
    return error.what();
  }
  return "no error";
}

}  // namespace

TEST_CASE("a problem's text is its identity") {
  Problem p{.dtype = DType::fp16, .head_dim = 96, .head_dim_v = 64, .heads = 12, .heads_kv = 4, .causal = true};
  p.batch = 3;
  p.seqlen_q = 17;
  p.seqlen_k = 1001;
  p.layout = Layout::bhsd;
  CHECK(to_string(p) ==
        "op=forward,dtype=fp16,head_dim=96,head_dim_v=64,heads=12,heads_kv=4,causal=1,batch=3,seqlen_q=17,"
        "seqlen_k=1001,layout=bhsd");
  CHECK(parse_problem(to_string(p)) == p);
}

TEST_CASE("a backward problem says whether it is to be deterministic; a forward problem's text does not change") {
  Problem p = parse_problem("op=backward,head_dim=64,heads=4");
  CHECK(to_string(p).ends_with(",layout=bshd,deterministic=0"));
  p.deterministic = true;
  CHECK(to_string(p).ends_with(",layout=bshd,deterministic=1"));
  CHECK(parse_problem(to_string(p)) == p);
  CHECK(message_of([] { parse_problem("deterministic=1"); }).starts_with("deterministic: 1 with op = forward"));
  CHECK(message_of([] { parse_problem("op=sideways"); }) == "op: 'sideways' is unknown (allowed: forward, backward)");
}

TEST_CASE("a forward problem may be of peaked scores; the text of any other says nothing about them") {
  Problem p = parse_problem("head_dim=64,heads=4,scores=any");
  CHECK(to_string(p).ends_with(",layout=bshd"));
  p.scores = ScoreKind::peaked;
  CHECK(to_string(p).ends_with(",layout=bshd,scores=peaked"));
  CHECK(parse_problem(to_string(p)) == p);
  CHECK(message_of([] { parse_problem("scores=flat"); }) == "scores: 'flat' is unknown (allowed: any, peaked)");
  CHECK(message_of([] {
          parse_problem("op=backward,scores=peaked");
        }).starts_with("scores: peaked with op = backward, whose kernels do not depend on them (allowed: any"));
}

TEST_CASE("left-out keys of a problem follow the others") {
  const Problem p = parse_problem("head_dim=64,heads=6,seqlen_q=77");
  CHECK(p.head_dim_v == 64);
  CHECK(p.heads_kv == 6);
  CHECK(p.seqlen_k == 77);
}

TEST_CASE("a bad problem is refused with the argument, its value and what is allowed") {
  CHECK(message_of([] { parse_problem("head_dim=129"); }) ==
        "head_dim: 129 is not a multiple of 8 (allowed: 8, 16, ..., 256)");
  CHECK(message_of([] { parse_problem("head_dim=264"); }) == "head_dim: 264 is above 256 (allowed: 8, 16, ..., 256)");
  CHECK(message_of([] { parse_problem("head_dim=0"); }).starts_with("head_dim: 0 is not"));
  CHECK(message_of([] { parse_problem("heads=32,heads_kv=5"); }).starts_with("heads_kv: 5 does not divide heads = 32"));
  CHECK(message_of([] { parse_problem("heads=0"); }).starts_with("heads: 0 is out of range"));
  CHECK(message_of([] { parse_problem("batch=-1"); }).starts_with("batch: -1 is out of range"));
  CHECK(message_of([] { parse_problem("dtype=float32"); }).find("convert Q, K and V to bf16") != std::string::npos);
  CHECK(message_of([] { parse_problem("dtype=int4"); }) == "dtype: 'int4' is unknown (allowed: bf16, fp16)");
  CHECK(message_of([] { parse_problem("colour=red"); }).starts_with("problem: key 'colour' is unknown (allowed: op,"));
  CHECK(message_of([] { parse_problem("heads=1,heads=2"); }) == "problem: key 'heads' is given twice");
  CHECK(message_of([] { parse_problem("heads"); }).starts_with("problem: 'heads' is not key=value"));
  CHECK(message_of([] { parse_problem("heads=1x"); }).starts_with("heads: '1x' is not an integer"));
  CHECK(message_of([] { parse_arch("sm_75"); }) == "arch: 'sm_75' is not supported (allowed: sm_90a)");
}

TEST_CASE("flops count what a mask leaves") {
  Problem p = parse_problem("head_dim=128,heads=2,batch=3,seqlen_q=64");
  CHECK(flops(p) == doctest::Approx(4.0 * 3 * 2 * 64 * 64 * 128));
  Problem backward = p;
  backward.op = Op::backward;
  CHECK(flops(backward) == doctest::Approx(2.5 * flops(p)));
  p.causal = true;
  CHECK(flops(p) == doctest::Approx(2.0 * 3 * 2 * 64 * 64 * 128));
  p.seqlen_k = 128;  // every query sees the first 64 keys too
  CHECK(flops(p) == doctest::Approx(4.0 * 3 * 2 * 64 * (64 + 32) * 128));
  p.seqlen_k = 32;  // the first 32 queries see nothing
  CHECK(flops(p) == doctest::Approx(4.0 * 3 * 2 * 32 * 16 * 128));
}

TEST_CASE("every candidate's text is parsed back to the same config") {
  const Arch arch = parse_arch("sm_90a");
  for (const char* text : {"head_dim=128,heads=8", "head_dim=64,heads=8,causal=1", "head_dim=256,heads=2,seqlen_q=1000",
                           "op=backward,head_dim=128,heads=8,causal=1",
                           "op=backward,head_dim=256,heads=2,seqlen_q=1000,deterministic=1"}) {
    const Problem p = parse_problem(text);
    for (const Config& c : candidates(arch, p)) {
      REQUIRE(parse_config(to_string(c)) == c);
      const KernelSpec spec = specialise(arch, p, c);
      REQUIRE(parse_kernel_spec(to_string(spec)) == spec);
      REQUIRE(serves(spec, p));
    }
  }
}

TEST_CASE("the cluster is part of a kernel's identity") {
  const Config c = parse_config("cluster=2,block_n=128");
  CHECK(c.cluster == 2);
  CHECK(kernel_part(c).find(",cluster=2,") != std::string::npos);
  CHECK(kernel_part(c) != kernel_part(parse_config("block_n=128")));
  CHECK(parse_config(to_string(c)) == c);
  const KernelSpec spec = specialise(parse_arch("sm_90a"), parse_problem("head_dim=128,heads=8"), c);
  CHECK(parse_kernel_spec(to_string(spec)) == spec);
  CHECK(parse_config("block_n=128").cluster == 1);
}

TEST_CASE("a bad config is refused by key and value") {
  CHECK(
      message_of([] { parse_config("blok_n=128"); }).starts_with("config: key 'blok_n' is unknown (allowed: family,"));
  CHECK(message_of([] { parse_config("softmax=fast"); }) ==
        "config softmax: 'fast' is unknown (allowed: exact, first_max, zero)");
  CHECK(message_of([] { parse_config("consumers=4"); }) == "config consumers: 4 is out of range (allowed: 1 to 3)");
  for (const char* cluster : {"0", "3"})
    CHECK(message_of([&] { parse_config("cluster=" + std::string(cluster)); }) ==
          "config cluster: " + std::string(cluster) + " is out of range (allowed: 1 to 2)");
  CHECK(message_of([] { parse_config("ping_pong=yes"); }).find("is not a truth value") != std::string::npos);
}

TEST_CASE("a family has its own keys and its own operation") {
  const Config c = parse_config("lag=1,family=sm90_backward,block_m=80,section=3");
  CHECK(kernel_part(parse_config("family=sm90_backward,dkv=parts,parts=2,workers=3")) ==
        kernel_part(parse_config("family=sm90_backward,dkv=parts")));
  CHECK(c.backward.lag);
  CHECK(c.backward.block_m == 80);
  CHECK(to_string(c).ends_with(",section=3,parts=0"));
  CHECK(kernel_part(c).find("section") == std::string::npos);
  CHECK(parse_config(to_string(c)) == c);
  CHECK(message_of([] {
          parse_config("family=sm90_backward,block_n=128");
        }).starts_with("config: key 'block_n' is unknown (allowed with family=sm90_backward: block_m,"));
  const Arch arch = parse_arch("sm_90a");
  const Problem forward = parse_problem("heads=8"), backward = parse_problem("op=backward,heads=8,deterministic=1");
  CHECK(message_of([&] { specialise(arch, forward, c); }) ==
        "config family: computes op = backward, the problem asks for forward");
  const KernelSpec spec = specialise(arch, backward, c);
  CHECK(parse_kernel_spec(to_string(spec)) == spec);
  CHECK(serves(spec, backward));
  CHECK(!serves(spec, forward));
  CHECK(!serves(specialise(arch, parse_problem("op=backward,heads=8"), c), backward));
  CHECK(default_config(arch, backward).family == Family::sm90_backward);
}

TEST_CASE("the launch part is not in the kernel's identity") {
  Config a = parse_config("block_n=128"), b = a;
  b.workers = 100;
  b.section = 3;
  CHECK(kernel_part(a) == kernel_part(b));
  CHECK(to_string(a) != to_string(b));
  const Problem p = parse_problem("head_dim=128,heads=8");
  CHECK(specialise(parse_arch("sm_90a"), p, a) == specialise(parse_arch("sm_90a"), p, b));
}
