"""Backtests of forecasters: errors on every window, conformal intervals, and the field's metrics.

Shapes: N windows, P rows to forecast, C columns, V levels of intervals.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from recurrify_papers.forecast.data import Batch, Part, WindowedSeries, spread_before

LEVELS = (0.5, 0.8, 0.9, 0.95)
QUANTILES = sorted([0.5, *((1 - level) / 2 for level in LEVELS), *((1 + level) / 2 for level in LEVELS)])
EVALUATION_BATCH = 128
MOST_NUMBERS = 2**24
"""Forecast numbers kept at once; with more, fewer windows are scored, spread evenly."""
SLOW_WINDOWS = 40
"""Windows scored for models that are fitted to each window."""
RECALIBRATIONS = 64
"""In a backtest, how often intervals are calibrated again on the latest errors."""
ENOUGH_ERRORS = 2000
"""For one calibration; errors of windows that lie side by side are much alike."""


def call(model: nn.Module, batch: Batch) -> Tensor:
    forecast: Tensor = model(batch.past, batch.past_time, batch.future_time)
    return forecast.float()


@torch.inference_mode()
def mean_squared_error(model: nn.Module, data: WindowedSeries, part: Part, windows: int | None = None) -> float:
    """On scaled values, over all windows or `windows` of them, all rows and columns."""
    model.eval()
    total, count = torch.zeros((), dtype=torch.float64, device=data.values_TC.device), 0
    for starts_B in data.starts(part, windows).split(EVALUATION_BATCH):
        batch = data.batch(starts_B)
        total += (call(model, batch) - batch.future).double().square().sum()
        count += batch.future.numel()
    return total.item() / count


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


def joined(parts: Sequence[Backtest]) -> Backtest:
    """One backtest after the other, in order of time."""
    columns = zip(*((one.first_rows, one.forecast, one.truth, one.spread) for one in parts), strict=True)
    return Backtest(*map(np.concatenate, columns))


def is_slow(model: nn.Module) -> bool:
    return bool(getattr(model, "is_slow", False))


@torch.inference_mode()
def backtest(model: nn.Module, data: WindowedSeries, part: Part, windows: int | None = None) -> Backtest:
    """Forecast every window of a part, or `windows` of them spread evenly."""
    model.eval()
    data = data.with_past(model.config.past)  # type: ignore[arg-type, union-attr]
    data.check(part)
    most = SLOW_WINDOWS if is_slow(model) else max(1, MOST_NUMBERS // (data.horizon * data.channels))
    starts = data.starts(part, min(windows or most, most))
    found = [(call(model, batch), batch.future) for batch in map(data.batch, starts.split(EVALUATION_BATCH))]
    forecast, truth = (torch.cat(parts).cpu().numpy() for parts in zip(*found, strict=True))
    first_rows = starts.cpu().numpy() + data.past
    return Backtest(
        first_rows, forecast, truth, spread_before(data.values_TC.cpu().numpy(), first_rows, data.spread_rows)
    )


def calibrated(errors_NPC: np.ndarray, levels: Sequence[float] = LEVELS) -> np.ndarray:
    """(V, P, C): half-widths of split conformal intervals, from the absolute errors of past forecasts.

    With n errors the half-width is the ceil((n + 1) * level)-th smallest, or the largest if there are too few.
    """
    count = len(errors_NPC)
    ranks = [min(count, int(np.ceil((count + 1) * level))) - 1 for level in levels]
    return np.partition(errors_NPC, sorted(set(ranks)), axis=0)[ranks]


def rolling_intervals(earlier: Backtest, later: Backtest, levels: Sequence[float] = LEVELS) -> np.ndarray:
    """(V, N, P, C): half-widths for the later forecasts, each from errors that were known when it was made.

    They are calibrated on as many of the latest errors as validation has, and again as the backtest moves on. If the
    intervals have held more or less than their level so far, the level is corrected by the difference.
    """
    first_rows = np.concatenate([earlier.first_rows, later.first_rows])
    later_errors = later.errors / later.spread
    errors = np.concatenate([earlier.errors / earlier.spread, later_errors])
    horizon, kept = errors.shape[1], len(earlier.first_rows)
    blocks = np.array_split(np.arange(len(later.first_rows)), min(RECALIBRATIONS, len(later.first_rows)))
    half_VNPC = np.zeros((len(levels), *later.forecast.shape), dtype=errors.dtype)
    for block in blocks:
        known = max(1, int(np.searchsorted(first_rows, later.first_rows[block[0]] - horizon, side="right")))
        wanted = np.array(levels)
        seen = slice(max(0, known - 2 * kept), max(0, known - kept))  # of the later forecasts
        if seen.stop >= kept // 4 and seen.stop:
            wanted = wanted * 2 - (later_errors[seen] <= half_VNPC[:, seen]).mean(axis=(1, 2, 3))
        latest = slice(max(0, known - kept), known, max(1, kept // ENOUGH_ERRORS))
        half_VPC = calibrated(errors[latest], np.clip(wanted, 0.01, 0.999))
        half_VNPC[:, block] = half_VPC[:, None]
    return half_VNPC * later.spread


def scores(
    found: Backtest, data: WindowedSeries, season: int, half_VNPC: np.ndarray | None = None, part: str = "test"
) -> dict[str, Any]:
    """Every score as plain numbers. `mse` and `mae` are on scaled values, the others on original ones.

    MASE, sMAPE (0 to 1) and scaled CRPS are defined as in utilsforecast, averaged over columns.
    """
    error, spread_C = found.forecast - found.truth, data.scaling.spread
    squared_PC, absolute_PC = (np.mean(one, axis=0, dtype=np.float64) for one in (error**2, np.abs(error)))
    forecast, truth = (data.scaling.undo(one.astype(np.float64)) for one in (found.forecast, found.truth))
    train = data.train_values
    lag = season if season < len(train) else 1
    naive_C = np.abs(train[lag:] - train[:-lag]).mean(axis=0)
    size = np.abs(forecast) + np.abs(truth)
    smape_C = np.divide(np.abs(forecast - truth), size, out=np.zeros_like(size), where=size > 0).mean(axis=(0, 1))
    columns = {
        "mse": squared_PC.mean(axis=0),
        "mae": absolute_PC.mean(axis=0),
        "mse_original": squared_PC.mean(axis=0) * spread_C**2,
        "mae_original": absolute_PC.mean(axis=0) * spread_C,
        "mase": np.divide(
            absolute_PC.mean(axis=0) * spread_C, naive_C, out=np.full_like(naive_C, np.nan), where=naive_C > 0
        ),
        "smape": smape_C,
    }
    result: dict[str, Any] = {"part": part, "windows": len(truth)}
    if half_VNPC is not None:
        half = half_VNPC * spread_C
        columns["crps"] = scaled_crps(forecast, truth, half)
        held_VPC = (np.abs(error)[None] <= half_VNPC).mean(axis=1)
        result["coverage"] = [
            {
                "level": level,
                "held": float(held_PC.mean()),
                "by_horizon": held_PC.mean(axis=1).tolist(),
                "by_column": dict(zip(data.series.columns, held_PC.mean(axis=0).tolist(), strict=True)),
            }
            for level, held_PC in zip(LEVELS, held_VPC, strict=True)
        ]
    result |= {name: float(np.nanmean(values)) if len(values) else None for name, values in columns.items()}
    result["columns"] = {
        column: {name: float(values[index]) for name, values in columns.items()}
        for index, column in enumerate(data.series.columns)
    }
    return result | {
        "mse_by_horizon": squared_PC.mean(axis=1).tolist(),
        "mae_by_horizon": absolute_PC.mean(axis=1).tolist(),
    }


def scaled_crps(forecast: np.ndarray, truth: np.ndarray, half_VNPC: np.ndarray) -> np.ndarray:
    """(C,): twice the mean quantile loss over `QUANTILES`, divided by the mean absolute value."""
    signs = {0.5: np.zeros_like(forecast)}
    for level, half in zip(LEVELS, half_VNPC, strict=True):
        signs |= {(1 - level) / 2: -half, (1 + level) / 2: half}
    losses = []
    for quantile in QUANTILES:
        error = truth - (forecast + signs[quantile])
        losses.append(np.maximum(quantile * error, (quantile - 1) * error).mean(axis=(0, 1)))
    return 2 * np.mean(losses, axis=0) / (np.abs(truth).mean(axis=(0, 1)) + np.finfo(np.float64).eps)
