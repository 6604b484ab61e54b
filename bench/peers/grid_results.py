"""Tables and summaries of forward_grid.py and backward_grid.py."""

import csv
import json
import math
import statistics

COLUMNS = (
    "op,dtype,batch,seqlen_q,seqlen_k,heads,heads_kv,head_dim,head_dim_v,causal,attune_ms,attune_tflops,"
    "cudnn_tflops,fa3_tflops,best_tflops,ratio,ratio_min,ratio_max,sm_mhz,config"
).split(",")
MEASURED = COLUMNS[COLUMNS.index("attune_ms") : COLUMNS.index("config")]
FORMATS = {
    "attune_ms": ".4f",
    "sm_mhz": ".0f",
    "ratio": ".4f",
    "ratio_min": ".4f",
    "ratio_max": ".4f",
}  # else .1f
SHOWN = {
    "attune": "attune_tflops",
    "cudnn": "cudnn_tflops",
    "fa3": "fa3_tflops",
    "best": "best_tflops",
    "ratio": "ratio",
    "min": "ratio_min",
    "max": "ratio_max",
    "MHz": "sm_mhz",
}


# -- rows ------------------------------------------------------------------------------------------


def row(entry, mode, fa3):
    """Dictionary of COLUMNS; a number that nobody measured is None."""
    problem = entry.cell.problem
    return {
        **{name: getattr(problem, name) for name in COLUMNS if hasattr(problem, name)},
        "causal": int(problem.causal),
        **dict.fromkeys(MEASURED),
        **measured(entry, mode, fa3),
        "config": entry.config if entry.fault is None else f"WRONG ({entry.fault}): {entry.config}",
    }


def measured(entry, mode, fa3):
    cell, problem = entry.cell, entry.cell.problem
    rounds = [readings for readings in cell.rounds[mode] if entry.contender in readings]
    if not rounds:
        return {}
    ours = [readings[entry.contender] for readings in rounds]
    ms = statistics.median(reading.ms for reading in ours)
    result = {
        "attune_ms": ms,
        "attune_tflops": tflops(problem, ms),
        "sm_mhz": statistics.median(reading.sm_mhz for reading in ours),
    }
    peer = [tflops(problem, readings[cell.peer].ms) if cell.peer else None for readings in rounds]
    third = [fa3_tflops(cell, mode, readings, value, fa3) for readings, value in zip(rounds, peer)]
    best = [max(value or 0.0, other or 0.0) for value, other in zip(peer, third)]
    if not all(best):
        return result
    ratios = [tflops(problem, reading.ms) / value for reading, value in zip(ours, best)]
    return {
        **result,
        "cudnn_tflops": statistics.median(peer) if cell.peer and cell.peer_name == "cudnn" else None,
        "fa3_tflops": statistics.median(third) if None not in third else None,
        "best_tflops": statistics.median(best),
        "ratio": statistics.median(ratios),
        "ratio_min": min(ratios),
        "ratio_max": max(ratios),
    }


def tflops(problem, ms):
    return problem.flops / ms / 1e9


def fa3_tflops(cell, mode, readings, peer_tflops, fa3):
    """What FlashAttention-3 read or, where it does not run in this process, would have read by the table, or None. Its
    recorded ratio to cuDNN holds in bursts only."""
    if cell.fa3:
        return tflops(cell.problem, readings[cell.fa3].ms)
    if peer_tflops is None:
        return None
    if mode == "sustained":
        return fa3.sustained_tflops(cell.problem)
    if mode == "queued":
        return None
    ratio = fa3.over_cudnn(cell.problem)
    return None if ratio is None else ratio * peer_tflops


def source_of_fa3(cells, fa3):
    """Of its figures: measured, recorded, or both."""
    known = [cell for cell in cells if cell.fa3 or fa3.over_cudnn(cell.problem) is not None]
    sources = {"measured" if cell.fa3 else "recorded" for cell in known}
    return "both" if len(sources) == 2 else min(sources, default="recorded")


# -- summaries -------------------------------------------------------------------------------------


def summary(rows):
    """For each config name and, where there are several, for the best one of each problem."""
    groups = {name: [] for name, _, _ in rows}
    best = {}
    for name, cell, r in rows:
        if r["ratio"] is None:
            continue
        groups[name].append((cell, r))
        if cell not in best or best[cell]["ratio"] < r["ratio"]:
            best[cell] = r
    if len(groups) > 1:
        groups["best of all configs"] = list(best.items())
    return {name: group_summary(group) for name, group in groups.items()}


def group_summary(group):
    if not group:
        return {"measured": 0}
    worst, worst_row = min(group, key=lambda item: item[1]["ratio"])
    return {
        "measured": len(group),
        "geomean": geometric_mean([r["ratio"] for _, r in group]),
        "geomean_over_cudnn": geometric_mean(
            [r["attune_tflops"] / r["cudnn_tflops"] for _, r in group if r["cudnn_tflops"]]
        ),
        "worst": {"problem": str(worst.problem), "ratio": worst_row["ratio"]},
        "below_1": [{"problem": str(c.problem), "ratio": r["ratio"]} for c, r in group if r["ratio"] < 1],
    }


def geometric_mean(values):
    return math.exp(statistics.fmean(map(math.log, values))) if values else None


def details(cell, mode):
    """What the table has no column for."""
    names = {entry.contender: entry.name for entry in cell.entries}
    names[cell.peer] = cell.peer_name
    names[cell.fa3] = "fa3"
    return {
        "problem": str(cell.problem),
        "peer": cell.peer_name,
        "peer_refused": cell.peer_refused,
        "peer_errors": finite_or_text(cell.peer_errors),  # as those of the configs
        "fa3_measured": cell.fa3 is not None,  # in this process; else its figures are the table's
        "fa3_refused": cell.fa3_refused,
        "fa3_errors": finite_or_text(cell.fa3_errors),
        "configs_refused": cell.refused,
        "configs": [
            {
                "name": entry.name,
                "config": entry.config,
                "origin": entry.origin,
                "wrong": entry.fault,
                "errors": entry.errors,  # of sampled rows or heads, the worst ones
            }
            for entry in cell.entries
        ],
        "rounds": [
            {names[contender]: vars(reading) for contender, reading in readings.items()}
            for readings in cell.rounds[mode]
        ],
    }


def finite_or_text(errors):
    """JSON has no NaN and no infinity."""
    return errors and {name: value if math.isfinite(value) else str(value) for name, value in errors.items()}


# -- output ----------------------------------------------------------------------------------------


def write(prefix, mode, cells, fa3, described):
    """Writes the mode's two files, prints them in short and returns the JSON document."""
    rows = [(entry.name, cell, row(entry, mode, fa3)) for cell in cells for entry in cell.entries]
    with open(f"{prefix}_{mode}.csv", "w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(COLUMNS)
        writer.writerows([text_of(column, r[column]) for column in COLUMNS] for _, _, r in rows)
    document = {
        "mode": mode,
        "environment": described,
        "summary": summary(rows),
        "wrong_or_failed": [str(cell.problem) for cell in cells if cell.failed],
        "unmeasured": [str(cell.problem) for cell in cells if not cell.rounds[mode]],
        "starved_readings": sum(
            r.starved for c in cells for readings in c.rounds[mode] for r in readings.values()
        ),
        "problems": [details(cell, mode) for cell in cells],
    }
    with open(f"{prefix}_{mode}.json", "w", encoding="utf-8") as file:
        json.dump(document, file, indent=1)
    show(mode, rows, document)
    return document


def text_of(column, value):
    if isinstance(value, float):
        return format(value, FORMATS.get(column, ".1f"))
    return "" if value is None else str(value)


def show(mode, rows, document):
    print(f"\n{mode}, TFLOP/s")
    print(f"{'':42}" + "".join(f"{title:>8}" for title in SHOWN))
    for name, cell, r in rows:
        numbers = "".join(f"{text_of(column, r[column]) or '-':>8}" for column in SHOWN.values())
        print(
            f"{short(cell.problem):42}{numbers}  {name}{'  WRONG' if r['config'].startswith('WRONG') else ''}"
        )
    for name, group in document["summary"].items():
        if group["measured"]:
            print(
                f"{name}: {group['measured']} problems, geomean {group['geomean']:.4f}, "
                f"worst {group['worst']['ratio']:.4f}, {len(group['below_1'])} below 1"
            )
    for key, text in (
        ("wrong_or_failed", "problems wrong or failed"),
        ("unmeasured", "problems not measured"),
    ):
        if document[key]:
            print(f"{len(document[key])} {text}")
    if document["starved_readings"]:
        print(f"{document['starved_readings']} readings may hold launch costs")


def short(p):
    dims = p.head_dim if p.head_dim == p.head_dim_v else f"{p.head_dim}/{p.head_dim_v}"
    heads = p.heads if p.heads == p.heads_kv else f"{p.heads}/{p.heads_kv}"
    length = p.seqlen_q if p.seqlen_q == p.seqlen_k else f"{p.seqlen_q}/{p.seqlen_k}"
    return f"{p.dtype} D {dims} {'causal' if p.causal else 'full'} B {p.batch} S {length} H {heads}"
