"""Host time of one launch: attune through its C interface, and PyTorch's attention for comparison.

Launches queue up behind a spin, so what is measured is the host alone. Prints nanoseconds a call, the median
and the least of --repeats. "ctypes" is a call that does little but cross from Python to C: subtract it from
attune's.
"""

import argparse
import contextlib
import statistics
import sys
import time

import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

import environment
import options
import plans
import tensors
import timing

QUEUED = 400  # launches in a row: fewer than the driver lets wait


def nanoseconds(call, repeats):
    """Of each repeat, a call's mean."""
    times = []
    call()
    for _ in range(repeats):
        torch.cuda.synchronize()
        timing.spin(QUEUED)
        begin = time.perf_counter_ns()
        for _ in range(QUEUED):
            call()
        times.append((time.perf_counter_ns() - begin) / QUEUED)
    torch.cuda.synchronize()
    return times


def arguments():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, prog="launch_overhead.py"
    )
    small = "batch=1,seqlen_q=128,heads=4,head_dim=128"
    parser.add_argument(
        "--problem",
        type=options.problem("forward"),
        default=small,
        metavar="TEXT",
        help=f"(default: {small})",
    )
    parser.add_argument("--repeats", type=int, default=9)
    plans.add_arguments(parser)
    args = parser.parse_args()
    environment.require_gpu(parser, args)
    return args


def main():
    args = arguments()
    p = args.problem
    runtime = plans.open_runtime(args)
    views = tensors.Arena([p]).tensors(p)
    q, k, v = (views[name].transpose(1, 2) for name in "qkv")

    def torch_attention():
        F.scaled_dot_product_attention(q, k, v, is_causal=p.causal, enable_gqa=p.heads != p.heads_kv)

    def show(name, call, context=contextlib.nullcontext()):
        with context:
            times = nanoseconds(call, args.repeats)
        print(f"{name:40} median {statistics.median(times):8.0f} ns   least {min(times):8.0f} ns")

    made = plans.create(runtime, [(p, config) for config in plans.config_names(args)], args)
    for (_, config), plan in made.items():
        if isinstance(plan, Exception):
            sys.exit(str(plan))
        stream = torch.cuda.current_stream().cuda_stream
        show(f"attune, {config}", plan.bind(**views, stream=stream))
    show("ctypes", plan.workspace_bytes)
    show("torch, cuDNN", torch_attention, sdpa_kernel(SDPBackend.CUDNN_ATTENTION))
    show("torch, FlashAttention-2", torch_attention, sdpa_kernel(SDPBackend.FLASH_ATTENTION))
    return 0


if __name__ == "__main__":
    sys.exit(main())
