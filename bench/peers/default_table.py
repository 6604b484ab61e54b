"""Makes the built-in table of configs (codegen/default_table.txt) from runs of forward_grid.py and backward_grid.py.

    python3 default_table.py forward_burst.json serving_burst.json > default_table.txt

Of each problem the config with the best median, over all runs given. A run's times count beside its own peer's only, so
runs on different machines are compared by ratio. Wrong configs are left out.
"""

import argparse
import json
import statistics
import sys

# The order in which a reader looks for a row.
KEYS = ("head_dim", "head_dim_v", "causal", "dtype", "heads", "heads_kv", "batch", "seqlen_k", "seqlen_q", "deterministic", "scores")


def winners(documents):
    """Dictionary problem -> (ratio to the peer, config, seconds, worst relative error)."""
    best = {}
    for document in documents:
        for problem in document["problems"]:
            for entry in problem["configs"]:
                ms = [r[entry["name"]]["ms"] for r in problem["rounds"] if entry["name"] in r]
                peer = [r[problem["peer"]]["ms"] for r in problem["rounds"] if problem["peer"] in r]
                if entry["wrong"] or not entry["errors"] or not ms or not peer:
                    continue
                ratio = statistics.median(peer) / statistics.median(ms)
                error = max(value for name, value in entry["errors"].items() if name != "lse")  # which is absolute
                row = (ratio, entry["config"], statistics.median(ms) / 1e3, error)
                best[problem["problem"]] = max(best.get(problem["problem"], row), row)
    return best


def place(problem):
    fields = {"deterministic": "0", "scores": "any"} | dict(item.split("=") for item in problem.split(","))
    return [fields["op"] != "forward"] + [int(fields[key]) if fields[key].isdecimal() else fields[key] for key in KEYS]


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, prog="default_table.py"
    )
    parser.add_argument("runs", nargs="+", metavar="JSON", help="written by forward_grid.py or backward_grid.py, bursts")
    args = parser.parse_args()
    documents = []
    for path in args.runs:
        try:
            with open(path, encoding="utf-8") as file:
                documents.append(json.load(file))
            winners(documents[-1:])
        except (OSError, ValueError, KeyError, TypeError) as error:
            parser.error(f"{path}: not a result of a grid ({type(error).__name__}: {error})")
    found = winners(documents)
    if not found:
        parser.error("no right and measured config in these files")
    environment = documents[0]["environment"]
    print("# Configs that won on a real device: problem | config | seconds of a launch | relative error of the worst row.")
    print(f"# {environment['gpu']}, driver {environment['driver']}, bursts; commits:", end=" ")
    runs = {(d["environment"]["date"][:10], str(d["environment"]["commit"])) for d in documents}
    print(", ".join(f"{commit} ({date})" for date, commit in sorted(runs)) + ".")
    print("# Made by bench/peers/default_table.py from results of bench/peers/*_grid.py whose plans were tuned ones or came "
        "from this table.")
    for problem in sorted(found, key=place):
        _, config, seconds, error = found[problem]
        print(f"{problem} | {config} | {seconds:.4e} | {error:.2e}")


if __name__ == "__main__":
    sys.exit(main())
