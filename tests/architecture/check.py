"""Checks the rules about the source tree: who may include whom, how long a file may be, and that every public header
stands alone.

    check.py includes|size|headers ROOT [--cc CC] [--cxx CXX]
"""

import argparse
import os
import pathlib
import re
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor

# What each module may include besides itself.
ALLOWED = {
    "base": set(),
    "templates": {"base"},
    "codegen": {"base", "templates"},
    "cache": {"base"},
    "runtime/emulator": {"base"},
    "runtime/cpu": {"base", "templates", "codegen", "cache", "runtime", "runtime/emulator"},
    "runtime": {"base", "templates", "codegen", "cache"},
    "tuner": {"base", "templates", "codegen", "cache", "runtime"},
    "cli": {"base", "templates", "codegen", "cache", "runtime", "tuner"},
    "cli/emulator": {"base", "templates", "codegen", "cache", "runtime", "runtime/cpu", "runtime/emulator", "tuner", "cli"},
}

# Which modules may include a library's headers.
OWNERS = {
    r"cuda\w*\.h|nvrtc\.h": {"runtime"},
    r"llvm(-c)?/.*": {"runtime", "runtime/emulator"},
    r"boost/.*": {"runtime/emulator"},
    r"sqlite3\.h": {"cache"},
    r"CLI/.*": {"cli"},
    r"doctest/.*": set(),
}

MAX_LINES = 800
SOURCE_SUFFIXES = {".h", ".hpp", ".c", ".cc", ".cpp", ".cu", ".cuh", ".py", ".sh", ".cmake"}
SKIPPED_FOLDERS = {"build", "golden"}
INCLUDE = re.compile(r'^\s*#\s*include\s*(["<])([^">]+)[">]')


def sources(folder):
    for path, folders, names in os.walk(folder):
        folders[:] = sorted(f for f in folders if f not in SKIPPED_FOLDERS and not f.startswith("."))
        for name in sorted(names):
            file = pathlib.Path(path, name)
            if file.suffix in SOURCE_SUFFIXES:
                yield file


def public_headers(root):
    """Maps "attune/x.h" to the module whose include folder holds it."""
    found = {}
    for module in ALLOWED:
        folder = root / module / "include"
        for file in sources(folder):
            found[file.relative_to(folder).as_posix()] = module
    return found


def module_of(path):
    """The module that this path relative to the root lies in, the longest name first: a folder may be one of its own."""
    for module in sorted(ALLOWED, key=len, reverse=True):
        if path.startswith(module + "/"):
            return module
    return None


def included_module(name, quoted, public):
    if name in public:
        return public[name]
    return module_of(name) if quoted else None


def check_include(module, name, quoted, public):
    """What is wrong with this include, or None."""
    target = included_module(name, quoted, public)
    if target is not None:
        if target != module and target not in ALLOWED[module]:
            return f"{module} may not include {target} (allowed: {', '.join(sorted(ALLOWED[module])) or 'none'})"
        return None
    if name.startswith("attune/"):
        return f"no module has the public header {name}"
    if quoted:
        return f'"{name}" is not relative to the root of the repository'
    for pattern, owners in OWNERS.items():
        if re.fullmatch(pattern, name) and module not in owners:
            return f"<{name}> may be included by {', '.join(sorted(owners)) or 'tests only'}"
    return None


def check_includes(root):
    public = public_headers(root)
    problems = []
    for module in ALLOWED:
        for file in sources(root / module):
            if module_of(file.relative_to(root).as_posix()) != module:
                continue
            for number, line in enumerate(file.read_text(encoding="utf-8").splitlines(), 1):
                match = INCLUDE.match(line)
                # Device code includes its neighbours; the emitter joins them into one translation unit.
                if not match or (file.suffix == ".cuh" and (file.parent / match[2]).is_file()):
                    continue
                problem = check_include(module, match[2], match[1] == '"', public)
                if problem:
                    problems.append(f"{file.relative_to(root)}:{number}: {problem}")
    return problems


def check_size(root):
    problems = []
    for file in sources(root):
        lines = len(file.read_text(encoding="utf-8").splitlines())
        if lines > MAX_LINES:
            problems.append(f"{file.relative_to(root)}: {lines} lines (at most {MAX_LINES}): split it by idea")
    return problems


def compile_alone(root, header, command, suffix, folder):
    """Compiles a file that includes this header, twice, and nothing else."""
    file = pathlib.Path(folder, header.replace("/", "_") + suffix)
    file.write_text(f"#include <{header}>\n#include <{header}>\nextern int nothing_else;\n")
    includes = [f"-I{root / module / 'include'}" for module in ALLOWED]
    run = subprocess.run([*command, "-fsyntax-only", "-Wall", "-Wextra", "-Wpedantic", "-Werror", *includes, str(file)],
                         capture_output=True, text=True)
    return f"<{header}> does not compile alone ({' '.join(command)}):\n{run.stderr}" if run.returncode else None


def check_headers(root, cc, cxx):
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(os.cpu_count()) as pool:
        jobs = []
        for header in public_headers(root):
            jobs.append(pool.submit(compile_alone, root, header, [cxx, "-std=c++20"], ".cpp", folder))
            if header.endswith("_c.h") or header == "attune/export.h":
                jobs.append(pool.submit(compile_alone, root, header, [cc, "-std=c11"], ".c", folder))
        return [problem for job in jobs if (problem := job.result())]


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("check", choices=["includes", "size", "headers"])
    parser.add_argument("root", type=pathlib.Path)
    parser.add_argument("--cc", default="cc")
    parser.add_argument("--cxx", default="c++")
    args = parser.parse_args()
    root = args.root.resolve()
    if args.check == "includes":
        problems = check_includes(root)
    elif args.check == "size":
        problems = check_size(root)
    else:
        problems = check_headers(root, args.cc, args.cxx)
    for problem in problems:
        print(problem)
    print(f"{args.check}: {len(problems)} problems")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
