"""The curves of a training, what they come to, and the files that keep them."""

import csv
import dataclasses
import json
import math

WINDOW = 20  # steps of a running mean
TOLERANCE = 3.0  # times the spread of PyTorch's own attention
ATTUNE, PYTORCH, CONTROL, AGAIN = "attune", "pytorch_bf16", "pytorch_float32", "attune_again"
CURVES = (ATTUNE, PYTORCH, CONTROL)  # AGAIN too, where a second run was asked for


def smooth(curve):
    """Running means: the first one is that of the first WINDOW steps."""
    total, means = sum(curve[:WINDOW]), []
    for index in range(WINDOW, len(curve) + 1):
        means.append(total / WINDOW)
        if index < len(curve):
            total += curve[index] - curve[index - WINDOW]
    return means


def distances(curve, control):
    """Of two smoothed curves, with sign."""
    return [a - b for a, b in zip(smooth(curve), smooth(control))]


def deviation(curve, control):
    """The greatest distance of two smoothed curves, NaN if there is one."""
    sizes = map(abs, distances(curve, control))
    return max(sizes, key=lambda value: math.inf if math.isnan(value) else value)


def spread(curve, control):
    """Root mean square of the distances of single steps: hundreds of roundings, so that luck averages out."""
    return math.sqrt(sum((a - b) ** 2 for a, b in zip(curve, control)) / len(control))


@dataclasses.dataclass(frozen=True)
class Verdict:
    first: float  # attune's smoothed loss at the beginning
    last: float  # and at the end
    without_attention: float  # what a model without attention cannot get below
    deviation: float  # of attune from the control
    peer_deviation: float  # of PyTorch's bf16 attention from the control
    peer_spread: float  # likewise, of single steps
    limit: float  # of `deviation`
    same_bits: bool | None  # of two runs; None where there was one

    @property
    def faults(self):
        """What is wrong, in words."""
        found = []
        if not self.deviation <= self.limit:  # NaN is a fault, too
            found.append(
                f"attune's loss is {self.deviation:.1e} away from the control's (limit {self.limit:.1e})"
            )
        if not self.last < min(self.first, self.without_attention):
            found.append(
                f"attune's loss went from {self.first:.4f} to {self.last:.4f}: not below {self.without_attention:.4f}, "
                "which needs no attention"
            )
        if self.same_bits is False:
            found.append("two runs of the deterministic attention gave different losses or weights")
        return found


def judge(curves, without_attention, same_bits=None):
    """`curves`: name -> loss of each step, WINDOW of them or more."""
    smoothed = smooth(curves[ATTUNE])
    peer_spread = spread(curves[PYTORCH], curves[CONTROL])
    return Verdict(
        first=smoothed[0],
        last=smoothed[-1],
        without_attention=without_attention,
        deviation=deviation(curves[ATTUNE], curves[CONTROL]),
        peer_deviation=deviation(curves[PYTORCH], curves[CONTROL]),
        peer_spread=peer_spread,
        limit=TOLERANCE * peer_spread,
        same_bits=same_bits,
    )


def summary(verdict):
    """A line for people."""
    bits = {None: "", True: "; two runs: the same bits", False: "; two runs: other bits"}[verdict.same_bits]
    return (
        f"loss {verdict.first:.4f} to {verdict.last:.4f} (without attention {verdict.without_attention:.4f} at best); "
        f"away from float32: attune {verdict.deviation:.1e}, PyTorch's bf16 {verdict.peer_deviation:.1e}, "
        f"limit {verdict.limit:.1e}{bits}"
    )


# -- files -----------------------------------------------------------------------------------------


def write_csv(path, curves):
    """Losses in digits that give back the same float32."""
    with open(path, "w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(["step", *curves])
        for step, losses in enumerate(zip(*curves.values())):
            writer.writerow([step, *(f"{loss:.9g}" for loss in losses)])


def write_json(path, environment, settings, plans, verdict):
    """A number of the verdict that is not finite becomes null."""
    numbers = {
        name: None if isinstance(value, float) and not math.isfinite(value) else value
        for name, value in dataclasses.asdict(verdict).items()
    }
    document = {
        "environment": environment,
        "settings": settings,
        "plans": plans,
        "verdict": numbers | {"faults": verdict.faults},
    }
    with open(path, "w", encoding="utf-8") as file:
        json.dump(document, file, indent=1, allow_nan=False)
        file.write("\n")
