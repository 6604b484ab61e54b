"""Checks how the built-in table of configs is made from benchmark runs.

default_table.py ROOT
"""

import json
import pathlib
import subprocess
import sys
import tempfile
import unittest

ROOT = pathlib.Path(sys.argv.pop(1)).resolve()
SCRIPT = ROOT / "bench/peers/default_table.py"
PROBLEM = (
    "op=forward,dtype=bf16,head_dim={dim},head_dim_v={dim},heads=8,heads_kv=8,causal=0,batch=1,"
    "seqlen_q={length},seqlen_k={length},layout=bshd"
)


def run(commit, *problems):
    environment = {"gpu": "NVIDIA H200", "driver": "1.2", "date": "2026-11-29T10:00:00", "commit": commit}
    return {"environment": environment, "problems": list(problems)}


def problem(dim, length, config, ms, peer_ms, wrong=None, error=1e-3):
    return {
        "problem": PROBLEM.format(dim=dim, length=length),
        "peer": "cudnn",
        "configs": [{"name": "plan", "config": config, "wrong": wrong, "errors": {"o": error, "lse": 1e-6}}],
        "rounds": [{"plan": {"ms": ms * f}, "cudnn": {"ms": peer_ms}} for f in (1, 1.5, 0.9)],
    }


class Table(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)

    def made(self, *documents):
        paths = []
        for number, document in enumerate(documents):
            path = self.folder / f"{number}.json"
            path.write_text(document if isinstance(document, str) else json.dumps(document), encoding="utf-8")
            paths.append(str(path))
        return subprocess.run([sys.executable, "-B", SCRIPT, *paths], capture_output=True, text=True, check=False)

    def test_the_better_run_wins_by_ratio(self):
        # The second run's machine is slower, and its config better beside the peer there.
        first = run("aaa", problem(128, 512, "block_n=128", 1.0, 1.1), problem(64, 512, "block_n=96", 1.0, 1.1))
        second = run("bbb", problem(128, 512, "block_n=96", 1.2, 1.5, error=2e-3))
        result = self.made(first, second)
        self.assertEqual(result.returncode, 0, result.stderr)
        lines = result.stdout.splitlines()
        self.assertIn("aaa (2026-11-29), bbb (2026-11-29)", lines[1])
        rows = [line for line in lines if not line.startswith("#")]
        self.assertEqual(
            rows,
            [
                PROBLEM.format(dim=64, length=512) + " | block_n=96 | 1.0000e-03 | 1.00e-03",
                PROBLEM.format(dim=128, length=512) + " | block_n=96 | 1.2000e-03 | 2.00e-03",
            ],
        )

    def test_gradients_come_behind(self):
        backward = problem(64, 512, "block_m=64", 1, 2)
        backward["problem"] = backward["problem"].replace("op=forward", "op=backward") + ",deterministic=0"
        backward["configs"][0]["errors"] = {"d_q": 2e-3, "d_q_row": 5e-3, "d_k": 1e-3}
        result = self.made(run("aaa", backward, problem(128, 512, "block_n=96", 1, 2)))
        rows = [line for line in result.stdout.splitlines() if not line.startswith("#")]
        self.assertEqual(
            rows,
            [
                PROBLEM.format(dim=128, length=512) + " | block_n=96 | 1.0000e-03 | 1.00e-03",
                backward["problem"] + " | block_m=64 | 1.0000e-03 | 5.00e-03",
            ],
        )

    def test_the_built_in_table_was_made_by_it(self):
        made = self.made(run("aaa", problem(64, 512, "block_n=96", 1, 2))).stdout.splitlines()
        built_in = (ROOT / "codegen/default_table.txt").read_text(encoding="utf-8").splitlines()
        self.assertEqual([made[0], made[2]], [built_in[0], built_in[2]])
        self.assertRegex(built_in[1], r"^# NVIDIA H200, driver [\d.]+, bursts; commits: [0-9a-f]+ \(\d{4}-\d\d-\d\d\)(, [0-9a-f]+ \(\d{4}-\d\d-\d\d\))*\.$")

    def test_wrong_configs_are_left_out(self):
        result = self.made(run("aaa", problem(64, 512, "block_n=96", 1, 2, wrong="error of O")))
        self.assertEqual(result.returncode, 2)
        self.assertIn("no right and measured config", result.stderr)

    def test_what_is_no_result_is_named(self):
        for document in ("{", "[]", '{"problems": [1], "environment": {}}'):
            result = self.made(document)
            self.assertEqual(result.returncode, 2)
            self.assertIn("0.json: not a result of a grid", result.stderr)


if __name__ == "__main__":
    unittest.main()
