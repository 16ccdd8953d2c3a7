"""The slides' table of complexities, measured: how time and memory grow with the length T and the width D.

Each part of a model runs alone, forward and backward, over a grid of lengths at one width and of widths at one length.
An exponent is the slope of a straight line through the logarithms of the larger sizes, by least squares: at the
smaller ones a device mostly waits for its instructions. On a CPU, of which one
core is used, nobody counts memory, so there it is left out.
"""

import math
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from scipy.stats import linregress
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from recurrify.attention import RecurrenceEncoding, RSAConfig, scan
from recurrify.errors import UserError
from recurrify.experiments.catalogue import SLIDES, Experiment, Rows, Stage, register
from recurrify.experiments.lab import Lab
from recurrify.experiments.lengths import one_thread
from recurrify.jobs import pick_device

HEAD_WIDTH = 64
WARM_UP = 2
"""Turns that are run and not counted."""
LEAST_FITTED = 3
"""Sizes that a line is drawn through at least."""
COUNTED_LENGTHS, COUNTED_WIDTHS = (64, 128, 256), (64, 128, 256)
"""Where operations are counted; they grow by a formula, so small sizes will do."""


class Attention(nn.Module):
    """Causal softmax attention alone, without the projections around it: fused, or with its T×T matrix in memory."""

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


class Part(NamedTuple):
    """A row of the slides' table, or one that belongs beside them."""

    build: Callable[[int], nn.Module]
    """From the width."""
    theory: str
    exponents: dict[str, int]
    """Of T and of D."""
    slow: bool = False
    """Whether the longest sequences would not fit, or take minutes."""


def _feed_forward(width: int) -> nn.Module:
    return nn.Sequential(nn.Linear(width, 4 * width), nn.ReLU(), nn.Linear(4 * width, width))


PARTS = {
    "self-attention, its matrix stored": Part(
        lambda width: Attention(fused=False), "O(T²·D)", {"T": 2, "D": 1}, slow=True
    ),
    "self-attention, fused": Part(lambda width: Attention(fused=True), "O(T²·D)", {"T": 2, "D": 1}, slow=True),
    "position-wise FFN": Part(_feed_forward, "O(T·D²)", {"T": 1, "D": 2}),
    "LSTM layer": Part(FirstOutput, "O(T·D²)", {"T": 1, "D": 2}, slow=True),
    "RSA scan": Part(Recurrence, "O(T·D)", {"T": 1, "D": 1}),
}


@dataclass(frozen=True, kw_only=True)
class Grid:
    """Which sizes are measured, in sequences of one at a time."""

    lengths: tuple[int, ...]
    """T, at `width`."""
    longest_slow: int
    """The longest of them for the slow parts."""
    widths: tuple[int, ...]
    """D, at `length`; whole heads of 64."""
    width: int
    length: int
    repeats: int = 7
    """Turns of which the median counts."""

    def __post_init__(self) -> None:
        for width in (self.width, *self.widths):
            if width < HEAD_WIDTH or width % HEAD_WIDTH:
                raise UserError(f"a width must be a whole number of heads of {HEAD_WIDTH}: got {width}.")
        if self.repeats < 1:
            raise UserError(f"`repeats` must be at least 1: got {self.repeats}.")

    def along(self, axis: str, slow: bool) -> list[tuple[int, int]]:
        """Lengths and widths of the points along T or D."""
        if axis == "D":
            return [(self.length, width) for width in self.widths]
        return [(length, self.width) for length in self.lengths if not slow or length <= self.longest_slow]


GRIDS: dict[str, dict[str, Any]] = {
    "cpu": {
        "lengths": (128, 256, 512, 1024, 2048, 4096, 8192, 16_384),
        "longest_slow": 2048,
        "widths": (64, 128, 256, 512, 1024),
        "width": 128,
        "length": 256,
    },
    "cuda": {
        "lengths": (512, 1024, 2048, 4096, 8192, 16_384, 32_768, 65_536),
        "longest_slow": 16_384,
        "widths": (128, 256, 512, 1024, 2048, 4096),
        "width": 512,
        "length": 4096,
    },
}
"""By the kind of device: seconds on a CPU, a minute on a large GPU."""


class Fit(NamedTuple):
    exponent: float
    standard_error: float
    points: int
    """Sizes that the line goes through."""


def fit_exponent(sizes: Sequence[float], values: Sequence[float]) -> Fit | None:
    """How `values` grow with `sizes`, over the larger half of them; None where there are too few."""
    pairs = sorted(zip(sizes, values, strict=True))
    kept = pairs[-max(LEAST_FITTED, math.ceil(len(pairs) / 2)) :]
    if len(kept) < LEAST_FITTED or any(value <= 0 for _, value in kept):
        return None
    line = linregress([math.log(size) for size, _ in kept], [math.log(value) for _, value in kept])
    return Fit(float(line.slope), float(line.stderr), len(kept))


def complexity_rows(lab: Lab) -> tuple[Rows, list[str]]:
    """Two rows a part, along T and along D, and what did not fit."""
    device = pick_device()
    grid = Grid(**{**GRIDS["cuda" if device.type == "cuda" else "cpu"], **lab.size.complexity})
    rows: Rows = []
    missing: list[str] = []
    for name, part in PARTS.items():
        for axis in ("T", "D"):
            lab.say(f"{name}, along {axis}")
            points = []
            for length, width in grid.along(axis, part.slow):
                try:
                    with one_thread():
                        points.append(measure(part, length, width, grid.repeats, device))
                except torch.OutOfMemoryError:
                    missing.append(f"{name} at T = {length}, D = {width} (out of memory)")
                    break
            rows.append(_row(name, part, axis, grid, points))
    return rows, missing


def _row(name: str, part: Part, axis: str, grid: Grid, points: list[dict[str, Any]]) -> dict[str, Any]:
    sizes = [point[axis] for point in points]
    fits = {
        measure: fit_exponent(sizes, [point[measure] for point in points])
        for measure in ("seconds", "forward_seconds", "peak_bytes")
        if all(point[measure] is not None for point in points)
    }
    return {
        "part": name,
        "theory": part.theory,
        "axis": axis,
        "at": {"D": grid.width} if axis == "T" else {"T": grid.length},
        "theoretical": part.exponents[axis],
        "exponents": {measure: fit._asdict() for measure, fit in fits.items() if fit is not None},
        "counted_exponent": counted_exponent(part, axis),
        "points": points,
    }


def measure(part: Part, length: int, width: int, repeats: int, device: torch.device) -> dict[str, Any]:
    """One size: medians of the times of a forward pass and of a forward and a backward pass, and the memory for both.

    Memory is what both passes need beside the input and the weights.
    """
    module = part.build(width).to(device)
    inputs_BTW = torch.randn(1, length, width, device=device, requires_grad=True)
    on_cuda = device.type == "cuda"
    held = peak = 0
    forward: list[float] = []
    both: list[float] = []
    for turn in range(WARM_UP + repeats):
        module.zero_grad(set_to_none=True)
        inputs_BTW.grad = None
        if on_cuda:
            torch.cuda.reset_peak_memory_stats(device)
            held = torch.cuda.memory_allocated(device)
        start = _now(device)
        output = module(inputs_BTW)
        middle = _now(device)
        output.backward(torch.ones_like(output))
        end = _now(device)
        peak = torch.cuda.max_memory_allocated(device) if on_cuda else 0
        if turn >= WARM_UP:
            forward.append(middle - start)
            both.append(end - start)
        del output
    return {
        "T": length,
        "D": width,
        "forward_seconds": statistics.median(forward),
        "seconds": statistics.median(both),
        "seconds_range": [min(both), max(both)],
        "peak_bytes": peak - held if on_cuda else None,
    }


def _now(device: torch.device) -> float:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter()


def counted_exponent(part: Part, axis: str) -> float:
    """How the operations in matrix products grow, as torch counts them: the theory of the code, without a device."""
    sizes = COUNTED_LENGTHS if axis == "T" else COUNTED_WIDTHS
    counts = []
    for size in sizes:
        length, width = (size, COUNTED_WIDTHS[0]) if axis == "T" else (COUNTED_LENGTHS[0], size)
        # The counter knows neither the CPU's fused attention nor its fused LSTM, of which there is none in 64 bits.
        inputs_BTW = torch.randn(1, length, width, dtype=torch.float64, requires_grad=True)
        module = part.build(width).double()
        with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:
            module(inputs_BTW).sum().backward()
        counts.append(counter.get_total_flops())
    fit = fit_exponent(sizes, counts)
    assert fit is not None, "every part multiplies matrices"
    return fit.exponent


register(
    Experiment(
        name="slides-complexity",
        title="Time and memory against length and width, with their exponents",
        source=f"{SLIDES}, the table of complexities (orders of growth, no numbers)",
        layout="complexity",
        units=lambda lab: [],
        rows=complexity_rows,
        after=Stage.NOTHING,
        differences=("The slides give orders of growth alone; sizes are those that fit the device.",),
        alone=True,
    )
)
