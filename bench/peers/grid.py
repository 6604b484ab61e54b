"""The shapes by which attention libraries are usually compared."""

from problem import Problem

HEAD_DIMS = (64, 128, 256)
LENGTHS = (512, 1024, 2048, 4096, 8192, 16384)
TOKENS = 16384  # batch * length
WIDTH = 2048  # heads * head dim


def fa3(dtypes=("bf16",), head_dims=HEAD_DIMS, causal=(False, True), lengths=LENGTHS, op="forward"):
    """That of FlashAttention-3's paper: B * S = 16384 and H * D = 2048."""
    for dtype in dtypes:
        for head_dim in head_dims:
            for mask in causal:
                for length in lengths:
                    yield Problem(
                        dtype=dtype,
                        head_dim=head_dim,
                        heads=WIDTH // head_dim,
                        causal=mask,
                        batch=max(1, TOKENS // length),
                        seqlen_q=length,
                        op=op,
                    )
