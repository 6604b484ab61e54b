/* Causal attention with four query heads to each KV head, on the default stream. */
#include <attune/attune_c.h>
#include <stdio.h>

#include "../device_memory.h"

static int check(attune_status status) {
  if (status != ATTUNE_OK) fprintf(stderr, "%s: %s\n", attune_status_name(status), attune_last_error());
  return status == ATTUNE_OK;
}

int main(void) {
  const size_t q_bytes = (size_t)2 * 2 * 2048 * 32 * 128, kv_bytes = q_bytes / 4; /* bf16 */
  attune_runtime* runtime = NULL;
  attune_plan* plan = NULL;
  attune_problem problem;
  ATTUNE_INIT_PROBLEM(&problem);
  problem.heads = 32;
  problem.heads_kv = 8;
  problem.causal = 1;
  problem.batch = 2;
  problem.seqlen_q = problem.seqlen_k = 2048;
  if (!check(attune_runtime_create(NULL, &runtime))) return 1; /* the current device and the user's cache */
  if (!check(attune_plan_create(runtime, &problem, NULL, &plan))) return 1;

  attune_forward_args args;
  ATTUNE_INIT_FORWARD_ARGS(&args);
  args.q = device_memory(q_bytes);
  args.k = device_memory(kv_bytes);
  args.v = device_memory(kv_bytes);
  args.o = device_memory(q_bytes);
  const int ok = check(attune_plan_launch(plan, &args)) && device_wait() == 0;
  attune_plan_destroy(plan);
  attune_runtime_destroy(runtime);
  return ok ? 0 : 1;
}
