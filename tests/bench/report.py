"""Checks what the benchmarks' scripts make of a table: the page and the picture, the committed ones among them, and
what is said of a file that is no table.

report.py ROOT
"""

import contextlib
import csv
import io
import json
import pathlib
import subprocess
import sys
import tempfile
import unittest
import xml.etree.ElementTree as ET
from types import SimpleNamespace

ROOT = pathlib.Path(sys.argv.pop(1)).resolve()
SCRIPT = ROOT / "bench/peers/report_html.py"
RESULTS = ROOT / "bench/results"
TABLE = RESULTS / "forward-h200.csv"
PICTURE = RESULTS / "forward-h200.svg"
SVG = "{http://www.w3.org/2000/svg}"
MEASURED = ("attune_tflops", "cudnn_tflops", "fa3_tflops", "best_tflops", "ratio")
TABLES = sorted(p for p in RESULTS.glob("*-h200*.csv") if p.read_text(encoding="utf-8").startswith("op,"))

sys.dont_write_bytecode = True
sys.path.insert(0, str(SCRIPT.parent))
import grid_figure  # noqa: E402
import grid_results  # noqa: E402
import grid_table  # noqa: E402
import grid  # noqa: E402
import report_html  # noqa: E402
from problem import Problem  # noqa: E402


class Thing(SimpleNamespace):
    """An object with these attributes that may be a dictionary's key."""

    __hash__ = object.__hash__


def lines_of(path):
    with open(path, encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def run(*arguments):
    return subprocess.run(
        [sys.executable, "-B", str(SCRIPT), *map(str, arguments)], capture_output=True, text=True
    )


def points(svg):
    """(column, text of the cell) of every point of a picture."""
    found = [n for n in svg.iter() if n.get("class") == "point"]
    assert all(node.find(f"{SVG}title") is not None for node in found)
    return sorted((node.get("data-column"), node.get("data-value")) for node in found)


def expected_points(rows):
    """Of the peers' best only where it is not cuDNN's or FlashAttention-3's, which have columns of their own."""
    return sorted(
        (column, row[column])
        for row in rows
        for column in MEASURED
        if row[column] and not (column == "best_tflops" and row["cudnn_tflops"])
    )


def gqa(row):
    return int(row["heads"]) // int(row["heads_kv"])


class Folder(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)

    def table(self, change=lambda rows: rows, name="table.csv"):
        """A copy of the committed table, changed."""
        rows = change(lines_of(TABLE))
        text = io.StringIO()
        writer = csv.DictWriter(text, rows[0], lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
        path = self.folder / name
        path.write_text(text.getvalue(), encoding="utf-8")
        return path

    def page(self, table, *arguments):
        """The page of a table, parsed."""
        output = self.folder / "page.html"
        result = run(table, "-o", output, *arguments)
        self.assertEqual(result.returncode, 0, result.stderr)
        text = output.read_text(encoding="utf-8")
        self.assertTrue(text.startswith("<!DOCTYPE html>\n<html "))
        return ET.fromstring(text.partition("\n")[2])


class Page(Folder):
    def test_every_cell_is_there(self):
        for table in TABLES:
            with self.subTest(table.name):
                page = self.page(table)
                (cells,) = [node for node in page.iter("table") if node.get("class") == "cells"]
                shown = [[cell.text or "" for cell in line.iter("td")][1:] for line in cells.find("tbody")]
                self.assertEqual(shown, [list(row.values()) for row in lines_of(table)])

    def test_every_number_is_drawn(self):
        for table in TABLES:
            with self.subTest(table.name):
                svg = self.page(table).find(f".//{SVG}svg")
                self.assertEqual(points(svg), expected_points(lines_of(table)))
                panels = {
                    (r["dtype"], r["head_dim"], r["head_dim_v"], r["causal"], gqa(r)) for r in lines_of(table)
                }
                for kind in ("panel", "limit"):
                    self.assertEqual(sum(node.get("class") == kind for node in svg.iter()), len(panels))

    def test_it_needs_nothing_else(self):
        output = self.folder / "page.html"
        self.assertEqual(run(TABLE, "-o", output).returncode, 0)
        text = output.read_text(encoding="utf-8").replace('xmlns="http://www.w3.org/2000/svg"', "")
        for word in ("http:", "https:", "src=", "href=", "url(", "@import", "<script"):
            self.assertNotIn(word, text)

    def test_summary(self):
        rows = lines_of(TABLE)
        product = 1.0
        for row in rows:
            product *= float(row["ratio"])
        first, *_ = [node.text for node in self.page(TABLE).iter("p") if node.get("class") == "summary"]
        self.assertIn(f"{product ** (1 / len(rows)):.4f}", first)
        self.assertIn(min(row["ratio"] for row in rows), first)

    def test_worst_cells_are_marked(self):
        def slow(rows):
            rows = [row | {"ratio": f"{max(float(row['ratio']), 1):.4f}"} for row in rows]
            rows[3] |= {"ratio": "0.9000"}
            rows[7] |= {"ratio": "0.9900"}
            return rows

        page = self.page(self.table(slow))
        marks = [line.findtext("td") for line in page.iter("tr") if line.get("class")]
        self.assertEqual(marks, ["worst, below 1", "below 1"])
        red = [n for n in page.iter() if n.get("class") == "point" and n.get("fill") == grid_figure.BAD]
        self.assertEqual([node.get("data-value") for node in red], ["0.9000", "0.9900"])

    def test_a_wrong_kernel_is_said_and_not_drawn(self):
        def wrong(rows):
            blank = dict.fromkeys(rows[0].keys() - {*list(rows[0])[:10], "config"}, "")
            rows[0] |= blank | {"config": "WRONG (error of O <1> & more): x"}
            return rows

        page = self.page(self.table(wrong))
        self.assertEqual([line.findtext("td") for line in page.iter("tr") if line.get("class")][0], "WRONG")
        self.assertIn("1 rows are WRONG", "".join(page.itertext()))
        self.assertIn("WRONG (error of O <1> & more): x", "".join(page.itertext()))
        self.assertEqual(points(page.find(f".//{SVG}svg")), expected_points(lines_of(TABLE)[1:]))

    def test_both_operations_in_one_table(self):
        def both(rows):
            return rows + [row | {"op": "backward"} for row in rows[:6]]

        table = self.table(both)
        page = self.page(table)
        texts = "".join(page.itertext())
        self.assertIn("attune: forward and backward attention", texts)
        self.assertIn("Forward and backward attention, TFLOP/s", texts)
        self.assertIn("backward, D 64, no mask", texts)
        self.assertEqual(points(page.find(f".//{SVG}svg")), expected_points(lines_of(table)))

    def test_attune_alone(self):
        def alone(rows):
            columns = ("cudnn_tflops", "fa3_tflops", "best_tflops", "ratio", "ratio_min", "ratio_max")
            return [row | dict.fromkeys(columns, "") for row in rows]

        page = self.page(self.table(alone))
        self.assertIn("36 problems were measured, none of them beside a peer", "".join(page.itertext()))
        self.assertNotIn("cuDNN", "".join(page.find(f".//{SVG}svg").itertext()))

    def test_the_fastest_of_several_configs_is_drawn(self):
        def twice(rows):
            return rows + [rows[0] | {"attune_tflops": "999.0", "config": "block_n=64"}]

        drawn = points(self.page(self.table(twice)).find(f".//{SVG}svg"))
        self.assertIn(("attune_tflops", "999.0"), drawn)
        self.assertEqual(len(drawn), len(points(self.page(TABLE).find(f".//{SVG}svg"))))


class Written(Folder):
    """A table as forward_grid.py and backward_grid.py write it, from readings to the page."""

    def test_round_trip(self):
        for op, errors in (("forward", {"o": 1e-3, "lse": 1e-6}), ("backward", {"d_q": 1e-3, "d_q_row": 2e-3})):
            with self.subTest(op):
                self.round_trip(op, errors)

    def round_trip(self, op, errors):
        problem = Problem(op=op, causal=True, batch=2, seqlen_q=1024)
        cell = Thing(problem=problem, peer="peer", peer_name="cudnn", peer_refused=None, refused={})
        cell.failed = False
        cell.fa3 = cell.fa3_errors = cell.fa3_refused = None
        cell.peer_errors = errors | {"other": float("nan")}
        entry = Thing(cell=cell, name="plan", config="block_n=128", fault=None, contender="attune")
        entry.origin = "cache"
        entry.errors = errors
        wrong = Thing(cell=cell, name="block_n=64", config="block_n=64", fault="NaN", contender=None)
        wrong.origin, wrong.errors = "override", None
        cell.entries = [entry, wrong]
        times = ((0.5, 0.6), (0.4, 0.6), (0.6, 0.6))
        cell.rounds = {
            "burst": [{"attune": reading(ours), "peer": reading(theirs)} for ours, theirs in times]
        }
        fa3 = Thing(over_cudnn=lambda _: 1.1)
        prefix = self.folder / op
        with contextlib.redirect_stdout(io.StringIO()):
            grid_results.write(prefix, "burst", [cell], fa3, {"gpu": "NVIDIA H200", "command": "x"})
        document = pathlib.Path(f"{prefix}_burst.json").read_text(encoding="utf-8")
        (details,) = json.loads(document, parse_constant=self.fail)["problems"]
        self.assertEqual([entry["errors"] for entry in details["configs"]], [errors, None])
        self.assertEqual(details["peer_errors"], errors | {"other": "nan"})
        self.assertEqual([row["op"] for row in lines_of(f"{prefix}_burst.csv")], [op, op])
        report_html.write(f"{prefix}_burst.csv", self.folder / "page.html")
        text = (self.folder / "page.html").read_text(encoding="utf-8")
        self.assertIn(f"<h1>attune: {op} attention, burst</h1>", text)
        self.assertIn(f"{op.capitalize()} attention, TFLOP/s and ratio to the best peer, over the length", text)
        self.assertIn(f"ratio {0.6 / 0.5 / 1.1:.4f} ({0.6 / 0.6 / 1.1:.4f} to {0.6 / 0.4 / 1.1:.4f})", text)
        self.assertIn(f"attune {problem.flops / 0.5e9:.1f} TFLOP/s", text)
        self.assertIn("<td>NVIDIA H200</td>", text)


def reading(ms):
    return Thing(ms=ms, sm_mhz=1900.0, starved=False, sensors={})


class Environment(Folder):
    def about(self, page):
        (table,) = [node for node in page.iter("table") if node.get("class") == "about"]
        return {line.findtext("th"): line.findtext("td") for line in table}

    def test_from_the_json_beside_and_the_command_line(self):
        table = self.table()
        described = {"gpu": "NVIDIA H200", "driver": "580", "sms": 100, "commit": "", "command": "a & b"}
        table.with_suffix(".json").write_text(json.dumps({"mode": "burst", "environment": described}))
        page = self.page(table, "--about", "driver=581", "--about", "commit=abc=1")
        self.assertEqual(
            self.about(page),
            {
                "mode": "burst",
                "gpu": "NVIDIA H200",
                "driver": "581",
                "commit": "abc=1",
                "command": "a & b",
                "sms": "100",
            },
        )
        self.assertIn("Limit: 100 SMs x 4096 FLOP", "".join(page.itertext()))

    def test_a_bad_json_file(self):
        table = self.table()
        for text, words in (
            ("{", "table.json: "),
            ("[]", "environment: is no object"),
            ('{"a": 1}', "environment"),
        ):
            table.with_suffix(".json").write_text(text)
            result = run(table)
            self.assertEqual(result.returncode, 1)
            self.assertIn(words, result.stderr)

    def test_bad_arguments(self):
        self.assertEqual(run(TABLE, "--about", "gpu").returncode, 2)
        result = run(TABLE, "-o", self.folder / "x.html", "--about", "sms=many")
        self.assertEqual((result.returncode, "sms: 'many'" in result.stderr), (1, True))


class BadTables(Folder):
    def refused(self, path, *words):
        result = run(path, "-o", self.folder / "never.html")
        self.assertEqual(result.returncode, 1)
        self.assertEqual(len(result.stderr.splitlines()), 1, result.stderr)
        for word in (path.name, *words):
            self.assertIn(word, result.stderr)
        self.assertFalse((self.folder / "never.html").exists())

    def refused_text(self, text, *words):
        path = self.folder / "bad.csv"
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        self.refused(path, *words)

    def test_files(self):
        self.refused(self.folder / "absent.csv", "No such file")
        self.refused_text("", "lacks op, dtype")
        self.refused_text(b"\xff\xfe", "decode")
        text = TABLE.read_text(encoding="utf-8")
        header, first = text.splitlines()[:2]
        self.refused_text(header + "\n", "has no rows")
        self.refused_text(text.replace("sm_mhz", "mhz", 1), ":1: columns: lacks sm_mhz; has mhz")
        self.refused_text(text.replace("op,dtype", "dtype,op", 1), "in another order")
        self.refused_text(f"{header}\n{first},1\n", ":2: 21 cells (allowed: 20)")
        self.refused_text(f'{header}\n{first}\n"forward', ":3")

    def test_cells(self):
        for column, text, words in (
            ("ratio", "fast", ":6: ratio: 'fast' is not a number"),
            ("ratio", "nan", ":6: ratio: 'nan' (allowed: finite"),
            ("attune_tflops", "-3", ":6: attune_tflops: '-3' (allowed: finite and above 0)"),
            ("causal", "2", ":6: causal: '2' (allowed: 0, 1)"),
            ("batch", "0", ":6: batch: 0 (allowed: 1 and more)"),
            ("head_dim", "64.0", ":6: head_dim: '64.0' is not a whole number"),
            ("config", "", ":6: config: is empty"),
        ):

            def change(rows):
                rows[4][column] = text
                return rows

            with self.subTest(column, text=text):
                self.refused(self.table(change), words)


class Committed(unittest.TestCase):
    """What is in the repository belongs to the table in the repository."""

    def test_the_picture_is_of_the_table(self):
        svg = ET.parse(PICTURE).getroot()
        self.assertEqual(points(svg), expected_points(lines_of(TABLE)))
        texts = "".join(svg.itertext())
        for line in grid_figure.captions(grid_table.read(TABLE), {"sms": 132}):
            self.assertIn(line, texts)
        self.assertRegex(texts, r"NVIDIA H200, \d{4}-\d{2}-\d{2}, driver [\d.]+, commit [0-9a-f]{7}")

    def test_the_readme_has_the_short_table_and_the_picture(self):
        readme = (ROOT / "README.md").read_text(encoding="utf-8")
        result = run(TABLE, "--markdown")
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertIn(result.stdout, readme)
        self.assertIn("(bench/results/forward-h200.svg)", readme)

    def test_the_grid_is_that_of_the_table(self):
        names = list(lines_of(TABLE)[0])[1:10]
        wanted = [
            [str(int(v)) if v in (0, 1) else str(v) for v in map(p.__getattribute__, names)]
            for p in grid.fa3()
        ]
        self.assertEqual(wanted, [[row[name] for name in names] for row in lines_of(TABLE)])

    def test_the_limit(self):
        row = grid_table.read(TABLE)[0]
        self.assertAlmostEqual(grid_figure.limit_tflops(row, 132), 132 * 4096 * row["sm_mhz"] * 1e6 / 1e12)


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0], *sys.argv[1:]])
