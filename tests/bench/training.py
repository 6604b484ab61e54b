"""Checks what examples/training makes of its numbers: the language, the verdicts, the files and the picture; and what
the attention there hands to attune. Needs no PyTorch.

training.py ROOT
"""

import csv
import importlib
import json
import math
import pathlib
import random
import struct
import sys
import tempfile
import types
import unittest
import unittest.mock
import xml.etree.ElementTree as ET
from dataclasses import replace

ROOT = pathlib.Path(sys.argv.pop(1)).resolve()
SVG = "{http://www.w3.org/2000/svg}"

sys.dont_write_bytecode = True
sys.path.insert(0, str(ROOT / "examples/training"))
import language  # noqa: E402
import memory_results  # noqa: E402
import training_figure  # noqa: E402
import training_results as results  # noqa: E402

from problem import Problem  # noqa: E402  by training_figure's import of peers_path

SETTINGS = {"steps": 60, "layers": 2, "heads": 4, "heads_kv": 2, "head_dim": 128, "batch": 16, "seqlen": 512}


def float32(value):
    return struct.unpack("f", struct.pack("f", value))[0]


def falling(seed, noise=1e-4, steps=60, end=1.0):
    """A curve from 3 to `end`, with noise of its own."""
    chooser = random.Random(seed)
    return [float32(3 + (end - 3) * i / (steps - 1) + chooser.gauss(0, noise)) for i in range(steps)]


def curves(**others):
    return {
        results.ATTUNE: falling(1),
        results.PYTORCH: falling(2),
        results.CONTROL: falling(3, noise=0),
    } | others


class Language(unittest.TestCase):
    def test_texts_depend_on_the_seed_alone(self):
        made = language.texts(5, 300, seed=1)
        self.assertEqual(made, language.texts(5, 300, seed=1))
        self.assertNotEqual(made, language.texts(5, 300, seed=2))
        self.assertEqual({len(text) for text in made}, {300})
        self.assertLess(max(map(max, made)), len(language.ALPHABET))

    def test_a_text_has_a_topic(self):
        words = set(language.vocabulary(1))
        self.assertEqual(len(words), language.WORDS)
        for text in language.texts(20, 1000, seed=1):
            whole = "".join(language.ALPHABET[code] for code in text).split(" ")[1:-1]
            self.assertLessEqual(set(whole), words)
            self.assertLessEqual(len(set(whole)), language.TOPIC)
            self.assertGreater(len(whole), 1000 / (language.WORD_LENGTHS[1] + 1) - 3)

    def test_pair_entropy(self):
        self.assertEqual(language.pair_entropy([bytes([0, 1] * 9)]), 0)
        self.assertAlmostEqual(language.pair_entropy([bytes([0, 0, 1, 0, 0, 1, 0])]), 4 / 6 * math.log(2))
        chooser = random.Random(0)
        noise = [bytes(chooser.choices(range(8), k=20000))]
        self.assertAlmostEqual(language.pair_entropy(noise), math.log(8), delta=0.01)


class Verdict(unittest.TestCase):
    def test_smooth(self):
        curve = falling(1, noise=0.1)
        means = [
            sum(curve[i : i + results.WINDOW]) / results.WINDOW
            for i in range(len(curve) - results.WINDOW + 1)
        ]
        for smoothed, mean in zip(results.smooth(curve), means, strict=True):
            self.assertAlmostEqual(smoothed, mean)

    def test_good_curves(self):
        verdict = results.judge(curves(), 2.0, same_bits=True)
        self.assertEqual(verdict.faults, [])
        self.assertAlmostEqual(verdict.peer_spread, 1e-4, delta=3e-5)
        self.assertAlmostEqual(verdict.limit, results.TOLERANCE * verdict.peer_spread)
        self.assertIn("the same bits", results.summary(verdict))

    def test_a_curve_that_drifts_away(self):
        for drift in (2e-3, -2e-3):
            away = [loss + drift * step / 60 for step, loss in enumerate(falling(1))]
            (fault,) = results.judge(curves(attune=away), 2.0).faults
            self.assertIn("away from the control's", fault)

    def test_what_is_allowed_follows_pytorch(self):
        away = [loss + 2e-3 for loss in falling(1)]
        self.assertEqual(
            results.judge(curves(attune=away, pytorch_bf16=falling(2, noise=1e-3)), 2.0).faults, []
        )

    def test_a_loss_that_does_not_fall(self):
        for end in (2.5, 3.5):
            listed = {name: falling(seed, end=end) for seed, name in enumerate(results.CURVES)}
            (fault,) = results.judge(listed, 2.0).faults
            self.assertIn("not below 2.0000", fault)

    def test_no_number_at_all(self):
        for step in (0, 30, 59):
            broken = falling(1)
            broken[step] = math.nan
            self.assertTrue(results.judge(curves(attune=broken), 2.0).faults)
        self.assertTrue(results.judge(curves(pytorch_bf16=[math.nan] * 60), 2.0).faults)

    def test_two_runs_that_differ(self):
        (fault,) = results.judge(curves(), 2.0, same_bits=False).faults
        self.assertIn("two runs", fault)


class Files(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.path = pathlib.Path(folder.name, "file")

    def test_losses_keep_their_bits(self):
        written = curves(attune_again=falling(4))
        results.write_csv(self.path, written)
        lines = list(csv.DictReader(self.path.read_text(encoding="utf-8").splitlines()))
        self.assertEqual([line.pop("step") for line in lines], [str(step) for step in range(60)])
        self.assertEqual({name: [float32(float(line[name])) for line in lines] for name in lines[0]}, written)

    def test_json_without_nan(self):
        verdict = results.judge(curves(attune=[math.nan] * 60), 2.0)
        results.write_json(self.path, {"gpu": "NVIDIA H200"}, SETTINGS, {"forward": {}}, verdict)
        document = json.loads(self.path.read_text(encoding="utf-8"), parse_constant=self.fail)
        self.assertIsNone(document["verdict"]["deviation"])
        self.assertEqual(document["verdict"]["faults"], verdict.faults)
        self.assertEqual(document["environment"], {"gpu": "NVIDIA H200"})

    def test_memory_table(self):
        memory_results.write_csv(self.path, [memory_row(8192, True)])
        (line,) = csv.DictReader(self.path.read_text(encoding="utf-8").splitlines())
        self.assertEqual(list(line), memory_results.COLUMNS)
        self.assertEqual((line["causal"], line["seqlen"], line["d_k_error"]), ("1", "8192", "2.000e-03"))


class Picture(unittest.TestCase):
    def drawn(self, listed, about=None):
        verdict = results.judge(listed, 2.0)
        picture = training_figure.draw(listed, verdict, SETTINGS, about or {})
        return ET.fromstring(ET.tostring(picture, encoding="unicode")), verdict

    def series(self, picture):
        """data-series -> points."""
        found = {}
        for line in picture.iter(f"{SVG}polyline"):
            if line.get("data-series"):
                pairs = [tuple(map(float, pair.split(","))) for pair in line.get("points").split()]
                found[line.get("data-series")] = pairs
        return found

    def test_every_loss_is_drawn(self):
        listed = curves()
        picture, _ = self.drawn(listed)
        series = self.series(picture)
        self.assertEqual(
            {name: len(points) for name, points in series.items()},
            {f"loss {name}": 60 for name in results.CURVES}
            | {f"distance {name}": 61 - results.WINDOW for name in results.CURVES},
        )
        for name in results.CURVES:
            points = series[f"loss {name}"]
            self.assertEqual(points, sorted(points))
            # Pixels are a linear function of losses, downwards.
            slope = (points[-1][1] - points[0][1]) / (listed[name][-1] - listed[name][0])
            self.assertLess(slope, 0)
            for (_, y), loss in zip(points, listed[name]):
                self.assertAlmostEqual(y, points[0][1] + slope * (loss - listed[name][0]), delta=0.2)

    def test_everything_is_inside(self):
        drifting = [loss + 0.3 * step / 60 for step, loss in enumerate(falling(1))]
        picture, _ = self.drawn(curves(attune=drifting))
        width, height = float(picture.get("width")), float(picture.get("height"))
        for points in self.series(picture).values():
            for x, y in points:
                self.assertTrue(0 < x < width and 0 < y < height, (x, y))

    def test_what_it_says(self):
        about = {
            "gpu": "NVIDIA H200",
            "driver": "580.1",
            "date": "2026-11-29",
            "commit": "abc1234",
            "attune": "0.1.0",
        }
        picture, verdict = self.drawn(curves(), about)
        text = "".join(picture.itertext())
        for words in (
            "NVIDIA H200",
            "driver 580.1",
            "2026-11-29",
            "commit abc1234",
            "attune 0.1.0",
            "4 heads",
        ):
            self.assertIn(words, text)
        self.assertIn(f"limit {verdict.limit:.1e}", text)

    def test_losses_that_are_no_numbers(self):
        broken = falling(1)
        broken[30:] = [math.nan] * 30
        picture, _ = self.drawn(curves(attune=broken))
        self.assertEqual(len(self.series(picture)["loss attune"]), 30)
        for line in picture.iter(f"{SVG}polyline"):
            self.assertNotIn("nan", line.get("points"))
        self.drawn(curves(pytorch_bf16=[math.inf] * 60))


# -- memory ----------------------------------------------------------------------------------------


def memory_row(length, causal, **others):
    row = memory_results.Row(
        causal=causal,
        seqlen=length,
        tensor_bytes=20000 * length,
        workspace_bytes=8320 * length,
        peak_bytes=29000 * length + 512,
        device_before=600 << 20,
        device_after=(600 << 20) + 30000 * length + (2 << 20),
        o_error=2e-3,
        lse_error=1e-6,
        d_q_error=2e-3,
        d_k_error=2e-3,
        d_v_error=2e-3,
    )
    return replace(row, **others)


class Memory(unittest.TestCase):
    ROWS = [memory_row(length, causal) for causal in (False, True) for length in (8192, 16384, 32768)]

    def test_linear(self):
        self.assertEqual(memory_results.faults(self.ROWS), [])
        self.assertEqual(len(list(memory_results.growth(self.ROWS))), 2 * 2 * 3)
        self.assertIn("workspace_bytes: at most 2.0000 times", memory_results.table(self.ROWS))

    def test_each_column_is_judged(self):
        last = self.ROWS[-1]
        for column in ("workspace_bytes", "peak_bytes", "device_after"):
            rows = self.ROWS[:-1] + [replace(last, **{column: getattr(last, column) + last.seqlen**2})]
            (fault,) = memory_results.faults(rows)
            self.assertIn("causal, length 32768: " + column.replace("device_after", "device_bytes"), fault)

    def test_only_doubled_lengths_are_compared(self):
        rows = [memory_row(8192, True), memory_row(16384, False), memory_row(24576, True)]
        self.assertEqual(list(memory_results.growth(rows)), [])
        memory_results.table(rows)

    def test_wrong_results(self):
        rows = [memory_row(8192, False, fault="error of d_q 1.0e+00")]
        self.assertEqual(memory_results.faults(rows), ["no mask, length 8192: error of d_q 1.0e+00"])


# -- what attune gets ------------------------------------------------------------------------------


class Tensor:
    def __init__(self, shape, dtype, device):
        self.shape, self.dtype, self.device = tuple(shape), dtype, device
        self.copy = None

    def contiguous(self):
        self.copy = Tensor(self.shape, self.dtype, self.device)
        return self.copy


def fake_torch():
    """As much of PyTorch as attention.py touches: modules by name."""
    torch, autograd, function = (
        types.ModuleType(name) for name in ("torch", "torch.autograd", "torch.autograd.function")
    )
    torch.bfloat16, torch.float16, torch.float32, torch.uint8 = "bf16", "fp16", "f32", "u8"
    torch.device = str
    torch.empty = lambda shape, dtype, device: Tensor(
        (shape,) if isinstance(shape, int) else shape, dtype, device
    )
    torch.cuda = types.SimpleNamespace(
        current_stream=lambda device: types.SimpleNamespace(cuda_stream=f"stream of {device}")
    )
    torch.autograd, autograd.function = autograd, function
    autograd.Function, function.once_differentiable = object, lambda method: method
    return {module.__name__: module for module in (torch, autograd, function)}


class Plan:
    def __init__(self, problem, launched):
        self.problem, self._launched = problem, launched

    def workspace_bytes(self):
        return 4096

    def bind(self, q, k, v, o, lse, stream):
        return lambda: self._launched.append(("forward", [q, k, v, o, lse], stream))

    def bind_backward(self, q, k, v, o, d_o, lse, d_q, d_k, d_v, workspace, stream):
        arguments = [q, k, v, o, d_o, lse, d_q, d_k, d_v, workspace]
        return lambda: self._launched.append(("backward", arguments, stream))


class Wiring(unittest.TestCase):
    PROBLEM = Problem(
        heads=4, heads_kv=2, head_dim=64, head_dim_v=32, batch=3, seqlen_q=10, seqlen_k=20, deterministic=True
    )
    SHAPES = {"q": (3, 10, 4, 64), "k": (3, 20, 2, 64), "v": (3, 20, 2, 32)}

    def setUp(self):
        patched = unittest.mock.patch.dict(sys.modules, fake_torch())
        patched.start()
        self.addCleanup(patched.stop)
        sys.modules.pop("attention", None)
        self.launched, self.planned = [], []
        runtime = types.SimpleNamespace(plan=self.plan)
        self.attention = importlib.import_module("attention").Attention(runtime, self.PROBLEM, "cuda:1")
        self.inputs = {name: Tensor(shape, "bf16", "cuda:1") for name, shape in self.SHAPES.items()}

    def plan(self, problem):
        self.planned.append(problem)
        return Plan(problem, self.launched)

    def test_plans(self):
        self.assertCountEqual(
            self.planned, [replace(self.PROBLEM, deterministic=False), replace(self.PROBLEM, op="backward")]
        )
        self.assertEqual(self.attention.forward_plan.problem.op, "forward")
        self.assertEqual(self.attention.backward_plan.problem.op, "backward")

    def test_launches(self):
        q, k, v = self.inputs.values()
        o, lse = self.attention.forward(q, k, v)
        self.assertEqual((o.shape, o.dtype), ((3, 10, 4, 32), "bf16"))
        self.assertEqual((lse.shape, lse.dtype), ((3, 4, 10), "f32"))
        d_o = Tensor(o.shape, "bf16", "cuda:1")
        gradients = self.attention.backward(q, k, v, o, d_o, lse)
        self.assertEqual([gradient.shape for gradient in gradients], list(self.SHAPES.values()))
        forward, backward = self.launched
        self.assertEqual(forward, ("forward", [q, k, v, o, lse], "stream of cuda:1"))
        *arguments, workspace = backward[1]
        self.assertEqual(arguments, [q, k, v, o, d_o.copy, lse, *gradients])
        self.assertEqual((workspace.shape, workspace.dtype), ((4096,), "u8"))
        self.assertEqual(backward[2], "stream of cuda:1")

    def test_what_does_not_fit_is_refused(self):
        wrong = {"q": {"shape": (3, 10, 2, 64)}, "k": {"dtype": "f32"}, "v": {"device": "cuda:0"}}
        for name, change in wrong.items():
            tensor = vars(self.inputs[name]).copy() | change
            tensor.pop("copy")
            with self.assertRaisesRegex(
                ValueError, rf"^{name}: \[.*\] of .* on .* \(allowed: \[.*\] of bf16 on cuda:1\)"
            ):
                self.attention.forward(**self.inputs | {name: Tensor(**tensor)})
        self.assertEqual(self.launched, [])


if __name__ == "__main__":
    unittest.main()
