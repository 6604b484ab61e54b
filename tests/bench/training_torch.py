"""Checks examples/training with PyTorch on the CPU, attune's plans replaced by formulas: gradients through autograd, a
training beside PyTorch's attention, faults that its verdict must find, and the sampled rows of the memory script.

training_torch.py ROOT. Exit status 77: there is no PyTorch.
"""

import argparse
import contextlib
import csv
import io
import json
import pathlib
import sys
import tempfile
import types
import unittest
import unittest.mock
import xml.etree.ElementTree as ET

try:
    import torch
except ImportError:
    print("skipped: no PyTorch")
    sys.exit(77)

ROOT = pathlib.Path(sys.argv.pop(1)).resolve()

sys.dont_write_bytecode = True
sys.path.insert(0, str(ROOT / "examples/training"))
import attention  # noqa: E402
import attune_runtime  # noqa: E402
import memory  # noqa: E402
import rows  # noqa: E402
import train  # noqa: E402
import training_results as results  # noqa: E402

import environment  # noqa: E402  from bench/peers, as the next one
from problem import Problem  # noqa: E402

SMALL = Problem(heads=4, heads_kv=2, head_dim=16, causal=True, batch=2, seqlen_q=160)


def by_heads(p, *tensors):
    """Float32 [batch, head, row, dim] of [batch, row, head, dim], as many KV heads as query heads."""
    repeated = (tensor.float().transpose(1, 2) for tensor in tensors)
    return [tensor.repeat_interleave(p.heads // tensor.shape[1], 1) for tensor in repeated]


def weights(p, q, k):
    scores = q @ k.transpose(-1, -2) * p.head_dim**-0.5
    if p.causal:
        scores = scores.masked_fill(torch.ones(scores.shape[-2:], dtype=torch.bool).triu(1), -torch.inf)
    return scores.softmax(-1), scores.logsumexp(-1)


class Plan:
    """Attention as kernels compute it: products of bf16, sums in float32, scores again from LSE."""

    def __init__(self, problem, spoil):
        self._problem, self._spoil = problem, spoil

    def info(self, what):
        assert what == "json"
        return json.dumps({"op": self._problem.op})

    def workspace_bytes(self):
        """Linear in the length."""
        return 100 * self._problem.seqlen_q

    def bind(self, q, k, v, o, lse, stream):
        def launch():
            queries, keys, values = by_heads(self._problem, q, k, v)
            p, found = weights(self._problem, queries, keys)
            o.copy_((p.to(o.dtype).float() @ values).transpose(1, 2))
            lse.copy_(found)

        return launch

    def bind_backward(self, q, k, v, o, d_o, lse, d_q, d_k, d_v, workspace, stream):
        assert workspace.numel() * workspace.element_size() == self.workspace_bytes()

        def launch():
            queries, keys, values, outputs, d_outputs = by_heads(self._problem, q, k, v, o, d_o)
            p, _ = weights(self._problem, queries, keys)
            delta = (d_outputs * outputs).sum(-1, keepdim=True)
            d_p = d_outputs @ values.transpose(-1, -2)
            d_s = (p * (d_p - delta)).to(q.dtype).float() * self._problem.head_dim**-0.5
            p = p.to(q.dtype).float()
            found = {
                "d_q": d_s @ keys,
                "d_k": d_s.transpose(-1, -2) @ queries,
                "d_v": p.transpose(-1, -2) @ d_outputs,
            }
            for name, output in (("d_q", d_q), ("d_k", d_k), ("d_v", d_v)):
                gradient = self._spoil(name, found[name])
                output.copy_(gradient.unflatten(1, (output.shape[2], -1)).sum(2).transpose(1, 2))

        return launch


def stub_attention(problem, spoil=lambda name, gradient: gradient):
    runtime = types.SimpleNamespace(plan=lambda problem: Plan(problem, spoil))
    return attention.Attention(runtime, problem, "cpu")


def random(*shape, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).bfloat16()


class OnCpu(unittest.TestCase):
    def setUp(self):
        stream = types.SimpleNamespace(cuda_stream=0)
        patched = unittest.mock.patch.object(torch.cuda, "current_stream", lambda device: stream)
        patched.start()
        self.addCleanup(patched.stop)

    def assertClose(self, tensor, exact, limit):
        self.assertLess((tensor.double() - exact).norm() / exact.norm(), limit)


class Autograd(OnCpu):
    def exact(self, p, packed, d_o):
        """O and the gradient of the packed Q, K and V, in float64."""
        packed = packed.detach().double().requires_grad_()
        q, k, v = (tensor.transpose(1, 2) for tensor in packed.split((p.heads, p.heads_kv, p.heads_kv), 2))
        o = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=p.causal, enable_gqa=True)
        o.transpose(1, 2).backward(d_o.double())
        return o.transpose(1, 2).detach(), packed.grad

    def test_parts_of_a_packed_tensor(self):
        p = SMALL
        packed = random(2, 160, 8, 16).requires_grad_()
        d_o = random(2, 160, 4, 16, seed=1)
        o = stub_attention(p)(*packed.split((4, 2, 2), 2))
        o.backward(d_o)
        exact_o, exact = self.exact(p, packed, d_o)
        self.assertClose(o, exact_o, 5e-3)
        for ours, theirs in zip(packed.grad.split((4, 2, 2), 2), exact.split((4, 2, 2), 2)):
            self.assertClose(ours, theirs, 1e-2)

    def test_a_gradient_without_strides(self):
        packed = random(2, 160, 8, 16).requires_grad_()
        o = stub_attention(SMALL)(*packed.split((4, 2, 2), 2))
        o.sum().backward()
        _, exact = self.exact(SMALL, packed, torch.ones(2, 160, 4, 16))
        self.assertClose(packed.grad, exact, 1e-2)

    def test_second_derivatives_are_refused(self):
        q, k, v = (tensor.requires_grad_() for tensor in random(2, 160, 8, 16).split((4, 2, 2), 2))
        o = stub_attention(SMALL)(q, k, v)
        (d_q,) = torch.autograd.grad(o.float().square().sum(), q, create_graph=True)
        with self.assertRaisesRegex(RuntimeError, "once_differentiable"):
            d_q.float().sum().backward()

    def test_other_shapes_are_refused(self):
        q, k, v = random(2, 160, 8, 16).split((4, 2, 2), 2)
        with self.assertRaisesRegex(
            ValueError, r"^k: \[2, 159, 2, 16\] of torch.bfloat16 on cpu \(allowed: \[2, 160,"
        ):
            stub_attention(SMALL)(q, k[:, 1:], v)
        with self.assertRaisesRegex(
            ValueError, r"^v: .* of torch.float32 on cpu \(allowed: .* of torch.bfloat16"
        ):
            stub_attention(SMALL)(q, k, v.float())


class Training(OnCpu):
    """A short training on short texts. The least without attention is not reached, so that fault is always there."""

    ARGS = types.SimpleNamespace(
        head_dim=64, heads=2, heads_kv=1, batch=4, seqlen=128, steps=40, seed=0, deterministic=False
    )
    PROBLEM = Problem(head_dim=64, heads=2, heads_kv=1, causal=True, batch=4, seqlen_q=128)

    @classmethod
    def setUpClass(cls):
        cls.training = train.Training(cls.ARGS, torch.device("cpu"))
        flash, math = train.SDPBackend.FLASH_ATTENTION, train.SDPBackend.MATH
        cls.peers = {
            results.PYTORCH: cls.training.run(train.torch_attention(torch.bfloat16, flash))[0],
            results.CONTROL: cls.training.run(train.torch_attention(torch.float32, math))[0],
        }

    def judged(self, spoil=lambda name, gradient: gradient):
        losses, _ = self.training.run(train.attune_attention(stub_attention(self.PROBLEM, spoil)))
        return results.judge(self.peers | {results.ATTUNE: losses}, self.training.without_attention)

    def test_right_gradients(self):
        verdict = self.judged()
        self.assertLess(verdict.deviation, verdict.limit)
        self.assertLess(verdict.last, verdict.first)

    def test_wrong_gradients_are_found(self):
        def tile(name, gradient):
            """As if 64 rows of dV were never written."""
            if name == "d_v":
                gradient[:, :, 64:] = 0
            return gradient

        spoilers = {
            "rows missing": tile,
            "half": lambda name, gradient: gradient / 2 if name == "d_v" else gradient,
            "another head's": lambda name, gradient: gradient.roll(1, 1) if name == "d_q" else gradient,
        }
        for name, spoil in spoilers.items():
            with self.subTest(name):
                verdict = self.judged(spoil)
                self.assertGreater(verdict.deviation, verdict.limit)
                self.assertIn("away from the control's", verdict.faults[0])

    def test_two_runs_are_compared(self):
        calls = []

        def second_is_off(name, gradient):
            """dQ of one row, in the last step of the second run: all losses are the same, the weights are not."""
            calls.append(name)
            if len(calls) > 3 * train.LAYERS * (2 * self.ARGS.steps - 1) and name == "d_q":
                gradient[:, :, 64] += 1
            return gradient

        with unittest.mock.patch.object(train, "torch_attention", lambda dtype, backend: str(backend)):
            run = self.training.run
            stub = types.SimpleNamespace(run=lambda call: ([1.0], []) if isinstance(call, str) else run(call))
            for spoil, same in ((lambda name, gradient: gradient, True), (second_is_off, False)):
                call = train.attune_attention(stub_attention(self.PROBLEM, spoil))
                _, same_bits = train.train_all(stub, call, again=True)
                self.assertIs(same_bits, same)


class CommandLine(unittest.TestCase):
    def checked(self, **changed):
        args = argparse.Namespace(head_dim=64, heads_kv=None, batch=16, seqlen=512, steps=300, seed=0)
        vars(args).update(changed)
        train.check(argparse.ArgumentParser(prog="train.py"), args)
        return args

    def test_heads(self):
        self.assertEqual((self.checked().heads, self.checked().heads_kv), (8, 8))
        self.assertEqual(self.checked(head_dim=128, heads_kv=2).heads, 4)

    def test_what_is_refused(self):
        for name, value in {"heads_kv": 3, "batch": 0, "seqlen": 0, "steps": 39, "seed": -1}.items():
            with contextlib.redirect_stderr(io.StringIO()) as said, self.assertRaises(SystemExit) as ended:
                self.checked(**{name: value})
            self.assertEqual(ended.exception.code, 2)
            self.assertIn(f"--{name.replace('_', '-')}: {value} (allowed: ", said.getvalue())


class Rows(OnCpu):
    def computed(self, p, spoil=lambda name, gradient: gradient):
        """Inputs and results of one problem, by name."""
        attend = stub_attention(p, spoil)
        shapes = {"q": p.heads, "k": p.heads_kv, "v": p.heads_kv, "d_o": p.heads}
        t = {n: random(2, p.seqlen_q, heads, 16, seed=i) for i, (n, heads) in enumerate(shapes.items())}
        t["o"], t["lse"] = attend.forward(t["q"], t["k"], t["v"])
        gradients = attend.backward(t["q"], t["k"], t["v"], t["o"], t["d_o"], t["lse"])
        return t | dict(zip(("d_q", "d_k", "d_v"), gradients))

    def test_sampled_rows_are_exact(self):
        for causal in (False, True):
            q, k, v, d_o = torch.randn(4, 200, 16, dtype=torch.float64).requires_grad_().unbind()
            scores = q @ k.T * 0.25
            if causal:
                scores = scores.masked_fill(torch.ones_like(scores, dtype=torch.bool).triu(1), -torch.inf)
            o, lse = scores.softmax(-1) @ v, scores.logsumexp(-1)
            d_q, d_k, d_v = torch.autograd.grad(o, (q, k, v), d_o)
            index = rows.chosen(200, seed=1)
            seen = index if causal else None
            found = rows.of_queries(q[index], k, v, d_o[index], seen, 0.25)
            found += rows.of_keys(k[index], v[index], q, o, d_o, lse, seen, 0.25)
            for sampled, exact in zip(found, (o, lse, d_q, d_k, d_v)):
                torch.testing.assert_close(sampled, exact[index])

    def test_errors(self):
        for causal in (False, True):
            p = Problem(heads=4, heads_kv=2, head_dim=16, causal=causal, batch=2, seqlen_q=300)
            tensors = self.computed(p)
            errors = memory.sampled_errors(p, tensors)
            self.assertEqual(memory.fault({name: tensors[name] for name in memory.LIMITS}, errors), "")
            self.assertGreater(min(errors.values()), 0)

    def test_wrong_rows_are_found(self):
        p = Problem(heads=4, heads_kv=2, head_dim=16, causal=True, batch=2, seqlen_q=300)
        for name in memory.LIMITS:
            for value in (1.0, torch.nan):
                tensors = self.computed(p)
                tensors[name][-1].select(0 if name != "lse" else 1, 299).fill_(value)
                found = memory.fault(
                    {n: tensors[n] for n in memory.LIMITS}, memory.sampled_errors(p, tensors)
                )
                self.assertIn(f"error of {name} ", found)
                self.assertEqual("not finite" in found, value != 1.0)


class DeviceMemory:
    """What PyTorch tells of a GPU's memory, for the forward launch that ran last."""

    def __init__(self):
        self.used = 0
        self.bytes_of = lambda length: 1000 * length

    def functions(self):
        return {
            "empty_cache": lambda: setattr(self, "used", 0),
            "reset_peak_memory_stats": lambda: None,
            "memory_allocated": lambda: 0,
            "max_memory_allocated": lambda: self.used,
            "mem_get_info": lambda: (10**12 - self.used, 10**12),
        }


class Programs(OnCpu):
    """Each script from its command line to its files, on a device that is none."""

    def setUp(self):
        super().setUp()
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.out = pathlib.Path(folder.name, "out")
        self.spoil = lambda name, gradient: gradient
        self.device = DeviceMemory()
        self.patch(environment, require_gpu=lambda parser, args: None, open_nvml=lambda: None)
        self.patch(environment, describe=lambda args, library, nvml: {"gpu": "none", "commit": args.commit})
        runtime = types.SimpleNamespace(lib=None, plan=self.plan)
        self.patch(attune_runtime, current_device=lambda: torch.device("cpu"))
        self.patch(attune_runtime, open_runtime=lambda args, device: runtime)
        self.patch(torch.cuda, synchronize=lambda: None, **self.device.functions())

    def patch(self, module, **values):
        for name, value in values.items():
            patched = unittest.mock.patch.object(module, name, value)
            patched.start()
            self.addCleanup(patched.stop)

    def plan(self, problem):
        device = self.device

        class Counted(Plan):
            def bind(self, q, *others, **named):
                device.used = device.bytes_of(q.shape[1])
                return super().bind(q, *others, **named)

        return Counted(problem, lambda name, gradient: self.spoil(name, gradient))

    def run_program(self, module, *arguments):
        with unittest.mock.patch.object(sys, "argv", ["x", "--out", str(self.out), *arguments]):
            with contextlib.redirect_stdout(io.StringIO()) as said, contextlib.redirect_stderr(
                io.StringIO()
            ) as bad:
                status = module.main()
        document = json.loads(self.out.with_suffix(".json").read_text(encoding="utf-8"))
        lines = list(csv.DictReader(self.out.with_suffix(".csv").read_text(encoding="utf-8").splitlines()))
        self.assertEqual(document["environment"], {"gpu": "none", "commit": "abc"})
        return status, document, lines, said.getvalue() + bad.getvalue()

    TRAIN = "--commit abc --head-dim 64 --heads-kv 1 --batch 4 --seqlen 64 --steps 40".split()

    def train(self, *arguments, least=9.0):
        """With `least` as what is reached without attention."""
        self.patch(train, WIDTH=128)
        self.patch(train.language, pair_entropy=lambda texts: least)
        return self.run_program(train, *self.TRAIN, *arguments)

    def test_train(self):
        status, document, lines, said = self.train()
        self.assertEqual((status, document["verdict"]["faults"]), (0, []), said)
        self.assertEqual((len(lines), list(lines[0])), (40, ["step", *results.CURVES]))
        self.assertEqual((document["settings"]["heads"], document["settings"]["heads_kv"]), (2, 1))
        self.assertEqual(document["plans"], {"forward": {"op": "forward"}, "backward": {"op": "backward"}})
        self.assertTrue(ET.parse(self.out.with_suffix(".svg")).getroot().tag.endswith("svg"))

    def test_train_deterministic(self):
        self.patch(train, make_deterministic=lambda: None)
        status, document, lines, said = self.train("--deterministic")
        self.assertEqual((status, document["verdict"]["same_bits"]), (0, True), said)
        self.assertEqual([line[results.AGAIN] for line in lines], [line[results.ATTUNE] for line in lines])

    def test_train_fails(self):
        status, document, _, said = self.train(least=0.5)
        self.assertEqual(status, 1)
        self.assertIn("not below 0.5000", said)
        self.assertEqual(len(document["verdict"]["faults"]), 1)

    MEMORY = "--commit abc --seqlens 256 512 1024 --head-dim 16 --heads 2 --heads-kv 1".split()

    def test_memory(self):
        status, document, lines, said = self.run_program(memory, *self.MEMORY)
        self.assertEqual((status, document["faults"]), (0, []), said)
        self.assertEqual(
            [(line["causal"], line["seqlen"], line["peak_bytes"]) for line in lines],
            [(causal, str(length), str(1000 * length)) for causal in "01" for length in (256, 512, 1024)],
        )
        self.assertEqual(document["plans"], 6 * [{"op": "backward"}])
        # Q, O and their gradients, K, V and theirs, LSE.
        self.assertEqual(int(lines[0]["tensor_bytes"]), 256 * (4 * 2 * 16 * 2 + 4 * 16 * 2 + 2 * 4))

    def test_memory_that_is_not_linear(self):
        self.device.bytes_of = lambda length: length**2
        status, document, _, said = self.run_program(memory, *self.MEMORY)
        self.assertEqual(status, 1)
        self.assertEqual(len(document["faults"]), 2 * 2 * 2)  # masks, columns, doublings
        self.assertIn("peak_bytes is 4.000 times", said)

    def test_memory_of_wrong_results(self):
        self.spoil = lambda name, gradient: gradient * 1.1 if name == "d_k" else gradient
        status, document, _, said = self.run_program(memory, *self.MEMORY)
        self.assertEqual(status, 1)
        self.assertEqual(len(document["faults"]), 6)
        self.assertIn("causal, length 1024: error of d_k 1.0e-01", said)


if __name__ == "__main__":
    unittest.main()
