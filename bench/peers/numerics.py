"""Errors of attune's forward kernels against float64, beside those of PyTorch's fused attention.

Head dims 8, 16, ..., 256, 20 ragged pairs of lengths, bf16 and fp16, causal (aligned to the bottom right) and
not, and five kinds of input. Writes OUT.csv, a row for each case and config, and OUT.json, a summary;
README.md in bench/ says what the numbers mean. Exit status: 0 all within --limit; 1 a pooled ratio above it,
or a wrong or failed case; 3 no usable GPU; 5 the budget ended early.
"""

import argparse
import collections
import random
import sys
import time

import torch

import attune_ctypes
import environment
import numerics_results
import options
import peers
import plans
import tensors
from numerics_results import Case, Result
from problem import Problem

BATCH, HEADS = 2, 4
LENGTHS = (
    (1, 1), (1, 17), (1, 1000), (5, 5), (17, 3), (63, 65), (64, 64), (65, 127), (96, 177), (127, 255),
    (129, 128), (191, 193), (200, 50), (255, 383), (256, 256), (333, 334), (384, 129), (511, 640),
    (577, 1023), (1025, 1025),
)  # fmt: skip
KINDS = ("normal", "sd10", "sd30", "sd60", "outlier")
OUTLIER = 200.0  # nats: the score of one query and key in each head
CHUNK = 256  # cases between transfers


# -- cases -----------------------------------------------------------------------------------------


def cases(args):
    for dtype in args.dtypes:
        for dim in args.dims:
            for causal in (False, True):
                for seqlen_q, seqlen_k in LENGTHS:
                    problem = Problem(
                        dtype=dtype,
                        head_dim=dim,
                        heads=HEADS,
                        causal=causal,
                        batch=BATCH,
                        seqlen_q=seqlen_q,
                        seqlen_k=seqlen_k,
                    )
                    for kind in args.kinds:
                        yield Case(problem, kind)


class Inputs:
    """Random normal Q, K and V for each dtype and head dim, and what each case makes of them."""

    def __init__(self):
        self._bases = {}

    def tensors(self, case):
        """q, k, v as [batch, row, head, dim]: slices of longer tensors, so no zeros lie behind their ends."""
        p = case.problem
        q, k, v = self._base(p.dtype, p.head_dim)
        q, k, v = q[:, : p.seqlen_q], k[:, : p.seqlen_k], v[:, : p.seqlen_k]
        if case.kind.startswith("sd"):
            q = q * float(case.kind[2:])  # scores of normal Q and K have the standard deviation 1 nat
        elif case.kind == "outlier":
            k = with_outlier(p, q, k)
        return q, k, v

    def _base(self, dtype, dim):
        if (dtype, dim) not in self._bases:
            generator = torch.Generator(tensors.DEVICE).manual_seed(1000 * dim + len(dtype))
            longest = max(map(max, LENGTHS)) + 64
            self._bases[dtype, dim] = [
                torch.randn(
                    BATCH,
                    longest,
                    HEADS,
                    dim,
                    device=tensors.DEVICE,
                    dtype=tensors.DTYPES[dtype],
                    generator=generator,
                )
                for _ in range(3)
            ]
        return self._bases[dtype, dim]


def with_outlier(p, q, k):
    """K with one key in each head that points along a query that sees it, so that their score is OUTLIER."""
    chooser = random.Random(str(p))
    first_seeing = max(0, p.seqlen_q - p.seqlen_k) if p.causal else 0
    row = chooser.randrange(first_seeing, p.seqlen_q)
    key = chooser.randrange(row + p.seqlen_k - p.seqlen_q + 1 if p.causal else p.seqlen_k)
    query = q[:, row].float()
    k = k.clone()
    k[:, key] = (query * (OUTLIER * p.head_dim**0.5 / query.square().sum(-1, keepdim=True))).to(k.dtype)
    return k


# -- what computes ---------------------------------------------------------------------------------


class Peer:
    """One of PyTorch's fused kernels, with its LSE; its math path where that kernel refuses."""

    def __init__(self, name):
        self._fused = {"flash": self._flash, "efficient": self._efficient, "cudnn": self._cudnn}[name]
        self.name = name
        self.refusals = collections.Counter()

    def __call__(self, q, k, v, causal):
        """Name, O and LSE, both [batch, head, row, ...]; LSE is None where the kernel gives none."""
        try:
            return (self.name, *self._fused(q, k, v, causal))
        except RuntimeError as error:
            self.refusals[peers.reason(error)] += 1
            return "math", self._math(q, k, v, causal), None

    @staticmethod
    def _flash(q, k, v, causal):
        # As PyTorch's causal_lower_right calls it: this operator aligns its mask to the bottom right.
        o, lse, *_ = torch.ops.aten._scaled_dot_product_flash_attention(q, k, v, 0.0, causal)
        return o, lse

    @staticmethod
    def _efficient(q, k, v, causal):
        o, lse, *_ = torch.ops.aten._efficient_attention_forward(
            *(t.transpose(1, 2) for t in (q, k, v)),
            bias=None,
            cu_seqlens_q=None,
            cu_seqlens_k=None,
            max_seqlen_q=None,
            max_seqlen_k=None,
            dropout_p=0.0,
            custom_mask_type=2 if causal else 0,  # 2: causal from the bottom right
            compute_log_sumexp=True,
        )
        return o.transpose(1, 2), lse[..., : q.shape[-2]]  # its LSE is padded

    @staticmethod
    def _cudnn(q, k, v, causal):
        if causal and q.shape[-2] != k.shape[-2]:
            raise RuntimeError("cuDNN's causal mask is aligned to the top left")
        o, lse, *_ = torch.ops.aten._scaled_dot_product_cudnn_attention(q, k, v, None, True, 0.0, causal)
        return o, lse.reshape(o.shape[:-1])

    @staticmethod
    def _math(q, k, v, causal):
        mask = None
        if causal:
            rows = torch.arange(q.shape[-2], device=q.device)
            last = tensors.last_keys(rows, q.shape[-2], k.shape[-2])
            mask = torch.arange(k.shape[-2], device=k.device) <= last[:, None]
        return torch.ops.aten._scaled_dot_product_attention_math(q, k, v, mask)[0]


def run_attune(plan, q, k, v, problem):
    """O as [batch, row, head, dim] and LSE, both poisoned first."""
    o = torch.full((*q.shape[:3], v.shape[-1]), torch.nan, device=q.device, dtype=q.dtype)
    lse = torch.full((problem.batch, problem.heads, problem.seqlen_q), torch.nan, device=q.device)
    plan.bind(q, k, v, o, lse, stream=torch.cuda.current_stream().cuda_stream)()
    return o, lse


# -- errors, left on the GPU until the end ---------------------------------------------------------


def errors(o, lse, exact, exact_lse):
    """Tensor of the greatest error of O, its squared norm, and the greatest error of LSE; NaN stays NaN.

    Rows that see no key are left out, since libraries disagree on them.
    """
    empty = exact_lse == -torch.inf
    difference = torch.where(empty[..., None], 0.0, o.double() - exact)
    if lse is None:
        worst_lse = difference.new_tensor(0.0)
    else:
        worst_lse = torch.where(empty, 0.0, (lse.double() - exact_lse).abs()).max()
    return torch.stack([difference.abs().max(), difference.square().sum(), worst_lse])


def sizes(exact, exact_lse):
    """Greatest magnitude of O, its squared norm, greatest magnitude of a finite LSE."""
    finite = torch.where(exact_lse == -torch.inf, 0.0, exact_lse.abs())
    return torch.stack([exact.abs().max(), exact.square().sum(), finite.max()])


def empty_rows_wrong(o, lse, exact_lse):
    """How many rows see no key and have another result than O = 0 and LSE = -inf."""
    empty = exact_lse == -torch.inf
    return (empty & ((lse != -torch.inf) | (o != 0).any(-1))).sum().double()


def run_case(case, made, names, inputs, peer):
    """A Result whose numbers are still on the GPU."""
    p = case.problem
    q, k, v = inputs.tensors(case)
    q_heads, k_heads, v_heads = (t.transpose(1, 2) for t in (q, k, v))
    last = None
    if p.causal:
        last = tensors.last_keys(torch.arange(p.seqlen_q, device=q.device), p.seqlen_q, p.seqlen_k)
    exact, exact_lse = tensors.reference(q_heads, k_heads, v_heads, last)
    peer_name, peer_o, peer_lse = peer(q_heads, k_heads, v_heads, p.causal)
    result = Result(case, peer_name, peer_lse is not None)
    result.numbers["sizes"] = sizes(exact, exact_lse)
    result.numbers["peer"] = errors(peer_o, peer_lse, exact, exact_lse)
    for name in names:
        plan = made[p, name]
        if isinstance(plan, attune_ctypes.AttuneError):
            continue
        o, lse = run_attune(plan, q, k, v, p)
        o = o.transpose(1, 2)
        empty = empty_rows_wrong(o, lse, exact_lse)
        result.numbers[name] = torch.cat([errors(o, lse, exact, exact_lse), empty[None]])
    return result


def fetch(results):
    """Replaces the tensors of these results by lists of numbers, in one transfer."""
    flat = torch.cat([tensor for result in results for tensor in result.numbers.values()]).tolist()
    begin = 0
    for result in results:
        for name, tensor in result.numbers.items():
            result.numbers[name] = flat[begin : begin + len(tensor)]
            begin += len(tensor)


# -- the run ---------------------------------------------------------------------------------------


def arguments():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, prog="numerics.py"
    )
    group = parser.add_argument_group("cases")
    every = ",".join(str(dim) for dim in range(8, 257, 8))
    group.add_argument(
        "--dims", type=options.numbers, default=every, metavar="LIST", help="head dims (default: all)"
    )
    for name, allowed in (("dtypes", list(tensors.DTYPES)), ("kinds", KINDS)):
        text = ",".join(allowed)
        group.add_argument(
            f"--{name}",
            type=options.words_of(*allowed),
            default=text,
            metavar="LIST",
            help=f"(default: {text})",
        )
    group.add_argument("--sample", type=int, metavar="N", help="only so many cases, the same ones every time")
    group.add_argument("--peer", choices=("flash", "efficient", "cudnn"), default="flash")
    group.add_argument("--limit", type=float, default=2.0, help="of the pooled ratios (default: 2)")
    group.add_argument(
        "--budget", type=float, default=100, metavar="S", help="time for everything (default: 100)"
    )
    group.add_argument("--out", default="numerics", metavar="PREFIX", help="of the files (default: numerics)")
    plans.add_arguments(parser)
    environment.add_arguments(parser)
    args = parser.parse_args()
    environment.require_gpu(parser, args)
    return args


def chosen_cases(args):
    """In an order that is random but always the same, so that what the budget cuts off is spread evenly."""
    listed = list(cases(args))
    random.Random(0).shuffle(listed)
    return listed[: args.sample]


def run_cases(listed, made, names, peer, deadline):
    inputs = Inputs()
    done = []
    for begin in range(0, len(listed), CHUNK):
        if time.monotonic() > deadline:
            break
        chunk = [run_case(case, made, names, inputs, peer) for case in listed[begin : begin + CHUNK]]
        fetch(chunk)
        done += chunk
    return done


def main():
    args = arguments()
    begin = time.monotonic()
    listed = chosen_cases(args)
    runtime = plans.open_runtime(args)
    names = plans.config_names(args)
    made = plans.create(runtime, ((case.problem, name) for name in names for case in listed), args)
    print(f"{len(made)} plans in {time.monotonic() - begin:.0f} s", file=sys.stderr)
    peer = Peer(args.peer)
    done = run_cases(listed, made, names, peer, begin + args.budget)
    described = environment.describe(args, runtime.lib, environment.open_nvml())
    refused = {name: plans.refusals(made, name) for name in names}
    document = numerics_results.write(args, names, done, len(listed), refused, peer.refusals, described)
    if document["failures"]:
        return 1
    return 0 if len(done) == len(listed) else 5


if __name__ == "__main__":
    sys.exit(main())
