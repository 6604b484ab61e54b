"""What the scripts here share about attune: options, and plans for many problems at once."""

import collections
import concurrent.futures
import os
import sys

import torch

import attune_ctypes

POLICY = "plan"  # the name of the config that plan() picks by itself: pack, cache, then --on-miss


def add_arguments(parser):
    group = parser.add_argument_group("attune")
    group.add_argument(
        "--lib", metavar="PATH", help="libattune.so (default: $ATTUNE_LIB, else beside this script)"
    )
    group.add_argument(
        "--config",
        action="append",
        metavar="TEXT",
        help=f"a config to run, '{POLICY}' being attune's choice; may be given again (default: {POLICY})",
    )
    group.add_argument(
        "--on-miss",
        choices=list(attune_ctypes.MISS_POLICIES),
        default="heuristic",
        help="what attune does for a problem that no pack and no cache knows (default: heuristic)",
    )
    group.add_argument(
        "--tune-seconds", type=float, metavar="S", help="budget of --on-miss tune, for each problem"
    )
    group.add_argument("--cache-dir", metavar="DIR", help="attune's cache (default: as attune finds it)")
    group.add_argument("--no-cache", action="store_true", help="neither read nor write a cache")
    group.add_argument(
        "--pack", action="append", default=[], metavar="DIR", help="a pack to use; may be given again"
    )
    group.add_argument("--allow-unsigned-packs", action="store_true")


def open_runtime(args):
    """Ends the program if there is none."""
    try:
        return _open_runtime(args)
    except (OSError, attune_ctypes.AttuneError) as error:
        sys.exit(str(error))


def _open_runtime(args):
    return attune_ctypes.Runtime(
        attune_ctypes.Library(args.lib),
        device=torch.cuda.current_device(),
        use_cache=not args.no_cache,
        cache_directory=args.cache_dir,
        packs=args.pack,
        allow_unsigned_packs=args.allow_unsigned_packs,
        on_warning=Warnings(),
    )


class Warnings:
    """Prints the first few: each problem that nobody tuned gives one."""

    SHOWN = 10

    def __init__(self):
        self._count = 0

    def __call__(self, text):
        self._count += 1
        if self._count <= self.SHOWN:
            print(f"attune: {text}", file=sys.stderr)
        if self._count == self.SHOWN:
            print("attune: more warnings are not shown", file=sys.stderr)


def config_names(args):
    """Without repetitions, in the order given."""
    return list(dict.fromkeys(args.config or [POLICY]))


def create(runtime, requests, args):
    """Dictionary of the requests (problem, config name) -> Plan, or the AttuneError that refused it.

    Kernels are compiled in parallel; tuning is not, since it measures.
    """

    def one(request):
        problem, config = request
        if config != POLICY:
            return runtime.plan_with_config(problem, config)
        return runtime.plan(problem, on_miss=args.on_miss, tune_seconds=args.tune_seconds)

    requests = list(requests)
    tunes = args.on_miss in ("tune", "background") and any(config == POLICY for _, config in requests)
    return _all(one, requests, 1 if tunes else os.cpu_count())


def untuned(runtime, problems):
    """Dictionary problem -> Plan, or the AttuneError that refused it, without tuning whatever --on-miss says."""
    return _all(runtime.plan, problems, os.cpu_count())


def _all(make, requests, workers):
    def one(request):
        try:
            return make(request)
        except attune_ctypes.AttuneError as error:
            return error

    requests = list(dict.fromkeys(requests))
    with concurrent.futures.ThreadPoolExecutor(workers) as pool:
        return dict(zip(requests, pool.map(one, requests)))


def refusals(made, config):
    """How many problems this config was refused for, by attune's words."""
    errors = [str(plan) for (_, name), plan in made.items() if name == config and isinstance(plan, Exception)]
    return dict(collections.Counter(errors))
