// Causal attention with four query heads to each KV head, on the default stream.
#include <attune/attune.h>

#include <cstdio>

#include "../device_memory.h"

int main() try {
  attune::Runtime runtime;  // the current device and the user's cache
  const attune::Problem problem{.head_dim = 128,
                                .head_dim_v = 128,
                                .heads = 32,
                                .heads_kv = 8,
                                .causal = true,
                                .batch = 2,
                                .seqlen_q = 2048,
                                .seqlen_k = 2048};
  const attune::Plan plan = runtime.plan(problem);  // once a shape: may compile, load, read the cache
  std::printf("%s: %s\n", attune::to_string(plan.info().origin), plan.info().config.c_str());

  const std::size_t q_bytes = 2ull * 2 * 2048 * 32 * 128, kv_bytes = q_bytes / 4;  // bf16
  plan.launch({.q = device_memory(q_bytes),
               .k = device_memory(kv_bytes),
               .v = device_memory(kv_bytes),
               .o = device_memory(q_bytes)});  // as often as you like: no locks, no allocation
  return device_wait();
} catch (const attune::Error& error) {
  std::fprintf(stderr, "%s: %s\n", attune::error_code_name(error.code()), error.what());
  return 1;
}
