"""Times attune's forward kernels against cuDNN and FlashAttention-3; the latter from a library or by a table.

Writes OUT_burst.csv and OUT_sustained.csv, a row for each problem and config, and a JSON file beside each, with
--html a page with plots, too; README.md in bench/ says what the numbers mean. Exit status: 0 all is measured and
right; 1 something is wrong or failed; 3 no usable GPU; 5 the budget ended before every problem was measured.
"""

import argparse
import collections
import sys

import torch

import grid_run
import peers
import scores
import tensors


class Forward(grid_run.Operation):
    op, description, peer = "forward", __doc__, peers.ForwardPeer
    outputs = ("o", "lse")
    # Of O the relative error of a row, of LSE the absolute one. Rounding P and O gives about 2e-3 in bf16 and 3e-4 in
    # fp16.
    limits = {"bf16": {"o": 1e-2, "lse": 1e-3}, "fp16": {"o": 2.5e-3, "lse": 1e-3}}

    def add_arguments(self, group):
        group.add_argument(
            "--scores",
            type=scores.kind,
            default=scores.NORMAL,
            metavar="KIND",
            help=f"of the inputs: {scores.MEANING} (default: {scores.NORMAL}; {scores.PEAKED} for problems of peaked scores)",
        )
        group.add_argument(
            "--fa3",
            type=fa3_library,
            metavar="LIB",
            help="FlashAttention-3 as build_fa3.sh makes it, instead of the table's figures",
        )

    def prepare(self, args, runtime, problems, made):
        self._scores = args.scores
        self._arena = tensors.Arena(problems)
        self._fa3 = args.fa3

    def tensors(self, problem):
        kind = scores.PEAKED if problem.scores == "peaked" else self._scores
        return scores.applied(kind, self._arena.tensors(problem), problem.heads_kv)

    def bind(self, plan, views):
        return plan.bind(**views, stream=torch.cuda.current_stream().cuda_stream)

    def fa3(self, problem, views):
        return self._fa3.call(problem, views) if self._fa3 else None

    def exact(self, problem, views):
        return SampledRows(problem, views)


def fa3_library(path):
    try:
        return peers.Fa3Library(path)
    except (OSError, AttributeError) as error:  # no library, or not this one
        raise argparse.ArgumentTypeError(f"'{path}': {error}") from None


class SampledRows:
    """O and LSE in float64 of some heads' rows, among them those at tile edges."""

    def __init__(self, problem, views, heads=8, rows=64, seed=1):
        generator = torch.Generator().manual_seed(seed)
        self._samples = []
        for _ in range(heads):
            batch = torch.randint(problem.batch, (), generator=generator).item()
            head = torch.randint(problem.heads, (), generator=generator).item()
            edges = torch.tensor([0, 63, 64, 127, 128, problem.seqlen_q - 1]).clamp(max=problem.seqlen_q - 1)
            index = torch.cat([edges, torch.randint(problem.seqlen_q, (rows,), generator=generator)]).to(
                tensors.DEVICE
            )
            head_kv = head // (problem.heads // problem.heads_kv)
            last = tensors.last_keys(index, problem.seqlen_q, problem.seqlen_k) if problem.causal else None
            exact = tensors.reference(
                views["q"][batch, index, head],
                views["k"][batch, :, head_kv],
                views["v"][batch, :, head_kv],
                last,
            )
            self._samples.append((batch, head, index, *exact))

    def errors(self, outputs):
        """Worst relative error of a row of O and, if there is an LSE, its worst error."""
        found = collections.defaultdict(list)
        for batch, head, index, exact_o, exact_lse in self._samples:
            error = (outputs["o"][batch, index, head].double() - exact_o).norm(dim=-1)
            found["o"].append(torch.where(error == 0, 0.0, error / exact_o.norm(dim=-1)).max())
            if "lse" in outputs:
                lse = outputs["lse"][batch, head, index].double()
                found["lse"].append(torch.where(lse == exact_lse, 0.0, (lse - exact_lse).abs()).max())
        return tensors.worst(found)


if __name__ == "__main__":
    sys.exit(grid_run.main(Forward()))
