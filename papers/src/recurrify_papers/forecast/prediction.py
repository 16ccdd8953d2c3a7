"""Beyond the end of a file: the forecast with its interval, in original units."""

import math
from dataclasses import replace

import numpy as np
import pandas as pd
import torch

from recurrify.errors import UserError
from recurrify_papers.forecast.calendar import time_features
from recurrify_papers.forecast.data import scaled_values
from recurrify_papers.forecast.reading import Series
from recurrify_papers.forecast.saving import Forecaster


def check_fits(forecaster: Forecaster, series: Series) -> None:
    """The file must hold the columns, the step and the rows that the model was made for."""
    missing = [name for name in forecaster.columns if name not in series.columns]
    if missing:
        raise UserError(f"{series.name} lacks the column {missing[0]!r}, which the model reads.")
    if series.frequency != forecaster.frequency:
        raise UserError(
            f"The step of {series.name} is {series.frequency!r}, that of the model {forecaster.frequency!r}: "
            "resample the file, or train another model."
        )
    if len(series.dates) < forecaster.past:
        raise UserError(
            f"{series.name} has {len(series.dates)} rows, but the model reads {forecaster.past}: give a longer file."
        )


def with_columns(series: Series, columns: tuple[str, ...]) -> Series:
    """The series with these columns only, in this order."""
    chosen = [series.columns.index(name) for name in columns]
    return replace(series, values=series.values[:, chosen], columns=columns)


def nearest_level(forecaster: Forecaster, level: float) -> int:
    """The place of an interval's level among those that were fitted."""
    levels = forecaster.intervals.levels
    found = [index for index, known in enumerate(levels) if abs(known - level) < 1e-9]
    if not found:
        raise UserError(f"`level` must be one of {', '.join(f'{known:g}' for known in levels)}: got {level:g}.")
    return found[0]


@torch.inference_mode()
def forecast_beyond(forecaster: Forecaster, series: Series, level: float = 0.9) -> pd.DataFrame:
    """One row for each step after the last date: each column's forecast, and the ends of its interval.

    The ends of `x` are `x_low` and `x_high`; where the file has such a column of its own, all ends get another name.
    """
    check_fits(forecaster, series)
    series = with_columns(series, forecaster.columns)
    place = nearest_level(forecaster, level)
    step = series.step
    later = pd.date_range(series.dates[-1], periods=forecaster.horizon + 1, freq=forecaster.frequency)[1:]
    past_LC = scaled_values(series, forecaster.scaling, slice(-forecaster.past, None))
    device = forecaster.intervals.half_widths.device
    inputs = [
        torch.tensor(part, dtype=torch.float32, device=device).unsqueeze(0)
        for part in (past_LC, time_features(series.dates[-forecaster.past :], step), time_features(later, step))
    ]
    forecast_PC = forecaster.model(*inputs)[0].double().cpu().numpy()
    half_PC = forecaster.intervals.half_widths[place].double().cpu().numpy()
    center = forecaster.scaling.undo(forecast_PC)
    half = half_PC * forecaster.scaling.spread
    low, high = interval_endings(forecaster.columns)
    table: dict[str, np.ndarray] = {}
    for index, name in enumerate(forecaster.columns):
        digits = min(300, 6 - math.floor(math.log10(forecaster.scaling.spread[index])))  # 10^309 is no number
        for ending, sign in (("", 0), (low, -1), (high, 1)):
            # Models compute with 32 bits: less than a millionth of a column's spread would be noise.
            table[f"{name}{ending}"] = (center[:, index] + sign * half[:, index]).round(digits)
    return pd.DataFrame(table, index=pd.DatetimeIndex(later, name=_free("date", forecaster.columns)))


def interval_endings(columns: tuple[str, ...]) -> tuple[str, str]:
    """What the ends of the intervals are called behind the name of a column: _low and _high, unless these are taken."""
    low, high = "_low", "_high"
    while {f"{name}{ending}" for name in columns for ending in (low, high)} & set(columns):
        low, high = f"_interval{low}", f"_interval{high}"
    return low, high


def _free(name: str, taken: tuple[str, ...]) -> str:
    while name in taken:
        name = f"forecast_{name}"
    return name
