"""Times attune's backward kernels against cuDNN and, by a table, FlashAttention-3.

A launch is all of attune's kernels together: dQ, dK and dV from Q, K, V, O, dO and LSE. Writes OUT_burst.csv and
OUT_sustained.csv, a row for each problem and config, and a JSON file beside each, with --html a page with plots, too;
README.md in bench/ says what the numbers mean. Exit status: 0 all is measured and right; 1 something is wrong or
failed; 3 no usable GPU; 5 the budget ended before every problem was measured.
"""

import collections
import dataclasses
import sys

import torch

import attune_ctypes
import grid_run
import peers
import plans
import tensors

GRADIENTS = ("d_q", "d_k", "d_v")
# Of a head: the norm of a gradient's error over its norm, and the same of the worst row. Rounding O, P, dS and the
# result gives about 3e-3 in bf16 and 4e-4 in fp16. A query whose weight lies nearly all on one key has a small dQ, and the
# rounding of O alone puts that off by up to 0.1 in bf16; a row that a kernel misses is off by 1.
HEAD_LIMIT = {"bf16": 1e-2, "fp16": 2.5e-3}
ROW_LIMIT = {"bf16": 0.25, "fp16": 0.06}
# A gradient may be 0, as dQ and dK are where there is a single key: smaller elements than this count as this large.
SMALLEST = 1e-3


class Backward(grid_run.Operation):
    op, description, peer = "backward", __doc__, peers.BackwardPeer
    outputs = GRADIENTS
    limits = {
        dtype: {name: HEAD_LIMIT[dtype] for name in GRADIENTS}
        | {f"{name}_row": ROW_LIMIT[dtype] for name in GRADIENTS}
        for dtype in tensors.DTYPES
    }

    def add_arguments(self, group):
        group.add_argument(
            "--deterministic", action="store_true", help="sums in one order (the peer's are not)"
        )

    def adapted(self, problem, args):
        return dataclasses.replace(problem, deterministic=problem.deterministic or args.deterministic)

    def prepare(self, _args, runtime, problems, made):
        """All plans share a workspace, as they run one after another."""
        self._arena = tensors.Arena(problems, ("q", "k", "v", "d_o", *GRADIENTS))
        bytes_needed = max((plan.workspace_bytes() for plan in made), default=0)
        self._workspace = torch.empty(max(bytes_needed, 1), device=tensors.DEVICE, dtype=torch.uint8)
        forward = {p: dataclasses.replace(p, op="forward", deterministic=False) for p in problems}
        forward_plans = plans.untuned(runtime, forward.values())
        self._forward = {p: forward_plans[f] for p, f in forward.items()}

    def tensors(self, problem):
        """O and LSE are the problem's own, by attune's forward plan: with another's, weights would exceed 1."""
        views = self._arena.tensors(problem)
        views |= {name: tensors.empty(problem, name) for name in ("o", "lse")}
        plan = self._forward[problem]
        try:
            if isinstance(plan, Exception):
                raise plan
            plan.bind(
                **{name: views[name] for name in tensors.FORWARD},
                stream=torch.cuda.current_stream().cuda_stream,
            )()
        except attune_ctypes.AttuneError as error:
            raise grid_run.NoInputs(f"the forward pass before it: {error}") from error
        torch.cuda.synchronize()
        return views

    def bind(self, plan, views):
        stream = torch.cuda.current_stream().cuda_stream
        return plan.bind_backward(**views, workspace=self._workspace, stream=stream)

    def exact(self, problem, views):
        return SampledHeads(problem, views)


class SampledHeads:
    """Gradients in float64 of some KV heads and of all the query heads that read them."""

    def __init__(self, problem, views, heads_kv=2, seed=1):
        generator = torch.Generator().manual_seed(seed)
        group = problem.heads // problem.heads_kv
        rows = torch.arange(problem.seqlen_q, device=tensors.DEVICE)
        last = tensors.last_keys(rows, problem.seqlen_q, problem.seqlen_k) if problem.causal else None
        self._samples = []  # name, batch, head, gradient
        for _ in range(heads_kv):
            batch = torch.randint(problem.batch, (), generator=generator).item()
            head_kv = torch.randint(problem.heads_kv, (), generator=generator).item()
            k, v = views["k"][batch, :, head_kv], views["v"][batch, :, head_kv]
            d_k, d_v = 0, 0
            for head in range(head_kv * group, (head_kv + 1) * group):
                q, d_o = views["q"][batch, :, head], views["d_o"][batch, :, head]
                d_q, part_k, part_v = tensors.reference_gradients(q, k, v, d_o, last)
                self._samples.append(("d_q", batch, head, d_q))
                d_k, d_v = d_k + part_k, d_v + part_v
            self._samples += [("d_k", batch, head_kv, d_k), ("d_v", batch, head_kv, d_v)]

    def errors(self, outputs):
        """Worst relative errors of a head (d_q, ...) and of a row (d_q_row, ...). A row that is smaller than the
        average one counts as large as that: its terms are not smaller, they cancel."""
        found = collections.defaultdict(list)
        for name, batch, head, exact in self._samples:
            error = (outputs[name][batch, :, head].double() - exact).norm(dim=-1)
            sizes = exact.norm(dim=-1)
            average = sizes.square().mean().sqrt().clamp(min=SMALLEST * exact.shape[-1] ** 0.5)
            found[name].append(error.square().mean().sqrt() / average)
            found[f"{name}_row"].append((error / sizes.maximum(average)).max())
        return tensors.worst(found)


if __name__ == "__main__":
    sys.exit(grid_run.main(Backward()))
