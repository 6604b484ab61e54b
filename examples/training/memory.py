"""Memory of attention's forward and backward pass by attune over the length, and whether it is linear.

For each length, without a mask and causal: bytes of the backward plan's workspace, the most that PyTorch's allocator
gave out during both passes, and bytes in use on the GPU before and after, as the driver counts them. The results must
be finite, and sampled rows match float64. Writes OUT.csv, a row for each, and OUT.json, where it was measured;
docs/training.md says more. Exit status: 0 good; 1 a number grows more than 2.05 times while the length doubles, or a
result is wrong; 3 no usable GPU.
"""

import argparse
import json
import math
import sys

import torch

import peers_path  # noqa: F401  makes the next ones importable

import environment
from problem import Problem

import attune_runtime
import memory_results
import rows

LENGTHS = [8192, 16384, 32768, 65536, 131072]
SHORTEST = 256  # what rows.chosen() takes its rows from
LIMITS = {
    "o": 1e-2,
    "lse": 1e-3,
    "d_q": 1e-2,
    "d_k": 1e-2,
    "d_v": 1e-2,
}  # relative, but of LSE; bf16 gives 2e-3


# -- one problem -----------------------------------------------------------------------------------


def random(shape, device, seed):
    generator = torch.Generator(device).manual_seed(seed)
    return torch.randn(shape, device=device, dtype=torch.bfloat16, generator=generator)


def measure(attention):
    """The memory_results.Row of one problem."""
    p, device = attention.problem, attention.device
    torch.cuda.empty_cache()
    device_before = in_use()
    torch.cuda.reset_peak_memory_stats()
    allocated = torch.cuda.memory_allocated()
    q_shape = (p.batch, p.seqlen_q, p.heads, p.head_dim)
    k_shape = (p.batch, p.seqlen_k, p.heads_kv, p.head_dim)
    shapes = {"q": q_shape, "k": k_shape, "v": k_shape, "d_o": q_shape}
    given = {name: random(shape, device, seed) for seed, (name, shape) in enumerate(shapes.items())}
    q, k, v, d_o = given.values()
    o, lse = attention.forward(q, k, v)
    d_q, d_k, d_v = attention.backward(q, k, v, o, d_o, lse)
    torch.cuda.synchronize()
    device_after = in_use()
    peak = torch.cuda.max_memory_allocated() - allocated
    results = {"o": o, "lse": lse, "d_q": d_q, "d_k": d_k, "d_v": d_v}
    errors = sampled_errors(p, given | results)
    held = [*given.values(), *results.values()]
    return memory_results.Row(
        causal=p.causal,
        seqlen=p.seqlen_q,
        tensor_bytes=sum(tensor.numel() * tensor.element_size() for tensor in held),
        workspace_bytes=attention.workspace_bytes,
        peak_bytes=peak,
        device_before=device_before,
        device_after=device_after,
        fault=fault(results, errors),
        **{f"{name}_error": error for name, error in errors.items()},
    )


def in_use():
    free, total = torch.cuda.mem_get_info()
    return total - free


# -- whether it is right ---------------------------------------------------------------------------


def fault(results, errors):
    """What is wrong, in words; empty if nothing is."""
    bad = {name: (~tensor.isfinite()).sum().item() for name, tensor in results.items()}
    listed = [f"{count} elements of {name} are not finite" for name, count in bad.items() if count]
    listed += [f"error of {name} {error:.1e}" for name, error in errors.items() if not error <= LIMITS[name]]
    return ", ".join(listed)


def sampled_errors(p, tensors):
    """The worst error of each result, in the first and the last KV head of the last batch."""
    found = {name: [] for name in LIMITS}
    scale = torch.tensor(p.head_dim**-0.5, dtype=torch.float32).item()
    for head_kv in (0, p.heads_kv - 1):
        index = rows.chosen(p.seqlen_q, seed=head_kv).to(tensors["q"].device)
        seen = (
            index if p.causal else None
        )  # a query sees the keys up to its own index, a key the queries from its own
        group = p.heads // p.heads_kv
        heads = range(head_kv * group, (head_kv + 1) * group)
        k, v = (tensors[name][-1, :, head_kv] for name in ("k", "v"))
        of_head = [{name: tensors[name][-1, :, head] for name in ("q", "o", "d_o", "d_q")} for head in heads]
        d_k, d_v = 0, 0
        for head, t in zip(heads, of_head):
            lse = tensors["lse"][-1, head]
            o, exact_lse, d_q = rows.of_queries(t["q"][index], k, v, t["d_o"][index], seen, scale)
            found["o"].append(rows.worst_error(t["o"][index], o))
            found["lse"].append((lse[index].double() - exact_lse).abs().max().item())
            found["d_q"].append(rows.worst_error(t["d_q"][index], d_q))
            added = rows.of_keys(k[index], v[index], t["q"], t["o"], t["d_o"], lse, seen, scale)
            d_k, d_v = d_k + added[0], d_v + added[1]
        found["d_k"].append(rows.worst_error(tensors["d_k"][-1, index, head_kv], d_k))
        found["d_v"].append(rows.worst_error(tensors["d_v"][-1, index, head_kv], d_v))
    return {name: worst(errors) for name, errors in found.items()}


def worst(errors):
    """The maximum, NaN if there is one."""
    return max(errors, key=lambda error: math.inf if math.isnan(error) else error)


# -- the run ---------------------------------------------------------------------------------------


def arguments():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, prog="memory.py"
    )
    group = parser.add_argument_group("problems")
    group.add_argument(
        "--seqlens",
        type=int,
        nargs="+",
        default=LENGTHS,
        metavar="N",
        help="(default: 8192, 16384, ..., 131072)",
    )
    group.add_argument("--head-dim", type=int, default=128, metavar="N", help="(default: 128)")
    group.add_argument("--heads", type=int, default=16, metavar="N", help="query heads (default: 16)")
    group.add_argument("--heads-kv", type=int, default=8, metavar="N", help="KV heads (default: 8)")
    group.add_argument(
        "--deterministic",
        action="store_true",
        help="the backward pass whose dQ has the same bits in every run",
    )
    group.add_argument("--out", default="memory", metavar="PREFIX", help="of the files (default: memory)")
    attune_runtime.add_arguments(parser)
    environment.add_arguments(parser)
    args = parser.parse_args()
    for length in args.seqlens:
        if length < SHORTEST:
            parser.error(f"--seqlens: {length} (allowed: {SHORTEST} or more)")
    environment.require_gpu(parser, args)
    return args


def wanted(args):
    for causal in (False, True):
        for length in sorted(set(args.seqlens)):
            yield Problem(
                head_dim=args.head_dim,
                heads=args.heads,
                heads_kv=args.heads_kv,
                causal=causal,
                batch=1,
                seqlen_q=length,
                deterministic=args.deterministic,
            )


def main():
    args = arguments()
    device = attune_runtime.current_device()
    runtime = attune_runtime.open_runtime(args, device)
    made = attune_runtime.attentions(runtime, list(wanted(args)), device)
    measure(made[0])  # loads PyTorch's own kernels, so that they count nowhere
    measured = [measure(attention) for attention in made]
    described = environment.describe(args, runtime.lib, environment.open_nvml())
    memory_results.write_csv(f"{args.out}.csv", measured)
    found = memory_results.faults(measured)
    with open(f"{args.out}.json", "w", encoding="utf-8") as file:
        plans = [json.loads(attention.backward_plan.info("json")) for attention in made]
        json.dump({"environment": described, "plans": plans, "faults": found}, file, indent=1)
        file.write("\n")
    print(memory_results.table(measured))
    for text in found:
        print(f"memory.py: {text}", file=sys.stderr)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
