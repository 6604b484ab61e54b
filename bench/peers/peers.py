"""The kernels to beat: cuDNN and FlashAttention-2 through PyTorch, FlashAttention-3 as a library or by a table."""

import csv
import ctypes
import pathlib

import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

import grid
import timing

_FOLDER = pathlib.Path(__file__).resolve().parent
FA3_TABLES = {
    "forward": _FOLDER / "fa3_over_cudnn_h200.csv",
    "backward": _FOLDER / "fa3_over_cudnn_backward_h200.csv",
}


def _is_masked(problem):
    """One query a sequence sees every key."""
    return problem.causal and problem.seqlen_q > 1


def name_of(problem):
    """Of the peer for a problem: cudnn, or fa2 where cuDNN's causal mask is another one. PyTorch's is_causal aligns to
    the top left, which is right for equal lengths only."""
    return "fa2" if _is_masked(problem) and problem.seqlen_q != problem.seqlen_k else "cudnn"


class ForwardPeer:
    """PyTorch's attention by name_of()'s kernel."""

    host_ms = timing.HOST_MS

    def __init__(self, problem, tensors):
        self._q, self._k, self._v = (tensors[name].transpose(1, 2) for name in "qkv")
        self._options = {"enable_gqa": problem.heads != problem.heads_kv}
        if name_of(problem) == "fa2":
            from torch.nn.attention.bias import causal_lower_right  # takes seconds, and few runs need it

            self._backend = SDPBackend.FLASH_ATTENTION
            self._options["attn_mask"] = causal_lower_right(problem.seqlen_q, problem.seqlen_k)
        else:
            self._backend = SDPBackend.CUDNN_ATTENTION
            self._options["is_causal"] = _is_masked(problem)

    def context(self):
        """What the calls must stand in; entered once for many calls, since it costs host time."""
        return sdpa_kernel(self._backend)

    def __call__(self):
        return self._attention()

    def outputs(self):
        """Dictionary of what a call gives, [batch, row, head, dim]."""
        with self.context():
            return {"o": self().transpose(1, 2)}

    def _attention(self):
        return F.scaled_dot_product_attention(self._q, self._k, self._v, **self._options)


class BackwardPeer(ForwardPeer):
    """Its backward pass, by autograd. The forward pass behind it, with O and LSE of its own, runs once."""

    host_ms = 3 * timing.HOST_MS  # the engine runs it in a thread of its own

    def __init__(self, problem, tensors):
        super().__init__(problem, tensors)
        self._q, self._k, self._v = (x.detach().requires_grad_() for x in (self._q, self._k, self._v))
        self._d_o = tensors["d_o"].transpose(1, 2)
        with self.context():
            self._o = self._attention()

    def __call__(self):
        return torch.autograd.grad(self._o, (self._q, self._k, self._v), self._d_o, retain_graph=True)

    def outputs(self):
        with self.context():
            return {name: x.transpose(1, 2) for name, x in zip(("d_q", "d_k", "d_v"), self())}


class Fa3Library:
    """FlashAttention-3's forward kernels as build_fa3.sh makes them."""

    ROWS = {64: 192, 128: 128, 256: 128}  # head dim -> of a tile
    # By its heuristics keys are not split where tiles are at least so many an SM, unless a head's K and V outgrow the L2
    # and each SM has two tiles.
    FILLED, L2_BYTES = 0.8, 50 << 20

    def __init__(self, path):
        library = ctypes.CDLL(str(pathlib.Path(path).resolve()))
        self._functions = {dim: getattr(library, f"fa3_forward_{dim}") for dim in self.ROWS}
        for function in self._functions.values():
            function.argtypes = [ctypes.c_void_p] * 6 + [ctypes.c_int] * 6 + [ctypes.c_void_p]

    def call(self, problem, tensors):
        """A function that launches it and leaves O in its attribute `o`, or None where FlashAttention-3 may run something
        that is not in the library: packed heads of a GQA group, split keys, or lengths with another kernel."""
        p = problem
        rows = self.ROWS.get(p.head_dim)
        if p.dtype != "bf16" or rows is None or p.head_dim != p.head_dim_v or p.layout != "bshd":
            return None
        if p.heads != p.heads_kv or p.seqlen_q == 1 or (p.causal and p.seqlen_q != p.seqlen_k):
            return None
        tiles = -(-p.seqlen_q // rows)
        sms = torch.cuda.get_device_properties(tensors["q"].device).multi_processor_count
        outgrows = not p.causal and 4 * p.seqlen_k * p.head_dim > self.L2_BYTES and tiles >= 2 * sms
        if p.batch * p.heads * tiles < self.FILLED * sms or outgrows:
            return None
        return _Fa3Call(self._functions[p.head_dim], p, tensors)


class _Fa3Call:
    def __init__(self, function, p, tensors):
        self.o = torch.empty_like(tensors["q"])
        self._lse = self.o.new_empty((p.batch, p.heads, p.seqlen_q), dtype=torch.float32)
        self._counter = self.o.new_zeros(1, dtype=torch.int32)
        self._inputs = [tensors[name] for name in "qkv"]
        if not all(x.is_contiguous() for x in (*self._inputs, self.o)):
            raise ValueError("tensors: not contiguous (allowed: [batch, seqlen, heads, head_dim] without gaps)")
        self._function = function
        pointers = [x.data_ptr() for x in (*self._inputs, self.o, self._lse, self._counter)]
        self._arguments = [*pointers, p.batch, p.seqlen_q, p.seqlen_k, p.heads, p.heads_kv, int(p.causal)]

    def __call__(self):
        if status := self._function(*self._arguments, torch.cuda.current_stream().cuda_stream):
            raise RuntimeError(f"FlashAttention-3: CUDA error {status}")


def reason(error):
    """The beginning of an error of PyTorch's, which may be long."""
    return str(error).splitlines()[0][:200]


class Fa3Table:
    """What FlashAttention-3 reached on one H200, for the shapes that were measured there: one of FA3_TABLES."""

    def __init__(self, path):
        with open(path, encoding="utf-8", newline="") as file:
            lines = [line for line in file if not line.startswith("#")]
        self._rows = {
            (row["dtype"], int(row["head_dim"]), row["causal"] == "1", int(row["seqlen"])): row
            for row in csv.DictReader(lines)
        }

    def over_cudnn(self, problem):
        """FA3's speed over cuDNN's in a burst, or None."""
        return self._number(problem, "fa3_over_cudnn")

    def sustained_tflops(self, problem):
        """FA3's TFLOP/s under the power cap, or None."""
        return self._number(problem, "fa3_sustained_tflops")

    def _number(self, p, column):
        measured = (
            p.batch * p.seqlen_q == grid.TOKENS
            and p.seqlen_q == p.seqlen_k
            and p.heads * p.head_dim == grid.WIDTH
            and p.heads == p.heads_kv
            and p.head_dim == p.head_dim_v
            and p.layout == "bshd"
        )
        row = self._rows.get((p.dtype, p.head_dim, p.causal, p.seqlen_q)) if measured else None
        return float(row[column]) if row and row[column] else None
