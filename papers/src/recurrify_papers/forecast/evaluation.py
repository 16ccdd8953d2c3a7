"""Errors on every window once, by horizon and by column, scaled and in original units; and intervals that are checked.

Shapes: N windows, B batch, P rows to forecast, C channels, V levels of intervals.
"""

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd
import torch
from torch import Tensor, nn

from recurrify.errors import UserError
from recurrify_papers.forecast.data import Batch, Part, WindowedSeries

LEVELS = (0.5, 0.8, 0.9, 0.95)
"""How much of the truth each interval should hold."""
EVALUATION_BATCH = 128
ERRORS_AT_ONCE = 2**27
"""Of the validation part, that are kept while intervals are fitted: half a gigabyte, twice while they are joined."""
PUBLISHED_BATCH = 32
"""With `as_published`, windows that do not fill a batch of this size are left out."""
SHOWN_WINDOWS = 4
SHOWN_LEVEL = 0.9


@torch.inference_mode()
def forecasts(
    model: nn.Module, data: WindowedSeries, part: Part, as_published: bool = False, windows: int | None = None
) -> Iterator[tuple[Tensor, Batch, Tensor]]:
    """Starts, batch and forecast of every window of a part, or of so many `windows` that are spread evenly over it;
    `as_published` leaves the last ones out."""
    model.eval()
    starts = data.starts(part)
    if windows is not None:
        starts = spread_evenly(starts, windows)
    if as_published:
        starts = starts[: len(starts) // PUBLISHED_BATCH * PUBLISHED_BATCH]
        if not len(starts):
            raise UserError(
                f"The {part} part has fewer than {PUBLISHED_BATCH} windows, which as published are not scored."
            )
    for starts_B in starts.split(EVALUATION_BATCH):
        batch = data.batch(starts_B)
        yield starts_B, batch, model(batch.past, batch.past_time, batch.future_time).float()


def spread_evenly(starts: Tensor, windows: int) -> Tensor:
    """So many of them from the first to the last, or all."""
    if windows >= len(starts):
        return starts
    return starts[torch.linspace(0, len(starts) - 1, windows, dtype=torch.float64).round().long().to(starts.device)]


def mean_squared_error(model: nn.Module, data: WindowedSeries, part: Part, windows: int | None = None) -> float:
    """On scaled values, over all windows or so many, all rows and columns."""
    total, count = torch.zeros((), dtype=torch.float64, device=data.values_TC.device), 0
    for _, batch, forecast in forecasts(model, data, part, windows=windows):
        total += (forecast - batch.future).double().square().sum()
        count += forecast.numel()
    return total.item() / count


@dataclass(frozen=True)
class Intervals:
    """Split conformal intervals: half-widths that held the given share of the validation errors.

    Each row ahead and each column has its own. Windows that overlap are not independent and the future need not be as
    the validation part was, so the share that is really held must be measured: see `coverage` of an evaluation.
    """

    levels: tuple[float, ...]
    half_widths: Tensor
    """(V, P, C), in scaled units."""
    windows: int | None = None
    """Of the validation part; None in models saved before it was written down."""

    def unreached(self) -> list[float]:
        """Levels for which there are too few windows: their intervals are as wide as the largest error seen."""
        return [] if self.windows is None else [one for one in self.levels if _rank(self.windows, one) > self.windows]

    def told_unreached(self) -> str | None:
        """The same in a sentence."""
        levels = self.unreached()
        if not levels:
            return None
        named = " and ".join(f"{level:.0%}" for level in levels)
        least = next(windows for windows in itertools.count(1) if _rank(windows, levels[-1]) <= windows)
        return (
            f"the {named} intervals are only as wide as the largest error on the {self.windows} validation windows, "
            f"and may hold less: {levels[-1]:.0%} takes at least {least} windows"
        )


def _rank(windows: int, level: float) -> int:
    """The place, from 1, of the smallest error that holds at least the level with one window more to come."""
    return math.ceil((windows + 1) * level)


def fit_intervals(model: nn.Module, data: WindowedSeries, levels: tuple[float, ...] = LEVELS) -> Intervals:
    """Where the errors of all rows ahead are too many to be kept, in several passes over the validation part."""
    count = len(data.starts("valid"))
    ranks = [min(count, _rank(count, level)) - 1 for level in levels]
    rows = max(1, ERRORS_AT_ONCE // (count * data.channels))
    half_widths: list[Tensor] = []
    for first in range(0, data.horizon, rows):
        errors_NPC = torch.cat(
            [
                (forecast - batch.future)[:, first : first + rows].abs()
                for _, batch, forecast in forecasts(model, data, "valid")
            ]
        )
        half_widths += [errors_NC.sort(dim=0).values[ranks] for errors_NC in errors_NPC.unbind(1)]
    return Intervals(levels, torch.stack(half_widths, dim=1), count)


class _Sums:
    """Errors summed over windows, kept apart by row and column."""

    def __init__(self, horizon: int, channels: int, levels: int, device: torch.device) -> None:
        self.windows = 0
        self.squared = torch.zeros(horizon, channels, dtype=torch.float64, device=device)
        self.absolute = torch.zeros_like(self.squared)
        self.held = torch.zeros(levels, horizon, channels, dtype=torch.float64, device=device)

    def add(self, error_BPC: Tensor, intervals: Intervals | None) -> None:
        self.windows += len(error_BPC)
        error_BPC = error_BPC.double()
        self.squared += error_BPC.square().sum(0)
        self.absolute += error_BPC.abs().sum(0)
        if intervals is not None:
            for index, half_width_PC in enumerate(intervals.half_widths):
                self.held[index] += (error_BPC.abs() <= half_width_PC).sum(0)


def evaluate_forecaster(
    model: nn.Module,
    data: WindowedSeries,
    intervals: Intervals | None = None,
    part: Part = "test",
    as_published: bool = False,
) -> dict[str, Any]:
    """Every score of one forecaster, as plain numbers."""
    levels = 0 if intervals is None else len(intervals.levels)
    sums = _Sums(data.horizon, data.channels, levels, data.values_TC.device)
    for _, batch, forecast in forecasts(model, data, part, as_published):
        sums.add(forecast - batch.future, intervals)
    squared_PC, absolute_PC = (sums.squared / sums.windows).cpu(), (sums.absolute / sums.windows).cpu()
    spread_C = torch.tensor(data.scaling.spread, dtype=torch.float64)
    columns = {
        name: {
            "mse": squared_PC[:, index].mean().item(),
            "mae": absolute_PC[:, index].mean().item(),
            "mse_original": (squared_PC[:, index].mean() * spread_C[index] ** 2).item(),
            "mae_original": (absolute_PC[:, index].mean() * spread_C[index]).item(),
        }
        for index, name in enumerate(data.series.columns)
    }
    found: dict[str, Any] = {
        "part": part,
        "windows": sums.windows,
        "as_published": as_published,
        "mse": squared_PC.mean().item(),
        "mae": absolute_PC.mean().item(),
        "mse_original": (squared_PC * spread_C**2).mean().item(),
        "mae_original": (absolute_PC * spread_C).mean().item(),
        "columns": columns,
        "mse_by_horizon": squared_PC.mean(1).tolist(),
        "mae_by_horizon": absolute_PC.mean(1).tolist(),
    }
    if intervals is not None:
        held_VPC = (sums.held / sums.windows).cpu()
        found["coverage"] = [
            {
                "level": level,
                "held": held_VPC[index].mean().item(),
                "by_horizon": held_VPC[index].mean(1).tolist(),
                "by_column": dict(zip(data.series.columns, held_VPC[index].mean(0).tolist(), strict=True)),
            }
            for index, level in enumerate(intervals.levels)
        ]
    return found


def _shown_starts(data: WindowedSeries, part: Part, first_dates: Sequence[pd.Timestamp]) -> Tensor:
    """Of the windows whose forecasts begin at these dates, or else of some that are spread evenly over the part."""
    starts = data.starts(part)
    if not first_dates:
        return spread_evenly(starts, SHOWN_WINDOWS)
    first, last = (data.series.dates[int(starts[place]) + data.past] for place in (0, -1))
    found = []
    for date in first_dates:
        if date not in data.series.dates or not first <= date <= last:
            raise UserError(
                f"No window of the {part} part begins at {date}: `windows` must lie from {first} to {last}."
            )
        found.append(data.series.dates.get_loc(date) - data.past)
    return torch.tensor(found, device=starts.device)


@torch.inference_mode()
def shown_windows(
    model: nn.Module,
    data: WindowedSeries,
    target: str,
    intervals: Intervals | None = None,
    part: Part = "test",
    first_dates: Sequence[pd.Timestamp] = (),
) -> list[dict[str, Any]]:
    """Forecasts of the target over the truth in original units, from these dates, or from some of the part."""
    model.eval()
    starts = _shown_starts(data, part, first_dates)
    batch = data.batch(starts)
    forecast_BPC = model(batch.past, batch.past_time, batch.future_time).float()
    column = data.series.columns.index(target)
    mean, spread = float(data.scaling.mean[column]), float(data.scaling.spread[column])

    def original(scaled: Tensor) -> list[float]:
        return (scaled.double() * spread + mean).tolist()

    shown = []
    for index, start in enumerate(starts.tolist()):
        center = forecast_BPC[index, :, column]
        first = start + data.past
        window: dict[str, Any] = {
            "column": target,
            "first_date": str(data.series.dates[first]),
            "last_date": str(data.series.dates[first + data.horizon - 1]),
            "past": original(batch.past[index, -2 * data.horizon :, column]),
            "truth": original(batch.future[index, :, column]),
            "forecast": original(center),
        }
        if intervals is not None:
            place = intervals.levels.index(min(intervals.levels, key=lambda level: abs(level - SHOWN_LEVEL)))
            half = intervals.half_widths[place, :, column].to(center.device)
            window |= {
                "level": intervals.levels[place],
                "low": original(center - half),
                "high": original(center + half),
            }
        shown.append(window)
    return shown
