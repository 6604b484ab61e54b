"""Draws the curves of a training as one SVG picture: the losses, and below how far they are from the control's."""

import math

import peers_path  # noqa: F401  makes the next one importable

import svg

import training_results as results

SERIES = {  # curve: (name, colour, width), in the order in which they are drawn
    results.CONTROL: ("PyTorch, float32", "#bbbbbb", 6),
    results.PYTORCH: ("PyTorch, bf16 (FlashAttention-2)", "#c2570c", 3),
    results.ATTUNE: ("attune, bf16", "#0b5cad", 1.2),
}
FAINT, LIMIT = "#dddddd", "#777777"

MARGIN, GAP = 72, 24
PLOT_WIDTH, LOSS_HEIGHT, DISTANCE_HEIGHT = 640, 260, 130
HEAD, LABELS, LINE = 58, 34, 16  # heights: of title and legend, of an axis's labels, of a line of text


def draw(curves, verdict, settings, about):
    """The <svg> element. `settings`: the numbers of the training by name; `about`: the environment, of which GPU,
    driver, date, commit and versions are named."""
    notes = captions(verdict, about)
    width = MARGIN + PLOT_WIDTH + GAP
    height = HEAD + LOSS_HEIGHT + GAP + DISTANCE_HEIGHT + LABELS + LINE * len(notes) + 8
    picture = svg.picture(width, height, "Loss of a transformer, trained with attune and with PyTorch")
    title = "Loss over {steps} steps: {layers} layers, {heads} heads ({heads_kv} for K and V) of {head_dim}, "
    title += "{batch} x {seqlen} characters a step"
    svg.text(picture, 12, 22, title.format(**settings), size=13, weight="bold")
    _legend(picture)
    steps = len(curves[results.ATTUNE])
    frame = Frame(picture, HEAD, LOSS_HEIGHT, steps, "loss, nats", _loss_range(curves, verdict))
    _losses(picture, curves, verdict, frame)
    top = HEAD + LOSS_HEIGHT + GAP
    frame = Frame(picture, top, DISTANCE_HEIGHT, steps, "away from float32", _distance_range(curves, verdict))
    _distances(picture, curves, verdict, frame)
    frame.label_steps(picture)
    for index, note in enumerate(notes):
        svg.text(picture, 12, height - 8 - LINE * (len(notes) - 1 - index), note)
    return picture


def captions(verdict, about):
    """Lines below the picture: what is drawn, what came out, and where."""
    lines = [
        f"Below: means of {results.WINDOW} steps, less the float32 curve's. Dashed: {results.TOLERANCE:g} times the "
        "spread of PyTorch's bf16 attention.",
        f"Greatest distance: attune {verdict.deviation:.1e}, PyTorch {verdict.peer_deviation:.1e}; "
        f"limit {verdict.limit:.1e}.",
    ]
    where = [str(about[key]) for key in ("gpu", "date") if about.get(key)]
    where += [f"{key} {about[key]}" for key in ("driver", "attune", "commit", "torch") if about.get(key)]
    if where:
        lines.append(", ".join(where))
    return lines


class Frame:
    """Axes of one plot over the steps."""

    def __init__(self, parent, y, height, steps, title, span):
        low, high = span
        self._y, self._height, self._steps = y, height, steps
        step = svg.grid_step(max(high - low, 1e-9))
        first, last = math.floor(low / step), math.ceil(high / step)
        self._low, self._high = first * step, last * step
        for index in range(first, last + 1):
            at = self.at(0, index * step)[1]
            svg.line(parent, MARGIN, at, MARGIN + PLOT_WIDTH, at, FAINT)
            svg.text(parent, MARGIN - 5, at + 4, f"{index * step:.2g}", anchor="end")
        middle = y + height / 2
        turned = svg.text(parent, 16, middle, title, anchor="middle")
        turned.set("transform", f"rotate(-90 16 {middle:.1f})")

    def at(self, step, value):
        x = MARGIN + PLOT_WIDTH * step / max(self._steps - 1, 1)
        return x, self._y + self._height * (self._high - value) / (self._high - self._low)

    def level(self, parent, value, colour, class_):
        """A dashed line across."""
        ends = [self.at(step, value) for step in (0, self._steps - 1)]
        svg.path(parent, ends, colour, class_=class_, dash="5 3")

    def label_steps(self, parent):
        distance = max(1, round(svg.grid_step(self._steps)))
        bottom = self._y + self._height
        for step in range(0, self._steps, distance):
            svg.text(parent, self.at(step, 0)[0], bottom + 15, str(step), anchor="middle")
        svg.text(parent, MARGIN + PLOT_WIDTH / 2, bottom + 29, "step", anchor="middle")


def _legend(picture):
    x = 12
    for name, colour, width in SERIES.values():
        svg.path(picture, [(x, 40), (x + 22, 40)], colour, class_="legend", width=width)
        svg.text(picture, x + 28, 44, name)
        x += 48 + 6 * len(name)
    svg.line(picture, x, 40, x + 22, 40, LIMIT, dash="5 3")
    svg.text(picture, x + 28, 44, "least without attention")


def _loss_range(curves, verdict):
    shown = [loss for name in SERIES for loss in curves[name] if math.isfinite(loss)]
    return min(shown + [verdict.without_attention]), max(shown + [verdict.without_attention])


def _losses(picture, curves, verdict, frame):
    frame.level(picture, verdict.without_attention, LIMIT, "without-attention")
    for name, (_, colour, width) in SERIES.items():
        points = [frame.at(step, loss) for step, loss in enumerate(curves[name]) if math.isfinite(loss)]
        _series(picture, "loss", name, points, colour, width)


def _distances_of(curves, name):
    """(step, distance), from the first step that ends a whole window."""
    listed = enumerate(results.distances(curves[name], curves[results.CONTROL]), results.WINDOW - 1)
    return [(step, distance) for step, distance in listed if math.isfinite(distance)]


def _distance_range(curves, verdict):
    shown = [distance for name in SERIES for _, distance in _distances_of(curves, name)]
    if math.isfinite(verdict.limit):
        shown += [verdict.limit, -verdict.limit]
    return min(shown, default=0), max(shown, default=0)


def _distances(picture, curves, verdict, frame):
    if math.isfinite(verdict.limit):
        for limit in (verdict.limit, -verdict.limit):
            frame.level(picture, limit, LIMIT, "limit")
    for name, (_, colour, width) in SERIES.items():
        points = [frame.at(step, distance) for step, distance in _distances_of(curves, name)]
        _series(picture, "distance", name, points, colour, width / 2 + 0.6)


def _series(picture, kind, name, points, colour, width):
    svg.path(picture, points, colour, width=width).set("data-series", f"{kind} {name}")
