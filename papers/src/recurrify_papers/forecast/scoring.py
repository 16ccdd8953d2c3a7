"""Backtests of forecasters: errors on every window, intervals by quantile tracking, and scores.

Shapes: N windows, P rows to forecast, C columns, V levels of intervals.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
import torch
from torch import nn

from recurrify_papers.forecast.data import Part, WindowedSeries, spread_before

LEVELS = (50, 80, 90, 95)
"""Percent of the truth that intervals should hold."""
EVALUATION_BATCH = 128
MOST_NUMBERS = 2**24
"""Forecast numbers kept at once; with more, fewer windows are scored, spread evenly."""
SLOW_WINDOWS = 40
"""Windows scored for models that are fitted to each window."""
TRACKING = 1.5
"""Step of the tracking, times the root of the number of validation windows; chosen on halves of validation parts."""


@dataclass(frozen=True)
class Backtest:
    """Forecasts of a part and the truth, in scaled units."""

    first_rows: np.ndarray
    """(N,): row of the series at which each forecast begins."""
    forecast: np.ndarray
    """(N, P, C)."""
    truth: np.ndarray
    spread: np.ndarray
    """(N, 1, C): of the rows before each forecast. Intervals are calibrated on errors divided by it."""

    @property
    def errors(self) -> np.ndarray:
        return np.abs(self.forecast - self.truth)

    def at(self, first_rows: np.ndarray) -> "Backtest":
        """These windows alone."""
        kept = np.isin(self.first_rows, first_rows)
        return Backtest(self.first_rows[kept], self.forecast[kept], self.truth[kept], self.spread[kept])

    @property
    def mse(self) -> float:
        return float(np.mean(self.errors**2, dtype=np.float64))

    @property
    def mae(self) -> float:
        return float(np.mean(self.errors, dtype=np.float64))


def joined(parts: Sequence[Backtest]) -> Backtest:
    """One backtest after the other, in order of time."""
    columns = zip(*((one.first_rows, one.forecast, one.truth, one.spread) for one in parts), strict=True)
    return Backtest(*map(np.concatenate, columns))


@torch.inference_mode()
def backtest(model: nn.Module, data: WindowedSeries, part: Part, windows: int | None = None) -> Backtest:
    """Forecast every window of a part, or `windows` of them spread evenly."""
    model.eval()
    data = data.with_past(model.config.past)  # type: ignore[arg-type, union-attr]
    data.check(part)
    most = SLOW_WINDOWS if hasattr(model, "is_slow") else max(1, MOST_NUMBERS // (data.horizon * data.channels))
    starts = data.starts(part, min(windows or most, most))
    floor_C = torch.tensor(data.scaling.floor, dtype=torch.float32, device=starts.device)
    found = []
    for batch in map(data.batch, starts.split(EVALUATION_BATCH)):
        # No forecast is below what a column could be in training, unless the past already is.
        lowest = torch.minimum(batch.past.amin(dim=1, keepdim=True), floor_C)
        forecast = model(batch.past, batch.past_time, batch.future_time).float().maximum(lowest)
        found.append((forecast, batch.future))
    forecasts, truth = (torch.cat(parts).cpu().numpy() for parts in zip(*found, strict=True))
    first_rows = starts.cpu().numpy() + data.past
    spread = spread_before(data.values_TC.cpu().numpy(), first_rows, data.spread_rows)
    return Backtest(first_rows, forecasts, truth, spread)


def tracked_intervals(earlier: Backtest, later: Backtest) -> tuple[np.ndarray, np.ndarray]:
    """(V, N, P, C) half-widths of the later forecasts, and (V, P, C) for one after them, in spreads.

    They begin as split conformal intervals of the earlier errors. Then each step ahead and column is corrected as soon
    as its truth is known: a miss widens the interval and a hit narrows it, in a proportion that is balanced at the
    wanted coverage (online quantile tracking, Angelopoulos et al., 2023, of the logarithm).
    """
    past, errors = earlier.errors / earlier.spread, later.errors / later.spread
    miss_rate = 1 - np.array(LEVELS)[:, None, None] / 100
    ranks = np.ceil((len(past) + 1) * (1 - miss_rate.ravel())).astype(int)
    half_VPC = np.sort(past, axis=0)[np.minimum(ranks, len(past)) - 1].clip(min=1e-9)
    rate = TRACKING / np.sqrt(len(past))
    half_VNPC = np.empty((len(LEVELS), *errors.shape), dtype=errors.dtype)
    steps = np.arange(errors.shape[1])
    ends = later.first_rows[:, None] + steps  # (N, P): the row of each truth
    known_P = np.zeros_like(steps)  # how many errors of each step ahead have been used
    for index, first in enumerate([*later.first_rows, ends[-1, -1] + 1]):
        while (ready := (known_P < len(ends)) & (ends[known_P.clip(max=len(ends) - 1), steps] < first)).any():
            at = known_P[ready], steps[ready]
            half_VPC[:, ready] *= np.exp(rate * ((errors[at] > half_VNPC[:, *at]) - miss_rate))
            known_P += ready
        half_VPC = np.maximum.accumulate(half_VPC)
        if index < len(ends):
            half_VNPC[:, index] = half_VPC
    return half_VNPC * later.spread, half_VPC


def scaled_crps(found: Backtest, data: WindowedSeries, half_VNPC: np.ndarray) -> np.ndarray:
    """(C,): quantile losses of the intervals, divided by the mean absolute value."""
    off, losses_C = found.truth - found.forecast, np.zeros(data.channels)
    for level, half in zip(LEVELS, half_VNPC, strict=True):
        lower = (1 - level / 100) / 2
        for quantile, distance in ((lower, off + half), (1 - lower, off - half)):
            losses_C += np.maximum(quantile * distance, (quantile - 1) * distance).mean(axis=(0, 1), dtype=np.float64)
    size_C = np.abs(data.scaling.undo(found.truth.astype(np.float64))).mean(axis=(0, 1))
    return data.scaling.spread * losses_C / len(LEVELS) / np.maximum(size_C, np.finfo(float).eps)


def scores(found: Backtest, data: WindowedSeries, season: int, half_VNPC: np.ndarray | None = None) -> dict[str, Any]:
    """Every score as plain numbers, as utilsforecast defines them; `mse` and `mae` are on scaled values."""
    names, train_TC, spread_C = list(data.series.columns), data.train_values, data.scaling.spread
    lag = season if season < len(train_TC) else 1
    truth, forecast = (data.scaling.undo(part.astype(np.float64)) for part in (found.truth, found.forecast))
    with np.errstate(all="ignore"):  # a column may be constant in training
        errors, sizes = np.abs(truth - forecast), np.abs(truth) + np.abs(forecast)
        mae_C, mse_C = errors.mean(axis=(0, 1)), (errors**2).mean(axis=(0, 1))
        by_column = {
            "mae": mae_C / spread_C,
            "mase": mae_C / np.abs(train_TC[lag:] - train_TC[:-lag]).mean(axis=0),
            "mse": mse_C / spread_C**2,
            "smape": np.divide(errors, sizes, out=np.zeros_like(errors), where=sizes > 0).mean(axis=(0, 1)),
            "mae_original": mae_C,
            "mse_original": mse_C,
        }
    scored = pd.DataFrame(by_column, index=names).replace([np.inf, -np.inf], np.nan)
    if half_VNPC is not None:
        scored = scored.assign(crps=scaled_crps(found, data, half_VNPC))
    steps = found.errors.astype(np.float64)
    result: dict[str, Any] = {"part": "test", "windows": len(found.truth)}
    result |= {"columns": scored.to_dict("index")} | scored.mean().to_dict()
    result |= {"mse_by_horizon": (steps**2).mean(axis=(0, 2)).tolist()}
    result |= {"mae_by_horizon": steps.mean(axis=(0, 2)).tolist()}
    if half_VNPC is not None:
        is_held = found.errors <= half_VNPC
        by_step_VP, by_column_VC = is_held.mean(axis=(1, 3)), is_held.mean(axis=(1, 2))
        result["coverage"] = [
            {"level": level, "held": of_columns.mean(), "by_horizon": of_steps.tolist(), "by_column": of_column}
            for level, of_steps, of_columns in zip(LEVELS, by_step_VP, by_column_VC, strict=True)
            for of_column in [dict(zip(names, of_columns.tolist(), strict=True))]
        ]
    return result
