#!/usr/bin/env python3
"""How long one configuration takes to compile: a sample of every space, one after the other, through `attune compile`."""

import argparse
import json
import statistics
import subprocess

SPACES = [[f"--head-dim={dim}", *mask] for dim in (64, 128, 256) for mask in ([], ["--causal"])]


def document(command, *arguments):
    run = subprocess.run([command, *arguments, "--json"], capture_output=True, text=True, check=True)
    return json.loads(run.stdout)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--attune", default="build/dev/bin/attune", metavar="PATH", help="the command")
    parser.add_argument("--sample", type=int, default=10, metavar="N", help="configs of each space (default: 10)")
    args = parser.parse_args()
    times = []
    for flags in SPACES:
        configs = document(args.attune, "emit", *flags, "--list", "--limit=0")["candidates"]
        for candidate in configs[:: max(1, len(configs) // args.sample)][: args.sample]:
            # --force: a build that would be rejected has cost its time, too.
            built = document(args.attune, "compile", *flags, "--config", candidate["config"], "--force")
            times.append((built["milliseconds"], candidate["config"]))
    times.sort()
    print(f"{len(times)} configs: median {statistics.median(t for t, _ in times):.0f} ms, most {times[-1][0]:.0f} ms")
    print(f"slowest: {times[-1][1]}")


if __name__ == "__main__":
    main()
