"""Draws a table of forward_grid.py or backward_grid.py as one SVG picture: speeds and ratios over the length, a pair of
plots for each head dim and mask."""

import math

import grid_table

from svg import INK, grid_step, picture
from svg import line as _line
from svg import marker as _marker
from svg import node as _node
from svg import path as _path
from svg import text as _text

FLOP_PER_CLOCK = 4096  # dense bf16 or fp16, of an SM
SMS = 132  # of an H100 SXM or H200, where the environment says nothing

OTHER_PEER = "best_tflops"  # the peer's speed where that is not cuDNN
SERIES = {  # column: (name, colour, marker)
    "attune_tflops": ("attune", "#0b5cad", "circle"),
    "cudnn_tflops": ("cuDNN", "#c2570c", "square"),
    "fa3_tflops": ("FlashAttention-3", "#3f7d20", "triangle"),
    OTHER_PEER: ("FlashAttention-2", "#7a3e9d", "diamond"),
}
RATIO_COLOUR = SERIES["attune_tflops"][1]
FAINT, LIMIT, BAD = "#dddddd", "#777777", "#b00020"

COLUMNS = 3  # panels side by side
MARGIN, GAP = 56, 14
PLOT_WIDTH, SPEED_HEIGHT, RATIO_HEIGHT = 290, 170, 96
PANEL_WIDTH = MARGIN + PLOT_WIDTH + GAP
PANEL_HEIGHT = 26 + SPEED_HEIGHT + 16 + RATIO_HEIGHT + 34
HEAD, LINE = 64, 16  # heights: of title and legend, of a line of text


def draw(rows, about):
    """The <svg> element. `about` is the environment, of which the SMs count, GPU, driver, date and commit are named, and
    `fa3` says whether FlashAttention-3 was measured."""
    found = grid_table.panels(rows)
    notes = captions(rows, about)
    lines = math.ceil(len(found) / COLUMNS)
    width = min(len(found), COLUMNS) * PANEL_WIDTH if found else PANEL_WIDTH
    width = max(width, 2 * PANEL_WIDTH)  # room for the legend
    height = HEAD + lines * PANEL_HEIGHT + LINE * len(notes) + 8
    subject = grid_table.subject(rows).capitalize()
    svg = picture(width, height, f"{subject}: TFLOP/s and ratio to the best peer")
    _head(svg, rows, subject, about)
    scales = Scales(found, sms_of(about))
    for index, panel in enumerate(found):
        x, y = index % COLUMNS * PANEL_WIDTH, HEAD + index // COLUMNS * PANEL_HEIGHT
        _panel(svg, panel, scales, x + MARGIN, y)
    for index, note in enumerate(notes):
        _text(svg, 12, height - 8 - LINE * (len(notes) - 1 - index), note)
    return svg


def sms_of(about):
    return int(about.get("sms") or SMS)


def speed(row, column):
    """What is drawn of a row in the series of a column, or None."""
    return None if column == OTHER_PEER and row["cudnn_tflops"] is not None else row[column]


def limit_tflops(row, sms):
    """What the tensor cores could do at the clock of that row, or None."""
    return None if row["sm_mhz"] is None else sms * FLOP_PER_CLOCK * row["sm_mhz"] * 1e-6


def captions(rows, about):
    """Lines below the picture: what was measured, where, and what the limit is."""
    what = grid_table.summary(rows)
    lines = []
    if what.problems:
        lines.append(
            f"{what.problems} problems: geometric mean of the ratios {what.geomean:.3f}, worst "
            f"{what.worst.cells['ratio']}, {len(what.below_1)} below 1. Bars: least and greatest of the rounds."
        )
    where = [str(about[key]) for key in ("gpu", "date") if about.get(key)]
    where += [f"{key} {about[key]}" for key in ("driver", "commit") if about.get(key)]
    if where:
        lines.append(", ".join(where))
    lines.append(
        f"Limit: {sms_of(about)} SMs x {FLOP_PER_CLOCK} FLOP x the SM clock, read by a probe right after attune's "
        "launches; under load it may be lower."
    )
    return lines


class Scales:
    """The same for all panels: speeds from 0, ratios around 1."""

    def __init__(self, panels, sms):
        self.sms = sms
        rows = [row for panel in panels for _, row in panel.points]
        speeds = [value for row in rows for column in SERIES if (value := speed(row, column)) is not None]
        speeds += [limit for row in rows if (limit := limit_tflops(row, sms)) is not None]
        ratios = [
            row[column] for row in rows for column in ("ratio", "ratio_min", "ratio_max") if row[column]
        ]
        self.speed_step = grid_step(max(speeds, default=1))
        self.speed_top = self.speed_step * math.ceil(max(speeds, default=1) / self.speed_step)
        low, high = min(ratios + [1]), max(ratios + [1])
        self.ratio_step = grid_step(max(high - low, 0.1))
        self.ratio_bottom = self.ratio_step * math.floor(low / self.ratio_step - 0.25)
        self.ratio_top = self.ratio_step * math.ceil(high / self.ratio_step + 0.25)


# -- panels ----------------------------------------------------------------------------------------


# Behind the name of FlashAttention-3, by what the environment says of its figures.
FA3_SOURCES = {"measured": "", "both": ", in part from records", "recorded": ", from records"}


def source_of_fa3(about):
    source = about.get("fa3") or "recorded"
    if source not in FA3_SOURCES:
        raise grid_table.TableError(f"fa3: '{source}' (allowed: {', '.join(FA3_SOURCES)})")
    return source


def _head(svg, rows, subject, about):
    _text(
        svg,
        12,
        22,
        f"{subject}, TFLOP/s and ratio to the best peer, over the length",
        size=15,
        weight="bold",
    )
    x = 12
    for column, (name, colour, marker) in SERIES.items():
        if any(speed(row, column) is not None for row in rows):
            if column == "fa3_tflops":
                name += FA3_SOURCES[source_of_fa3(about)]
            _marker(svg, marker, x + 6, 42, colour)
            _text(svg, x + 16, 46, name)
            x += 40 + 6 * len(name)
    _line(svg, x, 42, x + 22, 42, LIMIT, dash="5 3")
    _text(svg, x + 28, 46, "limit of the tensor cores")


def _panel(svg, panel, scales, x, y):
    group = _node(svg, "g", class_="panel")
    _text(group, x, y + 16, panel.title, size=12, weight="bold")
    centres = [x + PLOT_WIDTH * (index + 0.5) / len(panel.points) for index in range(len(panel.points))]
    speed = Frame(group, x, y + 26, SPEED_HEIGHT, 0, scales.speed_top, scales.speed_step, "TFLOP/s")
    _speeds(group, panel, scales.sms, centres, speed)
    top = y + 26 + SPEED_HEIGHT + 16
    ratio = Frame(
        group, x, top, RATIO_HEIGHT, scales.ratio_bottom, scales.ratio_top, scales.ratio_step, "ratio"
    )
    _ratios(group, panel, centres, ratio)
    _labels(group, panel, centres, top + RATIO_HEIGHT + 15)


def _labels(group, panel, centres, y):
    """Slanted where they would run into each other."""
    slanted = max(len(label) for label, _ in panel.points) * 7 > PLOT_WIDTH / len(panel.points)
    for centre, (label, _) in zip(centres, panel.points):
        if slanted:
            text = _text(group, centre + 4, y - 4, label, anchor="end", size=9)
            text.set("transform", f"rotate(-30 {centre + 4:.1f} {y - 4:.1f})")
        else:
            _text(group, centre, y, label, anchor="middle")


class Frame:
    """Axes of one plot."""

    def __init__(self, parent, x, y, height, low, high, step, title):
        self.x = x
        self._y, self._height, self._low, self._high = y, height, low, high
        for index in range(round((high - low) / step) + 1):
            value = low + index * step
            at = self.at(value)
            _line(parent, x, at, x + PLOT_WIDTH, at, FAINT)
            _text(parent, x - 5, at + 4, f"{value:.0f}" if step >= 1 else f"{value:.2f}", anchor="end")
        middle = y + height / 2
        turned = _text(parent, x - 40, middle, title, anchor="middle")
        turned.set("transform", f"rotate(-90 {x - 40:.1f} {middle:.1f})")

    def at(self, value):
        return self._y + self._height * (self._high - value) / (self._high - self._low)


def _speeds(group, panel, sms, centres, frame):
    limits = [(centre, limit_tflops(row, sms)) for centre, (_, row) in zip(centres, panel.points)]
    limits = [(centre, frame.at(limit)) for centre, limit in limits if limit is not None]
    _path(group, limits, LIMIT, class_="limit", dash="5 3")
    for column, (name, colour, marker) in reversed(SERIES.items()):  # attune on top
        points = zip(centres, panel.points)
        known = [(c, label, row) for c, (label, row) in points if speed(row, column) is not None]
        if column != OTHER_PEER:  # whose problems are not neighbours
            _path(group, [(centre, frame.at(row[column])) for centre, _, row in known], colour)
        for centre, label, row in known:
            point = _marker(group, marker, centre, frame.at(row[column]), colour)
            _annotate(point, column, label, row, f"{name} {row.cells[column]} TFLOP/s")


def _ratios(group, panel, centres, frame):
    _line(group, frame.x, frame.at(1), frame.x + PLOT_WIDTH, frame.at(1), INK)
    known = [(c, label, row) for c, (label, row) in zip(centres, panel.points) if row["ratio"] is not None]
    _path(group, [(centre, frame.at(row["ratio"])) for centre, _, row in known], RATIO_COLOUR)
    for centre, label, row in known:
        if row["ratio_min"] is not None and row["ratio_max"] is not None:
            _line(group, centre, frame.at(row["ratio_min"]), centre, frame.at(row["ratio_max"]), RATIO_COLOUR)
        colour = BAD if row["ratio"] < 1 else RATIO_COLOUR
        point = _marker(group, "circle", centre, frame.at(row["ratio"]), colour)
        text = f"ratio {row.cells['ratio']} ({row.cells['ratio_min']} to {row.cells['ratio_max']})"
        _annotate(point, "ratio", label, row, text)
    if known:
        centre, _, row = min(known, key=lambda item: item[2]["ratio"])
        above = frame.at(row["ratio_max"] or row["ratio"]) - 7
        _text(group, centre, above, f"{row['ratio']:.3f}", anchor="middle", size=10)


def _annotate(point, column, label, row, text):
    """What the point stands for, for readers' pointers and for programs."""
    point.set("class", "point")
    point.set("data-column", column)
    point.set("data-value", row.cells[column])
    mask = "causal" if row["causal"] else "no mask"
    _node(point, "title", f"{row['op']} {row['dtype']} D {row['head_dim']} {mask} S {label}: {text}")
