"""A column of dates as it was meant: day or month first, local time or UTC, settled by which of them is regular."""

import warnings
from pathlib import Path

import numpy as np
import pandas as pd

from recurrify.errors import UserError

MOST_MISSING = 0.05
"""The largest share of the rows of a regular grid that may be missing from it."""
ZONE = r"(\d:\d\d(?:[:.]\d+)*)\s*(?:Z|[+-]\d\d(?::?\d\d)?)\s*$"
"""A time of day and the time zone behind it."""


def read_dates(path: Path, column: pd.Series) -> tuple[pd.DatetimeIndex, list[str]]:
    """The dates of a column of texts, and a sentence for each thing that was decided on the way."""
    name = column.name
    missing = column.isna().to_numpy()
    if missing.any():
        raise UserError(f"{path} has no date in line {line_of(missing)} (column {name!r}): add it, or delete the line.")
    if pd.to_numeric(column, errors="coerce").notna().all():
        raise UserError(
            f"The column {name!r} of {path} holds numbers such as {column.iloc[0]}, not dates such as "
            "2016-07-01 00:00: name the right column with --date-column, or write dates."
        )
    readings = _readings(column)
    if not readings:
        bad = pd.to_datetime(column, errors="coerce", format="mixed", utc=True).isna().to_numpy()
        where = f"line {line_of(bad)} has {column[bad].iloc[0]!r}" if bad.any() else f"the first is {column.iloc[0]!r}"
        raise UserError(
            f"The dates in column {name!r} of {path} cannot all be read in one way ({where}): write them like "
            "2016-07-01 00:00, or name the right column with --date-column."
        )
    day_first, dates = _likeliest(path, column, readings)
    told = [f"dates such as {column.iloc[0]} were read with the day first"] if day_first and len(readings) > 1 else []
    if dates.tz is not None:
        dates, without_zone = _without_zone(column, dates, day_first)
        told.append(without_zone)
    return dates, told


def line_of(bad: np.ndarray) -> int:
    """The line in the file of the first row marked; the header is line 1."""
    return int(np.argmax(bad)) + 2


def regular_step(dates: pd.DatetimeIndex) -> str | None:
    """The step of dates that have one, as pandas writes it: h, 15min, D, MS, …"""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # newer pandas warns that it will give an object instead of a text
        found = pd.infer_freq(dates) if len(dates) > 2 else None
    return None if found is None else str(getattr(found, "freqstr", found))


def _readings(column: pd.Series) -> dict[bool, pd.DatetimeIndex]:
    """The different dates that the texts may mean, by whether the day comes first."""
    if column.str.match(r"\s*\d{4}\D").all():
        # Dates that begin with the year go on with the month; ISO's may differ in how much of the time they tell.
        dates = _as_dates(column, format="ISO8601")
        dates = _as_dates(column) if dates is None else dates
        return {} if dates is None else {False: dates}
    readings: dict[bool, pd.DatetimeIndex] = {}
    for day_first in (False, True):
        dates = _as_dates(column, dayfirst=day_first)
        if dates is not None and not any(dates.equals(other) for other in readings.values()):
            readings[day_first] = dates
    return readings


def _as_dates(column: pd.Series, **how: str | bool) -> pd.DatetimeIndex | None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # pandas doubts the order of day and month, which is settled by trying both
        for zoned in (False, True):
            try:
                return pd.DatetimeIndex(pd.to_datetime(column, utc=zoned, **how))
            except (ValueError, TypeError, OverflowError):
                continue
    return None


def _likeliest(path: Path, column: pd.Series, readings: dict[bool, pd.DatetimeIndex]) -> tuple[bool, pd.DatetimeIndex]:
    """1/2/2010 may be in January or in February: the reading with a regular step is right."""
    regular = [day_first for day_first, dates in readings.items() if _is_regular(dates)]
    if len(regular) > 1:
        raise UserError(
            f"Dates such as {column.iloc[-1]} in column {column.name!r} of {path} may begin with the day or with the "
            "month, and either is regular: write them like 2016-07-01."
        )
    if regular:
        return regular[0], readings[regular[0]]
    return min(readings.items(), key=lambda one: len(np.unique(np.diff(one[1].to_numpy()))))


def _is_regular(dates: pd.DatetimeIndex) -> bool:
    """Whether the dates lie on a grid of equal steps, months or business days, or nearly all of such a grid."""
    dates = dates.unique().sort_values()
    if len(dates) < 3:
        return False
    if regular_step(dates) is not None:
        return True
    months = (dates.year * 12 + dates.month).to_numpy()
    if dates.day.nunique() == 1 and (np.diff(months) == 1).all():
        return True
    steps = np.diff(dates.to_numpy())
    step = pd.Series(steps).mode().iloc[0].to_timedelta64()
    rows = round((dates[-1] - dates[0]) / step) + 1
    on_grid = ((dates - dates[0]) % step == pd.Timedelta(0)).all()
    return bool(on_grid) and rows - len(dates) <= MOST_MISSING * rows


def _without_zone(column: pd.Series, dates: pd.DatetimeIndex, day_first: bool) -> tuple[pd.DatetimeIndex, str]:
    """Days and longer steps keep their local dates; shorter ones go by UTC, which no clock change interrupts."""
    in_utc = dates.tz_convert("UTC").tz_localize(None)
    bare = column.str.replace(ZONE, r"\1", regex=True)
    local = _readings(bare).get(day_first)
    if local is not None and local.tz is None and _is_regular(local):
        step = pd.Timedelta(np.median(np.diff(local.unique().sort_values().to_numpy())))
        if step >= pd.Timedelta(days=1) or not _is_regular(in_utc):
            return local, "the time zone was left out of the dates, which stay those of the local clock"
    return in_utc, "dates with a time zone were turned into UTC"
