"""Inputs, and attention in float64 as the yardstick."""

import torch

DEVICE = "cuda"
DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16}


class Arena:
    """One set of random normal inputs for each dtype, seen through the shape of each problem."""

    def __init__(self, problems, seed=0):
        self._sets = {}
        generator = torch.Generator(DEVICE).manual_seed(seed)
        for dtype in sorted({problem.dtype for problem in problems}):
            shapes = [_shapes(problem) for problem in problems if problem.dtype == dtype]
            sizes = {name: max(_size(shape[name]) for shape in shapes) for name in "qkvo"}
            buffers = {
                name: torch.randn(size, device=DEVICE, dtype=DTYPES[dtype], generator=generator)
                for name, size in sizes.items()
            }
            rows = max(p.batch * p.heads * p.seqlen_q for p in problems if p.dtype == dtype)
            buffers["lse"] = torch.empty(rows, device=DEVICE, dtype=torch.float32)
            self._sets[dtype] = buffers

    def tensors(self, problem):
        """Dictionary of q, k, v and o as [batch, row, head, dim], and lse as [batch, head, row]."""
        buffers = self._sets[problem.dtype]
        views = {}
        for name, (batch, rows, heads, dim) in _shapes(problem).items():
            flat = buffers[name][: batch * rows * heads * dim]
            if problem.layout == "bshd":
                views[name] = flat.view(batch, rows, heads, dim)
            else:
                views[name] = flat.view(batch, heads, rows, dim).transpose(1, 2)
        shape = (problem.batch, problem.heads, problem.seqlen_q)
        views["lse"] = buffers["lse"][: _size(shape)].view(shape)
        return views


def _shapes(p):
    return {
        "q": (p.batch, p.seqlen_q, p.heads, p.head_dim),
        "k": (p.batch, p.seqlen_k, p.heads_kv, p.head_dim),
        "v": (p.batch, p.seqlen_k, p.heads_kv, p.head_dim_v),
        "o": (p.batch, p.seqlen_q, p.heads, p.head_dim_v),
    }


def _size(shape):
    return torch.Size(shape).numel()


def default_scale(head_dim):
    """1 / sqrt(head_dim), rounded to float32 as kernels take it."""
    return torch.tensor(head_dim**-0.5, dtype=torch.float32).item()


def last_keys(rows, seqlen_q, seqlen_k):
    """Index of the last key that each row sees under a causal mask, aligned to the bottom right."""
    return rows + (seqlen_k - seqlen_q)


def reference(q, k, v, last_key=None):
    """O [..., row, dim] and LSE [..., row] in float64, of q [..., row, dim], k and v [..., key, dim].

    Row i sees the keys up to last_key[i]; None: all. A row that sees none has O = 0 and LSE = -inf.
    """
    scores = (q.double() @ k.double().transpose(-1, -2)) * default_scale(q.shape[-1])
    if last_key is not None:
        scores.masked_fill_(torch.arange(k.shape[-2], device=k.device) > last_key[:, None], -torch.inf)
    lse = scores.logsumexp(-1)
    weights = (scores - lse[..., None]).exp_().nan_to_num_(nan=0.0)  # -inf - -inf where a row sees no key
    return weights @ v.double(), lse
