"""Kinds of scores. A speculative kernel's speed depends on them: it fixes the reference of its exponentials beforehand, and
where the reference does not serve it has to start again."""

import argparse
import re

import torch

NORMAL = "normal"
PEAKED = "sd20"  # of problems with scores=peaked, as attune's tuner has them
MEANING = "normal, sdN (normal with a standard deviation of N nats), sinks, mixed"
SINK = 14.0  # nats above the others: nine tenths of a row and more up to 16384 keys
MIXED = (0.5, 30.0)  # least and greatest standard deviation of the heads, in nats


def kind(text):
    """The type of a command line option."""
    if text in (NORMAL, "sinks", "mixed") or re.fullmatch(r"sd[1-9][0-9]?", text):
        return text
    raise argparse.ArgumentTypeError(f"'{text}' (allowed: {MEANING})")


def applied(which, views, heads_kv):
    """The same tensors, but with Q, and K, that have such scores where random normal ones have a deviation of 1 nat."""
    if which == NORMAL:
        return views
    q, k = views["q"], views["k"]
    if which.startswith("sd"):
        q = q * float(which[2:])
    if which == "mixed":
        # Neighbouring heads differ as much as any: what one of them does to a kernel must not help the next.
        heads = q.shape[2]
        place = torch.arange(heads, device=q.device) * 7 % heads / max(heads - 1, 1)
        q = q * (MIXED[0] * (MIXED[1] / MIXED[0]) ** place).to(q.dtype)[:, None]
    if which in ("sinks", "mixed"):
        # All queries have the same first column, and the first key nothing else.
        q, k = q.clone(), k.clone()
        q[..., 0] = 4.0
        sunk = slice(None) if which == "sinks" else slice(0, heads_kv, 2)
        k[:, 0, sunk] = 0.0
        k[:, 0, sunk, 0] = SINK * q.shape[-1] ** 0.5 / 4.0
    return views | {"q": q, "k": k}
