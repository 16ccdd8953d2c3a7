"""The slides' table of complexities, measured: how time and memory grow with the length T and the width D.

Each part of a model runs alone, forward and backward, over a grid of lengths at one width and of widths at one length.
An exponent is the slope of a straight line through the logarithms of the larger sizes, by least squares.

At small sizes a device mostly waits for its instructions. On a GPU the passes are therefore captured as CUDA graphs and
timed by the device's own clock; everywhere the floor is measured too, which is the part's time for a single position,
and sizes that take less than several times that are left out of the fit.

On a CPU, of which one core is used, nobody counts memory, so there it is left out. Rows of an earlier result
file are kept: what time ran out for, or memory, is all that is measured when the same command goes on.
"""

import json
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

from recurrify.attention import scan
from recurrify.attention.config import RSAConfig
from recurrify.attention.encoding import RecurrenceEncoding
from recurrify.data.texts import pick_device
from recurrify.errors import UserError
from recurrify.processes import one_thread
from recurrify.results import load_result, machine
from recurrify.speed.capturing import as_graph, device_seconds
from recurrify_papers.experiments.catalogue import SLIDES, Experiment, Rows, Stage, register
from recurrify_papers.experiments.lab import Lab

NAME = "slides-complexity"
HEAD_WIDTH = 64
WARM_UP = 2
"""Turns that are run and not counted."""
MOST_TOLD = 200
"""Characters of an error that are kept."""
LEAST_FITTED = 3
"""Sizes that a line is drawn through at least."""
FLOOR_REPEATS = 21
"""Turns of which the median is the floor: it is quickly measured, and on it hangs which sizes are fitted."""
TIMES_FLOOR = 5
"""A size is fitted if it takes at least so many times the floor: then launching bends the line by little."""
SECONDS_IN_A_ROW = 0.01
MOST_IN_A_ROW = 100
"""Captured passes run back to back for about so long, but no more than so many: their mean hides the first launch."""
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
    light: bool = False
    """Whether it does so little that it takes longer sequences than the others' to see more than its launches."""


def _feed_forward(width: int) -> nn.Module:
    return nn.Sequential(nn.Linear(width, 4 * width), nn.ReLU(), nn.Linear(4 * width, width))


PARTS = {
    "self-attention, its matrix stored": Part(
        lambda width: Attention(fused=False), "O(T²·D)", {"T": 2, "D": 1}, slow=True
    ),
    "self-attention, fused": Part(lambda width: Attention(fused=True), "O(T²·D)", {"T": 2, "D": 1}, slow=True),
    "position-wise FFN": Part(_feed_forward, "O(T·D²)", {"T": 1, "D": 2}),
    "LSTM layer": Part(FirstOutput, "O(T·D²)", {"T": 1, "D": 2}, slow=True),
    "RSA scan": Part(Recurrence, "O(T·D)", {"T": 1, "D": 1}, light=True),
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
    light_times: int
    """How many times as long the sequences of the light parts are, along T and at D alike."""
    repeats: int = 7
    """Turns of which the median counts."""

    def __post_init__(self) -> None:
        for width in (self.width, *self.widths):
            if width < HEAD_WIDTH or width % HEAD_WIDTH:
                raise UserError(f"a width must be a whole number of heads of {HEAD_WIDTH}: got {width}.")
        for name in ("repeats", "light_times"):
            if getattr(self, name) < 1:
                raise UserError(f"`{name}` must be at least 1: got {getattr(self, name)}.")

    def along(self, axis: str, part: Part) -> list[tuple[int, int]]:
        """Lengths and widths of the points along T or D."""
        if axis == "D":
            return [(self.at(axis, part)["T"], width) for width in self.widths]
        lengths = [length for length in self.lengths if not part.slow or length <= self.longest_slow]
        return [(length * self._times(part), self.width) for length in lengths]

    def at(self, axis: str, part: Part) -> dict[str, int]:
        """The size that stays the same along an axis."""
        return {"D": self.width} if axis == "T" else {"T": self.length * self._times(part)}

    def _times(self, part: Part) -> int:
        return self.light_times if part.light else 1


GRIDS: dict[str, dict[str, Any]] = {
    "cpu": {
        "lengths": (128, 256, 512, 1024, 2048, 4096, 8192, 16_384),
        "longest_slow": 2048,
        "widths": (64, 128, 256, 512, 1024),
        "width": 128,
        "length": 256,
        "light_times": 8,
    },
    "cuda": {
        "lengths": (512, 1024, 2048, 4096, 8192, 16_384, 32_768, 65_536),
        "longest_slow": 16_384,
        "widths": (128, 256, 512, 1024, 2048, 4096),
        "width": 512,
        "length": 4096,
        "light_times": 16,
    },
}
"""By the kind of device: a few minutes on a CPU, one or two on a large GPU."""


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


def above_floor(sizes: Sequence[int], values: Sequence[float], floor: float) -> list[int]:
    """The sizes from which on everything takes at least several times the floor."""
    kept: list[int] = []
    for size, value in sorted(zip(sizes, values, strict=True), reverse=True):
        if value < TIMES_FLOOR * floor:
            break
        kept.insert(0, size)
    return kept


def complexity_rows(lab: Lab) -> tuple[Rows, list[str]]:
    """Two rows a part, along T and along D, and what did not fit or has to wait."""
    device = pick_device()
    grid = Grid(**{**GRIDS["cuda" if device.type == "cuda" else "cpu"], **lab.size.complexity})
    before = lab.folder / f"{NAME}.json"
    known = load_result(before)["rows"] if before.is_file() else []
    rows: Rows = []
    missing: list[str] = []
    for growth in (Growth(grid, device, name, axis) for name in PARTS for axis in ("T", "D")):
        settings = growth.settings()
        row = next((row for row in known if row.get("settings") == settings), None)
        if row is not None and not row["lacking"]:
            lab.say(f"{growth.title} was measured already: delete {before} to measure again")
        elif lab.deadline is not None and time.monotonic() >= lab.deadline:
            lab.stopped = True
        else:
            lab.say(growth.title)
            row = growth.measure()
        rows += [] if row is None else [row]
        missing += [growth.title] if row is None else row["lacking"]
    return rows, missing


@dataclass(frozen=True)
class Growth:
    """One part along one axis: what is measured, and made into a row."""

    grid: Grid
    device: torch.device
    name: str
    axis: str

    @property
    def part(self) -> Part:
        return PARTS[self.name]

    @property
    def title(self) -> str:
        return f"{self.name}, along {self.axis}"

    def settings(self) -> dict[str, Any]:
        """What another measurement has to have in common with this one to stand in for it."""
        known = machine()
        on = known["gpu"] if self.device.type == "cuda" else known["cpu"]
        found = {
            "part": self.name,
            "axis": self.axis,
            "sizes": self.grid.along(self.axis, self.part),
            "repeats": self.grid.repeats,
            "device": on,
            "torch": torch.__version__,
        }
        as_read: dict[str, Any] = json.loads(json.dumps(found))
        return as_read

    def measure(self) -> dict[str, Any]:
        """A row of all sizes up to one that does not fit, which is named."""
        points: list[dict[str, Any]] = []
        lacking: list[str] = []
        with one_thread():
            floor = measure(self.part, 1, HEAD_WIDTH, FLOOR_REPEATS, self.device)
            for length, width in self.grid.along(self.axis, self.part):
                try:
                    points.append(measure(self.part, length, width, self.grid.repeats, self.device))
                except torch.OutOfMemoryError:
                    lacking.append(f"{self.name} at T = {length}, D = {width} (out of memory)")
                    break
        return {"settings": self.settings(), "lacking": lacking, **self._row([floor, *points])}

    def _row(self, measured: list[dict[str, Any]]) -> dict[str, Any]:
        """With times by one clock throughout: the device's, unless a size could not be captured."""
        clock = "device" if all(one["by_device"] is not None for one in measured) else "host"
        floor, *points = (
            {"T": one["T"], "D": one["D"], **one[f"by_{clock}"], "peak_bytes": one["peak_bytes"]} for one in measured
        )
        exponents, left_out, too_few = self._fits(floor, points)
        return {
            "part": self.name,
            "theory": self.part.theory,
            "axis": self.axis,
            "at": self.grid.at(self.axis, self.part),
            "theoretical": self.part.exponents[self.axis],
            "exponents": exponents,
            "too_few": too_few,
            "left_out": left_out,
            "clock": clock,
            "not_captured": next((one["not_captured"] for one in measured if one["not_captured"]), None),
            "floor": {name: floor[name] for name in ("forward_seconds", "seconds")} | {"times": TIMES_FLOOR},
            "counted_exponent": counted_exponent(self.part, self.axis),
            "points": points,
        }

    def _fits(
        self, floor: dict[str, Any], points: list[dict[str, Any]]
    ) -> tuple[dict[str, Any], dict[str, list[int]], list[str]]:
        """By what was measured: the exponents, the sizes too near to the floor, and what has too few others."""
        exponents: dict[str, Any] = {}
        left_out: dict[str, list[int]] = {}
        too_few: list[str] = []
        for name in ("seconds", "forward_seconds", "peak_bytes"):
            known = {point[self.axis]: point[name] for point in points}
            if not known or any(value is None for value in known.values()):
                continue
            fitted = list(known)
            if name != "peak_bytes":  # memory has no launches in it
                fitted = above_floor(list(known), list(known.values()), floor[name])
                left_out[name] = [size for size in known if size not in fitted]
            fit = fit_exponent(fitted, [known[size] for size in fitted])
            if fit is None:
                too_few.append(name)
            else:
                exponents[name] = fit._asdict()
        return exponents, left_out, too_few


def measure(part: Part, length: int, width: int, repeats: int, device: torch.device) -> dict[str, Any]:
    """One size: times of a forward pass and of a forward and a backward pass, and the memory for both.

    Memory is what both passes need beside the input and the weights.
    """
    module = part.build(width).to(device)
    # A generator of its own: a capture that failed may leave the device's usual one unusable.
    chance = torch.Generator(device).manual_seed(0)
    inputs_BTW = torch.randn(1, length, width, device=device, generator=chance).requires_grad_()
    by_host, peak = host_times(module, inputs_BTW, repeats)
    by_device: dict[str, Any] | None = None
    not_captured: str | None = None
    if device.type == "cuda":
        module.zero_grad(set_to_none=True)
        inputs_BTW.grad = None
        by_device, not_captured = device_times(module, inputs_BTW, repeats, by_host["seconds"])
    return {
        "T": length,
        "D": width,
        "by_host": by_host,
        "by_device": by_device,
        "not_captured": not_captured,
        "peak_bytes": peak,
    }


def host_times(module: nn.Module, inputs_BTW: Tensor, repeats: int) -> tuple[dict[str, Any], int | None]:
    """Medians by the host's clock, launch by launch, and the memory."""
    device = inputs_BTW.device
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
    return _medians(forward, both), peak - held if on_cuda else None


def device_times(
    module: nn.Module, inputs_BTW: Tensor, repeats: int, at_most: float
) -> tuple[dict[str, Any] | None, str | None]:
    """Medians by the device's clock, each pass a CUDA graph; or None, and why that cannot be had.

    `at_most` is what both passes take, launches included.
    """
    learned = [inputs_BTW, *module.parameters()]
    calls = min(MOST_IN_A_ROW, math.ceil(SECONDS_IN_A_ROW / at_most))

    def forward() -> None:
        module(inputs_BTW)

    def both() -> None:
        output = module(inputs_BTW)
        torch.autograd.grad(output, learned, torch.ones_like(output), allow_unused=True)

    try:
        return _medians(replay_seconds(forward, repeats, calls), replay_seconds(both, repeats, calls)), None
    except torch.OutOfMemoryError:  # a RuntimeError too, but one of this size and not of the part
        raise
    except RuntimeError as error:
        return None, " ".join(str(error).split())[:MOST_TOLD]


def replay_seconds(step: Callable[[], None], repeats: int, calls: int) -> list[float]:
    """What a captured step takes, each time the mean of `calls` in a row."""
    replay = as_graph(step)
    replay()  # the first launch also moves the graph to the device
    return [device_seconds(replay, calls) for _ in range(repeats)]


def _medians(forward: list[float], both: list[float]) -> dict[str, Any]:
    return {
        "forward_seconds": statistics.median(forward),
        "seconds": statistics.median(both),
        "seconds_range": [min(both), max(both)],
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
        name=NAME,
        title="Time and memory against length and width, with their exponents",
        source=f"{SLIDES}, the table of complexities (orders of growth, no numbers)",
        layout="complexity",
        units=lambda lab: [],
        rows=complexity_rows,
        after=Stage.NOTHING,
        differences=lambda _: ("The slides give orders of growth alone; sizes are those that fit the device.",),
        alone=True,
    )
)
