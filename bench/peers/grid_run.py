"""Times the problems of a grid in bursts and sustained, attune's configs and a peer in turn: what forward_grid.py and
backward_grid.py share."""

import abc
import argparse
import collections
import contextlib
import sys
import time

import torch

import attune_ctypes
import environment
import grid
import grid_results
import grid_table
import options
import peers
import plans
import report_html
import tensors
import timing

MODES = ("burst", "queued", "sustained")
BURST_SHARE = 0.6  # of the budget, where sustained load comes last
SUSTAINED_FROM = 2048  # keys: shorter problems do not reach the power cap


class Operation(abc.ABC):
    """What is measured, one of attune's ops."""

    op: str
    description: str  # the script's help
    outputs: tuple  # names of the tensors that a launch writes
    limits: dict  # dtype -> dictionary of the errors' names -> error beyond which a kernel is wrong
    peer: type  # of peers.py, made of a problem and its tensors

    def add_arguments(self, group):
        """Options of its own."""

    def adapted(self, problem, _args):
        """The problem as those options want it."""
        return problem

    @abc.abstractmethod
    def prepare(self, args, runtime, problems, made):
        """Before anything below. `made`: all the plans."""

    @abc.abstractmethod
    def tensors(self, problem):
        """Dictionary of what a launch reads and writes. Raises NoInputs."""

    @abc.abstractmethod
    def bind(self, plan, views):
        """A function that launches the plan on these tensors."""

    def fa3(self, problem, views):
        """FlashAttention-3 in this process: a function that launches it, or None."""
        return None

    @abc.abstractmethod
    def exact(self, problem, views):
        """Something whose errors(outputs) are those of such tensors against float64: name -> number."""


class NoInputs(RuntimeError):
    """There is nothing that a problem's launches could read; the text says why."""


# -- what to run -----------------------------------------------------------------------------------


def arguments(operation):
    parser = argparse.ArgumentParser(
        description=operation.description,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        prog=f"{operation.op}_grid.py",
        allow_abbrev=False,  # --fa3 is not --fa3-table
    )
    group = parser.add_argument_group("problems")
    group.add_argument(
        "--dims", type=options.numbers, default=grid.HEAD_DIMS, metavar="LIST", help="head dims of the grid"
    )
    group.add_argument("--seqs", type=options.numbers, default=grid.LENGTHS, metavar="LIST")
    dtypes = options.words_of(*tensors.DTYPES)
    group.add_argument("--dtypes", type=dtypes, default="bf16", metavar="LIST", help="bf16, fp16 or both")
    group.add_argument("--causal", choices=("both", "yes", "no"), default="both")
    group.add_argument("--no-grid", action="store_true", help="only --problem, --problems and --pairs")
    group.add_argument(
        "--problem",
        action="append",
        default=[],
        type=options.problem(operation.op),
        metavar="TEXT",
        help="one more",
    )
    group.add_argument(
        "--problems",
        type=options.problem_file(operation.op),
        default=[],
        metavar="FILE",
        help="more of them, one a line: batch=4,seqlen_q=4096,heads=32,...",
    )
    group.add_argument(
        "--pairs",
        type=options.pair_file(operation.op),
        default=[],
        metavar="FILE",
        help="problems with configs of their own, one a line: PROBLEM | CONFIG",
    )
    operation.add_arguments(group)
    how = parser.add_argument_group("measuring")
    how.add_argument("--modes", type=options.words_of(*MODES), default="burst,sustained", metavar="LIST")
    how.add_argument("--rounds", type=int, default=3, help="of bursts, and of queued launches, over all problems (default: 3)")
    how.add_argument("--rest", type=float, default=0.2, metavar="S", help="before each burst (default: 0.2)")
    how.add_argument("--sustained-rounds", type=int, default=2, help="(default: 2)")
    how.add_argument(
        "--load", type=float, default=0.2, metavar="S", help="a sustained half's length (default: 0.2)"
    )
    how.add_argument(
        "--budget", type=float, default=150, metavar="S", help="time for everything (default: 150)"
    )
    how.add_argument("--fa3-table", default=peers.FA3_TABLES[operation.op], metavar="CSV")
    how.add_argument(
        "--out", default=operation.op, metavar="PREFIX", help=f"of the files (default: {operation.op})"
    )
    how.add_argument("--html", action="store_true", help="write a page with plots beside each table, too")
    plans.add_arguments(parser)
    environment.add_arguments(parser)
    args = parser.parse_args()
    environment.require_gpu(parser, args)
    return args


def wanted(args, operation):
    """Dictionary problem -> names of its configs: those of its pairs and of --config; without either, attune's
    choice."""
    causal = {"both": (False, True), "yes": (True,), "no": (False,)}[args.causal]
    listed = [] if args.no_grid else list(grid.fa3(args.dtypes, args.dims, causal, args.seqs, operation.op))
    configs = {operation.adapted(problem, args): [] for problem in listed + args.problem + args.problems}
    for problem, config in args.pairs:
        configs.setdefault(operation.adapted(problem, args), []).append(config)
    return {
        problem: list(dict.fromkeys(own + (args.config or []))) or [plans.POLICY]
        for problem, own in configs.items()
    }


# -- one problem -----------------------------------------------------------------------------------


class Contender:
    """Something to time on a problem: the peer, or attune with one config."""

    def __init__(self, call, context=contextlib.nullcontext, host_ms=timing.HOST_MS):
        self._call, self._context, self._host_ms = call, context, host_ms
        with context():
            self.estimate = timing.estimate_ms(call, host_ms)

    def measure(self, mode, args, nvml):
        with self._context():
            if mode == "burst":
                return timing.burst(self._call, self.estimate, args.rest, nvml, self._host_ms)
            if mode == "queued":
                return timing.queued(self._call, self.estimate, args.rest, nvml, self._host_ms)
            return timing.sustained(self._call, self.estimate, args.load, nvml)


class Entry:
    """attune with one config on one problem."""

    def __init__(self, cell, name, plan, views, exact):
        self.cell, self.name = cell, name
        self.config, self.origin = plan.info("config"), plan.info("origin")
        call = cell.operation.bind(plan, views)
        try:
            self.fault, self.errors = check(cell, views, exact, call)
        except RuntimeError as error:  # nothing more can run on this GPU, but say where it happened
            error.add_note(f"after {name} ({self.config}) on {cell.problem}")
            raise
        self.contender = Contender(call) if self.fault is None else None


class Cell:
    """A problem with its peer, attune's entries, and the readings of each round: {contender: Reading}."""

    def __init__(self, operation, problem):
        self.operation, self.problem = operation, problem
        self.entries, self.refused = [], {}
        self.peer, self.peer_name = None, peers.name_of(problem)
        self.peer_refused, self.peer_errors = None, None
        self.fa3, self.fa3_refused, self.fa3_errors = None, None, None
        self.rounds = {mode: [] for mode in MODES}

    def prepare(self, made):
        """`made`: config name -> plan, or the error that refused it."""
        try:
            views = self.operation.tensors(self.problem)
        except NoInputs as error:
            self.refused = dict.fromkeys(made, str(error))
            self.peer_refused = str(error)
            return
        exact = self.operation.exact(self.problem, views)
        for name, plan in made.items():
            if isinstance(plan, Exception):
                self.refused[name] = str(plan)
            else:
                self.entries.append(Entry(self, name, plan, views, exact))
        try:
            peer = self.operation.peer(self.problem, views)
            self.peer = Contender(peer, peer.context, peer.host_ms)
        except RuntimeError as error:  # no kernel for this problem
            self.peer_refused = peers.reason(error)
        else:
            self.peer_errors = exact.errors(peer.outputs())
        try:
            self.prepare_fa3(views, exact)
        except (RuntimeError, ValueError) as error:
            self.fa3_refused = peers.reason(error)

    def prepare_fa3(self, views, exact):
        fa3 = self.operation.fa3(self.problem, views)
        if fa3 is None:
            return
        contender = Contender(fa3)
        self.fa3_errors = exact.errors({"o": fa3.o})
        if beyond := beyond_limits(self.operation.limits[self.problem.dtype], self.fa3_errors):
            raise ValueError(beyond)
        self.fa3 = contender

    def measure(self, mode, number, args, nvml):
        """One round. Every second one runs in the opposite order: nobody always follows the same kernel."""
        order = [c for c in (self.peer, self.fa3, *(entry.contender for entry in self.entries)) if c]
        if number % 2:
            order.reverse()
        self.rounds[mode].append({contender: contender.measure(mode, args, nvml) for contender in order})

    @property
    def failed(self):
        return not self.entries or any(entry.fault for entry in self.entries)


def check(cell, views, exact, call):
    """Launches with poisoned outputs and compares them with float64. What is wrong, or None; and, where nothing is, the
    errors."""
    outputs = {name: views[name] for name in cell.operation.outputs}
    for output in outputs.values():
        output.fill_(torch.nan)
    try:
        call()
    except attune_ctypes.AttuneError as error:
        return str(error), None
    torch.cuda.synchronize()
    unwritten = sum(output.isnan().sum().item() for output in outputs.values())
    if unwritten:
        return f"{unwritten} elements of {', '.join(outputs)} are NaN or were not written", None
    errors = exact.errors(outputs)
    beyond = beyond_limits(cell.operation.limits[cell.problem.dtype], errors)
    return (beyond, None) if beyond else (None, errors)


def beyond_limits(limits, errors):
    """What to say of errors that are too large, NaN among them; empty where none is."""
    return ", ".join(
        f"error of {name} {error:.1e} (allowed: {limits[name]:.1e})"
        for name, error in errors.items()
        if not error <= limits[name]
    )


# -- the run ---------------------------------------------------------------------------------------


def prepare(args, operation, configs):
    """Plans, checks and first estimates of all problems: the cells, and the runtime, to outlive them. `configs`: as of
    wanted()."""
    runtime = plans.open_runtime(args)
    requests = [(problem, name) for problem, names in configs.items() for name in names]
    made = plans.create(runtime, requests, args)
    operation.prepare(args, runtime, list(configs), [p for p in made.values() if not isinstance(p, Exception)])
    cells = [Cell(operation, problem) for problem in configs]
    for cell in cells:
        cell.prepare({name: made[cell.problem, name] for name in configs[cell.problem]})
        report_faults(cell)
    report_refusals(cells)
    return cells, runtime


def is_fault(cell, name):
    """Whether this refusal is one: a config that the space's rules exclude from a problem is none while another
    runs."""
    return name == plans.POLICY or not cell.entries


def report_faults(cell):
    """To stderr."""
    faults = {name: text for name, text in cell.refused.items() if is_fault(cell, name)}
    faults |= {entry.name: entry.fault for entry in cell.entries if entry.fault}
    for name, fault in faults.items():
        print(f"{cell.problem}: {name}: {fault}", file=sys.stderr)
    for peer, refused in ((cell.peer_name, cell.peer_refused), ("fa3", cell.fa3_refused)):
        if refused:
            print(f"{cell.problem}: {peer}: {refused}", file=sys.stderr)


def report_refusals(cells):
    """The others, a line for each reason."""
    counts = collections.Counter(
        (name, text) for cell in cells for name, text in cell.refused.items() if not is_fault(cell, name)
    )
    for (name, text), count in counts.items():
        print(f"{name}: refused for {count} problems: {text}", file=sys.stderr)


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
    except grid_table.TableError as error:
        print(error, file=sys.stderr)


def main(operation):
    args = arguments(operation)
    begin = time.monotonic()
    fa3 = peers.Fa3Table(args.fa3_table)
    cells, runtime = prepare(args, operation, wanted(args, operation))
    nvml = environment.open_nvml()
    described = environment.describe(args, runtime.lib, nvml)
    described["fa3"] = grid_results.source_of_fa3(cells, fa3)
    print(f"prepared {len(cells)} problems in {time.monotonic() - begin:.0f} s", file=sys.stderr)
    unmeasured = False
    for mode in MODES:
        if mode not in args.modes:
            continue
        sustained = mode == "sustained"
        share = BURST_SHARE if not sustained and "sustained" in args.modes else 1
        chosen = [c for c in cells if not sustained or c.problem.seqlen_k >= SUSTAINED_FROM]
        rounds = args.sustained_rounds if sustained else args.rounds
        run_rounds(mode, chosen, rounds, begin + share * args.budget, args, nvml)
        document = grid_results.write(args.out, mode, chosen, fa3, described)
        unmeasured = unmeasured or bool(document["unmeasured"])
        if args.html:
            write_page(f"{args.out}_{mode}")
    if any(cell.failed for cell in cells):
        return 1
    return 5 if unmeasured else 0
