"""Times attune's forward kernels against cuDNN and, by a table, FlashAttention-3.

Writes OUT_burst.csv and OUT_sustained.csv, a row for each problem and config, and a JSON file beside each, with
--html a page with plots, too; README.md in bench/ says what the numbers mean. Exit status: 0 all is measured and
right; 1 something is wrong or failed; 3 no usable GPU; 5 the budget ended before every problem was measured.
"""

import argparse
import contextlib
import sys
import time

import torch

import attune_ctypes
import environment
import forward_results
import forward_table
import grid
import options
import peers
import plans
import report_html
import tensors
import timing

MODES = ("burst", "sustained")
BURST_SHARE = 0.6  # of the budget, where both modes run
SUSTAINED_FROM = 2048  # keys: shorter problems do not reach the power cap

# A row's relative error of O and the absolute error of LSE beyond which a kernel is wrong. Rounding P and O
# gives about 2e-3 in bf16 and 3e-4 in fp16.
O_LIMIT = {"bf16": 1e-2, "fp16": 2.5e-3}
LSE_LIMIT = 1e-3


# -- what to run -----------------------------------------------------------------------------------


def arguments():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, prog="forward_grid.py"
    )
    group = parser.add_argument_group("problems")
    group.add_argument(
        "--dims", type=options.numbers, default=grid.HEAD_DIMS, metavar="LIST", help="head dims of the grid"
    )
    group.add_argument("--seqs", type=options.numbers, default=grid.LENGTHS, metavar="LIST")
    dtypes = options.words_of(*tensors.DTYPES)
    group.add_argument("--dtypes", type=dtypes, default="bf16", metavar="LIST", help="bf16, fp16 or both")
    group.add_argument("--causal", choices=("both", "yes", "no"), default="both")
    group.add_argument("--no-grid", action="store_true", help="only --problem and --problems")
    group.add_argument(
        "--problem", action="append", default=[], type=options.problem, metavar="TEXT", help="one more"
    )
    group.add_argument(
        "--problems",
        type=options.problem_file,
        default=[],
        metavar="FILE",
        help="more of them, one a line: batch=4,seqlen_q=4096,heads=32,...",
    )
    how = parser.add_argument_group("measuring")
    how.add_argument("--modes", type=options.words_of(*MODES), default=",".join(MODES), metavar="LIST")
    how.add_argument("--rounds", type=int, default=3, help="of bursts over all problems (default: 3)")
    how.add_argument("--rest", type=float, default=0.2, metavar="S", help="before each burst (default: 0.2)")
    how.add_argument("--sustained-rounds", type=int, default=2, help="(default: 2)")
    how.add_argument(
        "--load", type=float, default=0.2, metavar="S", help="a sustained half's length (default: 0.2)"
    )
    how.add_argument(
        "--budget", type=float, default=150, metavar="S", help="time for everything (default: 150)"
    )
    how.add_argument("--fa3-table", default=peers.FA3_TABLE, metavar="CSV")
    how.add_argument("--out", default="forward", metavar="PREFIX", help="of the files (default: forward)")
    how.add_argument("--html", action="store_true", help="write a page with plots beside each table, too")
    plans.add_arguments(parser)
    environment.add_arguments(parser)
    args = parser.parse_args()
    environment.require_gpu(parser, args)
    return args


def wanted(args):
    causal = {"both": (False, True), "yes": (True,), "no": (False,)}[args.causal]
    listed = [] if args.no_grid else list(grid.fa3(args.dtypes, args.dims, causal, args.seqs))
    return list(dict.fromkeys(listed + args.problem + args.problems))


# -- one problem -----------------------------------------------------------------------------------


class Contender:
    """Something to time on a problem: the peer, or attune with one config."""

    def __init__(self, call, context=contextlib.nullcontext):
        self._call, self._context = call, context
        with context():
            self.estimate = timing.estimate_ms(call)

    def measure(self, mode, args, nvml):
        with self._context():
            if mode == "burst":
                return timing.burst(self._call, self.estimate, args.rest, nvml)
            return timing.sustained(self._call, self.estimate, args.load, nvml)


class Entry:
    """attune with one config on one problem."""

    def __init__(self, cell, name, plan):
        self.cell, self.name = cell, name
        self.config, self.origin = plan.info("config"), plan.info("origin")
        stream = torch.cuda.current_stream().cuda_stream
        call = plan.bind(**cell.tensors, stream=stream)
        try:
            self.fault, self.errors = check(cell.problem, cell.tensors, call)
        except RuntimeError as error:  # nothing more can run on this GPU, but say where it happened
            error.add_note(f"after {name} ({self.config}) on {cell.problem}")
            raise
        self.contender = Contender(call) if self.fault is None else None


class Cell:
    """A problem with its peer, attune's entries, and the readings of each round: {contender: Reading}."""

    def __init__(self, problem, arena):
        self.problem, self.tensors = problem, arena.tensors(problem)
        self.entries, self.refused = [], {}
        self.peer, self.peer_name, self.peer_refused = None, None, None
        self.rounds = {mode: [] for mode in MODES}

    def prepare(self, made):
        """`made`: config name -> plan, or the error that refused it."""
        for name, plan in made.items():
            if isinstance(plan, Exception):
                self.refused[name] = str(plan)
            else:
                self.entries.append(Entry(self, name, plan))
        peer = peers.Peer(self.problem, self.tensors)
        self.peer_name = peer.name
        try:
            self.peer = Contender(peer, peer.context)
        except RuntimeError as error:  # no kernel for this problem
            self.peer_refused = peers.reason(error)

    def measure(self, mode, number, args, nvml):
        """One round. Every second one runs in the opposite order: nobody always follows the same kernel."""
        order = [c for c in (self.peer, *(entry.contender for entry in self.entries)) if c]
        if number % 2:
            order.reverse()
        self.rounds[mode].append({contender: contender.measure(mode, args, nvml) for contender in order})

    @property
    def failed(self):
        return not self.entries or any(entry.fault for entry in self.entries)


def check(problem, views, call):
    """Launches with poisoned outputs and compares sampled rows with float64. What is wrong, or None;
    and, where nothing is, the errors."""
    views["o"].fill_(torch.nan)
    views["lse"].fill_(torch.nan)
    try:
        call()
    except attune_ctypes.AttuneError as error:
        return str(error), None
    torch.cuda.synchronize()
    unwritten = views["o"].isnan().sum().item() + views["lse"].isnan().sum().item()
    if unwritten:
        return f"{unwritten} elements of O and LSE are NaN or were not written", None
    o_error, lse_error = sampled_errors(problem, views)
    if not (o_error <= O_LIMIT[problem.dtype] and lse_error <= LSE_LIMIT):
        return f"error of O {o_error:.1e}, of LSE {lse_error:.1e}", None
    return None, {"o": o_error, "lse": lse_error}


def sampled_errors(problem, views, heads=8, rows=64, seed=1):
    """Worst relative error of a row of O and worst error of LSE, among rows at tile edges and others."""
    generator = torch.Generator().manual_seed(seed)
    worst_o, worst_lse = 0.0, 0.0
    for _ in range(heads):
        batch = torch.randint(problem.batch, (), generator=generator).item()
        head = torch.randint(problem.heads, (), generator=generator).item()
        edges = torch.tensor([0, 63, 64, 127, 128, problem.seqlen_q - 1]).clamp(max=problem.seqlen_q - 1)
        index = torch.cat([edges, torch.randint(problem.seqlen_q, (rows,), generator=generator)]).to(
            tensors.DEVICE
        )
        head_kv = head // (problem.heads // problem.heads_kv)
        last = tensors.last_keys(index, problem.seqlen_q, problem.seqlen_k) if problem.causal else None
        exact, exact_lse = tensors.reference(
            views["q"][batch, index, head], views["k"][batch, :, head_kv], views["v"][batch, :, head_kv], last
        )
        error = (views["o"][batch, index, head].double() - exact).norm(dim=-1)
        size = exact.norm(dim=-1)
        lse = views["lse"][batch, head, index].double()
        worst_o = max(worst_o, torch.where(error == 0, 0.0, error / size).max().item())
        worst_lse = max(worst_lse, torch.where(lse == exact_lse, 0.0, (lse - exact_lse).abs()).max().item())
    return worst_o, worst_lse


# -- the run ---------------------------------------------------------------------------------------


def prepare(args, listed):
    """Plans, checks and first estimates of all problems: the cells, and the runtime, to outlive them."""
    runtime = plans.open_runtime(args)
    names = plans.config_names(args)
    made = plans.create(runtime, listed, names, args)
    arena = tensors.Arena(listed)
    cells = [Cell(problem, arena) for problem in listed]
    for cell in cells:
        cell.prepare({name: made[cell.problem, name] for name in names})
        report_faults(cell)
    return cells, runtime


def report_faults(cell):
    """To stderr. A config that the space's rules exclude from a problem is no fault while another runs."""
    faults = {name: text for name, text in cell.refused.items() if name == plans.POLICY or not cell.entries}
    faults |= {entry.name: entry.fault for entry in cell.entries if entry.fault}
    for name, fault in faults.items():
        print(f"{cell.problem}: {name}: {fault}", file=sys.stderr)
    if cell.peer_refused:
        print(f"{cell.problem}: {cell.peer_name}: {cell.peer_refused}", file=sys.stderr)


def run_rounds(mode, cells, rounds, deadline, args, nvml):
    """Round after round over all problems: the budget cuts off repetitions, and only then problems."""
    for number in range(rounds):
        for cell in cells:
            if time.monotonic() > deadline:
                return
            cell.measure(mode, number, args, nvml)


def write_page(name):
    """Of the files that were just written; where nothing ran at all there is nothing to draw."""
    try:
        report_html.write(f"{name}.csv", f"{name}.html")
    except forward_table.TableError as error:
        print(error, file=sys.stderr)


def main():
    args = arguments()
    begin = time.monotonic()
    fa3 = peers.Fa3Table(args.fa3_table)
    cells, runtime = prepare(args, wanted(args))
    nvml = environment.open_nvml()
    described = environment.describe(args, runtime.lib, nvml)
    print(f"prepared {len(cells)} problems in {time.monotonic() - begin:.0f} s", file=sys.stderr)
    unmeasured = False
    for mode in MODES:
        if mode not in args.modes:
            continue
        share = BURST_SHARE if mode == "burst" and "sustained" in args.modes else 1
        chosen = [c for c in cells if mode == "burst" or c.problem.seqlen_k >= SUSTAINED_FROM]
        rounds = args.rounds if mode == "burst" else args.sustained_rounds
        run_rounds(mode, chosen, rounds, begin + share * args.budget, args, nvml)
        document = forward_results.write(args.out, mode, chosen, fa3, described)
        unmeasured = unmeasured or bool(document["unmeasured"])
        if args.html:
            write_page(f"{args.out}_{mode}")
    if any(cell.failed for cell in cells):
        return 1
    return 5 if unmeasured else 0


if __name__ == "__main__":
    sys.exit(main())
