"""Times and memory of the parts of a model, forward and backward, over a grid of lengths T and widths D.

At small sizes a device mostly waits for its instructions. On a GPU the passes are therefore captured as CUDA graphs and
timed by the device's clock; everywhere the floor is measured too, the part's time for a single position, and sizes that
take less than several times that are not fitted. On a CPU one core is used and memory is not measured.
"""

import math
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch
from scipy.stats import linregress
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from recurrify import RSAConfig
from recurrify.attention import RecurrenceEncoding, scan
from recurrify.data import pick_device
from recurrify.results import provenance
from recurrify.speed import as_graph, device_seconds
from recurrify_papers.runner import Say
from recurrify_papers.slides.rule_training import one_thread

HEAD_WIDTH = 64
WARM_UP = 2
LEAST_FITTED = 3
"""A line goes through at least so many sizes."""
FLOOR_REPEATS = 21
TIMES_FLOOR = 5
"""A size is fitted if it takes at least so many times the floor."""
SECONDS_IN_A_ROW, MOST_IN_A_ROW = 0.01, 100
"""Captured passes run back to back for about so long, but no more than so many: their mean hides the first launch."""
COUNTED_SIZES = (64, 128, 256)
"""Where operations are counted; they grow by a formula, so small sizes suffice."""
GRIDS: dict[str, dict[str, Any]] = {
    "cpu": {
        "lengths": (128, 256, 512, 1024, 2048, 4096, 8192, 16_384),
        "longest_slow": 2048,
        "widths": (64, 128, 256, 512, 1024),
        "width": 128,
        "length": 256,
        "light_times": 8,
        "repeats": 7,
    },
    "cuda": {
        "lengths": (512, 1024, 2048, 4096, 8192, 16_384, 32_768, 65_536),
        "longest_slow": 16_384,
        "widths": (128, 256, 512, 1024, 2048, 4096),
        "width": 512,
        "length": 4096,
        "light_times": 16,
        "repeats": 7,
    },
}
"""Lengths at one width, widths at one length. Slow parts stop at `longest_slow`; light ones take sequences
`light_times` as long, to measure more than their launches."""
SLOW = ("self-attention, its matrix stored", "self-attention, fused", "LSTM layer")
LIGHT = ("RSA scan",)


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
    grid = GRIDS["cuda" if device.type == "cuda" else "cpu"] | settings["grid"]
    sizes, at = sizes_along(part, axis, grid)
    say(f"{part}, along {axis}")
    points: list[Point] = []
    lacking: list[str] = []
    with one_thread():
        floor = measure(part, 1, HEAD_WIDTH, FLOOR_REPEATS, device)
        for length, width in sizes:
            try:
                points.append(measure(part, length, width, grid["repeats"], device))
            except torch.OutOfMemoryError:
                lacking.append(f"{part} at T = {length}, D = {width} (out of memory)")
                break
    clock = "device" if all(one.by_device is not None for one in (floor, *points)) else "host"
    rows = [{"T": one.length, "D": one.width, **one.times(clock), "peak_bytes": one.peak_bytes} for one in points]
    exponents, too_few = fits(axis, floor.times(clock), rows)
    return {
        "kind": "complexity",
        "at": at,
        "exponents": exponents,
        "too_few": too_few,
        "clock": clock,
        "floor": floor.times(clock),
        "counted_exponent": counted_exponent(part, axis),
        "points": rows,
        "lacking": lacking,
        "provenance": provenance({**settings, "grid": grid}),
    }


def sizes_along(part: str, axis: str, grid: dict[str, Any]) -> tuple[list[tuple[int, int]], dict[str, int]]:
    """Lengths and widths of the points along T or D, and the size that stays the same."""
    times = grid["light_times"] if part in LIGHT else 1
    if axis == "D":
        length = grid["length"] * times
        return [(length, width) for width in grid["widths"]], {"T": length}
    lengths = [length for length in grid["lengths"] if part not in SLOW or length <= grid["longest_slow"]]
    return [(length * times, grid["width"]) for length in lengths], {"D": grid["width"]}


# ---- exponents -------------------------------------------------------------------------------------------


class Fit(NamedTuple):
    exponent: float
    standard_error: float
    points: int


def fit_exponent(sizes: Sequence[float], values: Sequence[float]) -> Fit | None:
    """How `values` grow with `sizes`, over the larger half of them; None if there are too few."""
    pairs = sorted(zip(sizes, values, strict=True))
    kept = pairs[-max(LEAST_FITTED, math.ceil(len(pairs) / 2)) :]
    if len(kept) < LEAST_FITTED or any(value <= 0 for _, value in kept):
        return None
    line = linregress([math.log(size) for size, _ in kept], [math.log(value) for _, value in kept])
    return Fit(float(line.slope), float(line.stderr), len(kept))


def above_floor(known: dict[int, float], floor: float) -> dict[int, float]:
    """The sizes from which on everything takes at least several times the floor."""
    kept: dict[int, float] = {}
    for size in sorted(known, reverse=True):
        if known[size] < TIMES_FLOOR * floor:
            break
        kept[size] = known[size]
    return kept


def fits(axis: str, floor: dict[str, Any], points: list[dict[str, Any]]) -> tuple[dict[str, Any], list[str]]:
    """The exponents of times and memory, and what has too few sizes above the floor."""
    exponents: dict[str, Any] = {}
    too_few: list[str] = []
    for name in ("seconds", "forward_seconds", "peak_bytes"):
        known = {point[axis]: point[name] for point in points}
        if not known or None in known.values():
            continue
        if name != "peak_bytes":  # memory has no launches
            known = above_floor(known, floor[name])
        fit = fit_exponent(list(known), list(known.values()))
        if fit is None:
            too_few.append(name)
        else:
            exponents[name] = fit._asdict()
    return exponents, too_few


def counted_exponent(part: str, axis: str) -> float:
    """How the operations in matrix products grow, as torch counts them."""
    counts = []
    for size in COUNTED_SIZES:
        length, width = (size, COUNTED_SIZES[0]) if axis == "T" else (COUNTED_SIZES[0], size)
        # The counter does not know the CPU's fused attention and LSTM, of which there is none in 64 bits.
        inputs_BTW = torch.randn(1, length, width, dtype=torch.float64, requires_grad=True)
        module = BUILD[part](width).double()
        with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:
            module(inputs_BTW).sum().backward()
        counts.append(counter.get_total_flops())
    fit = fit_exponent(COUNTED_SIZES, counts)
    assert fit is not None, "every part multiplies matrices"
    return fit.exponent


# ---- times -----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Point:
    """One size: times of a forward pass and of both passes, by the host's clock and by the device's, and the memory."""

    length: int
    width: int
    by_host: dict[str, float]
    by_device: dict[str, float] | None
    peak_bytes: int | None

    def times(self, clock: str) -> dict[str, float]:
        """Times by one clock."""
        return self.by_device if clock == "device" and self.by_device is not None else self.by_host


def measure(part: str, length: int, width: int, repeats: int, device: torch.device) -> Point:
    """Measure one size. Memory is what both passes need in addition to the input and the weights."""
    module = BUILD[part](width).to(device)
    # A generator of its own: a capture that failed may leave the device's usual one unusable.
    chance = torch.Generator(device).manual_seed(0)
    inputs_BTW = torch.randn(1, length, width, device=device, generator=chance).requires_grad_()
    by_host, peak = host_times(module, inputs_BTW, repeats)
    by_device = None
    if device.type == "cuda":
        module.zero_grad(set_to_none=True)
        inputs_BTW.grad = None
        by_device = device_times(module, inputs_BTW, repeats, by_host["seconds"])
    return Point(length, width, by_host, by_device, peak)


def host_times(module: nn.Module, inputs_BTW: Tensor, repeats: int) -> tuple[dict[str, float], int | None]:
    """Medians by the host's clock, launch by launch, and the memory."""
    device = inputs_BTW.device
    on_cuda = device.type == "cuda"
    held = peak = 0
    forward: list[float] = []
    both: list[float] = []
    for _ in range(WARM_UP + repeats):
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
        forward.append(middle - start)
        both.append(end - start)
        del output
    return _medians(forward[WARM_UP:], both[WARM_UP:]), peak - held if on_cuda else None


def device_times(module: nn.Module, inputs_BTW: Tensor, repeats: int, at_most: float) -> dict[str, float] | None:
    """Medians by the device's clock, each pass a CUDA graph; None if the part cannot be captured.

    `at_most` is what both passes take, launches included.
    """
    learned = [inputs_BTW, *module.parameters()]
    calls = min(MOST_IN_A_ROW, math.ceil(SECONDS_IN_A_ROW / at_most))

    def forward() -> None:
        module(inputs_BTW)

    def both() -> None:
        output = module(inputs_BTW)
        torch.autograd.grad(output, learned, torch.ones_like(output), allow_unused=True)

    def replays(step: Callable[[], None]) -> list[float]:
        replay = as_graph(step)
        replay()  # the first launch also moves the graph to the device
        return [device_seconds(replay, calls) for _ in range(repeats)]

    try:
        return _medians(replays(forward), replays(both))
    except torch.OutOfMemoryError:  # a RuntimeError too, but one of this size and not of the part
        raise
    except RuntimeError:
        return None


def _medians(forward: list[float], both: list[float]) -> dict[str, float]:
    return {"forward_seconds": statistics.median(forward), "seconds": statistics.median(both)}


def _now(device: torch.device) -> float:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter()
