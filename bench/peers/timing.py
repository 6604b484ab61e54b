"""Times launches in three regimes: from a rested chip, each alone (a burst) or one behind the other (queued), and
sustained, under the power cap."""

import dataclasses
import math
import statistics
import time

import torch

WARM_UPS = 3
SHORT_MS = (
    0.4  # below this the host may be slower than the kernel: a spin in front lets the launches queue up
)
SPIN_CYCLES_PER_MS = 2_000_000  # at 2 GHz, the most that the chip reaches
HOST_MS = 0.1  # an ample guess of a launch's time on the host, with two events


@dataclasses.dataclass
class Reading:
    ms: float
    sm_mhz: float
    starved: bool = False  # the spin ended before all launches were queued: ms may hold launch costs
    sensors: dict = dataclasses.field(default_factory=dict)


class ClockProbe:
    """Measures the SM clock at its place in the stream: spins of known cycles, timed by events. There are
    two, so that the costs of a launch cancel."""

    CYCLES = (100_000, 300_000)

    def __init__(self):
        self._events = [_event()]
        for cycles in self.CYCLES:
            torch.cuda._sleep(cycles)
            self._events.append(_event())

    def mhz(self):
        """After a synchronization."""
        first, middle, last = self._events
        return (
            (self.CYCLES[1] - self.CYCLES[0])
            / (middle.elapsed_time(last) - first.elapsed_time(middle))
            / 1000
        )


def estimate_ms(call, host_ms=HOST_MS):
    """A first look at the time of one launch; the first call may build what it needs."""
    call()
    torch.cuda.synchronize()
    spin(WARM_UPS + 1, host_ms)
    call()
    start = _event()
    for _ in range(WARM_UPS):
        call()
    end = _event()
    torch.cuda.synchronize()
    return start.elapsed_time(end) / WARM_UPS


def burst(call, estimate, rest_s, nvml, host_ms=HOST_MS):
    """From a chip that rested: three launches to warm up, then the median of 6 to 30, each timed alone."""

    def timed(launches):
        pairs = []
        for _ in range(launches):
            start = _event()
            call()
            pairs.append((start, _event()))
        return lambda: statistics.median(start.elapsed_time(end) for start, end in pairs)

    return _from_rest(timed, 30, call, estimate, rest_s, nvml, host_ms)


def queued(call, estimate, rest_s, nvml, host_ms=HOST_MS):
    """From a chip that rested: three launches to warm up, then the mean of 6 to 60 that follow each other with
    nothing in between, as a model's kernels do."""

    def timed(launches):
        start = _event()
        for _ in range(launches):
            call()
        end = _event()
        return lambda: start.elapsed_time(end) / launches

    return _from_rest(timed, 60, call, estimate, rest_s, nvml, host_ms)


def _from_rest(timed, most, call, estimate, rest_s, nvml, host_ms):
    """`timed` queues so many launches; what it returns gives milliseconds once they are done."""
    launches = min(most, max(6, round(30 / estimate)))
    time.sleep(rest_s)
    short = estimate < SHORT_MS
    if short:
        spin(WARM_UPS + launches, host_ms)
    spun = _event()
    for _ in range(WARM_UPS):
        call()
    milliseconds = timed(launches)
    probe = ClockProbe()
    starved = short and spun.query()
    sensors = nvml.sample()
    torch.cuda.synchronize()
    return Reading(milliseconds(), probe.mhz(), starved, sensors)


def sustained(call, estimate, seconds, nvml):
    """The mean over about so many seconds of load, after as many to warm up."""
    launches = math.ceil(1000 * seconds / estimate)
    begin = time.monotonic()
    for _ in range(launches):
        call()
    start = _event()
    for _ in range(launches):
        call()
    end = _event()
    probe = ClockProbe()
    time.sleep(max(0.0, begin + 1.7 * seconds - time.monotonic()))  # sensors are read late in the timed half
    sensors = nvml.sample()
    torch.cuda.synchronize()
    return Reading(start.elapsed_time(end) / launches, probe.mhz(), sensors=sensors)


def _event():
    event = torch.cuda.Event(enable_timing=True)
    event.record()
    return event


def spin(launches, host_ms=HOST_MS):
    """Keeps the GPU busy while the host queues so many launches behind it."""
    torch.cuda._sleep(int(SPIN_CYCLES_PER_MS * (0.4 + host_ms * launches)))
