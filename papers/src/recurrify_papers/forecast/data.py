"""Split, scaled and cut into windows, all on the device: a batch is one look-up by index.

Shapes: T rows of the file, C channels, F time features, B batch, L rows of past, P rows to forecast.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from recurrify.errors import UserError
from recurrify_papers.forecast.calendar import time_features
from recurrify_papers.forecast.numerals import is_constant
from recurrify_papers.forecast.reading import Series

Part = Literal["train", "valid", "test"]
ETT_COLUMNS = {"HUFL", "HULL", "MUFL", "MULL", "LUFL", "LULL", "OT"}
ETT_SPLIT = "12/4/4 months"
ETT_STEPS = (pd.Timedelta(hours=1), pd.Timedelta(minutes=15))
USUAL_SPLIT = "0.7/0.1/0.2"
MONTH, SHORTEST_MONTH = pd.Timedelta(days=30), pd.Timedelta(days=28)
MOST_MONTHS = 12_000
"""Of a split: dates end somewhere."""
LARGEST_SCALED = 1e15
"""Errors are squared and added up in float32, which ends near 3e38."""


class Split(NamedTuple):
    """Rows up to each of these (exclusive) belong to training, then validation, then test."""

    train_end: int
    valid_end: int
    test_end: int


def split_rows(series: Series, split: str) -> Split:
    """`auto`, `12/4/4 months` (of 30 days, as published for ETT) or shares such as `0.7/0.1/0.2`.

    `auto` is the published split: months for a file with all columns and the step of ETT, and shares for all others.
    """
    if split == "auto":
        split = ETT_SPLIT if _is_ett(series) else USUAL_SPLIT
    rows = len(series.dates)
    parts, _, unit = split.partition(" ")
    try:
        sizes = [float(part) for part in parts.split("/")]
    except ValueError:
        sizes = []
    if len(sizes) != 3 or not all(0 < size < math.inf for size in sizes) or unit not in ("", "months"):
        raise UserError(f"`split` must be like 12/4/4 months, or shares like 0.7/0.1/0.2, or auto: got {split!r}.")
    if unit == "months":
        return _by_months(series, split, sizes)
    if abs(sum(sizes) - 1) > 1e-6:
        raise UserError(f"the shares of `split` must add up to 1: got {split!r}.")
    train_end, test = int(rows * sizes[0]), int(rows * sizes[2])
    return Split(train_end, rows - test, rows)


def _by_months(series: Series, split: str, sizes: Sequence[float]) -> Split:
    """Months have 30 days, as published; where steps are months themselves, as many days as they have."""
    first, last = series.dates[0], series.dates[-1]
    counts = [math.fsum(sizes[:count]) for count in (1, 2, 3)]
    if max(counts) > MOST_MONTHS:
        raise UserError(f"`split` must have at most {MOST_MONTHS:,} months: got {split!r}.")
    if series.step < SHORTEST_MONTH:
        ends = [first + count * MONTH for count in counts]
    elif all(count == int(count) for count in counts):
        ends = [first + pd.DateOffset(months=int(count)) for count in counts]
    else:
        raise UserError(f"`split` must have whole months where {series.name} has steps of months: got {split!r}.")
    if ends[2] > last + series.step:
        raise UserError(
            f"{series.name} is too short for {split!r}: it ends with {last}, before {ends[2]}; "
            f"train with shares, --split {USUAL_SPLIT}."
        )
    return Split(*(int(series.dates.searchsorted(end)) for end in ends))


def _is_ett(series: Series) -> bool:
    return set(series.file_columns or series.columns) >= ETT_COLUMNS and series.step in ETT_STEPS


@dataclass(frozen=True)
class Scaling:
    """From original units to mean 0 and spread 1, by the training rows alone."""

    mean: np.ndarray
    """(C,)."""
    spread: np.ndarray
    """(C,); 1 for a column that is constant in training."""

    @classmethod
    def of(cls, values: np.ndarray) -> "Scaling":
        with np.errstate(over="ignore", invalid="ignore"):  # `scaled_values` refuses what is not finite
            return cls(values.mean(axis=0), np.where(is_constant(values), 1.0, values.std(axis=0)))

    def apply(self, values: np.ndarray) -> np.ndarray:
        return (values - self.mean) / self.spread

    def undo(self, scaled: np.ndarray) -> np.ndarray:
        return scaled * self.spread + self.mean


def scaled_values(series: Series, scaling: Scaling, rows: slice) -> np.ndarray:
    """Rows of a series, scaled; numbers too large to be reckoned with are refused."""
    with np.errstate(all="ignore"):
        scaled = scaling.apply(series.values[rows])
        # False for what is not a number, too; an infinite spread would make all of its column 0.
        usable = (np.abs(scaled) <= LARGEST_SCALED) & np.isfinite(scaling.spread)
    if not usable.all():
        column = np.argwhere(~usable)[0, 1]
        worst = np.abs(series.values[rows][:, column]).argmax()
        raise UserError(
            f"The column {series.columns[column]!r} of {series.name} holds numbers too large for a forecast, such as "
            f"{series.values[rows][worst, column]:g} at {series.dates[rows][worst]}: mend them, or choose other "
            "columns with --columns."
        )
    return scaled


def constant_columns(series: Series, rows: int) -> list[str]:
    """Columns that are constant in the first `rows` rows."""
    constant = is_constant(series.values[:rows])
    return [name for name, one in zip(series.columns, constant, strict=True) if one]


def choose_target(series: Series, target: str | None) -> str:
    """The column of univariate forecasts and of plots, unless one is named: `Series.default_target`."""
    if target is None:
        return series.default_target
    if target not in series.columns:
        raise UserError(
            f"`target` must be a column of numbers: got {target!r}, {series.name} has {', '.join(series.columns)}."
        )
    return target


def only_column(series: Series, name: str) -> Series:
    index = series.columns.index(name)
    return replace(series, values=series.values[:, index : index + 1], columns=(name,))


class Batch(NamedTuple):
    """What a forecaster is given, and what it should say."""

    past: Tensor
    """(B, L, C)."""
    past_time: Tensor
    """(B, L, F)."""
    future: Tensor
    """(B, P, C): the truth."""
    future_time: Tensor
    """(B, P, F)."""


class WindowedSeries:
    """A scaled series on a device, and the windows of each part.

    A window belongs to the part in which all of its forecast lies; its past may reach back into the part before, as in
    the published set-up. The parts that are `needed` must hold a window at least.
    """

    def __init__(
        self,
        series: Series,
        split: Split,
        scaling: Scaling,
        past: int,
        horizon: int,
        device: torch.device | str = "cpu",
        needed: Sequence[Part] = ("train", "valid", "test"),
    ) -> None:
        self.series, self.split, self.scaling = series, split, scaling
        self.past, self.horizon = past, horizon
        scaled = scaled_values(series, scaling, slice(split.test_end))
        self.values_TC = torch.tensor(scaled, dtype=torch.float32, device=device)
        times = time_features(series.dates[: split.test_end], series.step)
        self.times_TF = torch.tensor(times, dtype=torch.float32, device=device)
        self.offsets = torch.arange(past + horizon, device=device)
        for part in needed:
            if len(self._starts(part)) < 1:
                way_out = ", a shorter --past or --horizon, or another --split" if "train" in needed else ""
                raise UserError(
                    f"The {part} part of {series.name} is too short: it has {self._rows(part)} rows, a window takes "
                    f"{past + horizon if part == 'train' else horizon}; give a longer file{way_out}."
                )

    @property
    def channels(self) -> int:
        return self.values_TC.shape[1]

    def _bounds(self, part: str) -> tuple[int, int]:
        train_end, valid_end, test_end = self.split
        return {"train": (0, train_end), "valid": (train_end, valid_end), "test": (valid_end, test_end)}[part]

    def _rows(self, part: str) -> int:
        first, end = self._bounds(part)
        return max(0, end - first)

    def _starts(self, part: str) -> range:
        first, end = self._bounds(part)
        first_start = first if part == "train" else first - self.past
        return range(max(0, first_start), end - self.past - self.horizon + 1)

    def starts(self, part: Part) -> Tensor:
        """The first row of every window of a part, in the order of time."""
        found = self._starts(part)
        return torch.arange(found.start, found.stop, device=self.offsets.device)

    def batch(self, starts_B: Tensor) -> Batch:
        rows = starts_B[:, None] + self.offsets
        values, times = self.values_TC[rows], self.times_TF[rows]
        return Batch(values[:, : self.past], times[:, : self.past], values[:, self.past :], times[:, self.past :])
