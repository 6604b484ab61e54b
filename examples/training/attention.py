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
    an attune_ctypes.Runtime of `device`, which has an index ("cuda:0").
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
        return _Function.apply(q, k, v, self)

    def forward(self, q, k, v):
        """O and LSE [batch, heads, seqlen_q], which backward() needs; nothing for autograd."""
        self._check(q=q, k=k, v=v)
        o, lse = self._empty("o"), self._empty("lse")
        self.forward_plan.bind(q, k, v, o, lse, stream=self._stream())()
        return o, lse

    def backward(self, q, k, v, o, d_o, lse):
        """dQ, dK and dV, dense, from what forward() read and returned and from dO, of any strides."""
        self._check(q=q, k=k, v=v, o=o, d_o=d_o, lse=lse)
        d_o = d_o.contiguous()  # that of a sum, say, is a broadcast number with strides of 0
        d_q, d_k, d_v = (self._empty(name) for name in "qkv")
        # Goes back to PyTorch's allocator on return, which gives it out again in the stream's order: behind the launch.
        workspace = torch.empty(self.workspace_bytes, dtype=torch.uint8, device=self.device)
        launch = self.backward_plan.bind_backward(
            q, k, v, o, d_o, lse, d_q, d_k, d_v, workspace, stream=self._stream()
        )
        launch()
        return d_q, d_k, d_v

    def _empty(self, name):
        return torch.empty(self._shapes[name], dtype=self._dtype(name), device=self.device)

    def _dtype(self, name):
        return torch.float32 if name == "lse" else DTYPES[self.problem.dtype]

    def _stream(self):
        return torch.cuda.current_stream(self.device).cuda_stream

    def _check(self, **tensors):
        """A plan takes pointers and strides alone: what does not fit the problem would be read out of bounds."""
        for name, tensor in tensors.items():
            kind = name.removeprefix("d_")
            allowed = (self._shapes[kind], self._dtype(kind), self.device)
            found = (tuple(tensor.shape), tensor.dtype, tensor.device)
            if found != allowed:
                raise ValueError(f"{name}: {_words(*found)} (allowed: {_words(*allowed)})")


def _words(shape, dtype, device):
    return f"{list(shape)} of {dtype} on {device}"


class _Function(torch.autograd.Function):
    @staticmethod
    def forward(ctx, q, k, v, attention):
        o, lse = attention.forward(q, k, v)
        ctx.attention = attention
        ctx.save_for_backward(q, k, v, o, lse)
        return o

    @staticmethod
    @once_differentiable
    def backward(ctx, d_o):
        q, k, v, o, lse = ctx.saved_tensors
        return *ctx.attention.backward(q, k, v, o, d_o, lse), None
