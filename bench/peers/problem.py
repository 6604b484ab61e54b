"""A problem as attune names it, with its canonical text, as attune/problem.h has it."""

import dataclasses


@dataclasses.dataclass(frozen=True)
class Problem:
    dtype: str = "bf16"
    head_dim: int = 128
    head_dim_v: int | None = None  # as head_dim
    heads: int = 32
    heads_kv: int | None = None  # as heads
    causal: bool = False  # aligned to the bottom right
    batch: int = 1
    seqlen_q: int = 4096
    seqlen_k: int | None = None  # as seqlen_q
    layout: str = "bshd"
    op: str = "forward"
    deterministic: bool = False  # backward alone
    scores: str = "any"  # forward: what the kernel is chosen for, any or peaked

    def __post_init__(self):
        for field, other in (("head_dim_v", "head_dim"), ("heads_kv", "heads"), ("seqlen_k", "seqlen_q")):
            if getattr(self, field) is None:
                object.__setattr__(self, field, getattr(self, other))

    def __str__(self):
        behind = ("deterministic", "scores")
        names = ["op"] + [f.name for f in dataclasses.fields(self) if f.name not in ("op", *behind)]
        if self.op == "backward":
            names.append("deterministic")
        if self.scores != "any":
            names.append("scores")
        fields = [(name, getattr(self, name)) for name in names]
        return ",".join(
            f"{name}={int(value) if value is True or value is False else value}" for name, value in fields
        )

    @property
    def flops(self):
        """As attune counts them: the pairs that the mask leaves, half of them where the lengths are equal."""
        q, k = self.seqlen_q, self.seqlen_k
        pairs = q * k
        if self.causal:
            pairs = q * (k - q) + q * q / 2 if q <= k else k * k / 2
        columns = self.head_dim + self.head_dim_v
        if self.op == "backward":  # three products of head_dim and two of head_dim_v instead of one and one
            columns = 3 * self.head_dim + 2 * self.head_dim_v
        return 2.0 * self.batch * self.heads * pairs * columns


def parse(text, op="forward"):
    """Inverse of str(problem): keys in any order, those left out take their defaults, and op this one. Raises
    ValueError."""
    types = {f.name: f.type for f in dataclasses.fields(Problem)}
    values = {"op": op}
    for item in text.strip().split(","):
        key, equals, value = item.partition("=")
        if not equals or key not in types:
            raise ValueError(f"problem: '{item}' is not KEY=VALUE with a key among {', '.join(types)}")
        values[key] = value if types[key] is str else _parse_number(key, value, types[key])
    if values["op"] not in ("forward", "backward"):
        raise ValueError(f"op: '{values['op']}' is unknown (allowed: forward, backward)")
    if values.get("dtype", "bf16") not in ("bf16", "fp16"):
        raise ValueError(f"dtype: '{values['dtype']}' is unknown (allowed: bf16, fp16)")
    if values.get("scores", "any") not in ("any", "peaked"):
        raise ValueError(f"scores: '{values['scores']}' is unknown (allowed: any, peaked)")
    return Problem(**values)


def _parse_number(key, value, kind):
    if not value.isdecimal() or (kind is bool and value not in "01"):
        raise ValueError(f"{key}: '{value}' is not {'0 or 1' if kind is bool else 'a number'}")
    return value == "1" if kind is bool else int(value)
