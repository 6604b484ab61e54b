"""The kernels to beat: cuDNN and FlashAttention-2 through PyTorch, FlashAttention-3 by a table."""

import csv
import pathlib

import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

FA3_TABLE = pathlib.Path(__file__).resolve().with_name("fa3_over_cudnn_h200.csv")


class Peer:
    """PyTorch's attention: cuDNN's, or FlashAttention-2 where cuDNN's causal mask is another one."""

    def __init__(self, problem, tensors):
        self._q, self._k, self._v = (tensors[name].transpose(1, 2) for name in "qkv")
        self._options = {"enable_gqa": problem.heads != problem.heads_kv}
        # One query a sequence sees every key. Otherwise is_causal aligns to the top left: right for equal
        # lengths.
        causal = problem.causal and problem.seqlen_q > 1
        if causal and problem.seqlen_q != problem.seqlen_k:
            from torch.nn.attention.bias import causal_lower_right  # takes seconds, and few runs need it

            self.name, self._backend = "fa2", SDPBackend.FLASH_ATTENTION
            self._options["attn_mask"] = causal_lower_right(problem.seqlen_q, problem.seqlen_k)
        else:
            self.name, self._backend = "cudnn", SDPBackend.CUDNN_ATTENTION
            self._options["is_causal"] = causal

    def context(self):
        """What the calls must stand in; entered once for many calls, since it costs host time."""
        return sdpa_kernel(self._backend)

    def __call__(self):
        return F.scaled_dot_product_attention(self._q, self._k, self._v, **self._options)


def reason(error):
    """The beginning of an error of PyTorch's, which may be long."""
    return str(error).splitlines()[0][:200]


class Fa3Table:
    """What FlashAttention-3 reached on one H200, for the shapes that were measured there."""

    def __init__(self, path=FA3_TABLE):
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
            p.batch * p.seqlen_q == 16384
            and p.seqlen_q == p.seqlen_k
            and p.heads * p.head_dim == 2048
            and p.heads == p.heads_kv
            and p.head_dim == p.head_dim_v
            and p.layout == "bshd"
        )
        row = self._rows.get((p.dtype, p.head_dim, p.causal, p.seqlen_q)) if measured else None
        return float(row[column]) if row and row[column] else None
