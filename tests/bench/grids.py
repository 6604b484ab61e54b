"""Checks how forward_grid.py and backward_grid.py run: options, rounds, refusals, faults, statuses. Kernels and clocks are
stand-ins, and so is PyTorch where there is none; the yardstick of gradients needs the real one and is skipped without.

grids.py ROOT
"""

import contextlib
import csv
import importlib.util
import io
import json
import math
import pathlib
import sys
import tempfile
import unittest
from types import SimpleNamespace
from unittest import mock

ROOT = pathlib.Path(sys.argv.pop(1)).resolve()
HAS_TORCH = importlib.util.find_spec("torch") is not None

sys.dont_write_bytecode = True
sys.path.insert(0, str(ROOT / "bench/peers"))
if not HAS_TORCH:
    for name in ("torch", "torch.nn", "torch.nn.functional", "torch.nn.attention"):
        sys.modules[name] = mock.MagicMock()
import backward_grid  # noqa: E402
import forward_grid  # noqa: E402
import grid  # noqa: E402
import grid_run  # noqa: E402
import options  # noqa: E402
import peers  # noqa: E402
import scores  # noqa: E402
import tensors  # noqa: E402
from attune_ctypes import AttuneError  # noqa: E402
from problem import Problem  # noqa: E402
from timing import Reading  # noqa: E402

OPERATIONS = {"forward": forward_grid.Forward, "backward": backward_grid.Backward}
TEXT = "batch=1,seqlen_q=1024,heads=8,head_dim=64"


class Tensor:
    """What a launch writes: full of NaN until then."""

    def __init__(self):
        self.poisoned = False

    def fill_(self, value):
        self.poisoned = math.isnan(value)

    def isnan(self):
        return SimpleNamespace(sum=lambda: SimpleNamespace(item=lambda: int(self.poisoned)))


class Plan:
    """Its config's words say what its launches do."""

    def __init__(self, config):
        self.config = config

    def info(self, what):
        return {"config": self.config, "origin": "override"}[what]


class Runtime:
    lib = SimpleNamespace(version="0")

    def plan(self, _problem, on_miss, tune_seconds):
        return Plan(f"chosen by {on_miss}")

    def plan_with_config(self, problem, config):
        if config == "never" or (config == "small" and problem.head_dim > 64):
            raise AttuneError("invalid_argument", f"config: {config} is not for this")
        return Plan(config)


class Peer:
    context, host_ms = contextlib.nullcontext, 7

    def __init__(self, problem, _views):
        if problem.head_dim == 256:
            raise RuntimeError("no kernel\nand more")

    def __call__(self):
        raise AssertionError("a stand-in is not launched")

    def outputs(self):
        return {"d_q": "the peer's"}


class Operation(backward_grid.Backward):
    """Backward without a GPU."""

    outputs, limits, peer = ("d_q",), {"bf16": {"d_q": 0.01}}, Peer

    def prepare(self, args, runtime, problems, made):
        self.prepared = len(problems), len(made)

    def tensors(self, problem):
        if problem.head_dim == 40:
            raise grid_run.NoInputs("nothing to read")
        return {"d_q": Tensor()}

    def bind(self, plan, views):
        def call():
            if plan.config == "refuses":
                raise AttuneError("unsupported", "not now")
            if plan.config != "leaves holes":
                views["d_q"].poisoned = False

        call.config = plan.config
        return call

    def exact(self, problem, views):
        error = {"the peer's": math.nan}
        return SimpleNamespace(errors=lambda outputs: {"d_q": error.get(outputs["d_q"], self.error)})

    error = 0.001


class BesideFa3(Operation):
    """With FlashAttention-3 in the process, whose O has these errors, by head dim."""

    limits = {"bf16": {"d_q": 0.01, "o": 0.01}}

    def __init__(self, errors):
        self._errors = errors

    def fa3(self, problem, views):
        return FA3 if problem.head_dim in self._errors else None

    def exact(self, problem, views):
        return SimpleNamespace(
            errors=lambda outputs: {
                name: self._errors[problem.head_dim] if value is FA3.o else self.error
                for name, value in outputs.items()
            }
        )


FA3 = mock.Mock(config="fa3", o="its O", side_effect=AssertionError("a stand-in is not launched"))


class Folder(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)

    def file(self, text):
        path = self.folder / "file.txt"
        path.write_text(text, encoding="utf-8")
        return str(path)


def arguments(operation, *words):
    """The parsed options, or the text of what is wrong with them."""
    errors = io.StringIO()
    with (
        mock.patch.object(sys, "argv", ["grid", *words]),
        mock.patch.object(grid_run.environment, "require_gpu"),
        contextlib.redirect_stderr(errors),
    ):
        try:
            return grid_run.arguments(operation)
        except SystemExit as end:
            return f"{end.code}: {errors.getvalue()}"


class Options(Folder):
    def wanted(self, op, *words):
        operation = OPERATIONS[op]()
        return grid_run.wanted(arguments(operation, *words), operation)

    def test_the_grid_is_of_the_op(self):
        for op in OPERATIONS:
            found = self.wanted(op)
            self.assertEqual(list(found), list(grid.fa3(op=op)))
            self.assertEqual({problem.op for problem in found}, {op})
            self.assertEqual(set(map(tuple, found.values())), {("plan",)})
        (found,) = self.wanted(
            "backward", "--dims", "64", "--seqs", "512", "--causal", "yes", "--deterministic"
        )
        self.assertTrue(str(found).endswith("deterministic=1"))
        self.assertIn("unrecognized arguments", arguments(forward_grid.Forward(), "--deterministic"))

    def test_a_problem_is_of_the_op(self):
        for op, other in (("forward", "backward"), ("backward", "forward")):
            operation = OPERATIONS[op]()
            for words in (("--problem", TEXT), ("--problems", self.file(f"\n# none\n{TEXT} # one\n"))):
                (found,) = self.wanted(op, "--no-grid", *words)
                self.assertEqual(found, Problem(op=op, batch=1, seqlen_q=1024, heads=8, head_dim=64))
            self.assertEqual(list(self.wanted(op, "--no-grid", "--problem", str(found))), [found])
            text = arguments(operation, "--problem", f"op={other},{TEXT}")
            self.assertIn(f"2: usage: {op}_grid.py", text)
            self.assertIn(f"op: '{other}' (allowed here: {op})", text)

    def test_configs_of_each_problem(self):
        pairs = self.file(f"{TEXT} | a=1,b=2\n{TEXT}|plan # again\n{TEXT}|plan\nbatch=2|c\n")
        words = ("--no-grid", "--pairs", pairs, "--problem", "batch=3", "--problem", "batch=2")
        found = self.wanted("backward", *words)
        self.assertEqual(
            {p.batch: names for p, names in found.items()}, {1: ["a=1,b=2", "plan"], 2: ["c"], 3: ["plan"]}
        )
        found = self.wanted("backward", *words, "--config", "d", "--config", "plan")
        self.assertEqual(
            {p.batch: names for p, names in found.items()},
            {1: ["a=1,b=2", "plan", "d"], 2: ["c", "d", "plan"], 3: ["d", "plan"]},
        )

    def test_kinds_of_scores(self):
        for kind in ("normal", "sd1", "sd60", "sinks", "mixed"):
            self.assertEqual(arguments(forward_grid.Forward(), "--scores", kind).scores, kind)
        for kind in ("sd0", "sd100", "sd", "sd-3", "flat", ""):
            self.assertIn(scores.MEANING, arguments(forward_grid.Forward(), "--scores", kind))
        self.assertIn("unrecognized", arguments(backward_grid.Backward(), "--scores", "sd10"))

    @unittest.skipUnless(HAS_TORCH, "needs PyTorch")
    def test_inputs_have_the_scores_they_should(self):
        import torch

        generator = torch.Generator().manual_seed(3)
        views = {
            name: torch.randn(1, 1024, heads, 64, generator=generator) for name, heads in (("q", 4), ("k", 2))
        }
        for kind, deviations, sunk in (
            ("normal", [1] * 4, [False] * 4),
            ("sd30", [30] * 4, [False] * 4),
            ("sinks", [1] * 4, [True] * 4),
            ("mixed", [0.5, 30, 7.7, 2], [True, False, False, False]),
        ):
            found = scores.applied(kind, views, 2)
            keys = found["k"].repeat_interleave(2, dim=2)
            all_scores = torch.einsum("bqhd,bkhd->hqk", found["q"], keys) / 8
            for head in range(4):
                with self.subTest(kind=kind, head=head):
                    deviation = all_scores[head, :, 1:].std().item()
                    self.assertLess(abs(deviation - deviations[head]), 0.1 * deviations[head] + 0.25)
                    share = all_scores[head].softmax(-1)[:, 0].mean().item()
                    self.assertEqual(share > 0.9, sunk[head], share)

    def test_a_bad_file_of_pairs(self):
        operation = backward_grid.Backward()
        for text, words in (
            ("\nbatch=1\n", "file.txt:2: 'batch=1' is not PROBLEM | CONFIG"),
            ("batch=1 |\n", "is not PROBLEM | CONFIG"),
            ("| c\n", "is not PROBLEM | CONFIG"),
            ("batch=x | c\n", "batch: 'x' is not a number"),
        ):
            found = arguments(operation, "--pairs", self.file(text))
            self.assertIn("2: usage: ", found)
            self.assertIn(words, found)
        self.assertIn("No such file", arguments(operation, "--pairs", str(self.folder / "absent")))

    def test_names_of_problem(self):
        self.assertEqual(options.problem("backward")("op=backward").op, "backward")
        for parse in (options.problem("forward"), options.problem_file("forward")):
            with self.assertRaises(options.argparse.ArgumentTypeError):
                parse("op=sideways")


class Fa3(unittest.TestCase):
    def test_a_path_that_is_not_the_library(self):
        for path in ("/nowhere/libfa3.so", str(ROOT / "README.md"), importlib.util.find_spec("_ctypes").origin):
            found = arguments(forward_grid.Forward(), "--fa3", path)
            self.assertTrue(found.startswith("2: usage: "), found)
            self.assertIn(f"argument --fa3: '{path}': ", found)
        self.assertIn("unrecognized arguments", arguments(backward_grid.Backward(), "--fa3", "x"))

    def test_problems_of_the_library(self):
        library = peers.Fa3Library.__new__(peers.Fa3Library)
        library._functions = {dim: f"of {dim}" for dim in peers.Fa3Library.ROWS}
        views = {"q": SimpleNamespace(device="cuda")}
        properties = SimpleNamespace(multi_processor_count=132)
        torch = SimpleNamespace(cuda=SimpleNamespace(get_device_properties=lambda device: properties))

        def served(**fields):
            problem = Problem(**{"op": "forward", "batch": 16, "seqlen_q": 1024, "heads": 16} | fields)
            found = library.call(problem, views)
            self.assertIn(found, (None, (f"of {problem.head_dim}", problem, views)))
            return found is not None

        with (
            mock.patch.object(peers, "torch", torch),
            mock.patch.object(peers, "_Fa3Call", lambda function, problem, views: (function, problem, views)),
        ):
            for problem in grid.fa3():
                self.assertIsNotNone(library.call(problem, views), str(problem))
            for dim in (64, 128, 256):
                self.assertTrue(served(head_dim=dim))
                self.assertTrue(served(head_dim=dim, seqlen_k=2048))
            self.assertTrue(served(batch=1, seqlen_q=896))  # 112 tiles
            self.assertTrue(served(batch=1, heads=32, head_dim=64, seqlen_q=768))
            self.assertTrue(served(batch=1, seqlen_q=131072, causal=True))
            for why, fields in {
                "fp16": dict(dtype="fp16"),
                "another head dim": dict(head_dim=96),
                "another one of V": dict(head_dim_v=64),
                "GQA": dict(heads_kv=4),
                "few tiles": dict(batch=1, seqlen_q=768),
                "few tiles of 192 rows": dict(batch=1, head_dim=64, seqlen_q=1024),
                "K and V beyond the L2": dict(batch=1, seqlen_q=131072),
                "one query": dict(batch=128, seqlen_q=1, seqlen_k=1024),
                "causal lengths": dict(causal=True, seqlen_k=2048),
                "another layout": dict(layout="sbhd"),
            }.items():
                with self.subTest(why):
                    self.assertFalse(served(**fields))


class Runs(Folder):
    """grid_run.main() from the command line to the files."""

    def run_grid(self, *words, operation=None, expected=0, mode="burst"):
        """What was timed, in this order, by the configs' texts; the rows and the document of a mode."""
        timed, host_times, errors = [], set(), io.StringIO()

        def burst(call, _estimate, _rest, _nvml, host_ms):
            timed.append(getattr(call, "config", "peer"))
            host_times.add((timed[-1] == "peer", host_ms))
            return Reading({"peer": 2.0, "fa3": 1.6}.get(timed[-1], 1.0), 1900.0)

        fakes = {
            (grid_run.environment, "require_gpu"): lambda *_: None,
            (grid_run.environment, "open_nvml"): lambda: None,
            (grid_run.environment, "describe"): lambda *_: {"gpu": "none"},
            (grid_run.plans, "open_runtime"): lambda _: Runtime(),
            (grid_run.timing, "estimate_ms"): lambda *_: 1.0,
            (grid_run.timing, mode): burst,
            (grid_run, "torch"): SimpleNamespace(nan=math.nan, cuda=mock.MagicMock()),
        }
        out = str(self.folder / "out")
        with contextlib.ExitStack() as stack:
            for (module, name), fake in fakes.items():
                stack.enter_context(mock.patch.object(module, name, fake))
            command = ["grid", "--modes", mode, "--out", out, "--html", *words]
            stack.enter_context(mock.patch.object(sys, "argv", command))
            stack.enter_context(contextlib.redirect_stdout(io.StringIO()))
            stack.enter_context(contextlib.redirect_stderr(errors))
            self.assertEqual(grid_run.main(operation or Operation()), expected, errors.getvalue())
        self.errors = errors.getvalue()
        self.assertLessEqual(host_times, {(True, Peer.host_ms), (False, grid_run.timing.HOST_MS)})
        with open(f"{out}_{mode}.csv", encoding="utf-8", newline="") as file:
            rows = list(csv.DictReader(file))
        text = pathlib.Path(f"{out}_{mode}.json").read_text(encoding="utf-8")
        return timed, rows, json.loads(text, parse_constant=self.fail)

    def test_in_turn_and_every_second_round_backwards(self):
        words = ("--no-grid", "--problem", TEXT, "--config", "a", "--config", "plan", "--rounds", "3")
        timed, rows, document = self.run_grid(*words)
        once = ["peer", "a", "chosen by heuristic"]
        self.assertEqual(timed, once + once[::-1] + once)
        self.assertEqual([row["config"] for row in rows], once[1:])
        self.assertEqual({row["op"] for row in rows}, {"backward"})
        self.assertEqual(float(rows[0]["ratio"]), 2)
        (found,) = document["problems"]
        self.assertEqual(found["peer_errors"], {"d_q": "nan"})
        self.assertEqual([entry["errors"] for entry in found["configs"]], [{"d_q": 0.001}] * 2)
        self.assertIn(
            "<h1>attune: backward attention, burst</h1>", (self.folder / "out_burst.html").read_text()
        )

    def test_queued_launches_of_short_problems_too_and_without_flash_attention_3(self):
        words = ("--dims", "128", "--seqs", "512", "--causal", "no", "--rounds", "2")
        timed, rows, document = self.run_grid(*words, mode="queued")
        self.assertEqual(len(timed), 4)
        (row,) = rows
        self.assertEqual(row["fa3_tflops"], "")
        self.assertEqual(float(row["ratio"]), 2)
        self.assertEqual(document["mode"], "queued")

    def test_operations_of_a_launch_and_flash_attention_3(self):
        _, rows, _ = self.run_grid("--dims", "128", "--seqs", "512", "--causal", "no", "--rounds", "1")
        (row,) = rows
        forward = 4 * 32 * 16 * 512**2 * 128
        self.assertEqual(row["attune_tflops"], f"{2.5 * forward / 1e9:.1f}")
        self.assertEqual(row["cudnn_tflops"], f"{2.5 * forward / 2e9:.1f}")
        recorded = peers.Fa3Table(peers.FA3_TABLES["backward"]).over_cudnn(
            next(grid.fa3(("bf16",), (128,), (False,)))
        )
        self.assertEqual(row["fa3_tflops"], f"{recorded * 2.5 * forward / 2e9:.1f}")
        self.assertIn("FlashAttention-3, from records", (self.folder / "out_burst.html").read_text())

    def test_flash_attention_3_in_this_process_is_timed_in_turn(self):
        operation = BesideFa3({128: 0.002})
        words = ("--dims", "64,128", "--seqs", "512", "--causal", "no", "--rounds", "2")
        timed, rows, document = self.run_grid(*words, operation=operation)
        without, once = ["peer", "chosen by heuristic"], ["peer", "fa3", "chosen by heuristic"]
        self.assertEqual(timed, without + once + without[::-1] + once[::-1])
        table, measured = rows
        forward = 4 * 32 * 16 * 512**2 * 128
        self.assertEqual(measured["fa3_tflops"], f"{2.5 * forward / 1.6e9:.1f}")
        self.assertEqual(measured["best_tflops"], measured["fa3_tflops"])
        self.assertEqual(float(measured["ratio"]), 1.6)
        self.assertNotEqual(table["fa3_tflops"], "")
        self.assertEqual([p["fa3_measured"] for p in document["problems"]], [False, True])
        self.assertEqual(document["environment"]["fa3"], "both")
        self.assertIn("FlashAttention-3, in part from records", (self.folder / "out_burst.html").read_text())
        self.assertEqual([p["fa3_errors"] for p in document["problems"]], [None, {"o": 0.002}])
        self.assertEqual(document["problems"][1]["rounds"][0]["fa3"]["ms"], 1.6)
        words = ("--dims", "128", "--seqs", "512", "--causal", "no", "--rounds", "1")
        _, _, document = self.run_grid(*words, operation=operation)
        self.assertEqual(document["environment"]["fa3"], "measured")
        self.assertNotIn("from records", (self.folder / "out_burst.html").read_text())

    def test_flash_attention_3_that_is_wrong_or_fails_is_not_timed_and_one_without_cudnn_counts(self):
        operation = BesideFa3({64: 0.02, 128: math.nan, 256: 0.002})
        words = ("--dims", "64,128,256", "--seqs", "512", "--causal", "no", "--rounds", "1")
        timed, rows, document = self.run_grid(*words, operation=operation)
        self.assertEqual(timed.count("fa3"), 1)  # of head dim 256, which the peer refuses
        self.assertIn("fa3: error of o 2.0e-02 (allowed: 1.0e-02)", self.errors)
        self.assertEqual([p["fa3_measured"] for p in document["problems"]], [False, False, True])
        self.assertEqual([p["fa3_errors"] for p in document["problems"]][:2], [{"o": 0.02}, {"o": "nan"}])
        self.assertEqual([float(row["ratio"]) for row in rows][2], 1.6)
        self.assertEqual((rows[2]["cudnn_tflops"], rows[2]["best_tflops"]), ("", rows[2]["fa3_tflops"]))

        def broken(*_):
            raise RuntimeError("out of memory\nand more")

        operation.fa3 = broken
        timed, _, document = self.run_grid(*words, operation=operation)
        self.assertNotIn("fa3", timed)
        self.assertEqual([p["fa3_refused"] for p in document["problems"]], ["out of memory"] * 3)

    def test_what_is_wrong_is_not_timed(self):
        configs = ("good", "refuses", "leaves holes")
        words = [word for config in configs for word in ("--config", config)]
        timed, rows, document = self.run_grid(
            "--no-grid", "--problem", TEXT, "--rounds", "1", *words, expected=1
        )
        self.assertEqual(timed, ["peer", "good"])
        self.assertEqual(
            [row["config"] for row in rows],
            [
                "good",
                "WRONG (not now (unsupported)): refuses",
                "WRONG (1 elements of d_q are NaN or were not written): leaves holes",
            ],
        )
        self.assertEqual(len(document["wrong_or_failed"]), 1)
        self.assertIn("refuses: not now", self.errors)

    def test_errors_beyond_a_limit(self):
        for error, status in ((0.01, 0), (0.011, 1), (math.nan, 1), (math.inf, 1)):
            operation = Operation()
            operation.error = error
            words = ("--no-grid", "--problem", TEXT, "--rounds", "1")
            _, (row,), _ = self.run_grid(*words, operation=operation, expected=status)
            wrong = f"WRONG (error of d_q {error:.1e} (allowed: 1.0e-02)): "
            self.assertEqual(row["config"], ("" if status == 0 else wrong) + "chosen by heuristic")

    def test_refusals(self):
        words = ["--no-grid", "--rounds", "1"]
        for dim in (64, 128, 192):
            words += ["--problem", TEXT.replace("head_dim=64", f"head_dim={dim}")]
        operation = Operation()
        _, rows, _ = self.run_grid(*words, "--config", "small", "--config", "any", operation=operation)
        self.assertEqual(operation.prepared, (3, 4))
        self.assertEqual([row["config"] for row in rows], ["small", "any", "any", "any"])
        self.assertIn("small: refused for 2 problems: config: small is not for this", self.errors)
        _, rows, document = self.run_grid(*words, "--config", "small", "--config", "never", expected=1)
        self.assertEqual([row["config"] for row in rows], ["small"])
        self.assertEqual(len(document["wrong_or_failed"]), 2)
        self.assertIn("head_dim=128,", self.errors)

    def test_without_a_peer(self):
        words = ("--no-grid", "--problem", "head_dim=256", "--rounds", "1")
        timed, (row,), document = self.run_grid(*words)
        self.assertEqual((timed, row["ratio"]), (["chosen by heuristic"], ""))
        self.assertEqual(document["problems"][0]["peer_refused"], "no kernel")
        self.assertIn("cudnn: no kernel", self.errors)

    def test_without_inputs(self):
        timed, rows, document = self.run_grid("--no-grid", "--problem", "head_dim=40", expected=1)
        self.assertEqual((timed, rows), ([], []))
        self.assertEqual(document["problems"][0]["configs_refused"], {"plan": "nothing to read"})
        self.assertIn("plan: nothing to read", self.errors)

    def test_the_budget_ends_before_the_first_round(self):
        timed, _, document = self.run_grid("--no-grid", "--problem", TEXT, "--budget", "0", expected=5)
        self.assertEqual((timed, len(document["unmeasured"])), ([], 1))


class Peers(unittest.TestCase):
    def test_the_peer_of_a_problem(self):
        for causal, q, k, name in (
            (1, 64, 64, "cudnn"),
            (0, 64, 80, "cudnn"),
            (1, 1, 80, "cudnn"),
            (1, 64, 80, "fa2"),
        ):
            self.assertEqual(peers.name_of(Problem(causal=bool(causal), seqlen_q=q, seqlen_k=k)), name)

    def test_flash_attention_3_is_known_for_the_grid(self):
        for op, path in peers.FA3_TABLES.items():
            table = peers.Fa3Table(path)
            for problem in grid.fa3(op=op):
                self.assertGreater(table.over_cudnn(problem), 0.5)
                has_sustained = op == "forward" and problem.seqlen_k >= grid_run.SUSTAINED_FROM
                self.assertEqual(table.sustained_tflops(problem) is not None, has_sustained)
            self.assertIsNone(table.over_cudnn(Problem(op=op, batch=1)))

    def test_the_recorded_ratios_are_those_of_the_recorded_speeds(self):
        """But for the rounds: a ratio is the median of theirs."""
        for path in peers.FA3_TABLES.values():
            lines = [
                line for line in path.read_text(encoding="utf-8").splitlines() if not line.startswith("#")
            ]
            for row in csv.DictReader(lines):
                ratio = float(row["fa3_tflops"]) / float(row["cudnn_tflops"])
                self.assertAlmostEqual(float(row["fa3_over_cudnn"]) / ratio, 1, delta=0.01, msg=str(row))


class ForwardPass(unittest.TestCase):
    def test_a_refused_forward_plan_leaves_nothing_to_read(self):
        problem = Problem(op="backward")
        forward = Problem()
        asked = []

        def plan(found):
            asked.append(found)
            raise AttuneError("unsupported", "no forward kernel")

        operation = backward_grid.Backward()
        with (
            mock.patch.object(backward_grid, "torch", mock.MagicMock()),
            mock.patch.object(backward_grid.tensors, "Arena", mock.MagicMock()),
            mock.patch.object(backward_grid.tensors, "empty", lambda *_: None),
        ):
            operation.prepare(None, SimpleNamespace(plan=plan), [problem], [])
            operation._arena.tensors.return_value = {}
            with self.assertRaisesRegex(grid_run.NoInputs, "the forward pass before it: no forward kernel"):
                operation.tensors(problem)
        self.assertEqual(asked, [forward])


@unittest.skipUnless(HAS_TORCH, "needs PyTorch")
class Gradients(unittest.TestCase):
    """The yardstick, on the CPU."""

    def setUp(self):
        for name, value in (("DEVICE", "cpu"), ("REFERENCE_SCORES", 1000)):  # several parts
            patch = mock.patch.object(tensors, name, value)
            patch.start()
            self.addCleanup(patch.stop)

    def views(self, problem):
        """With gradients of autograd's in float64, rounded to the problem's type."""
        import torch

        views = tensors.Arena([problem], ("q", "k", "v", "d_o", *backward_grid.GRADIENTS)).tensors(problem)
        q, k, v = (views[name].double().transpose(1, 2).requires_grad_() for name in "qkv")
        group = problem.heads // problem.heads_kv
        scores = q @ k.repeat_interleave(group, 1).transpose(-1, -2) * tensors.default_scale(problem.head_dim)
        if problem.causal:
            rows, keys = torch.arange(problem.seqlen_q)[:, None], torch.arange(problem.seqlen_k)
            scores = scores.masked_fill(keys > rows + problem.seqlen_k - problem.seqlen_q, -math.inf)
        o = scores.softmax(-1).nan_to_num(nan=0.0) @ v.repeat_interleave(group, 1)
        gradients = torch.autograd.grad(o, (q, k, v), views["d_o"].double().transpose(1, 2))
        for name, gradient in zip(backward_grid.GRADIENTS, gradients):
            views[name].copy_(gradient.nan_to_num(nan=0.0).transpose(1, 2))
        return views

    def test_rounded_gradients_pass_and_damaged_ones_do_not(self):
        for changes in (
            {},
            {"causal": True},
            {"causal": True, "seqlen_q": 50, "heads_kv": 2, "layout": "bhsd"},
            {"causal": True, "seqlen_q": 80, "dtype": "fp16", "head_dim_v": 24},
        ):
            with self.subTest(**changes):
                shape = {"head_dim": 32, "heads": 4, "batch": 2, "seqlen_q": 70, "seqlen_k": 70}
                problem = Problem(op="backward", **shape | changes)
                views = self.views(problem)
                limits = backward_grid.Backward.limits[problem.dtype]
                exact = backward_grid.SampledHeads(problem, views)
                errors = exact.errors(views)
                self.assertEqual(errors.keys(), limits.keys())
                self.assertTrue(all(0 < errors[name] < limits[name] / 2 for name in limits), errors)
                for name in backward_grid.GRADIENTS:
                    damaged = {**views, name: views[name].clone()}
                    damaged[name][:, 20:24] = 0
                    self.assertGreater(exact.errors(damaged)[f"{name}_row"], limits[f"{name}_row"])
                    damaged[name] = views[name] * 1.02
                    self.assertGreater(exact.errors(damaged)[name], limits[name])
                    damaged[name][:] = math.nan
                    self.assertTrue(math.isnan(exact.errors(damaged)[name]))

    def test_gradients_that_are_zero(self):
        problem = Problem(op="backward", head_dim=16, heads=2, batch=1, seqlen_q=5, seqlen_k=1)
        views = self.views(problem)
        limits = backward_grid.Backward.limits[problem.dtype]
        exact = backward_grid.SampledHeads(problem, views)
        views["d_q"].fill_(1e-6)
        self.assertTrue(all(error < limits[name] for name, error in exact.errors(views).items()))
        views["d_q"].fill_(1e-3)
        self.assertGreater(exact.errors(views)["d_q"], limits["d_q"])


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0], *sys.argv[1:]])
