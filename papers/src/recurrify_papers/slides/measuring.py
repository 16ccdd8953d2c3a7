"""Times and memory of the parts of a model, forward and backward, over a grid of lengths T and widths D.

At small sizes a device mostly waits for kernel launches. On a GPU the passes are therefore captured as CUDA graphs.
The floor is measured too: the time of a part at a single position. Sizes that take less than several times the floor
are not fitted. On a CPU one core is used and memory is not measured.
"""

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from scipy.stats import linregress
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.benchmark import Timer
from torch.utils.flop_counter import FlopCounterMode

from recurrify import RSAConfig
from recurrify.attention import RecurrenceEncoding, scan
from recurrify.data import pick_device
from recurrify.results import provenance
from recurrify_papers.graphs import as_graph, device_seconds
from recurrify_papers.runner import Say

HEAD_WIDTH = 64
FEWEST_FITTED = 3
"""A line needs at least this many sizes."""
TIMES_FLOOR = 5
"""A size is fitted if it takes at least this many times the floor."""
SECONDS_IN_A_ROW, MOST_IN_A_ROW = 0.01, 100
"""Captured passes run back to back for about this long: their mean hides the first launch."""
COUNTED_SIZES = (64, 128)
"""Where operations are counted; they are a power of the size, so two small sizes suffice."""
METRICS = {"seconds": "forward and backward time", "forward_seconds": "forward time", "peak_bytes": "memory"}
Sizes = list[tuple[int, int]]
Point = dict[str, float | None]


class Attention(nn.Module):
    """Causal softmax attention without projections: fused, or with its T×T matrix in memory."""

    def __init__(self, fused: bool) -> None:
        super().__init__()
        self.fused = fused

    def forward(self, inputs_BTW: Tensor) -> Tensor:
        heads_BHTD = inputs_BTW.unflatten(-1, (-1, HEAD_WIDTH)).transpose(1, 2)
        if self.fused:
            return functional.scaled_dot_product_attention(heads_BHTD, heads_BHTD, heads_BHTD, is_causal=True)
        length = inputs_BTW.shape[1]
        future = torch.ones(length, length, dtype=torch.bool, device=inputs_BTW.device).triu(1)
        scores_BHTT = heads_BHTD @ heads_BHTD.transpose(-1, -2) / math.sqrt(HEAD_WIDTH)
        return scores_BHTT.masked_fill(future, -math.inf).softmax(-1) @ heads_BHTD


class Recurrence(nn.Module):
    """The scan of RSA alone, over regular heads."""

    def __init__(self, width: int) -> None:
        super().__init__()
        heads = width // HEAD_WIDTH
        self.encoding = RecurrenceEncoding(RSAConfig(heads=heads, counts=(heads, 0, 0, 0, 0, 0)))

    def forward(self, inputs_BTW: Tensor) -> Tensor:
        heads_BHTD = inputs_BTW.unflatten(-1, (-1, HEAD_WIDTH)).transpose(1, 2)
        return scan(heads_BHTD, self.encoding.kernel()).output


class FirstOutput(nn.Module):
    """An LSTM layer without its final state."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.layer = nn.LSTM(width, width, batch_first=True)

    def forward(self, inputs_BTW: Tensor) -> Tensor:
        output: Tensor = self.layer(inputs_BTW)[0]
        return output


BUILD: dict[str, Callable[[int], nn.Module]] = {
    "self-attention, its matrix stored": lambda width: Attention(fused=False),
    "self-attention, fused": lambda width: Attention(fused=True),
    "position-wise FFN": lambda width: nn.Sequential(
        nn.Linear(width, 4 * width), nn.ReLU(), nn.Linear(4 * width, width)
    ),
    "LSTM layer": FirstOutput,
    "RSA scan": Recurrence,
}


def complexity_run(settings: dict[str, Any], folder: Path, say: Say) -> dict[str, Any]:
    """Measure one part along one axis, up to the first size that does not fit."""
    part, axis, device = settings["part"], settings["axis"], pick_device()
    grid = settings["grids"][device.type]
    sizes, fixed = sizes_along(axis, grid, slow=settings["slow"], times=grid["light_times"] if settings["light"] else 1)
    say(f"{part}, along {axis}")
    floor = measure(part, 1, HEAD_WIDTH, grid["repeats"], device)
    points: list[Point] = []
    missing = []
    for length, width in sizes:
        try:
            points.append(measure(part, length, width, grid["repeats"], device))
        except torch.OutOfMemoryError:
            missing.append(f"{part} at T = {length}, D = {width} (out of memory)")
            break
    axes = {"x_label": f"{axis} ({fixed})", "y_label": "seconds, forward and backward", "log": True}
    return {
        "kind": "complexity",
        "numbers": [*exponents(axis, floor, points), counted_exponent(part, axis)],
        "curves": [{**axes, "x": [one[axis] for one in points], "y": [one["seconds"] for one in points]}],
        "missing": missing,
        "floor": floor,
        "points": points,
        "provenance": provenance({**settings, "grids": grid}),
    }


def sizes_along(axis: str, grid: Mapping[str, Any], slow: bool, times: int) -> tuple[Sizes, str]:
    """Lengths and widths of the points along T or D, and the size that stays the same."""
    if axis == "D":
        length = grid["length"] * times
        return [(length, width) for width in grid["widths"]], f"T = {length}"
    lengths = [length for length in grid["lengths"] if not slow or length <= grid["longest_slow"]]
    return [(length * times, grid["width"]) for length in lengths], f"D = {grid['width']}"


# ---- exponents -------------------------------------------------------------------------------------------


def exponents(axis: str, floor: Point, points: Sequence[Point]) -> list[dict[str, Any]]:
    """How times and memory grow, by the sizes above the floor."""
    numbers = []
    for name, title in METRICS.items():
        known = sorted((one[axis] or 0, value) for one in points if (value := one[name]) is not None)
        if name != "peak_bytes":  # memory has no launches
            known = above_floor(known, floor[name] or 0)
        elif not known:
            continue
        number: dict[str, Any] = {"metric": f"exponent of {title}", "value": None}
        # The larger half: the smaller sizes are dominated by what grows less.
        fitted = known[-max(FEWEST_FITTED, math.ceil(len(known) / 2)) :]
        if len(fitted) < FEWEST_FITTED:
            numbers.append(number | {"note": "too few sizes take several times as long as launching the kernels"})
            continue
        line = linregress(*np.log(fitted).T)
        note = f"standard error {line.stderr:.2f} over {len(fitted)} sizes"
        numbers.append(number | {"value": float(line.slope), "note": note})
    return numbers


def above_floor(known: Sequence[tuple[float, float]], floor: float) -> list[tuple[float, float]]:
    """The sizes from which on everything takes at least several times the floor."""
    small = [index for index, (_, value) in enumerate(known) if value < TIMES_FLOOR * floor]
    return list(known[small[-1] + 1 :] if small else known)


def counted_exponent(part: str, axis: str) -> dict[str, Any]:
    """How the operations in matrix products grow, as torch counts them."""
    counts = []
    for size in COUNTED_SIZES:
        length, width = (size, COUNTED_SIZES[0]) if axis == "T" else (COUNTED_SIZES[0], size)
        # The counter does not know the CPU's fused attention and LSTM, which do not exist in 64 bits.
        inputs_BTW = torch.randn(1, length, width, dtype=torch.float64, requires_grad=True)
        module = BUILD[part](width).double()
        with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:
            module(inputs_BTW).sum().backward()
        counts.append(math.log(counter.get_total_flops()))
    slope = linregress([math.log(size) for size in COUNTED_SIZES], counts).slope
    return {"metric": "exponent of counted operations", "value": float(slope)}


# ---- times -----------------------------------------------------------------------------------------------


def measure(part: str, length: int, width: int, repeats: int, device: torch.device) -> Point:
    """Seconds of a forward pass and of both passes, and on a GPU the memory that both passes need."""
    module = BUILD[part](width).to(device)
    inputs_BTW = torch.randn(1, length, width, device=device, requires_grad=True)
    learned = [inputs_BTW, *module.parameters()]

    def forward() -> None:
        module(inputs_BTW)

    def both() -> None:
        output = module(inputs_BTW)
        torch.autograd.grad(output, learned, torch.ones_like(output), allow_unused=True)

    point: Point = {"T": length, "D": width, "peak_bytes": None}
    both()  # libraries reserve their workspaces
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
        before = torch.cuda.memory_allocated(device)
        both()
        point["peak_bytes"] = torch.cuda.max_memory_allocated(device) - before
    return point | {"forward_seconds": seconds_of(forward, repeats), "seconds": seconds_of(both, repeats)}


def seconds_of(work: Callable[[], None], repeats: int) -> float:
    """Median seconds of a call: by the host's clock on one core, or by the device's clock as a CUDA graph."""
    if not torch.cuda.is_available():
        timer = Timer("work()", globals={"work": work})
        return statistics.median(timer.timeit(1).mean for _ in range(repeats))
    replay = as_graph(work)
    replay()  # the first launch also moves the graph to the device
    calls = min(MOST_IN_A_ROW, math.ceil(SECONDS_IN_A_ROW / device_seconds(replay)))
    return statistics.median(device_seconds(replay, calls) for _ in range(repeats))
