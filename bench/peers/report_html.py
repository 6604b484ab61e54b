"""Makes a page of a table of forward_grid.py or backward_grid.py: plots, summary, environment and all cells in one HTML
file that needs nothing else.

The environment comes from the JSON file of the same name beside the table, if there is one, and from --about. Exit
status: 0 good, 1 a file is no such table or cannot be written, 2 usage.
"""

import argparse
import json
import pathlib
import sys
import xml.etree.ElementTree as ET

import grid_figure
import grid_results
import grid_table
from grid_table import TableError

SHOWN_FIRST = ("mode", "gpu", "driver", "date", "commit", "command")

STYLE = """
body { font: 15px/1.45 system-ui, sans-serif; color: #222; background: #fff; margin: 2em; max-width: 75em; }
table { border-collapse: collapse; font-size: 13px; }
th, td { padding: 2px 8px; text-align: right; border-bottom: 1px solid #ddd; white-space: nowrap; }
th { position: sticky; top: 0; background: #f4f4f4; }
td.text, th.text { text-align: left; }
td.config { text-align: left; font-size: 10px; }
tr.below td { background: #fde8ea; }
tr.worst td { font-weight: bold; }
.about th { position: static; text-align: left; }
.about td { text-align: left; white-space: normal; overflow-wrap: anywhere; }
.scroll { overflow-x: auto; }
svg { max-width: 100%; height: auto; }
"""

NOTES = (
    "TFLOP/s count 2 B H pairs (D + D_v) operations, backward 2 B H pairs (3 D + 2 D_v); pairs as the mask leaves them, "
    "half of them if the lengths are equal. best is the faster peer; ratio is attune over best in each round, median over "
    "the rounds.",
    "cudnn_tflops: cuDNN through PyTorch, in the same process, in turn with attune.",
    "sm_mhz is the clock that a spin of known cycles saw right after attune's launches (the median of the rounds). "
    "While the tensor cores work under a power cap the clock may be lower, so the limit is an upper bound.",
    "An empty cell is a number that was not measured.",
)
_MEASURED = "FlashAttention-3 in the same process, in turn with the others"
_RECORDED = "in bursts cuDNN's speed here times the recorded ratio of the two, else a recorded speed"
FA3_NOTES = {
    "measured": f"fa3_tflops: {_MEASURED}.",
    "recorded": f"fa3_tflops: not measured in this run; {_RECORDED}.",
    "both": f"fa3_tflops: where it could run, {_MEASURED}; elsewhere not measured in this run: {_RECORDED}.",
}


# -- what goes in ----------------------------------------------------------------------------------


def environment(table, given):
    """What the JSON file beside the table says, and over it what was given. Raises TableError."""
    path = pathlib.Path(table).with_suffix(".json")
    about = {}
    if path.exists():
        try:
            document = json.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise TableError(f"{path}: {error}") from None
        described = document.get("environment") if isinstance(document, dict) else None
        if not isinstance(described, dict):
            raise TableError(f"{path}: environment: is no object")
        about = {"mode": document.get("mode"), **described}
    about |= given
    if not str(about.get("sms") or grid_figure.SMS).isdecimal():
        raise TableError(f"sms: '{about['sms']}' is not a whole number")
    return {key: about[key] for key in (*SHOWN_FIRST, *about) if about.get(key) not in (None, "")}


def key_and_text(argument):
    key, equals, text = argument.partition("=")
    if not (key and equals):
        raise argparse.ArgumentTypeError(f"'{argument}' is not KEY=TEXT")
    return key, text


# -- the page --------------------------------------------------------------------------------------


def page(rows, about):
    """The text of the HTML file, which is well-formed XML too."""
    html = ET.Element("html", {"lang": "en"})
    head = ET.SubElement(html, "head")
    title = f"attune: {grid_table.subject(rows)}"
    _add(head, "title", title)
    _add(head, "style", STYLE)
    body = ET.SubElement(html, "body")
    _add(body, "h1", title + (f", {about['mode']}" if about.get("mode") else ""))
    for text in summary_texts(rows):
        _add(body, "p", text, {"class": "summary"})
    body.append(grid_figure.draw(rows, about))
    _add(body, "h2", "Where and how")
    _about_table(body, about)
    for note in (*NOTES, FA3_NOTES[grid_figure.source_of_fa3(about)]):
        _add(body, "p", note)
    _add(body, "h2", "All cells")
    _cells_table(body, rows)
    # Before anything that is not ASCII, and one of the elements that HTML wants without an end.
    text = ET.tostring(html, encoding="unicode", short_empty_elements=False)
    return "<!DOCTYPE html>\n" + text.replace("<head>", '<head><meta charset="utf-8"/>', 1) + "\n"


def summary_texts(rows):
    what = grid_table.summary(rows)
    if not what.problems:
        return [f"{len(grid_table.best_rows(rows))} problems were measured, none of them beside a peer."]
    texts = [
        f"{what.problems} problems. Geometric mean of the ratios to the best peer: {what.geomean:.4f}. "
        f"Worst: {what.worst.cells['ratio']} ({_name(what.worst)}). Below 1: {len(what.below_1)}."
    ]
    if what.geomean_over_cudnn is not None:
        texts.append(f"Geometric mean over cuDNN alone: {what.geomean_over_cudnn:.4f}.")
    wrong = sum(row.wrong for row in rows)
    if wrong:
        texts.append(f"{wrong} rows are WRONG: their kernels failed the check and were not timed.")
    return texts


def _name(row):
    mask = "causal" if row["causal"] else "no mask"
    return f"{row['op']} {row['dtype']} D {row['head_dim']} {mask} S {row['seqlen_q']} B {row['batch']}"


def _about_table(parent, about):
    table = _add(parent, "table", attributes={"class": "about"})
    for key, value in about.items():
        line = _add(table, "tr")
        _add(line, "th", key)
        _add(line, "td", str(value))
    if not about:
        _add(_add(table, "tr"), "td", "not recorded")


def _cells_table(parent, rows):
    worst = grid_table.summary(rows).worst
    table = _add(_add(parent, "div", attributes={"class": "scroll"}), "table", attributes={"class": "cells"})
    line = _add(_add(table, "thead"), "tr")
    for column in ("", *grid_results.COLUMNS):
        _add(line, "th", column, {"class": "text"} if column in grid_table.TEXTS else {})
    body = _add(table, "tbody")
    for row in rows:
        marks = _marks(row, worst)
        line = _add(body, "tr", attributes={"class": " ".join(marks)} if marks else {})
        _add(line, "td", ", ".join(marks.values()), {"class": "text"})
        for column, text in row.cells.items():
            kind = "config" if column == "config" else "text" if column in grid_table.TEXTS else ""
            _add(line, "td", text, {"class": kind} if kind else {})


def _marks(row, worst):
    """Class -> words, since colours alone do not reach everybody."""
    holds = {
        ("worst", "worst"): row is worst,
        ("below", "below 1"): row["ratio"] is not None and row["ratio"] < 1,
        ("below", "WRONG"): row.wrong,
    }
    return dict(mark for mark, applies in holds.items() if applies)


def _add(parent, tag, text=None, attributes=None):
    node = ET.SubElement(parent, tag, attributes or {})
    node.text = text
    return node


# -- a short table ---------------------------------------------------------------------------------


def markdown(rows):
    """A line for each head dim and mask."""
    dtypes = ", ".join(dict.fromkeys(row["dtype"] for row in rows))
    lines = [
        f"| {dtypes} | lengths | attune, TFLOP/s | ratio to the best peer | geometric mean |",
        "|---|---|---|---|---|",
    ]
    for panel in grid_table.panels(rows):
        found = [row for _, row in panel.points]
        ratios = [row["ratio"] for row in found if row["ratio"] is not None]
        speeds = [row["attune_tflops"] for row in found]
        mean = grid_results.geometric_mean(ratios)
        cells = [
            panel.title,
            _span(panel.points[0][0], panel.points[-1][0]),
            _span(f"{min(speeds):.0f}", f"{max(speeds):.0f}"),
            _span(f"{min(ratios):.2f}", f"{max(ratios):.2f}") if ratios else "",
            f"{mean:.3f}" if ratios else "",
        ]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def _span(first, last):
    return first if first == last else f"{first} to {last}"


# -- the command -----------------------------------------------------------------------------------


def write(table, path, about=None):
    """The page of a table's file. Raises TableError, OSError."""
    text = page(grid_table.read(table), environment(table, about or {}))
    pathlib.Path(path).write_text(text, encoding="utf-8")


def picture(rows, about):
    """The text of an SVG file."""
    return ET.tostring(grid_figure.draw(rows, about), encoding="unicode") + "\n"


def arguments():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, prog="report_html.py"
    )
    parser.add_argument("table", metavar="CSV", help="OUT_burst.csv or OUT_sustained.csv")
    parser.add_argument("-o", "--output", metavar="HTML", help="(default: the table's name with .html)")
    parser.add_argument(
        "--svg", metavar="SVG", help="write the plots alone, as a picture, instead of the page"
    )
    parser.add_argument("--markdown", action="store_true", help="print a short table instead")
    parser.add_argument(
        "--about",
        action="append",
        default=[],
        type=key_and_text,
        metavar="KEY=TEXT",
        help="of the environment: gpu, sms, driver, date, commit, command, fa3 (measured, recorded or both), ...; may be given again",
    )
    return parser.parse_args()


def main():
    args = arguments()
    try:
        rows = grid_table.read(args.table)
        about = environment(args.table, dict(args.about))
        if args.markdown:
            print(markdown(rows), end="")
        if args.svg:
            pathlib.Path(args.svg).write_text(picture(rows, about), encoding="utf-8")
        if args.output or not (args.markdown or args.svg):
            output = args.output or pathlib.Path(args.table).with_suffix(".html")
            pathlib.Path(output).write_text(page(rows, about), encoding="utf-8")
    except (TableError, OSError) as error:
        sys.exit(f"report_html.py: {error}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
