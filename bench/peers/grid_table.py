"""Reads the tables that forward_grid.py and backward_grid.py write, and says what they come to."""

import csv
import dataclasses
import math

from grid_results import COLUMNS, MEASURED, geometric_mean

TEXTS = ("op", "dtype", "config")
PEERS = ("cudnn_tflops", "fa3_tflops")


class TableError(ValueError):
    """The file is no such table; the text names it, the line and the column."""


@dataclasses.dataclass(frozen=True)
class Row:
    """A line of the table: row["ratio"] is its value, None where the cell is empty."""

    cells: dict  # column -> text, as in the file
    values: dict  # column -> text, number or None

    def __getitem__(self, column):
        return self.values[column]

    @property
    def problem(self):
        """What identifies the problem: everything up to the first measured column."""
        return tuple(self.values[column] for column in COLUMNS[: COLUMNS.index(MEASURED[0])])

    @property
    def wrong(self):
        return self["config"].startswith("WRONG")


# -- reading ---------------------------------------------------------------------------------------


def read(path):
    """The rows of a table, at least one. Raises TableError."""
    try:
        with open(path, encoding="utf-8", newline="") as file:
            lines = file.readlines()
    except (OSError, UnicodeDecodeError) as error:
        raise TableError(f"{path}: {error}") from None
    reader = csv.reader(lines, strict=True)
    try:
        _check_header(path, next(reader, []))
        rows = [_row(f"{path}:{reader.line_num}", cells) for cells in reader]
    except csv.Error as error:
        raise TableError(f"{path}:{reader.line_num}: {error}") from None
    if not rows:
        raise TableError(f"{path}: has no rows")
    return rows


def _check_header(path, header):
    if header == list(COLUMNS):
        return
    missing = [column for column in COLUMNS if column not in header]
    unknown = [column for column in header if column not in COLUMNS]
    what = "; ".join(
        f"{text} {', '.join(columns)}" for text, columns in (("lacks", missing), ("has", unknown)) if columns
    )
    raise TableError(f"{path}:1: columns: {what or 'in another order'} (allowed: {','.join(COLUMNS)})")


def _row(place, cells):
    if len(cells) != len(COLUMNS):
        raise TableError(f"{place}: {len(cells)} cells (allowed: {len(COLUMNS)})")
    texts = dict(zip(COLUMNS, cells))
    return Row(texts, {column: _value(place, column, text) for column, text in texts.items()})


def _value(place, column, text):
    if column in TEXTS:
        if not text:
            raise TableError(f"{place}: {column}: is empty")
        return text
    if column in MEASURED:
        return _measured(place, column, text)
    # isdecimal() takes the digits of every script.
    if not (text.isascii() and text.isdecimal()):
        raise TableError(f"{place}: {column}: '{text}' is not a whole number")
    value = int(text)
    if column == "causal" and value not in (0, 1):
        raise TableError(f"{place}: causal: '{text}' (allowed: 0, 1)")
    if column != "causal" and value < 1:
        raise TableError(f"{place}: {column}: {text} (allowed: 1 and more)")
    return value


def _measured(place, column, text):
    if not text:
        return None
    try:
        value = float(text)
    except ValueError:
        raise TableError(f"{place}: {column}: '{text}' is not a number") from None
    if not (math.isfinite(value) and value > 0):
        raise TableError(f"{place}: {column}: '{text}' (allowed: finite and above 0)")
    return value


# -- summaries -------------------------------------------------------------------------------------


def best_rows(rows):
    """The fastest measured row of each problem, in the order of the table: it may have several configs."""
    best = {}
    for row in rows:
        if row["attune_tflops"] is None:
            continue
        held = best.setdefault(row.problem, row)
        if row["attune_tflops"] > held["attune_tflops"]:
            best[row.problem] = row
    return list(best.values())


@dataclasses.dataclass(frozen=True)
class Summary:
    problems: int  # with a ratio
    geomean: float | None  # of the ratios to the best peer
    geomean_over_cudnn: float | None
    worst: Row | None
    below_1: list


def summary(rows):
    compared = [row for row in best_rows(rows) if row["ratio"] is not None]
    over_cudnn = [row["attune_tflops"] / row["cudnn_tflops"] for row in compared if row["cudnn_tflops"]]
    return Summary(
        problems=len(compared),
        geomean=geometric_mean([row["ratio"] for row in compared]),
        geomean_over_cudnn=geometric_mean(over_cudnn),
        worst=min(compared, key=lambda row: row["ratio"], default=None),
        below_1=[row for row in compared if row["ratio"] < 1],
    )


def subject(rows):
    """What a table is about: forward attention, backward attention, or both."""
    return " and ".join(dict.fromkeys(row["op"] for row in rows)) + " attention"


# -- panels ----------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Panel:
    """Problems that differ in batch and lengths only."""

    title: str
    points: list  # (label, row), by length


def panels(rows):
    """Of the measured problems: those without a mask first, then by head dim."""
    groups = {}
    for row in best_rows(rows):
        key = (row["op"], row["dtype"], row["heads"] // row["heads_kv"], row["causal"])
        groups.setdefault((*key, row["head_dim"], row["head_dim_v"]), []).append(row)
    many = {column: len({row[column] for row in rows}) > 1 for column in ("op", "dtype")}
    return [Panel(_title(group[0], many), _points(group)) for _, group in sorted(groups.items())]


def _title(row, many):
    words = [f"{row[column]}, " for column in ("op", "dtype") if many[column]]
    numbers = _joined(row, "head_dim", "head_dim_v")
    words.append(f"D {numbers}, {'causal' if row['causal'] else 'no mask'}")
    if row["heads"] != row["heads_kv"]:
        words.append(f", {row['heads'] // row['heads_kv']} query heads a key head")
    return "".join(words)


def _joined(row, *columns):
    """As 128, or as 192/128 where they differ."""
    return "/".join(dict.fromkeys(row.cells[column] for column in columns))


def _points(group):
    group = sorted(group, key=lambda row: (row["seqlen_k"], row["seqlen_q"], row["batch"], row["heads"]))
    labels = [_joined(row, "seqlen_q", "seqlen_k") for row in group]
    repeated = {label for label in labels if labels.count(label) > 1}
    return [
        (f"{label} B{row['batch']} H{row['heads']}" if label in repeated else label, row)
        for label, row in zip(labels, group)
    ]
