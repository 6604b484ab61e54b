"""Checks the benchmarks' ctypes binding against attune_c.h: functions, enumerators and the layout of every
structure.

binding.py ROOT [--cc CC]
"""

import argparse
import ctypes
import json
import pathlib
import re
import subprocess
import sys
import tempfile

STRUCTURES = {
    "RuntimeOptions": "attune_runtime_options",
    "Problem": "attune_problem",
    "PlanOptions": "attune_plan_options",
    "Strides": "attune_strides",
    "ForwardArgs": "attune_forward_args",
    "BackwardArgs": "attune_backward_args",
}
ENUMERATORS = {"OPS": "", "DTYPES": "", "LAYOUTS": "", "MISS_POLICIES": "MISS_", "INFOS": "INFO_"}


def binding_layout(binding):
    """Name -> size, offset or value, as the binding has it."""
    found = {}
    for name, c_name in STRUCTURES.items():
        structure = getattr(binding, name)
        found[c_name] = ctypes.sizeof(structure)
        for field, _ in structure._fields_:
            member = getattr(structure, field)
            found[f"{c_name}.{field}"] = [member.offset, member.size]
    for table, prefix in ENUMERATORS.items():
        for name, value in getattr(binding, table).items():
            found[f"ATTUNE_{prefix}{name.upper()}"] = value
    return found


def expression(name):
    """C expressions of what binding_layout() says about this name."""
    structure, dot, field = name.partition(".")
    if dot:
        return "[%zu, %zu]", f"offsetof({structure}, {field}), sizeof((({structure}*)0)->{field})"
    return "%zu", f"(size_t){name}" if name.startswith("ATTUNE_") else f"sizeof({name})"


def header_layout(root, cc, names):
    lines = ["#include <attune/attune_c.h>", "#include <stdio.h>", "int main(void) {"]
    for index, name in enumerate(names):
        form, values = expression(name)
        lines.append(f'  printf("%c\\"{name}\\": {form}\\n", {ord("," if index else "{")}, {values});')
    lines.append('  puts("}");\n  return 0;\n}\n')
    with tempfile.TemporaryDirectory() as folder:
        source, program = pathlib.Path(folder, "layout.c"), pathlib.Path(folder, "layout")
        source.write_text("\n".join(lines))
        includes = [f"-I{root / module / 'include'}" for module in ("base", "runtime")]
        subprocess.run([cc, "-std=c11", *includes, str(source), "-o", str(program)], check=True)
        return json.loads(subprocess.run([program], check=True, capture_output=True, text=True).stdout)


def header_text(root):
    return (root / "runtime/include/attune/attune_c.h").read_text(encoding="utf-8")


def missing_fields(text, layout):
    """Fields of the header that the binding does not know, in the structures that it mirrors."""
    for c_name in STRUCTURES.values():
        body = re.search(rf"typedef struct {c_name} {{(.*?)}} {c_name};", text, re.DOTALL)[1]
        body = re.sub(r"/\*.*?\*/", "", body, flags=re.DOTALL)
        for declaration in filter(None, map(str.strip, body.split(";"))):
            for declarator in declaration.split(","):
                field = re.search(r"\w+$", declarator.strip())[0]
                if f"{c_name}.{field}" not in layout:
                    yield f"{c_name}.{field} is not in the binding"


def problems(root, cc):
    sys.dont_write_bytecode = True
    sys.path.insert(0, str(root / "bench/peers"))
    import attune_ctypes as binding

    ours = binding_layout(binding)
    theirs = header_layout(root, cc, list(ours))
    found = [
        f"{name}: {ours[name]}, the header has {theirs[name]}" for name in ours if ours[name] != theirs[name]
    ]
    text = header_text(root)
    found += missing_fields(text, ours)
    declared = set(re.findall(r"^ATTUNE_API .*?\b(attune_\w+)\(", text, re.MULTILINE))
    found += [f"{name} is not in both" for name in sorted(declared ^ set(binding._FUNCTIONS))]
    return found


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("root", type=pathlib.Path)
    parser.add_argument("--cc", default="cc")
    args = parser.parse_args()
    found = problems(args.root.resolve(), args.cc)
    for problem in found:
        print(problem)
    print(f"binding: {len(found)} problems")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
