"""What the scripts here share about attune: their options, the runtime, and attention for several problems."""

import concurrent.futures
import os
import sys

import torch

import peers_path  # noqa: F401  makes the next one importable

import attune_ctypes

from attention import Attention


def add_arguments(parser):
    group = parser.add_argument_group("attune")
    group.add_argument(
        "--lib", metavar="PATH", help="libattune.so (default: $ATTUNE_LIB, else beside attune_ctypes.py)"
    )
    group.add_argument("--cache-dir", metavar="DIR", help="attune's cache (default: as attune finds it)")


def current_device():
    return torch.device("cuda", torch.cuda.current_device())


def open_runtime(args, device):
    """attune's runtime of such a device. Ends the program if there is none."""
    try:
        library = attune_ctypes.Library(args.lib)
        return attune_ctypes.Runtime(library, device=device.index, cache_directory=args.cache_dir)
    except (OSError, attune_ctypes.AttuneError) as error:
        sys.exit(str(error))


def attentions(runtime, problems, device):
    """Attention of each problem, in order; kernels are compiled in parallel. Ends the program if one is refused."""
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        try:
            return list(pool.map(lambda problem: Attention(runtime, problem, device), problems))
        except attune_ctypes.AttuneError as error:
            sys.exit(str(error))
