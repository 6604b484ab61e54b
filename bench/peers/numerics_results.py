"""Ratios, tables and summaries of numerics.py."""

import csv
import dataclasses
import json
import math

import problem

UNIT_ROUNDOFF = {"bf16": 2.0**-8, "fp16": 2.0**-11}
METRICS = ("o_max", "o_rel", "lse_max")


@dataclasses.dataclass(frozen=True)
class Case:
    problem: problem.Problem
    kind: str


@dataclasses.dataclass
class Result:
    """`numbers` has three keys or more: "sizes": greatest |O|, sum of O squared, greatest |LSE|; "peer":
    greatest error of O, sum of its squared errors, greatest error of LSE; each config's name: the same, and
    the number of rows that see no key and are wrong."""

    case: Case
    peer_name: str
    peer_has_lse: bool
    numbers: dict = dataclasses.field(default_factory=dict)


def pool(rows):
    """Sizes or errors of several cases as if their tensors were one: maximum, sum of squares, maximum."""
    return [worst(r[0] for r in rows), sum(r[1] for r in rows), worst(r[2] for r in rows)]


def worst(values):
    """The maximum, NaN if there is one."""
    return max(values, key=lambda value: math.inf if math.isnan(value) else value)


def metrics(numbers, sizes):
    """o_max, o_rel and lse_max of errors or pooled errors."""
    return [
        numbers[0],
        math.sqrt(numbers[1] / sizes[1]) if sizes[1] > 0 else math.sqrt(numbers[1]),
        numbers[2],
    ]


def floors(dtype, sizes):
    """Errors so small that they are held against nobody: a quarter of a rounding of O, four of a float32
    LSE."""
    return [UNIT_ROUNDOFF[dtype] / 4 * sizes[0], UNIT_ROUNDOFF[dtype] / 4, 2.0**-22 * max(1.0, sizes[2])]


def ratios(dtype, sizes, ours, peer, peer_has_lse):
    """attune's error over the peer's for each of METRICS; None where the peer has no usable figure."""
    values = zip(metrics(ours, sizes), metrics(peer, sizes), floors(dtype, sizes), (True, True, peer_has_lse))
    return [
        ours_ / max(peer_, floor) if usable and math.isfinite(peer_) else None
        for ours_, peer_, floor, usable in values
    ]


def is_wrong(numbers):
    return not all(map(math.isfinite, numbers[:3])) or numbers[3] > 0


# -- table -----------------------------------------------------------------------------------------

COLUMNS = ["config", "dtype", "head_dim", "causal", "seqlen_q", "seqlen_k", "input", "peer"]
COLUMNS += [f"{metric}{suffix}" for metric in METRICS for suffix in ("", "_peer", "_ratio")] + ["wrong"]


def table(names, results):
    for result in results:
        p, sizes, peer = result.case.problem, result.numbers["sizes"], result.numbers["peer"]
        for name in names:
            ours = result.numbers.get(name)
            if ours is None:
                continue
            triples = zip(
                metrics(ours, sizes),
                metrics(peer, sizes),
                ratios(p.dtype, sizes, ours, peer, result.peer_has_lse),
            )
            numbers = ["" if value is None else f"{value:.3g}" for triple in triples for value in triple]
            case = [p.dtype, p.head_dim, int(p.causal), p.seqlen_q, p.seqlen_k, result.case.kind]
            yield [name, *case, result.peer_name, *numbers, int(is_wrong(ours))]


# -- summary ---------------------------------------------------------------------------------------


def summarize(name, results, limit):
    """One config's worst ratios for each dtype, mask and kind of input, pooled by head dim and case by
    case."""
    groups = {}
    for result in results:
        if name in result.numbers:
            p = result.case.problem
            mask = "causal" if p.causal else "full"
            groups.setdefault((p.dtype, mask, result.case.kind), []).append(result)
    return {" ".join(key): summarize_group(name, groups[key], limit) for key in sorted(groups)}


def summarize_group(name, results, limit):
    by_dim = {}
    for result in results:
        by_dim.setdefault(result.case.problem.head_dim, []).append(result)
    pooled = [(dim, pooled_ratios(name, group)) for dim, group in sorted(by_dim.items())]
    single = [(result.case.problem, pooled_ratios(name, [result])) for result in results]
    return {
        "cases": len(results),
        "wrong": [str(r.case.problem) for r in results if is_wrong(r.numbers[name])],
        "pooled": {m: worst_of(pooled, index, "head_dim") for index, m in enumerate(METRICS)},
        "single": {m: worst_of(single, index, "problem") for index, m in enumerate(METRICS)},
        "pooled_above_limit": sum(r is not None and not r <= limit for _, triple in pooled for r in triple),
    }


def pooled_ratios(name, results):
    sizes, ours, peer = (pool([r.numbers[key] for r in results]) for key in ("sizes", name, "peer"))
    return ratios(results[0].case.problem.dtype, sizes, ours, peer, all(r.peer_has_lse for r in results))


def worst_of(pairs, index, label):
    known = [(triple[index], where) for where, triple in pairs if triple[index] is not None]
    if not known:
        return None
    ratio, where = max(known, key=lambda pair: math.inf if math.isnan(pair[0]) else pair[0])
    return {
        "ratio": ratio if math.isfinite(ratio) else str(ratio),
        label: where if label == "head_dim" else str(where),
    }


# -- output ----------------------------------------------------------------------------------------


def write(args, names, results, wanted, refused, peer_refusals, described):
    """Writes OUT.csv and OUT.json, prints the summary and returns the JSON document."""
    with open(f"{args.out}.csv", "w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(COLUMNS)
        writer.writerows(table(names, results))
    summaries = {name: summarize(name, results, args.limit) for name in names}
    document = {
        "environment": described,
        "peer": args.peer,
        "peer_refusals": peer_refusals,
        "peer_not_finite": sum(not all(map(math.isfinite, r.numbers["peer"])) for r in results),
        "limit": args.limit,
        "cases_wanted": wanted,
        "cases_done": len(results),
        "configs_refused": refused,
        "failures": failures(summaries, refused),
        "summary": summaries,
    }
    with open(f"{args.out}.json", "w", encoding="utf-8") as file:
        json.dump(document, file, indent=1)
    show(document)
    return document


def failures(summaries, refused):
    """Lines about what makes the run fail. A config may be refused where the space's rules exclude it, but
    not everywhere, and attune's own choice never."""
    lines = []
    for name, groups in summaries.items():
        for key, group in groups.items():
            if group["wrong"]:
                lines.append(
                    f"{name}: {key}: {len(group['wrong'])} wrong cases, {group['wrong'][0]} among them"
                )
            if group["pooled_above_limit"]:
                lines.append(f"{name}: {key}: {group['pooled_above_limit']} pooled ratios above the limit")
        if refused[name] and (name == "plan" or not groups):
            lines.append(
                f"{name}: {sum(refused[name].values())} problems refused: {next(iter(refused[name]))}"
            )
    return lines


def show(document):
    peer = document["peer"]
    print(f"\n{document['cases_done']} of {document['cases_wanted']} cases")
    print(f"worst ratios to {peer}, pooled by head dim (case by case)")
    for name, groups in document["summary"].items():
        print(name)
        for key, group in groups.items():
            numbers = [f"{m} {_text(group['pooled'][m])} ({_text(group['single'][m])})" for m in METRICS]
            print(f"  {key:24} {group['cases']:5} cases  {'  '.join(numbers)}")
    for reason, count in document["peer_refusals"].items():
        print(f"{peer} refused {count} cases, math instead: {reason}")
    if document["peer_not_finite"]:
        print(f"{peer} has NaN or infinity in {document['peer_not_finite']} cases: no ratio there")
    for line in document["failures"]:
        print(f"FAILED {line}")


def _text(entry):
    ratio = entry and entry["ratio"]
    return "-" if ratio is None else ratio if isinstance(ratio, str) else f"{ratio:.2f}"
