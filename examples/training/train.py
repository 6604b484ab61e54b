"""Trains a small transformer three times from the same weights on the same batches: with attune's attention in bf16,
with PyTorch's in bf16 (FlashAttention-2), and with PyTorch's in float32, the control.

All else is float32, so the curves differ by attention alone. Writes OUT.csv, the losses of each step, OUT.json, where
they come from and what they come to, and OUT.svg, a picture; docs/training.md says what is judged. Exit status: 0 good;
1 attune's curve is too far from the control's, its loss did not fall, or --deterministic was not; 3 no usable GPU.
"""

import argparse
import json
import os
import sys
import time
import xml.etree.ElementTree as ET

import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

import peers_path  # noqa: F401  makes the next ones importable

import environment
from problem import Problem

import attune_runtime
import language
import training_figure
import training_results
from model import Model

WIDTH = 512  # heads * head dim
LAYERS = 2
RATE, MOMENTUM, WARM_UP, LARGEST_GRADIENT = 0.1, 0.9, 30, 1.0  # of the SGD; steps until the full rate; norm


# -- attention -------------------------------------------------------------------------------------


def attune_attention(attention):
    def call(q, k, v):
        return attention(q.bfloat16(), k.bfloat16(), v.bfloat16()).float()

    return call


def torch_attention(dtype, backend):
    def call(q, k, v):
        q, k, v = (tensor.to(dtype).transpose(1, 2) for tensor in (q, k, v))
        with sdpa_kernel(backend):
            o = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=q.shape[1] != k.shape[1])
        return o.transpose(1, 2).float()

    return call


# -- training --------------------------------------------------------------------------------------


class Training:
    """The same weights and batches in every run()."""

    def __init__(self, args, device):
        self._args, self._device = args, device
        texts = language.texts(args.steps * args.batch, args.seqlen + 1, args.seed)
        self.without_attention = language.pair_entropy(texts)
        symbols = torch.frombuffer(bytearray(b"".join(texts)), dtype=torch.uint8).to(device, torch.int64)
        self._batches = symbols.view(args.steps, args.batch, args.seqlen + 1)

    def run(self, attention):
        """The loss of each step, and the weights that it ends with."""
        args = self._args
        torch.manual_seed(args.seed)
        model = Model(len(language.ALPHABET), args.seqlen, LAYERS, args.heads, args.heads_kv, args.head_dim)
        model.to(self._device)
        weights = list(model.parameters())
        optimizer = torch.optim.SGD(weights, lr=RATE, momentum=MOMENTUM)
        warm_up = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: min(1, (step + 1) / WARM_UP))
        losses = []
        for batch in self._batches:
            logits = model(batch[:, :-1], attention)
            loss = F.cross_entropy(logits.flatten(0, 1), batch[:, 1:].flatten())
            optimizer.zero_grad()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(weights, LARGEST_GRADIENT)
            optimizer.step()
            warm_up.step()
            losses.append(loss.detach())
        return torch.stack(losses).tolist(), [weight.detach() for weight in weights]


def train_all(training, attention, again):
    """Name -> losses of each training, and whether two of attune's gave the same bits (None: not asked for)."""
    curves, same_bits = {}, None
    curves[training_results.ATTUNE], weights = training.run(attention)
    if again:
        curves[training_results.AGAIN], weights_again = training.run(attention)
        same_bits = curves[training_results.AGAIN] == curves[training_results.ATTUNE]
        same_bits = same_bits and all(map(torch.equal, weights, weights_again))
    bf16 = torch_attention(torch.bfloat16, SDPBackend.FLASH_ATTENTION)
    curves[training_results.PYTORCH], _ = training.run(bf16)
    curves[training_results.CONTROL], _ = training.run(torch_attention(torch.float32, SDPBackend.MATH))
    return curves, same_bits


# -- the run ---------------------------------------------------------------------------------------


def arguments():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, prog="train.py"
    )
    group = parser.add_argument_group("training")
    group.add_argument("--head-dim", type=int, choices=(64, 128), default=128, help="(default: 128)")
    group.add_argument(
        "--heads-kv",
        type=int,
        metavar="N",
        help=f"KV heads (default: as many as query heads, {WIDTH} / head dim)",
    )
    group.add_argument("--batch", type=int, default=16, metavar="N", help="texts a step (default: 16)")
    group.add_argument("--seqlen", type=int, default=512, metavar="N", help="(default: 512)")
    group.add_argument("--steps", type=int, default=300, metavar="N", help="(default: 300)")
    group.add_argument("--seed", type=int, default=0, metavar="N", help="of texts and weights (default: 0)")
    group.add_argument(
        "--deterministic",
        action="store_true",
        help="train twice with attune's deterministic backward pass: losses and weights must have the same bits",
    )
    group.add_argument("--out", default="training", metavar="PREFIX", help="of the files (default: training)")
    attune_runtime.add_arguments(parser)
    environment.add_arguments(parser)
    args = parser.parse_args()
    check(parser, args)
    environment.require_gpu(parser, args)
    return args


def check(parser, args):
    """Ends the program if there is something wrong; fills in what was left out."""
    args.heads = WIDTH // args.head_dim
    args.heads_kv = args.heads if args.heads_kv is None else args.heads_kv
    if args.heads_kv < 1 or args.heads % args.heads_kv:
        parser.error(f"--heads-kv: {args.heads_kv} (allowed: a divisor of the {args.heads} query heads)")
    least = {"batch": 1, "seqlen": 1, "steps": 2 * training_results.WINDOW, "seed": 0}
    for name, value in least.items():
        if getattr(args, name) < value:
            parser.error(f"--{name}: {getattr(args, name)} (allowed: {value} or more)")


def make_deterministic():
    """PyTorch's part; before the first product on the GPU."""
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.use_deterministic_algorithms(True)


def open_attention(args, device):
    """The runtime, and attention by its plans; ends the program if there are none."""
    problem = Problem(
        head_dim=args.head_dim,
        heads=args.heads,
        heads_kv=args.heads_kv,
        causal=True,
        batch=args.batch,
        seqlen_q=args.seqlen,
        deterministic=args.deterministic,
    )
    runtime = attune_runtime.open_runtime(args, device)
    return runtime, *attune_runtime.attentions(runtime, [problem], device)


def settings(args):
    chosen = ("head_dim", "heads", "heads_kv", "batch", "seqlen", "steps", "seed", "deterministic")
    return {name: getattr(args, name) for name in chosen} | {
        "layers": LAYERS,
        "rate": RATE,
        "momentum": MOMENTUM,
        "warm_up": WARM_UP,
        "largest_gradient": LARGEST_GRADIENT,
    }


def main():
    begin = time.monotonic()
    args = arguments()
    if args.deterministic:
        make_deterministic()
    device = attune_runtime.current_device()
    runtime, attention = open_attention(args, device)
    print(f"plans after {time.monotonic() - begin:.0f} s", file=sys.stderr)
    training = Training(args, device)
    curves, same_bits = train_all(training, attune_attention(attention), args.deterministic)
    print(f"trained after {time.monotonic() - begin:.0f} s", file=sys.stderr)

    verdict = training_results.judge(curves, training.without_attention, same_bits)
    described = environment.describe(args, runtime.lib, environment.open_nvml())
    plans = {
        "forward": json.loads(attention.forward_plan.info("json")),
        "backward": json.loads(attention.backward_plan.info("json")),
    }
    training_results.write_csv(f"{args.out}.csv", curves)
    training_results.write_json(f"{args.out}.json", described, settings(args), plans, verdict)
    picture = training_figure.draw(curves, verdict, settings(args), described)
    ET.ElementTree(picture).write(f"{args.out}.svg", encoding="unicode")
    print(training_results.summary(verdict))
    for fault in verdict.faults:
        print(f"train.py: {fault}", file=sys.stderr)
    return 1 if verdict.faults else 0


if __name__ == "__main__":
    sys.exit(main())
