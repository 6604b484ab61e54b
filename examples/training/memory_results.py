"""The table of memory.py, and how its numbers grow with the length."""

import csv
import dataclasses

LIMIT = 2.05  # of the growth while the length doubles
GROWING = ("workspace_bytes", "peak_bytes", "device_bytes")
# PyTorch's allocator keeps memory in segments: so much of what a problem takes may have been there before it.
SLACK = {"workspace_bytes": 0, "peak_bytes": 0, "device_bytes": 64 << 20}


@dataclasses.dataclass(frozen=True)
class Row:
    """Of one length, forward and backward."""

    causal: bool
    seqlen: int
    tensor_bytes: int  # of Q, K, V, O, LSE and of all gradients
    workspace_bytes: int  # of the backward plan
    peak_bytes: int  # the most that PyTorch's allocator had given out at a time
    device_before: int  # bytes in use on the GPU, whoever asked for them
    device_after: int
    o_error: float  # worst of the sampled rows, see rows.py
    lse_error: float
    d_q_error: float
    d_k_error: float
    d_v_error: float
    fault: str = ""  # what is wrong with the results, in words

    @property
    def device_bytes(self):
        return self.device_after - self.device_before


COLUMNS = [field.name for field in dataclasses.fields(Row)]


def growth(rows):
    """(column, row, ratio) of every row whose half in length is there too, with the same mask."""
    by_length = {(row.causal, row.seqlen): row for row in rows}
    for row in rows:
        half = by_length.get((row.causal, row.seqlen / 2))
        if half is not None:
            for column in GROWING:
                yield column, row, getattr(row, column) / (getattr(half, column) + SLACK[column])


def faults(rows):
    """What is wrong, in words."""
    found = [f"{_name(row)}: {row.fault}" for row in rows if row.fault]
    found += [
        f"{_name(row)}: {column} is {ratio:.3f} times that of half the length (limit {LIMIT})"
        for column, row, ratio in growth(rows)
        if ratio > LIMIT
    ]
    return found


def _name(row):
    return f"{'causal' if row.causal else 'no mask'}, length {row.seqlen}"


def table(rows):
    """For people: MiB, and the greatest growth of each column."""
    lines = [
        f"{'':8} {'length':>8} {'tensors':>9} {'workspace':>9} {'peak':>9} {'device':>9} {'worst error':>12}"
    ]
    for row in rows:
        sizes = (row.tensor_bytes, row.workspace_bytes, row.peak_bytes, row.device_bytes)
        cells = " ".join(f"{size / 2**20:9.1f}" for size in sizes)
        worst = max(row.o_error, row.d_q_error, row.d_k_error, row.d_v_error)
        lines.append(f"{'causal' if row.causal else 'no mask':8} {row.seqlen:8} {cells} {worst:12.1e}")
    found = list(growth(rows))
    for column in GROWING if found else ():
        worst = max(ratio for name, _, ratio in found if name == column)
        lines.append(f"{column}: at most {worst:.4f} times that of half the length")
    return "\n".join(lines)


def write_csv(path, rows):
    with open(path, "w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(COLUMNS)
        for row in rows:
            writer.writerow([_cell(getattr(row, column)) for column in COLUMNS])


def _cell(value):
    if isinstance(value, bool):
        return int(value)
    return f"{value:.3e}" if isinstance(value, float) else value
