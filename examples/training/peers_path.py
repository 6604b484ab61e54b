"""Importing this makes bench/peers importable: the ctypes binding, and what describes a measurement."""

import pathlib
import sys

_here = pathlib.Path(__file__).resolve().parent
_folders = (_here.parent.parent / "bench/peers", _here.parent)  # in the source tree, in a bundle
_found = [str(folder) for folder in _folders if (folder / "attune_ctypes.py").is_file()]
if not _found:
    raise ImportError(f"attune_ctypes.py is in none of {', '.join(map(str, _folders))}")
sys.path.insert(1, _found[0])  # behind the script's own folder
