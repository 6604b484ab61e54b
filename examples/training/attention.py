"""attune's attention as a differentiable function of PyTorch, through the C interface."""

import concurrent.futures
import dataclasses

import torch
from torch.autograd.function import once_differentiable

DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16}


class Attention:
    """The attention of one problem: a forward and a backward plan, made here, where they may be compiled.

    Called with q [batch, seqlen_q, heads, head_dim], k [batch, seqlen_k, heads_kv, head_dim] and v [batch, seqlen_k,
    heads_kv, head_dim_v], returns O [batch, seqlen_q, heads, head_dim_v]. The inputs may have any strides that are
    multiples of 8 elements, with a contiguous dim and memory aligned to 16 bytes; parts of one packed tensor do. Work
    is queued on PyTorch's current stream; calls may come from any thread.

    `problem` is a problem.Problem (its op does not matter; deterministic: dQ has the same bits in every run), `runtime`
    an attune_ctypes.Runtime of `device`.
    """

    def __init__(self, runtime, problem, device):
        self.problem, self.device = problem, torch.device(device)
        forward = dataclasses.replace(problem, op="forward", deterministic=False)
        backward = dataclasses.replace(problem, op="backward")
        with concurrent.futures.ThreadPoolExecutor(2) as pool:
            self.forward_plan, self.backward_plan = pool.map(runtime.plan, (forward, backward))
        self.workspace_bytes = self.backward_plan.workspace_bytes()
        p = problem
        self._shapes = {
            "q": (p.batch, p.seqlen_q, p.heads, p.head_dim),
            "k": (p.batch, p.seqlen_k, p.heads_kv, p.head_dim),
            "v": (p.batch, p.seqlen_k, p.heads_kv, p.head_dim_v),
            "o": (p.batch, p.seqlen_q, p.heads, p.head_dim_v),
            "lse": (p.batch, p.heads, p.seqlen_q),
        }

    def __call__(self, q, k, v):
        for name, tensor in (("q", q), ("k", k), ("v", v)):
            self._check(name, tensor)
        return _Function.apply(q, k, v, self)

    def empty(self, name):
        """Memory for a tensor, or its gradient; dense."""
        dtype = torch.float32 if name == "lse" else DTYPES[self.problem.dtype]
        return torch.empty(self._shapes[name], dtype=dtype, device=self.device)

    def stream(self):
        return torch.cuda.current_stream(self.device).cuda_stream

    def _check(self, name, tensor):
        """A plan takes pointers and strides alone: what does not fit the problem would be read out of bounds."""
        allowed = (self._shapes[name], DTYPES[self.problem.dtype], self.device)
        found = (tuple(tensor.shape), tensor.dtype, tensor.device)
        if found != allowed:
            raise ValueError(f"{name}: {_words(*found)} (allowed: {_words(*allowed)})")


def _words(shape, dtype, device):
    return f"{list(shape)} of {dtype} on {device}"


class _Function(torch.autograd.Function):
    """Tensors that are released here go back to PyTorch's allocator, which gives them out again in the stream's order:
    launches that are still queued have them to themselves."""

    @staticmethod
    def forward(ctx, q, k, v, attention):
        o, lse = attention.empty("o"), attention.empty("lse")
        attention.forward_plan.bind(q, k, v, o, lse, stream=attention.stream())()
        ctx.attention = attention
        ctx.save_for_backward(q, k, v, o, lse)
        return o

    @staticmethod
    @once_differentiable
    def backward(ctx, d_o):
        attention = ctx.attention
        q, k, v, o, lse = ctx.saved_tensors
        d_o = d_o.contiguous()  # that of a sum, say, is a broadcast number with strides of 0
        d_q, d_k, d_v = (attention.empty(name) for name in "qkv")
        workspace = torch.empty(attention.workspace_bytes, dtype=torch.uint8, device=attention.device)
        launch = attention.backward_plan.bind_backward(
            q, k, v, o, d_o, lse, d_q, d_k, d_v, workspace, stream=attention.stream()
        )
        launch()
        return d_q, d_k, d_v, None
