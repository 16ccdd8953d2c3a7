"""The column of dates, and what they mean: day or month first, local time or UTC, settled by which is regular."""

import warnings
from collections.abc import Mapping, Sequence
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
NUMERAL = r"\s*[-+]?\d+(?:,\d+)?\s*|\s*[-+]?\d{1,3}(?:[.,]\d{3})+(?:[.,]\d+)?\s*"
"""1,5 or 1.234,5: a number with commas."""
DATE_NAMES = ("date", "datetime", "timestamp", "ds", "time")
"""A column of one of these names holds the dates; the first in this order where there are several."""
PERIOD_NAMES = (
    "day", "hour", "week", "month", "quarter", "year", "period", "epoch", "unixtime", "unix_time", "date_time",
    "date time", "date/time", "dates",
)  # fmt: skip
"""One of these may: beside the dates such a column often tells a part of them, so the first column comes before it."""
YEAR_NAMES = ("year", "date", "dates")
"""Where four digits are years; elsewhere they may be times of day, weeks or measurements."""
STAMPS = {
    4: ("%Y", "years"),
    8: ("%Y%m%d", "dates like YYYYMMDD"),
    10: ("%Y%m%d%H", "dates like YYYYMMDDHH"),
    12: ("%Y%m%d%H%M", "dates like YYYYMMDDHHMM"),
    14: ("%Y%m%d%H%M%S", "dates like YYYYMMDDHHMMSS"),
}
"""Dates without anything between their parts, by the number of their digits."""
STAMP_YEARS = r"1[6-9]|2[01]"
"""How they begin: other numbers are hardly meant as years."""
UNIX_TIMES = {"s": ("Unix seconds", 1e8, 1.9e9), "ms": ("Unix milliseconds", 1e11, 1.9e12)}
"""From 1973 to 2030: later ones may be dates, 2022010124 for example. The size tells the unit."""
TRIED_ROWS = 200


def find_date_column(path: Path, table: pd.DataFrame, asked: str | None) -> tuple[str, list[str]]:
    """The column of dates: the one that is asked for, or found by its name, its place, or as the only one with dates.

    A column with a few bad dates is found, too, so that these can be told. Numbers count only where they are told
    apart from row to row: beside dates, a column `year` repeats itself.
    """
    names = [str(name) for name in table.columns]
    if asked is not None:
        if asked not in names:
            raise UserError(f"{path} has no column {asked!r} for the dates: it has {', '.join(names)}.")
        return asked, []
    by_name = {name.lower(): name for name in reversed(names)}
    named, periods = ([by_name[one] for one in known if one in by_name] for known in (DATE_NAMES, PERIOD_NAMES))
    numbers = [name for name in names if _holds_numbers(table[name])]
    for name in (*named, names[0], *periods):
        if name not in numbers and _mostly_dates(table[name]):
            return name, []
    dated = [name for name in names if name not in numbers and _all_dates(path, table[name])]
    if len(dated) > 1:
        raise UserError(f"{path} has several columns of dates, {', '.join(dated)}: choose one with --date-column.")
    if dated:
        return dated[0], [f"the dates are those of the column {dated[0]!r}, the only one that holds any"]
    if names[0] in numbers and _in_steps(table[names[0]]):
        return names[0], []
    for name in (*named, *periods):
        if name in numbers and table[name].is_unique and _read_numbers(table[name], is_named=True) is not None:
            return name, []
    if not named and {"year", "month"} <= set(by_name):
        raise UserError(
            f"{path} has its dates in several columns, {', '.join(periods)}: join them into one, as 2022-01-01."
        )
    if named or periods:
        return (named or periods)[0], []
    raise _no_dates(path, names)


def _no_dates(path: Path, names: Sequence[str]) -> UserError:
    return UserError(
        f"{path} has no column of dates: none is called {', '.join(DATE_NAMES[:5])}, {', '.join(PERIOD_NAMES[:6])} or "
        f"the like, and none of {', '.join(names)} has a date in every row; write dates such as 2022-01-01, or name a "
        "column of Unix seconds with --date-column."
    )


def _holds_numbers(column: pd.Series) -> bool:
    return bool(pd.to_numeric(column.dropna(), errors="coerce").notna().all())


def _mostly_dates(column: pd.Series) -> bool:
    """Whether half of the first texts are dates, and whole ones: pandas dates a mere `Monday` or `10:30`, too."""
    tried = column.iloc[:TRIED_ROWS].fillna("")
    whole = tried.str.contains(r"\d\D+\d|\d{4}") & ~tried.str.fullmatch(f"{TIME_ALONE}|{TWO_NUMBERS}|{NUMERAL}")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        read = pd.to_datetime(tried, errors="coerce", format="mixed", utc=True).notna()
    return bool((read & whole).mean() >= 0.5)


def _all_dates(path: Path, column: pd.Series) -> bool:
    """Whether a column could be that of the dates: not the day of an update, which is the same in many rows."""
    if column.isna().any() or not _mostly_dates(column):
        return False
    try:
        dates, _ = read_dates(path, column)
    except UserError:
        return False
    return dates.nunique() > len(dates) / 2


def _in_steps(column: pd.Series) -> bool:
    """Whether numbers under any name are whole dates, and go one way."""
    found = None if column.isna().any() else _read_numbers(column, is_named=False)
    if found is None or not found[0].is_unique:
        return False
    return bool(found[0].is_monotonic_increasing or found[0].is_monotonic_decreasing)


def _read_numbers(column: pd.Series, is_named: bool, is_asked: bool = False) -> tuple[pd.DatetimeIndex, str] | None:
    """Dates written as whole numbers, and what was taken for what; None where not all of them are dates. Years and
    Unix times look like many other numbers: they take a name that says so, or a user who asks for them."""
    digits = column.dropna().str.strip().str.replace(r"\.0*$", "", regex=True)
    if not len(digits) or not digits.str.fullmatch(r"\d{4,14}").all():
        return None
    how, kind = STAMPS.get(len(digits.iloc[0]), ("", ""))
    may_be_stamps = how != "%Y" or is_asked or str(column.name).lower() in YEAR_NAMES
    if how and may_be_stamps and digits.str.len().nunique() == 1 and digits.str.match(STAMP_YEARS).all():
        dates = _as_dates(digits, format=how)
        if dates is not None:
            return dates, kind
    numbers = pd.to_numeric(digits)
    for unit, (kind, least, most) in UNIX_TIMES.items():
        if (is_named or is_asked) and numbers.between(least, most).all():
            return pd.DatetimeIndex(pd.to_datetime(numbers, unit=unit)), f"{kind}, in UTC"
    return None


def _no_stamps(column: pd.Series) -> pd.Series:
    """Of numbers that are not all dates: those that are none beside most that are, or else all."""
    how, _ = STAMPS.get(len(column.iloc[0].strip()), ("", ""))
    bad = pd.to_datetime(column, errors="coerce", format=how).isna() if how else column.notna()
    return column[bad] if 0 < bad.mean() < 0.5 else column


def _dates_of_numbers(path: Path, column: pd.Series, is_asked: bool) -> tuple[pd.DatetimeIndex, list[str]]:
    is_named = str(column.name).lower() in (*DATE_NAMES, *PERIOD_NAMES)
    found = _read_numbers(column, is_named, is_asked)
    if found is None:
        bad = _no_stamps(column)
        raise UserError(
            f"The column {column.name!r} of {path} holds numbers such as {bad.iloc[0]} in line {line_of(bad)}, not "
            "dates: write dates such as 2022-01-01 (years, 20220101 or Unix seconds are read, too, if all are such)."
        )
    dates, kind = found
    return dates, [f"numbers such as {column.iloc[0]} in column {column.name!r} were read as {kind}"]


def read_dates(path: Path, column: pd.Series, is_asked: bool = False) -> tuple[pd.DatetimeIndex, list[str]]:
    """The dates of a column of texts, and a sentence for each thing that was decided on the way.

    Who has asked for this column is not told to name one.
    """
    name = column.name
    missing = column.isna()
    if missing.any():
        line = line_of(column[missing])
        raise UserError(f"{path} has no date in line {line} (column {name!r}): add it, or delete the line.")
    if _holds_numbers(column):
        return _dates_of_numbers(path, column, is_asked)
    way_out = "write them like 2016-07-01 00:00" + ("" if is_asked else ", or name the right column with --date-column")
    _check_whole(path, column, way_out)
    readings = _readings(column)
    if not readings:
        bad = pd.to_datetime(column, errors="coerce", format="mixed", utc=True).isna()
        where = f"the first is {column.iloc[0]!r}"
        if bad.any():
            where = f"line {line_of(column[bad])} has {column[bad].iloc[0]!r}"
        raise UserError(f"The dates in column {name!r} of {path} cannot all be read in one way ({where}): {way_out}.")
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


def _check_whole(path: Path, column: pd.Series, way_out: str) -> None:
    """A time without a day, or a month with one small number, would be completed by guessing."""
    half = "a day or a year, but not both"
    for pattern, what in ((TIME_ALONE, "no day"), (MONTH_AND_NUMBER, half), (TWO_NUMBERS, half)):
        if column.str.fullmatch(pattern).all():
            raise UserError(
                f"The dates in column {column.name!r} of {path}, such as {column.iloc[0]!r}, have {what}: {way_out}."
            )


def line_of(marked: pd.Series) -> int:
    """The line in the file of the first of these cells, by its place among the rows; the header is line 1."""
    return int(marked.index[0]) + 2


def usual_step(dates: pd.DatetimeIndex) -> pd.Timedelta:
    return pd.Timedelta(pd.Series(np.diff(dates.to_numpy())).mode().iloc[0])


def grids_of(dates: pd.DatetimeIndex) -> list[tuple[str, pd.DatetimeIndex, pd.DatetimeIndex]]:
    """Regular dates of which these, in their order, lack few: their name, these dates as they lie there, and all."""
    step, months = usual_step(dates), months_of(dates)
    tried = []
    if (dates[-1] - dates[0]) / step < 2 * len(dates):  # or the seconds of years would be written down
        tried.append((f"the regular step of {in_words(step)}", dates, pd.date_range(dates[0], dates[-1], freq=step)))
    if step == pd.Timedelta(days=1):
        tried.append(("the business days", dates, pd.bdate_range(dates[0], dates[-1], normalize=False)))
    if months is not None:
        tried.append(("the months", months, pd.date_range(months[0], months[-1], freq="MS")))
    if dates.is_month_end.all():
        ends = pd.date_range(dates[0], dates[-1], freq=pd.offsets.MonthEnd())
        tried.append(("the ends of months", dates, ends))
    return [
        (what, on_it, grid)
        for what, on_it, grid in tried
        if on_it.isin(grid).all() and len(grid) - len(on_it) <= MOST_MISSING * len(grid)
    ]


def in_words(step: pd.Timedelta) -> str:
    parts = step.components._asdict().items()
    return " ".join(f"{count} {unit[:-1] if count == 1 else unit}" for unit, count in parts if count) or "no time"


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
    return len(dates) >= 3 and (regular_step(dates) is not None or bool(grids_of(dates)))


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
