#!/usr/bin/env python3
"""A worker without a GPU: speaks the tuner's protocol, invents timings, and misbehaves as $FAKE_WORKER (JSON) says:

    emitter, version   what hello claims
    log                file that gets one JSON line for each command
    stage, match       misbehave in this command ("gate", "check", "race") for candidates whose text contains `match`
    fault              how: "hang", "abort", "exit", "context", "hardware", "garbage", "silence", "refuse"
    at_start           instead of greeting: "exit", "garbage", "hang", "refuse"
    delay              seconds that each turn takes
"""

import json
import os
import sys
import time
import zlib

PLAN = json.loads(os.environ["FAKE_WORKER"])
CONFIGS = {}


def say(message):
    sys.stdout.write(json.dumps(message) + "\n")
    sys.stdout.flush()


def log(command):
    if "log" in PLAN:
        entry = {key: value for key, value in command.items() if key != "data"}
        with open(PLAN["log"], "a", encoding="utf-8") as file:
            file.write(json.dumps({"pid": os.getpid(), **entry}) + "\n")


def misbehave(fault):
    if fault in ("hang", "silence"):
        time.sleep(1000)
    if fault == "abort":
        os.abort()
    if fault == "exit":
        sys.stderr.write("something went wrong\n")
        sys.exit(7)
    if fault in ("context", "hardware"):
        say({"fatal": {"kind": fault, "message": f"invented {fault} error"}})
        sys.exit(3)
    if fault == "garbage":
        sys.stdout.write("\x00\xff garbage {\n")
        sys.stdout.flush()
        time.sleep(1000)
    if fault == "refuse":
        say({"error": {"code": "driver", "message": "invented refusal"}})


def begin(stage, identity):
    say({"begin": identity})
    if stage == PLAN.get("stage") and PLAN["match"] in CONFIGS[identity]:
        misbehave(PLAN["fault"])
        return PLAN["fault"] != "refuse"
    return True


def seconds_of(config):
    return 1e-3 * (1 + zlib.crc32(config.encode()) % 1000 / 10000)


JUDGEMENT = {
    "wrong": None,
    "accuracy": {"o_rel_l2": 2e-3, "o_row_l2": 4e-3, "o_max_abs": 1e-2, "lse_max_abs": 1e-6, "rows": 64},
    "share_of_bounds": 0.5,
    "worst_case": "invented",
    "cases": 1,
}


def hello():
    device = {
        "ordinal": 0, "name": "Fake GPU", "uuid": "", "compute_capability": 90, "sms": 132, "l2_bytes": 50 << 20,
        "memory_bytes": 140 << 30, "shared_per_block": 232448, "registers_per_sm": 65536, "clock_khz": 1980000,
        "memory_clock_khz": 3201000, "memory_bus_bits": 6144, "driver_version": 13000,
    }
    return {"version": PLAN["version"], "emitter": PLAN["emitter"], "device": device, "nvml": "none",
            "limits": {"driver": "fake"}}


def race(command):
    for turn in range(command["turns"]):
        for identity in command["ids"]:
            if not begin("race", identity):
                return None
            time.sleep(PLAN.get("delay", 0))
            seconds = [seconds_of(CONFIGS[identity]) * (1 + 1e-5 * i) for i in range(command["launches"])]
            say({"samples": identity, "turn": turn, "seconds": seconds})
    return {"sm_mhz": [1755.0], "watts": None, "celsius": None, "throttle": 0}


def execute(command):
    """The payload of "done", or None if an answer was given already."""
    cmd = command["cmd"]
    if cmd == "hello":
        return hello()
    if cmd == "load":
        CONFIGS[command["id"]] = command["config"]
    if cmd == "gate":
        CONFIGS[command["id"]] = command["spec"]
        return JUDGEMENT if begin("gate", command["id"]) else None
    if cmd == "check":
        return JUDGEMENT if begin("check", command["id"]) else None
    if cmd == "race":
        return race(command)
    return {}


def main():
    if "at_start" in PLAN:
        misbehave(PLAN["at_start"])
    for line in sys.stdin:
        command = json.loads(line)
        log(command)
        if command["cmd"] == "quit":
            return
        done = execute(command)
        if done is not None:
            say({"done": done})


main()
