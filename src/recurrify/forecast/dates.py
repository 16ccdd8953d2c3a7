"""A column of dates as it was meant: day or month first, local time or UTC, settled by which of them is regular."""

import warnings
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pandas as pd

from recurrify.errors import UserError

MOST_MISSING = 0.05
"""The largest share of the rows of a regular grid that may be missing from it."""
ZONE = r"(\d:\d\d(?:[:.]\d+)*)\s*(?:Z|[+-]\d\d(?::?\d\d)?)\s*$"
"""A time of day and the time zone behind it."""
SHORT_DATE = r"\s*\d{2}([-/.])\d{1,2}\1\d{2}(?!\d)"
"""Three numbers of which any may be the year."""
TIME_ALONE = r"\s*\d{1,2}:\d{2}(?::\d{2}(?:\.\d+)?)?\s*(?:[AaPp][Mm])?\s*"
MONTH_AND_NUMBER = r"\s*(?:[A-Za-z]{3,9}[-/. ](?:0?[1-9]|[12]\d|3[01])|(?:0?[1-9]|[12]\d|3[01])[-/. ][A-Za-z]{3,9})\s*"
"""Jan-01: the first of January, or January 2001."""
TWO_NUMBERS = r"\s*\d{1,2}[-/.]\d{1,2}\s*"


def read_dates(path: Path, column: pd.Series) -> tuple[pd.DatetimeIndex, list[str]]:
    """The dates of a column of texts, and a sentence for each thing that was decided on the way."""
    name = column.name
    missing = column.isna()
    if missing.any():
        line = line_of(column[missing])
        raise UserError(f"{path} has no date in line {line} (column {name!r}): add it, or delete the line.")
    if pd.to_numeric(column, errors="coerce").notna().all():
        raise UserError(
            f"The column {name!r} of {path} holds numbers such as {column.iloc[0]}, not dates such as "
            "2016-07-01 00:00: name the right column with --date-column, or write dates."
        )
    _check_whole(path, column)
    readings = _readings(column)
    if not readings:
        bad = pd.to_datetime(column, errors="coerce", format="mixed", utc=True).isna()
        where = f"the first is {column.iloc[0]!r}"
        if bad.any():
            where = f"line {line_of(column[bad])} has {column[bad].iloc[0]!r}"
        raise UserError(
            f"The dates in column {name!r} of {path} cannot all be read in one way ({where}): write them like "
            "2016-07-01 00:00, or name the right column with --date-column."
        )
    first, dates = _likeliest(path, column, readings)
    told = (
        [f"dates such as {column.iloc[0]} were read with the {first} first"] if _needs_telling(first, readings) else []
    )
    if dates.tz is not None:
        dates, without_zone = _without_zone(column, dates, first)
        told.append(without_zone)
    return dates, told


def _needs_telling(first: str, readings: Mapping[str, pd.DatetimeIndex]) -> bool:
    return len(readings) > 1 and first != "month"


def _check_whole(path: Path, column: pd.Series) -> None:
    """A time without a day, or a month with one small number, would be completed by guessing."""
    half = "a day or a year, but not both"
    for pattern, what in ((TIME_ALONE, "no day"), (MONTH_AND_NUMBER, half), (TWO_NUMBERS, half)):
        if column.str.fullmatch(pattern).all():
            raise UserError(
                f"The dates in column {column.name!r} of {path}, such as {column.iloc[0]!r}, have {what}: write them "
                "like 2016-07-01 00:00, or name the right column with --date-column."
            )


def line_of(marked: pd.Series) -> int:
    """The line in the file of the first of these cells, by its place among the rows; the header is line 1."""
    return int(marked.index[0]) + 2


def months_of(dates: pd.DatetimeIndex) -> pd.DatetimeIndex | None:
    """Dates on the same day of each month, and at the same time, moved to the first; None where they are not."""
    if dates.day.nunique() > 1 or (dates - dates.normalize()).nunique() > 1:
        return None
    return dates - pd.Timedelta(days=int(dates[0].day) - 1)


def regular_step(dates: pd.DatetimeIndex) -> str | None:
    """The step of dates that have one, as pandas writes it: h, 15min, D, MS, …"""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # newer pandas warns that it will give an object instead of a text
        found = pd.infer_freq(dates) if len(dates) > 2 else None
    return None if found is None else str(getattr(found, "freqstr", found))


def _readings(column: pd.Series) -> dict[str, pd.DatetimeIndex]:
    """The different dates that the texts may mean, by what comes first."""
    if column.str.match(r"\s*\d{4}\D").all():
        # Dates that begin with the year go on with the month; ISO's may differ in how much of the time they tell.
        dates = _as_dates(column, format="ISO8601")
        dates = _as_dates(column) if dates is None else dates
        return {} if dates is None else {"year": dates}
    ways: dict[str, dict[str, str | bool]] = {"month": {"dayfirst": False}, "day": {"dayfirst": True}}
    if column.str.match(SHORT_DATE).all():
        separator = column.str.extract(SHORT_DATE)[0].iloc[0]
        rest = column.str.replace(r"^\s*\S+", "", regex=True).str.strip().ne("").any()
        ways["year"] = {"format": "mixed", "yearfirst": True} if rest else {"format": f"%y{separator}%m{separator}%d"}
    readings: dict[str, pd.DatetimeIndex] = {}
    for first, how in ways.items():
        dates = _as_dates(column, **how)
        if dates is not None and not any(dates.equals(other) for other in readings.values()):
            readings[first] = dates
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


def _likeliest(path: Path, column: pd.Series, readings: Mapping[str, pd.DatetimeIndex]) -> tuple[str, pd.DatetimeIndex]:
    """1/2/2010 may be in January or in February: the reading with a regular step is right."""
    regular = [first for first, dates in readings.items() if _is_regular(dates)]
    if len(regular) > 1:
        ways = " or with the ".join(sorted(regular))
        raise UserError(
            f"Dates such as {column.iloc[-1]} in column {column.name!r} of {path} may begin with the {ways}, and "
            "either is regular: write them like 2016-07-01."
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


def _without_zone(column: pd.Series, dates: pd.DatetimeIndex, first: str) -> tuple[pd.DatetimeIndex, str]:
    """Days and longer steps keep their local dates; shorter ones go by UTC, which no clock change interrupts."""
    in_utc = dates.tz_convert("UTC").tz_localize(None)
    bare = column.str.replace(ZONE, r"\1", regex=True)
    local = _readings(bare).get(first)
    if local is not None and local.tz is None and _is_regular(local):
        step = pd.Timedelta(np.median(np.diff(local.unique().sort_values().to_numpy())))
        if step >= pd.Timedelta(days=1) or not _is_regular(in_utc):
            return local, "the time zone was left out of the dates, which stay those of the local clock"
    return in_utc, "dates with a time zone were turned into UTC"
