#!/usr/bin/env python3
"""Runs the planted faults on a GPU, plainly and under compute-sanitizer.

    ATTUNE_FAULT_DUMP=cases attune_emu --source-file='*planted_faults*' --test-case='*written for a device*'
    python3 on_device.py run cases results.json [--budget 220]
    python3 on_device.py check cases             (no GPU: are the cases complete?)

Needs a driver for sm_90a, compute-sanitizer for the second part, and nothing else. Every case runs in a process of its
own: a fault may end its context or never end. A plain run launches the kernel many times and compares the output of
each launch; under a tool it is launched once. In the results the kernels without a fault stand beside those with one.
"""

import argparse
import array
import ctypes
import datetime
import json
import os
import pathlib
import queue
import re
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import threading
import time

TOOLS = {
    "memcheck": [],
    "racecheck": ["--racecheck-deadlock-timeout", "4000", "--racecheck-continue-on-deadlock", "no"],
    "synccheck": [],
    "initcheck": [],
}
EVERY_TOOL = ["--show-backtrace", "no", "--print-limit", "20", "--launch-timeout", "60"]
POISON = 0xFF  # of outputs: NaN in each type
RESULT = "result: "  # a worker's last line

# -- the driver ---------------------------------------------------------------------------------------

NOT_READY = 600
ATTRIBUTE_DYNAMIC_SHARED_BYTES = 8
TENSOR_MAP_BFLOAT16 = 9
SWIZZLES = {0: 0, 128: 3}
L2_PROMOTION_256B = 3
LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION = 4


class LaunchAttribute(ctypes.Structure):
    """CUlaunchAttribute with the value of a cluster's dimensions."""

    _fields_ = [("id", ctypes.c_int), ("padding", ctypes.c_char * 4), ("cluster", ctypes.c_uint * 3),
                ("rest", ctypes.c_char * 52)]


class LaunchConfig(ctypes.Structure):
    """CUlaunchConfig."""

    _fields_ = [("grid", ctypes.c_uint * 3), ("block", ctypes.c_uint * 3), ("shared_bytes", ctypes.c_uint),
                ("stream", ctypes.c_void_p), ("attributes", ctypes.POINTER(LaunchAttribute)), ("count", ctypes.c_uint)]


class DriverError(Exception):
    """A call that failed, by the name of its error."""

    def __init__(self, call, name):
        super().__init__(f"{call}: {name}")
        self.name = name


class Driver:
    """libcuda with the primary context of device 0."""

    def __init__(self):
        self.cuda = ctypes.CDLL("libcuda.so.1")
        self.call("cuInit", 0)
        device, context = ctypes.c_int(), ctypes.c_void_p()
        self.call("cuDeviceGet", ctypes.byref(device), 0)
        self.call("cuDevicePrimaryCtxRetain", ctypes.byref(context), device)
        self.call("cuCtxSetCurrent", context)

    def check(self, name, status):
        if status != 0:
            text = ctypes.c_char_p()
            self.cuda.cuGetErrorName(status, ctypes.byref(text))
            raise DriverError(name, (text.value or b"error %d" % status).decode())

    def call(self, name, *arguments):
        self.check(name, getattr(self.cuda, name)(*arguments))

    def allocate(self, size):
        pointer = ctypes.c_uint64()
        self.call("cuMemAlloc_v2", ctypes.byref(pointer), ctypes.c_size_t(size))
        return pointer.value

    def write(self, pointer, data):
        self.call("cuMemcpyHtoD_v2", ctypes.c_uint64(pointer), data, ctypes.c_size_t(len(data)))

    def read(self, pointer, size):
        data = ctypes.create_string_buffer(size)
        self.call("cuMemcpyDtoH_v2", data, ctypes.c_uint64(pointer), ctypes.c_size_t(size))
        return data.raw

    def fill(self, pointer, byte, size):
        self.call("cuMemsetD8_v2", ctypes.c_uint64(pointer), ctypes.c_ubyte(byte), ctypes.c_size_t(size))

    def function(self, image, entry):
        module, function = ctypes.c_void_p(), ctypes.c_void_p()
        self.call("cuModuleLoadData", ctypes.byref(module), image)
        self.call("cuModuleGetFunction", ctypes.byref(function), module, entry.encode())
        return function

    def tensor_map(self, description, pointer):
        """The argument's 128 bytes, which the driver wants aligned to 64."""
        rank = len(description["dims"])
        memory = ctypes.create_string_buffer(256)
        start = -ctypes.addressof(memory) % 128
        self.call(
            "cuTensorMapEncodeTiled", ctypes.c_void_p(ctypes.addressof(memory) + start), TENSOR_MAP_BFLOAT16, rank,
            ctypes.c_void_p(pointer), (ctypes.c_uint64 * rank)(*description["dims"]),
            (ctypes.c_uint64 * (rank - 1))(*description["strides"]), (ctypes.c_uint32 * rank)(*description["box"]),
            (ctypes.c_uint32 * rank)(*description["element_strides"]), 0, SWIZZLES[description["swizzle_bytes"]],
            L2_PROMOTION_256B, 0)
        return memory.raw[start:start + 128]

    def launch(self, function, grid, cluster, block, shared_bytes, arguments):
        attribute = LaunchAttribute(LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION, b"", (ctypes.c_uint * 3)(*cluster))
        config = LaunchConfig((ctypes.c_uint * 3)(*grid), (ctypes.c_uint * 3)(*block), shared_bytes, None,
                              ctypes.pointer(attribute), 1)
        self.call("cuLaunchKernelEx", ctypes.byref(config), function, arguments, None)

    def finished(self, deadline):
        """Whether the launch ended before the deadline, in seconds of time.monotonic()."""
        while True:
            status = self.cuda.cuStreamQuery(None)
            if status != NOT_READY:
                self.check("kernel", status)
                return True
            if time.monotonic() > deadline:
                return False


# -- a case -------------------------------------------------------------------------------------------


def aligned_argument(data):
    """Memory that holds these bytes at a multiple of 128, as tensor maps want it: (what keeps it, its address)."""
    memory = ctypes.create_string_buffer(len(data) + 128)
    address = ctypes.addressof(memory) + -ctypes.addressof(memory) % 128
    ctypes.memmove(address, data, len(data))
    return memory, address


def packed(argument, pointers):
    """The bytes of a plain argument with its pointers filled in."""
    data = bytearray.fromhex(argument["bytes"])
    for place in argument["pointers"]:
        struct.pack_into("<Q", data, place["offset"], pointers[place["buffer"]])
    return bytes(data)


def floats(data, kind):
    values = array.array("f")
    if kind == "bf16":
        wide = bytearray(2 * len(data))
        wide[2::4], wide[3::4] = data[0::2], data[1::2]
        data = bytes(wide)
    values.frombytes(data)
    return values


def wrong_elements(data, expected):
    """How many elements differ by more than the tolerance, and the first of them in words."""
    wrong, first = 0, ""
    for i, (value, right) in enumerate(zip(floats(data, expected["type"]), expected["values"])):
        if right == right and value != right and not abs(value - right) <= expected["tolerance"]:
            if wrong == 0:
                first = f"{expected['buffer']}[{i}] is {value:.6g} instead of {right:.6g}"
            wrong += 1
    return wrong, first


def load_cases(folder):
    with open(folder / "cases.json", encoding="utf-8") as file:
        return json.load(file)


class Case:
    """One kernel with all that its launch takes, in this process's memory."""

    def __init__(self, folder, case):
        launch = case["launch"]
        self.image = (folder / case["image"]).read_bytes()
        self.launch = launch
        self.sizes = {buffer["name"]: buffer["bytes"] for buffer in launch["buffers"]}
        self.inputs = {buffer["name"]: (folder / buffer["file"]).read_bytes()
                       for buffer in launch["buffers"] if buffer["file"]}
        self.expected = []
        for expected in launch["expected"]:
            values = floats((folder / expected["file"]).read_bytes(), "f32")
            self.expected.append({**expected, "values": values})

    def arguments(self, driver, pointers):
        """What cuLaunchKernel takes, and what has to live as long."""
        kept = []
        for argument in self.launch["arguments"]:
            if "tensor_map" in argument:
                description = argument["tensor_map"]
                data = driver.tensor_map(description, pointers[description["buffer"]])
            else:
                data = packed(argument, pointers)
            kept.append(aligned_argument(data))
        return (ctypes.c_void_p * len(kept))(*(address for _, address in kept)), kept


def run_plainly(driver, case, launches, patience):
    """Launches and compares; the result's fields."""
    function, pointers, arguments, kept = prepare(driver, case)
    judged, wrong_launches, detail = {}, 0, ""
    for launch in range(1, launches + 1):
        try:
            for name, data in case.inputs.items():
                driver.write(pointers[name], data)
            for expected in case.expected:
                driver.fill(pointers[expected["buffer"]], POISON, case.sizes[expected["buffer"]])
            start(driver, case, function, arguments)
            if not driver.finished(time.monotonic() + patience):
                return {"result": "hangs", "launch": launch, "wrong_launches": wrong_launches}
            outputs = [driver.read(pointers[expected["buffer"]], case.sizes[expected["buffer"]])
                       for expected in case.expected]
        except DriverError as error:  # of this launch, or a late one of the launch before
            return {"result": f"error {error.name}", "launch": launch, "wrong_launches": wrong_launches,
                    "detail": str(error)}
        for expected, data in zip(case.expected, outputs):
            key = (expected["buffer"], data)
            if key not in judged:
                judged[key] = wrong_elements(data, expected)
            wrong, first = judged[key]
            if wrong:
                wrong_launches += 1
                detail = detail or f"launch {launch}: {wrong} elements, {first}"
                break
    del kept
    result = "wrong output" if wrong_launches else "no sign"
    return {"result": result, "launches": launches, "wrong_launches": wrong_launches, "detail": detail}


def run_once(driver, case):
    """For a tool: outputs stay unwritten and are not read, so that what it finds is the kernel's doing."""
    function, pointers, arguments, kept = prepare(driver, case)
    for name, data in case.inputs.items():
        driver.write(pointers[name], data)
    try:
        start(driver, case, function, arguments)
        driver.call("cuCtxSynchronize")
    except DriverError as error:
        return {"result": f"error {error.name}"}
    del kept
    return {"result": "ran"}


def prepare(driver, case):
    function = driver.function(case.image, case.launch["entry"])
    driver.call("cuFuncSetAttribute", function, ATTRIBUTE_DYNAMIC_SHARED_BYTES, case.launch["shared_bytes"])
    pointers = {name: driver.allocate(size) for name, size in case.sizes.items()}
    arguments, kept = case.arguments(driver, pointers)
    return function, pointers, arguments, kept


def start(driver, case, function, arguments):
    launch = case.launch
    driver.launch(function, launch["grid"], launch["cluster"], launch["block"], launch["shared_bytes"], arguments)


def worker(options):
    case = next(case for case in load_cases(options.cases)["cases"] if case["id"] == options.id)
    try:
        driver = Driver()
        loaded = Case(options.cases, case)
        if options.once:
            result = run_once(driver, loaded)
        else:
            result = run_plainly(driver, loaded, options.launches, options.patience)
    except DriverError as error:  # before any launch
        result = {"result": f"error {error.name}", "launch": 0, "detail": str(error)}
    print(RESULT + json.dumps(result), flush=True)
    if result["result"] == "hangs":
        os._exit(0)  # the context goes with the process, and the kernel with it


# -- what a process said ------------------------------------------------------------------------------


def worker_result(text):
    """A plain worker's own word, or what stands in for it."""
    for line in reversed(text.splitlines()):
        if line.startswith(RESULT):
            return json.loads(line[len(RESULT):])
    return None


def findings(text):
    """What compute-sanitizer reports, in its order and without what an error of the launch adds: the lines of each."""
    found, current = [], None
    for line in text.splitlines():
        match = re.match(r"=========( +)(\S.*)", line)
        if not match:
            current = None
        elif len(match[1]) > 1:
            if current is not None:
                current.append(match[2])
        elif re.match(r"COMPUTE-SANITIZER|\w+ SUMMARY|Program hit|Target application|Tracking kernels|Internal|"
                      r"(Error|Warning): (?!Race|Potential)", match[2]):
            current = None
        else:
            current = [match[2]]
            found.append(current)
    return found


def kind_of(finding):
    """A finding in a few words, without addresses, kernels, positions, and underscores that Markdown takes for bold."""
    head = re.sub(r"^(Error|Warning|Info|WARN|ERROR):\s*", "", finding[0]).replace("__", "")
    rest = " ".join(finding[1:])
    race = re.match(r"Race reported between (\w+) access", head)
    if race:
        other = re.search(r"and (\w+) access", rest)
        return f"race in shared memory ({race[1]}, {other[1] if other else 'unknown'})".lower()
    deadlock = re.match(r"Deadlock detected in (Cuda::barrier wait)?", head)
    if deadlock:
        return "deadlock at an mbarrier" if deadlock[1] else "deadlock at a barrier"
    barrier = re.match(r"Barrier error detected\. (.+?)\.?$", head)
    if barrier:
        return "barrier error, " + barrier[1].replace("(s)", "s").lower().removeprefix("barrier ")
    why = re.search(r"is (misaligned|out of bounds)", rest) or re.search(r"(in a block that might .+)", rest)
    head = re.split(r" at | in block| by thread|, |\. | \(|: 0x| 0x", head)[0].strip().rstrip(".:")
    head = head.lower().replace(" of size ", " of ")
    return f"{head}, {why[1]}" if why else head


def tool_result(text, killed, plainly):
    """What a run under a tool showed. The error that the kernel ends with plainly, too, is no finding of the tool's."""
    found, launch = findings(text), worker_result(text)
    result = {}
    if found:
        result["result"] = "findings"
        result["kinds"] = list(dict.fromkeys(map(kind_of, found)))
        result["first"] = [line[:160] for line in found[0]]
    elif killed:
        result["result"] = "times out"
    elif not re.search(r"========= (ERROR|RACECHECK) SUMMARY", text):
        result["result"] = "tool failed"
        result["log"] = text[-2000:]
    elif launch and launch["result"] not in ("ran", plainly):
        result["result"] = launch["result"]
    else:
        result["result"] = "nothing"
    if launch:
        result["launch"] = launch["result"]
    return result


def run_process(command, timeout):
    """Output of a process of its own group, and whether it had to be killed. One that does not die is left behind."""
    with tempfile.TemporaryFile() as output:
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT,
                                   start_new_session=True)
        killed = False
        try:
            process.wait(timeout)
        except subprocess.TimeoutExpired:
            killed = True
            os.killpg(process.pid, signal.SIGKILL)
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                pass
        output.seek(0)
        return output.read().decode(errors="replace"), killed


# -- all cases ----------------------------------------------------------------------------------------


def find_sanitizer(given):
    places = [given] if given else [
        shutil.which("compute-sanitizer"), "/usr/local/cuda/bin/compute-sanitizer",
        "/usr/local/cuda/compute-sanitizer/compute-sanitizer"
    ]
    return next((place for place in places if place and os.access(place, os.X_OK)), None)


def first_line(command, pattern):
    try:
        text = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False).stdout
    except (OSError, subprocess.TimeoutExpired):
        return "unknown"
    match = re.search(pattern, text)
    return match[1].strip() if match else "unknown"


class Run:
    """The work, the results so far, and the time that is left for it."""

    def __init__(self, options):
        self.options = options
        self.end = time.monotonic() + options.budget
        self.lock = threading.Lock()
        self.sanitizer = find_sanitizer(options.sanitizer)
        dump = load_cases(options.cases)
        self.cases = dump["cases"]
        gpu = ["nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader", "--id=0"]
        self.results = {
            "gpu": first_line(gpu, r"([^,\n]+)"),
            "driver": first_line(gpu, r", *(\S+)"),
            "date": datetime.date.today().isoformat(),
            "commit": options.commit,
            "nvrtc": dump["compiler"],
            "compute_sanitizer":
                first_line([self.sanitizer, "--version"], r"Version (\S+)") if self.sanitizer else "not found",
            "options": {tool: " ".join(extra + EVERY_TOOL) for tool, extra in TOOLS.items()},
            "command": " ".join(["python3", os.path.basename(sys.argv[0]), *sys.argv[1:]]),
            "launches": options.launches,
            "seconds": {"launch": options.patience, "tool": options.timeout, "tool if it hangs": options.hang_timeout},
            "cases": [{"id": case["id"], "kernel": case["kernel"], "fault": case["fault"], "emulator": case["emulator"],
                       "device": {"result": "not run"}, "sanitizer": {}} for case in self.cases],
        }

    def save(self):
        path = self.options.results
        path.parent.mkdir(parents=True, exist_ok=True)
        partial = path.with_name(path.name + ".part")
        partial.write_text(json.dumps(self.results, indent=1) + "\n", encoding="utf-8")
        os.replace(partial, path)

    def parallel(self, title, tasks):
        """Each task(slot) in one of the slots, until the time is up."""
        started = time.monotonic()
        waiting = queue.SimpleQueue()
        for task in tasks:
            waiting.put(task)
        done = 0

        def work(slot):
            nonlocal done
            while time.monotonic() < self.end:
                try:
                    task = waiting.get_nowait()
                except queue.Empty:
                    return
                task(slot)
                with self.lock:
                    done += 1
                    self.save()

        threads = [threading.Thread(target=work, args=(slot,)) for slot in range(self.options.jobs)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        print(f"{title}: {done} of {len(tasks)} in {time.monotonic() - started:.1f} s", flush=True)

    def worker_command(self, index, *more):
        return [sys.executable, "-S", os.path.abspath(__file__), "worker", str(self.options.cases),
                self.cases[index]["id"], *more]

    def plain(self, index):
        entry = self.results["cases"][index]
        if "compile_error" in self.cases[index]:
            entry["device"] = {"result": "compile error", "detail": self.cases[index]["compile_error"][:200]}
            return
        command = self.worker_command(index, "--launches", str(self.options.launches), "--patience",
                                      str(self.options.patience))
        text, killed = self.process(command, self.options.timeout + self.options.patience)
        if killed and time.monotonic() >= self.end:
            return
        result = worker_result(text)
        if result is None:
            result = {"result": "hangs" if killed else "worker failed", "detail": text[-300:]}
        entry["device"] = result

    def confirm(self, index):
        """An error may be another process's: it has to come again in a process without company."""
        before = self.results["cases"][index]["device"]
        self.plain(index)
        after = self.results["cases"][index]["device"]
        if after["result"] != before["result"]:
            after["before"] = before

    def sanitize(self, index, tool, slot):
        entry = self.results["cases"][index]
        if self.without_fault(index, tool) == "times out":
            entry["sanitizer"][tool] = {"result": "not run", "why": "times out on the kernel without a fault"}
            return
        hangs = entry["device"]["result"] in ("hangs", "not run")
        timeout = self.options.hang_timeout if hangs else self.options.timeout
        command = [self.sanitizer, "--tool", tool, *TOOLS[tool], *EVERY_TOOL, "--port", str(49152 + 32 * slot),
                   *self.worker_command(index, "--once")]
        started = time.monotonic()
        text, killed = self.process(command, timeout)
        if killed and time.monotonic() >= self.end:
            entry["sanitizer"][tool] = {"result": "not run"}
        else:
            entry["sanitizer"][tool] = tool_result(text, killed, entry["device"]["result"])
            entry["sanitizer"][tool]["seconds"] = round(time.monotonic() - started, 1)

    def without_fault(self, index, tool):
        """What a tool made of the kernel that the fault was planted in, if it has run."""
        kernel = self.cases[index]["kernel"]
        plain = next(entry for entry in self.results["cases"] if entry["kernel"] == kernel and not entry["fault"])
        return plain["sanitizer"].get(tool, {}).get("result")

    def process(self, command, timeout):
        return run_process(command, max(0.1, min(timeout, self.end - time.monotonic())))

    def all(self):
        self.plain(0)
        first = self.results["cases"][0]["device"]
        self.save()
        if first["result"] in ("error CUDA_ERROR_NO_DEVICE", "worker failed"):
            sys.exit(f"nothing can be run here: {first}")
        everything = range(len(self.cases))
        self.parallel("plainly", [lambda slot, i=i: self.plain(i) for i in everything])
        device = [entry["device"]["result"] for entry in self.results["cases"]]
        erring = [i for i in everything if device[i].startswith(("error", "worker"))]
        for i in erring:
            if time.monotonic() < self.end:
                self.confirm(i)
        self.save()
        if self.sanitizer:
            device = [entry["device"]["result"] for entry in self.results["cases"]]
            runnable = [i for i in everything if device[i] != "compile error"]
            # First what tells whether a tool can do a kernel at all; last what holds the GPU and a slot longest.
            without = [i for i in runnable if not self.cases[i]["fault"]]
            hanging = [i for i in runnable if device[i] == "hangs" and i not in without]
            others = [i for i in runnable if i not in without and i not in hanging]
            for title, indices in (("no fault", without), ("faults", others), ("faults that hang", hanging)):
                self.parallel(f"under the tools, {title}", [lambda slot, i=i, tool=tool: self.sanitize(i, tool, slot)
                                                            for tool in TOOLS for i in indices])
            for i in runnable:
                for tool in TOOLS:
                    self.results["cases"][i]["sanitizer"].setdefault(tool, {"result": "not run"})
        else:
            print("compute-sanitizer was not found", flush=True)
        self.save()
        for entry in self.results["cases"]:
            tools = ", ".join(f"{tool}: {', '.join(seen.get('kinds', [seen['result']]))}"
                              for tool, seen in entry["sanitizer"].items())
            print(f"{entry['kernel']} | {entry['fault'] or '(none)'} | {entry['device']['result']} | {tools}")


def check(options):
    """Whether every case is complete and its arguments can be packed."""
    cases = load_cases(options.cases)["cases"]
    for case in cases:
        name = f"case {case['id']} ({case['kernel']}: {case['fault']})"
        if "compile_error" in case:
            continue
        loaded = Case(options.cases, case)
        if loaded.image[:4] != b"\x7fELF":
            sys.exit(f"{name}: {case['image']} is no cubin")
        for buffer, data in loaded.inputs.items():
            if len(data) != loaded.sizes[buffer]:
                sys.exit(f"{name}: buffer {buffer} of {loaded.sizes[buffer]} bytes has {len(data)}")
        for expected in loaded.expected:
            element = 2 if expected["type"] == "bf16" else 4
            if len(expected["values"]) * element != loaded.sizes[expected["buffer"]]:
                sys.exit(f"{name}: {len(expected['values'])} values for buffer {expected['buffer']}")
            if not any(value == value for value in expected["values"]):
                sys.exit(f"{name}: no element of {expected['buffer']} is compared")
        pointers = {buffer: 0x7F0000000000 + 4096 * i for i, buffer in enumerate(loaded.sizes)}
        for argument in case["launch"]["arguments"]:
            if "tensor_map" in argument:
                pointers[argument["tensor_map"]["buffer"]]  # pylint: disable=pointless-statement
            else:
                packed(argument, pointers)
    print(f"{len(cases)} cases are complete")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    verbs = parser.add_subparsers(required=True)
    run = verbs.add_parser("run", help="all cases")
    run.add_argument("cases", type=pathlib.Path)
    run.add_argument("results", type=pathlib.Path)
    run.add_argument("--budget", type=float, default=220, help="seconds in all; what is done by then is written")
    run.add_argument("--jobs", type=int, default=10, help="processes at a time")
    run.add_argument("--launches", type=int, default=100, help="of each kernel, without a tool")
    run.add_argument("--patience", type=float, default=4, help="seconds until a launch hangs")
    run.add_argument("--timeout", type=float, default=30, help="seconds for a process")
    run.add_argument("--hang-timeout", type=float, default=12,
                     help="the same under a tool, if the kernel hangs plainly")
    run.add_argument("--commit", default="unknown", help="of the tree that wrote the cases, for the results")
    run.add_argument("--sanitizer", help="path of compute-sanitizer")
    run.set_defaults(function=lambda options: Run(options).all())
    one = verbs.add_parser("worker", help="one case, in this process")
    one.add_argument("cases", type=pathlib.Path)
    one.add_argument("id")
    one.add_argument("--launches", type=int, default=100)
    one.add_argument("--patience", type=float, default=4)
    one.add_argument("--once", action="store_true", help="as a tool needs it")
    one.set_defaults(function=worker)
    verify = verbs.add_parser("check", help="are the cases complete?")
    verify.add_argument("cases", type=pathlib.Path)
    verify.set_defaults(function=check)
    options = parser.parse_args()
    options.function(options)


if __name__ == "__main__":
    main()
