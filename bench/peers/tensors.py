"""Inputs, and attention and its gradients in float64 as the yardstick."""

import torch

DEVICE = "cuda"
DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16}
FORWARD = ("q", "k", "v", "o", "lse")  # what a forward launch reads and writes

REFERENCE_SCORES = 2**26  # so many are in memory at a time: half a GiB for each of a few matrices


class Arena:
    """Random normal numbers for each of these tensors and each dtype, seen through the shape of each problem."""

    def __init__(self, problems, names=FORWARD, seed=0):
        self._names = names
        self._sets = {}
        generator = torch.Generator(DEVICE).manual_seed(seed)
        for dtype in sorted({problem.dtype for problem in problems}):
            of_dtype = [problem for problem in problems if problem.dtype == dtype]
            self._sets[dtype] = {
                name: torch.randn(
                    max(_size(problem, name) for problem in of_dtype),
                    device=DEVICE,
                    dtype=_dtype(dtype, name),
                    generator=generator,
                )
                for name in names
            }

    def tensors(self, problem):
        """Dictionary of the tensors, [batch, row, head, dim] each, but lse as [batch, head, row]."""
        buffers = self._sets[problem.dtype]
        return {name: _view(buffers[name][: _size(problem, name)], problem, name) for name in self._names}


def empty(problem, name):
    """One of a problem's tensors, in memory of its own."""
    flat = torch.empty(_size(problem, name), device=DEVICE, dtype=_dtype(problem.dtype, name))
    return _view(flat, problem, name)


def _shape(p, name):
    """Batch, rows, heads and dim of a tensor, whose gradient has the same; the dim of lse is 1."""
    return {
        "q": (p.batch, p.seqlen_q, p.heads, p.head_dim),
        "k": (p.batch, p.seqlen_k, p.heads_kv, p.head_dim),
        "v": (p.batch, p.seqlen_k, p.heads_kv, p.head_dim_v),
        "o": (p.batch, p.seqlen_q, p.heads, p.head_dim_v),
        "lse": (p.batch, p.seqlen_q, p.heads, 1),
    }[name.removeprefix("d_")]


def _size(problem, name):
    return torch.Size(_shape(problem, name)).numel()


def _dtype(dtype, name):
    return torch.float32 if name == "lse" else DTYPES[dtype]


def _view(flat, problem, name):
    batch, rows, heads, dim = _shape(problem, name)
    if name == "lse":
        return flat.view(batch, heads, rows)
    if problem.layout == "bshd":
        return flat.view(batch, rows, heads, dim)
    return flat.view(batch, heads, rows, dim).transpose(1, 2)


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
    scores = _scores(q.double(), k.double(), last_key)
    lse = scores.logsumexp(-1)
    weights = (scores - lse[..., None]).exp_().nan_to_num_(nan=0.0)  # -inf - -inf where a row sees no key
    return weights @ v.double(), lse


def reference_gradients(q, k, v, d_o, last_key=None):
    """dQ, dK and dV in float64 of one query head: q and d_o [row, dim], k and v [key, dim].

    `last_key` as in reference(). Needs neither O nor LSE; goes through the rows a part at a time.
    """
    k, v = k.double(), v.double()
    d_q, d_k, d_v = [], torch.zeros_like(k), torch.zeros_like(v)
    scale = default_scale(q.shape[-1])
    for rows in torch.arange(q.shape[0], device=q.device).split(max(1, REFERENCE_SCORES // k.shape[0])):
        queries, gradients = q[rows].double(), d_o[rows].double()
        scores = _scores(queries, k, None if last_key is None else last_key[rows])
        weights = scores.softmax(-1).nan_to_num_(nan=0.0)  # a row that sees no key
        d_v += weights.T @ gradients
        d_weights = gradients @ v.T
        d_weights -= (weights * d_weights).sum(-1, keepdim=True)
        d_scores = weights.mul_(d_weights).mul_(scale)
        d_q.append(d_scores @ k)
        d_k += d_scores.T @ queries
    return torch.cat(d_q), d_k, d_v


def worst(found):
    """Dictionary name -> greatest of the tensors of one number in its list, NaN if there is one."""
    return {name: torch.stack(values).max().item() for name, values in found.items()}


def _scores(q, k, last_key):
    scores = (q @ k.transpose(-1, -2)) * default_scale(q.shape[-1])
    if last_key is not None:
        scores.masked_fill_(torch.arange(k.shape[-2], device=k.device) > last_key[:, None], -torch.inf)
    return scores
