"""Split, scale and cut a series into windows on the device: a batch is picked from a view of all windows.

Shapes: T rows of the file, C columns, F time features, B batch, L rows of past, P rows to forecast.
"""

import copy
import math
from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from recurrify import UserError
from recurrify_papers.forecast.reading import Series

Part = Literal["train", "valid", "test"]
ETT_COLUMNS = {"HUFL", "HULL", "MUFL", "MULL", "LUFL", "LULL", "OT"}
ETT_STEPS = (pd.Timedelta(hours=1), pd.Timedelta(minutes=15))
ETT_SPLIT, LONG_SPLIT, SHORT_SPLIT = "12/4/4 months", "0.7/0.1/0.2", "0.6/0.2/0.2"
ETT_DAYS = 20 * 30
"""What that split takes."""
LONG = 1000
"""Rows from which 10 % are enough for validation."""
MINUTE, HOUR, DAY, WEEK, MONTH = (pd.Timedelta(one) for one in ("1min", "1h", "1D", "7D", "28D"))
LONGEST_DEFAULT = 96
"""Rows of a forecast by default."""
LEAST_SPREAD = 0.1
"""Of the rows before a forecast, in scaled units; intervals get no narrower where a series rests."""
OFTEN = 0.01
"""Share of zeros in a column that has no negative value, from which its forecasts are not negative either."""
LARGEST_SCALED = 1e15
"""Errors are squared and summed in float32, which ends near 3e38."""


def time_features(dates: pd.DatetimeIndex, step: pd.Timedelta) -> np.ndarray:
    """(T, F): position in minute, hour, day, week, month and year, from -0.5 to 0.5; only what varies at this step."""
    finest_first = [
        (step < MINUTE, dates.second / 59),
        (step < HOUR, dates.minute / 59),
        (step < DAY, dates.hour / 23),
        (step < WEEK, dates.day_of_week / 6),
        (step < MONTH, (dates.day - 1) / 30),
        (step < MONTH, (dates.day_of_year - 1) / 365),
        (step >= MONTH, (dates.month - 1) / 11),
    ]
    return np.stack([np.asarray(values, dtype=np.float32) - 0.5 for wanted, values in finest_first if wanted], axis=1)


def usual_season(series: Series) -> int:
    """Steps after which such data usually repeats: a day, for days a week, for longer steps a year; 1 is none."""
    if series.frequency == "B":
        return 5
    step = series.step
    length = DAY if step < DAY else WEEK if step < WEEK else pd.Timedelta(days=365)
    return max(1, round(length / step))


def default_horizon(series: Series) -> int:
    """A day for steps below a day, two weeks for days, a quarter for weeks, a year for months."""
    season = usual_season(series)
    wanted = {5: 10, 7: 14, 52: 13, 1: 4, 4: 8}.get(season, min(season, LONGEST_DEFAULT))
    return max(1, min(wanted, len(series.dates) // 12))


class Split(NamedTuple):
    """Rows up to each of these (exclusive) belong to training, then validation, then test."""

    train_end: int
    valid_end: int
    test_end: int


def split_rows(series: Series, split: str) -> Split:
    """`auto`, months of 30 days such as `12/4/4 months`, or shares such as `0.7/0.1/0.2`.

    `auto` is the published split of ETT for files with its columns, step and length, otherwise shares.
    """
    rows = len(series.dates)
    if split == "auto":
        is_ett = set(series.file_columns) >= ETT_COLUMNS and series.step in ETT_STEPS and days_of(series) >= ETT_DAYS
        split = ETT_SPLIT if is_ett else LONG_SPLIT if rows >= LONG else SHORT_SPLIT
    parts, _, unit = split.partition(" ")
    try:
        sizes = [float(part) for part in parts.split("/")]
    except ValueError:
        sizes = []
    if len(sizes) != 3 or not all(0 < size < math.inf for size in sizes) or unit not in ("", "months"):
        raise UserError(f"`split` must be like 12/4/4 months, or shares like 0.7/0.1/0.2, or auto: got {split!r}.")
    if not unit:
        if abs(sum(sizes) - 1) > 1e-6:
            raise UserError(f"The shares of `split` must add up to 1: got {split!r}.")
        return Split(int(rows * sizes[0]), rows - int(rows * sizes[2]), rows)
    days = np.cumsum(sizes) * 30
    if days[-1] > days_of(series):
        raise UserError(
            f"{series.name} has {days_of(series):,.0f} days, too few for {split!r}: use shares like 0.7/0.1/0.2."
        )
    ends = [int(series.dates.searchsorted(series.dates[0] + pd.Timedelta(days=float(count)))) for count in days]
    return Split(*ends)


def days_of(series: Series) -> float:
    return float((series.dates[-1] + series.step - series.dates[0]) / DAY)


@dataclass(frozen=True)
class Scaling:
    """From original units to mean 0 and standard deviation 1, by the training rows alone."""

    mean: np.ndarray
    """(C,)."""
    spread: np.ndarray
    """(C,); 1 for a column that is constant in training."""
    known_mean: np.ndarray
    """(K,): of the known covariates."""
    known_spread: np.ndarray
    floor: np.ndarray
    """(C,), scaled: 0 for a column that often is 0 and never below (counts, power, rain), otherwise very low."""

    @classmethod
    def of(cls, series: Series, rows: int) -> "Scaling":
        """By the first `rows` rows."""
        known = series.known.reindex(series.dates[:rows]).to_numpy(dtype=float)
        values = series.values[:rows]
        mean, spread = _moments(values)
        is_bounded = (values.min(axis=0) == 0) & (np.mean(values == 0, axis=0) >= OFTEN)
        floor = np.where(is_bounded, -mean / spread, -LARGEST_SCALED)
        return cls(mean, spread, *_moments(known), floor)

    def apply(self, series: Series) -> np.ndarray:
        """Raises `UserError` if a value is too large for float32 arithmetic."""
        with np.errstate(all="ignore"):
            scaled = (series.values - self.mean) / self.spread
            usable = ((np.abs(scaled) <= LARGEST_SCALED) & np.isfinite(self.spread)).all(axis=0)
        if not usable.all():
            column = series.columns[int(np.argmin(usable))]
            raise UserError(f"The column {column!r} of {series.name} has values too large to forecast: correct them.")
        return scaled

    def undo(self, scaled: np.ndarray) -> np.ndarray:
        return scaled * self.spread + self.mean


def _moments(values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    with np.errstate(over="ignore", invalid="ignore"):
        spread = values.std(axis=0)
        return values.mean(axis=0), np.where((np.ptp(values, axis=0) == 0) | (spread == 0), 1.0, spread)


def spread_before(values_TC: np.ndarray, first_rows: np.ndarray, rows: int) -> np.ndarray:
    """(N, 1, C): the standard deviation of the `rows` rows before each of the first rows; 1 if `rows` is 0."""
    if not rows:
        return np.ones((len(first_rows), 1, values_TC.shape[1]), dtype=values_TC.dtype)
    before_NCR = np.lib.stride_tricks.sliding_window_view(values_TC, rows, axis=0)[first_rows - rows]
    return np.sqrt(before_NCR.var(axis=-1) + LEAST_SPREAD**2)[:, None]


class Batch(NamedTuple):
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
    the published set-up.
    """

    def __init__(
        self,
        series: Series,
        split: Split,
        scaling: Scaling,
        past: int,
        horizon: int,
        device: torch.device | str = "cpu",
    ) -> None:
        self.series, self.split, self.scaling = series, split, scaling
        self.past, self.horizon = past, horizon
        values_TC = np.ascontiguousarray(scaling.apply(series))  # or sums would be rounded differently
        self.values_TC = torch.tensor(values_TC, dtype=torch.float32, device=device)
        self.times_TF = torch.tensor(all_times(series, series.dates, scaling), device=device)
        season = max(usual_season(series), horizon)
        self.spread_rows = min(season, split.train_end) if self.is_short else 0

    def with_past(self, past: int) -> "WindowedSeries":
        """The same series in windows with another past; the forecasts of validation and test stay at the same rows."""
        other = copy.copy(self)
        other.past = past
        return other

    def with_validation(self) -> "WindowedSeries":
        """The same series with training and validation as one training part."""
        other = copy.copy(self)
        other.split = Split(self.split.valid_end, self.split.valid_end, self.split.test_end)
        return other

    def folds(self) -> list["WindowedSeries"]:
        """A short file is validated on an earlier part, too: one odd year must not choose the model."""
        train_end, valid_end, _ = self.split
        earlier = copy.copy(self)
        earlier.split = Split(2 * train_end - valid_end, train_end, valid_end)
        needed = 2 * max(usual_season(self.series), self.horizon) + self.horizon
        return [earlier, self] if self.is_short and earlier.split.train_end >= needed else [self]

    def check(self, part: Part) -> None:
        """Raise `UserError` if a part has no window."""
        if not len(self._starts(part)):
            first, end = self._bounds(part)
            raise UserError(
                f"The {part} part of {self.series.name} is too short: {max(0, end - first)} rows, and a window takes "
                f"{self.past + self.horizon if part == 'train' else self.horizon}; use a longer file, a shorter --past "
                "or --horizon, or another --split."
            )

    @property
    def channels(self) -> int:
        return self.values_TC.shape[1]

    @property
    def is_short(self) -> bool:
        return len(self.series.dates) < LONG

    @property
    def train_values(self) -> np.ndarray:
        return self.series.values[: self.split.train_end]

    def _bounds(self, part: Part) -> tuple[int, int]:
        train_end, valid_end, test_end = self.split
        return {"train": (0, train_end), "valid": (train_end, valid_end), "test": (valid_end, test_end)}[part]

    def _starts(self, part: Part) -> range:
        first, end = self._bounds(part)
        first_start = first if part == "train" else first - self.past
        return range(max(0, first_start), end - self.past - self.horizon + 1)

    def starts(self, part: Part, most: int | None = None) -> Tensor:
        """The first row of every window of a part in order of time, or of `most` windows spread evenly over it."""
        found = self._starts(part)
        starts = torch.arange(found.start, max(found.start, found.stop), device=self.values_TC.device)
        if most is None or most >= len(starts):
            return starts
        return starts[torch.linspace(0, len(starts) - 1, most, dtype=torch.float64).round().long().to(starts.device)]

    def batch(self, starts_B: Tensor) -> Batch:
        windows = (part.unfold(0, self.past + self.horizon, 1) for part in (self.values_TC, self.times_TF))  # views
        values, times = (window.transpose(1, 2).index_select(0, starts_B) for window in windows)
        return Batch(values[:, : self.past], times[:, : self.past], values[:, self.past :], times[:, self.past :])


def all_times(series: Series, dates: pd.DatetimeIndex, scaling: Scaling) -> np.ndarray:
    """(T, F): time features, then the scaled known covariates."""
    times = time_features(dates, series.step)
    if not len(series.known.columns):
        return times
    missing = dates.difference(series.known.index)
    if len(missing):
        raise UserError(f"{series.name} needs its known covariates up to {dates[-1]}: add rows from {missing[0]} on.")
    known = (series.known.loc[dates].to_numpy(dtype=float) - scaling.known_mean) / scaling.known_spread
    return np.concatenate([times, known.astype(np.float32)], axis=1)
