"""Attention and its gradients in float64 at a few rows: time and memory are linear in the length."""

import torch

FIRST = (
    64  # query: the earliest ones see so few keys that their gradient is a difference of almost equal numbers
)
EDGES = (64, 127, 128)  # rows at tile edges
RANDOM = 11


def chosen(length, seed):
    """Indices of rows, from FIRST on: at tile edges, in the middle, at the end, and others."""
    generator = torch.Generator().manual_seed(seed)
    listed = torch.tensor([*EDGES, length // 2, length - 1])
    return torch.cat([listed, torch.randint(FIRST, length, (RANDOM,), generator=generator)])


def of_queries(q, k, v, d_o, last_key, scale):
    """O, LSE and dQ of the queries q [row, dim], d_o likewise, of one head that reads k and v [key, dim].

    Row i sees the keys up to last_key[i]; None: all.
    """
    q, k, v, d_o = (tensor.double() for tensor in (q, k, v, d_o))
    scores = (q @ k.T) * scale
    if last_key is not None:
        scores.masked_fill_(torch.arange(len(k), device=k.device) > last_key[:, None], -torch.inf)
    weights = scores.softmax(-1)
    d_weights = d_o @ v.T
    d_scores = weights * (d_weights - (weights * d_weights).sum(-1, keepdim=True))
    return weights @ v, scores.logsumexp(-1), d_scores @ k * scale


def of_keys(k, v, q, o, d_o, lse, first_query, scale):
    """What one query head adds to dK and dV of the keys k and v [key, dim], from all its rows q, o and d_o [row, dim]
    and lse [row], which are taken as given: exact ones would need all pairs.

    Key j is seen by the queries from first_query[j] on; None: by all.
    """
    k, v, q, o, d_o, lse = (tensor.double() for tensor in (k, v, q, o, d_o, lse))
    weights = ((q @ k.T) * scale - lse[:, None]).exp_()
    if first_query is not None:
        weights.masked_fill_(torch.arange(len(q), device=q.device)[:, None] < first_query, 0.0)
    d_scores = weights * (d_o @ v.T - (d_o * o).sum(-1, keepdim=True))
    return d_scores.T @ q * scale, weights.T @ d_o


def worst_error(rows, exact):
    """The greatest relative error of a row, by norms; NaN if there is one."""
    return ((rows.double() - exact).norm(dim=-1) / exact.norm(dim=-1)).max().item()
