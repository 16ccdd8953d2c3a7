"""Time series from a CSV or Parquet file or a DataFrame, read with pandas.

Repairs are listed in `Series.repairs`: rows are sorted, repeated rows dropped, missing rows and values filled with the
value before them (never with a later one), rows before the first value of a column dropped. A column with more than
`MOST_FILLED` missing values, or dates without a regular step, raise an error that says what to do.
"""

import csv
import hashlib
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import pandas as pd
from pandas.tseries.frequencies import to_offset

from recurrify import UserError

MOST_FILLED = 0.05
"""Largest share of rows, and of each column, that is filled."""
FEWEST_ROWS = 8
DATE_NAMES = ("date", "datetime", "timestamp", "ds", "time", "day", "week", "month", "quarter", "year", "period")
ID_NAME = "unique_id"
NOT_A_VALUE = ["-", "--", "?", "."]
"""Besides those that pandas knows: NA, N/A, null, NaN, ..."""
DECIMAL_COMMA = r"[+-]?(?:\d+|\d{1,3}(?:\.\d{3})+)(?:,\d+)?(?:[eE][+-]?\d+)?"
THOUSANDS_COMMA = r"[+-]?(?:\d+|\d{1,3}(?:,\d{3})+)(?:\.\d+)?(?:[eE][+-]?\d+)?"
DIGIT_DATES = {
    r"(?:19|20)\d{2}": {"format": "%Y"},
    r"(?:19|20)\d{4}": {"format": "%Y%m"},
    r"(?:19|20)\d{6}": {"format": "%Y%m%d"},
    r"\d{9,10}": {"unit": "s"},
    r"\d{12,13}": {"unit": "ms"},
}
"""Dates written as a number, with the arguments of `pd.to_datetime`."""
REGULAR = 0.1
"""Standard deviation of regular steps, months for example, as a share of their mean."""
CALENDAR_STEPS = ("B", "MS", "ME", "QS", "QE", "YS", "YE")
Source: TypeAlias = str | Path | pd.DataFrame | pd.Series


@dataclass(frozen=True, kw_only=True)
class Series:
    """Numbers at regular steps of time, one column per series."""

    name: str
    dates: pd.DatetimeIndex
    values: np.ndarray
    """(T, C), float64."""
    columns: tuple[str, ...]
    frequency: str
    """As pandas writes it: h, 15min, D, MS, ..."""
    repairs: tuple[str, ...] = ()
    checksum: str = ""
    """SHA-256 of the file."""
    file_columns: tuple[str, ...] = ()
    known: pd.DataFrame = field(default_factory=pd.DataFrame)
    """Known covariates by date, also of dates after the last value."""
    date_column: str = "date"
    id_column: str | None = None
    """Set if the file was in long format."""

    @property
    def step(self) -> pd.Timedelta:
        """The usual step; months and business days vary around it."""
        return pd.Timedelta(np.median(np.diff(self.dates.to_numpy())))

    def only(self, columns: Sequence[str]) -> "Series":
        """These columns in this order."""
        chosen = [self.columns.index(name) for name in columns]
        return replace(self, values=self.values[:, chosen], columns=tuple(columns))


def read_series(
    source: Source,
    *,
    date_column: str | None = None,
    id_column: str | None = None,
    columns: Sequence[str] | None = None,
    known: Sequence[str] | None = None,
    freq: str | None = None,
    resample: str | None = None,
) -> Series:
    """Read a file or a DataFrame in wide format (one column per series) or long format (with an id column).

    Raises:
        UserError: the file has no dates, no numbers, no regular step, or too much is missing.
    """
    repairs: list[str] = []
    columns, known = ([one] if isinstance(one, str) else one for one in (columns, known))
    covariates = list(dict.fromkeys(known or ()))
    table, name, checksum, separator = _load(source)
    date_column = _date_column(name, table, date_column)
    id_column = id_column or (ID_NAME if ID_NAME in table else None)
    _check_columns(name, table, [one for one in (id_column, *(columns or ()), *covariates) if one])
    for one, what in ((date_column, "dates"), (id_column, "the names of series")):
        if one in (*(columns or ()), *covariates):
            raise UserError(f"The column {one!r} of {name} holds {what}: name columns of numbers.")
    dates = parse_dates(name, table[date_column], repairs)
    others = table.drop(columns=[date_column, *([id_column] if id_column else [])])
    wanted = None if columns is None else [*columns, *covariates]
    numbers = _numbers(name, others, wanted, separator, repairs)
    if not set(covariates) < set(numbers.columns):
        raise UserError(f"All columns of numbers of {name} are named as known covariates: leave one to be forecast.")
    numbers.index = dates
    series = [one for one in others if one not in numbers and not table.duplicated([date_column, one]).any()]
    if id_column is not None:
        ids = table[id_column].astype(str).to_numpy()
        wide = _wide(name, numbers.drop(columns=covariates), ids, resample is not None)
        numbers = wide.join(_shared(name, numbers[covariates]))
    if resample is not None:
        numbers = numbers.resample(_offset("resample", resample)).mean()
        repairs.append(f"rows were averaged to one per {resample}")
    numbers, frequency = _regular(name, _in_order(name, numbers, series, repairs), freq or resample, repairs)
    frame = numbers.drop(columns=covariates)
    if covariates:  # their rows reach beyond the last value
        frame = frame.loc[: frame.last_valid_index()]
    frame = _filled(name, frame, id_column is not None, repairs)
    return Series(
        name=name,
        dates=pd.DatetimeIndex(frame.index),
        values=frame.to_numpy(dtype=np.float64),
        columns=tuple(map(str, frame.columns)),
        frequency=frequency,
        repairs=tuple(repairs),
        checksum=checksum,
        file_columns=tuple(map(str, others.columns)),
        known=numbers[covariates].ffill().bfill(),
        date_column=date_column,
        id_column=id_column,
    )


def _check_columns(name: str, table: pd.DataFrame, wanted: Sequence[str]) -> None:
    missing = [column for column in wanted if column not in table]
    if missing:
        raise UserError(f"{name} has no column {missing[0]!r}: it has {', '.join(map(str, table.columns))}.")


def _load(source: Source) -> tuple[pd.DataFrame, str, str, str]:
    """The table, its name, its checksum and the separator of its file."""
    if isinstance(source, pd.Series):
        source = source.to_frame(source.name or "value")
    if isinstance(source, pd.DataFrame):
        table = source.reset_index() if isinstance(source.index, pd.DatetimeIndex) else source
        _check_size("The DataFrame", table)
        digest = hashlib.sha256(pd.util.hash_pandas_object(table).to_numpy().tobytes()).hexdigest()
        return table.rename(columns=lambda name: "date" if name == "index" else str(name)), "the DataFrame", digest, ","
    if not isinstance(source, str | Path):
        raise UserError(f"`data` must be a DataFrame or the path of a file: got {type(source).__name__}.")
    path = Path(source)
    try:
        digest = hashlib.sha256(path.read_bytes()).hexdigest()
        if path.suffix == ".parquet":
            return pd.read_parquet(path), path.stem, digest, ","
        header = pd.read_csv(path, sep="\x01", header=None, nrows=1, dtype=str, encoding="utf-8-sig").iloc[0, 0]
        separator = max(",;\t", key=str(header).count)
        with warnings.catch_warnings():
            warnings.simplefilter("error", pd.errors.ParserWarning)
            table = pd.read_csv(
                path,
                sep=separator,
                dtype=str,
                skipinitialspace=True,
                index_col=False,
                encoding="utf-8-sig",
                na_values=NOT_A_VALUE,
            )
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error.strerror or error}.") from error
    except (ValueError, csv.Error, EOFError, pd.errors.ParserWarning) as error:
        raise UserError(
            f"{path} is not a regular CSV file in UTF-8 ({str(error).strip().rstrip('.')}): the first line must name "
            "the columns, and each other line must have a date and numbers."
        ) from error
    _check_size(str(path), table)
    table = table.dropna(how="all").rename(columns=lambda name: str(name).strip())
    return table, path.name.split(".")[0], digest, separator


def _check_size(name: str, table: pd.DataFrame) -> None:
    if len(table.columns) < 2 or table.empty:
        raise UserError(f"{name} needs dates, a column of numbers and at least {FEWEST_ROWS} rows.")


def _date_column(name: str, table: pd.DataFrame, asked: str | None) -> str:
    """The column asked for; one with a usual name; the first, if it holds dates."""
    if asked is not None:
        _check_columns(name, table, [asked])
        return asked
    usual = [column for known in DATE_NAMES for column in table if str(column).lower() == known]
    found = usual[0] if usual else str(table.columns[0])
    if _is_date(found):
        raise UserError(f"The first line of {name} must name the columns, such as date,value: it starts with {found}.")
    return found


def _is_date(text: str) -> bool:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return any(map(str.isdigit, text)) and bool(pd.notna(pd.to_datetime(text, errors="coerce", utc=True)))


def parse_dates(name: str, column: pd.Series, repairs: list[str]) -> pd.DatetimeIndex:
    """Dates as pandas reads them; day or month first is decided by which gives the more regular steps."""
    if pd.api.types.is_datetime64_any_dtype(column):
        return pd.DatetimeIndex(pd.to_datetime(column, utc=True)).tz_localize(None)
    text = column.astype("string").str.strip()
    if text.isna().any():
        raise UserError(f"The date column {column.name!r} of {name} has an empty cell in row {_row(text.isna())}.")
    quarters = text.str.extract(r"^(\d{4})[- ]?[Qq]([1-4])$")
    if quarters.notna().all(axis=None):
        return pd.PeriodIndex(quarters[0] + "Q" + quarters[1], freq="Q").to_timestamp()
    for pattern, arguments in DIGIT_DATES.items():
        if text.str.fullmatch(pattern).all():
            written = text.astype("int64") if "unit" in arguments else text
            return pd.DatetimeIndex(pd.to_datetime(written, **arguments))
    day_or_month = text.str.match(r"\d{1,2}[./-]\d{1,2}[./-]").all()
    ways: Any = [{"dayfirst": False}, {"dayfirst": True}] if day_or_month else [{}, {"format": "ISO8601"}]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        read = [pd.to_datetime(text, utc=True, errors="coerce", **way) for way in (*ways, {"format": "mixed"})]
    found = [pd.DatetimeIndex(dates).tz_localize(None) for dates in read[:2] if dates.notna().all()]
    if not found:
        bad = read[2].isna()
        cell = (
            f"{text[bad].iloc[0]!r} in row {_row(bad)}" if bad.any() else f"several formats, such as {text.iloc[0]!r}"
        )
        raise UserError(
            f"The column {column.name!r} of {name} has {cell}, which is not a date like 2022-01-31 or "
            "2022-01-31 06:00: correct it, or choose the column of dates with --date-column."
        )
    found.sort(key=_irregularity)
    if len(found) == 2 and _irregularity(found[1]) < REGULAR and not found[0].equals(found[1]):
        raise UserError(f"Dates such as {text.iloc[0]} in {name} may begin with the day or month: write 2022-01-31.")
    if text.str.contains(r"\d[+-]\d\d:?\d\d$|Z$").any():
        repairs.append("dates with a time zone were converted to UTC")
    return found[0]


def _irregularity(dates: pd.DatetimeIndex) -> float:
    steps = np.diff(np.sort(dates.to_numpy())).astype(float)
    return float(steps.std() / max(steps.mean(), 1.0))


def _row(marked: pd.Series) -> int:
    """The row of the first marked cell, counted from 1 after the line of names."""
    return int(np.flatnonzero(marked.to_numpy())[0]) + 1


def _numbers(
    name: str, table: pd.DataFrame, asked: Sequence[str] | None, separator: str, repairs: list[str]
) -> pd.DataFrame:
    found: dict[str, pd.Series] = {}
    for column in dict.fromkeys(asked if asked is not None else table.columns):
        cells = table[column]
        numbers = _number_column(name, cells, separator, repairs)
        if numbers.isna().all() or (asked is None and str(column).startswith("Unnamed:")):
            if asked is not None:
                raise UserError(f"The column {column!r} of {name} has no numbers: remove it from --columns.")
            repairs.append(f"the column {column!r} has no numbers or no name and was left out")
            continue
        bad = (numbers.isna() & cells.notna()) | np.isinf(numbers)
        if bad.any():
            raise UserError(
                f"The column {column!r} of {name} has {cells[bad].iloc[0]!r} in row {_row(bad)}, which is not a finite "
                "number: correct it, leave the cell empty, or choose other columns with --columns."
            )
        found[str(column)] = numbers
    if not found:
        raise UserError(f"{name} has no column of numbers besides its dates.")
    return pd.DataFrame(found)


def _number_column(name: str, cells: pd.Series, separator: str, repairs: list[str]) -> pd.Series:
    """Numbers, also with decimal commas (if the separator is not a comma) or commas between thousands."""
    numbers = pd.to_numeric(cells, errors="coerce").astype(float)
    written = cells.dropna().astype(str).str.strip()
    if numbers.notna().sum() == len(written):
        if separator != "," and written.str.fullmatch(r"[+-]?\d{1,3}(?:\.\d{3})+|[+-]?\d{1,3}").all():
            dotted = written[written.str.contains(".", regex=False)]
            if len(dotted):
                raise UserError(
                    f"Numbers such as {dotted.iloc[0]} in column {cells.name!r} of {name} may have a decimal point or "
                    "a dot between thousands: write them without dots, or with two decimals."
                )
        return numbers
    thousands = separator == ","
    readable = cells.str.strip().str.fullmatch(THOUSANDS_COMMA if thousands else DECIMAL_COMMA).eq(True)
    if readable.sum() <= numbers.notna().sum():
        return numbers
    kind = "commas between thousands" if thousands else "a decimal comma"
    repairs.append(f"numbers such as {written[written.str.contains(',')].iloc[0]} were read with {kind}")
    plain = cells.where(readable).str.strip().str.replace("," if thousands else ".", "", regex=False)
    return pd.to_numeric(plain.str.replace(",", ".", regex=False)).astype(float)


def _wide(name: str, frame: pd.DataFrame, ids: np.ndarray, averages: bool) -> pd.DataFrame:
    """One column per series, or per series and column."""
    frame = frame.set_axis(pd.MultiIndex.from_arrays([frame.index, ids]))
    repeated = frame.index.duplicated()
    if repeated.any() and not averages:
        date, one = frame.index[repeated][0]
        raise UserError(f"{name} has several rows for series {one!r} at {date}: keep one, or pass --resample.")
    wide = frame.groupby(level=[0, 1]).mean().unstack()
    single = len(frame.columns) == 1
    return wide.set_axis([str(one) if single else f"{one} {column}" for column, one in wide.columns], axis=1)


def _shared(name: str, known: pd.DataFrame) -> pd.DataFrame:
    """The known covariates of a long file, one row per date."""
    counts = known.groupby(level=0).nunique().max()
    if (counts > 1).any():
        column = counts.idxmax()
        raise UserError(f"{column!r} of {name} differs between series at one date: known covariates must be the same.")
    return known[~known.index.duplicated()]


def _in_order(name: str, frame: pd.DataFrame, series: Sequence[str], repairs: list[str]) -> pd.DataFrame:
    """Sorted rows without repetitions; `series` are columns that may tell series apart."""
    if not frame.index.is_monotonic_increasing:
        frame = frame.sort_index(kind="stable")
        repairs.append("the rows were sorted by date")
    repeated = frame.index.duplicated()
    if repeated.any():
        is_different = (frame.groupby(level=0).nunique(dropna=False) > 1).any(axis=1)
        if is_different.any():
            way = (
                f"pass --id-column {series[0]}"
                if series
                else "name the column that tells series apart with --id-column"
            )
            raise UserError(
                f"{name} has different rows for {is_different.idxmax()}: {way}, or average rows with --resample."
            )
        frame = frame[~repeated]
        repairs.append(f"{int(repeated.sum())} repeated rows were dropped")
    if len(frame) < FEWEST_ROWS:
        raise UserError(f"{name} has {len(frame)} dated rows: at least {FEWEST_ROWS} are needed.")
    return frame


def _offset(option: str, text: str) -> pd.DateOffset:
    try:
        found = to_offset(text)
        assert found is not None
        return found
    except ValueError:
        raise UserError(
            f"`{option}` must be a step as pandas writes it, like h, 15min, D or MS: got {text!r}."
        ) from None


def _regular(name: str, frame: pd.DataFrame, freq: str | None, repairs: list[str]) -> tuple[pd.DataFrame, str]:
    """One row per step, and the step."""
    dates = pd.DatetimeIndex(frame.index)
    if freq is not None:
        _offset("freq", freq)
    elif (found := pd.infer_freq(dates)) is not None:
        return frame, found
    step = pd.Timedelta(pd.Series(np.diff(dates.to_numpy())).mode()[0])
    if freq is None and step >= pd.Timedelta(days=28):
        months = dates.to_period("M").to_timestamp()
        if months.is_unique and not (dates.day == 1).all() and not dates.is_month_end.all():
            repairs.append("the dates were moved to the first day of their months")
            dates = pd.DatetimeIndex(months)
            frame = frame.set_axis(dates)
    rule = str(to_offset(step).freqstr) if freq is None else freq
    grids = []
    for one in (rule, *CALENDAR_STEPS) if freq is None else (rule,):
        grid = pd.date_range(dates[0], dates[-1], freq=one)
        if dates.isin(grid).all() and len(grid) > 2:
            grids.append((len(grid), one, grid))
    if not grids and freq is not None and dates[1] < dates[0] + to_offset(freq):
        raise UserError(f"The rows of {name} are {_words(step)} apart, less than freq={freq}: pass --resample {freq}.")
    if not grids:
        off = dates[~dates.isin(pd.date_range(dates[0], dates[-1], freq=rule))]
        raise UserError(
            f"The dates of {name} have no regular step: most are {_words(step)} apart, but {off[0]} is not a multiple "
            f"of {rule} after {dates[0]}; average rows to a regular step with --resample {rule}."
        )
    rows, chosen, grid = min(grids, key=lambda one: one[0])
    added = grid.difference(dates)
    if len(added) > MOST_FILLED * rows:
        raise UserError(
            f"{name} lacks {len(added):,} of {rows:,} rows at steps of {chosen}, the first at {added[0]}: at most "
            f"{MOST_FILLED:.0%} are filled; fill them, or pass a longer step with --resample."
        )
    if len(added):
        repairs.append(f"{len(added)} missing rows were added with the values before them, the first at {added[0]}")
    return frame.reindex(grid), pd.infer_freq(grid) or chosen


def _words(step: pd.Timedelta) -> str:
    return str(step).replace(" 00:00:00", "").removeprefix("0 days ")


def _filled(name: str, frame: pd.DataFrame, is_long: bool, repairs: list[str]) -> pd.DataFrame:
    first = {column: frame.index.get_loc(frame[column].first_valid_index()) for column in frame}
    latest = max(first, key=lambda column: first[column])
    start = first[latest]
    if start > MOST_FILLED * len(frame) and not is_long:
        raise UserError(
            f"The column {latest!r} of {name} has its first value at {frame.index[start]}: leave the column out with "
            "--columns, or begin the file later."
        )
    if start:
        frame = frame.iloc[start:]
        repairs.append(f"the first {start} rows, in which {latest!r} has no value, were dropped")
    if len(frame) < FEWEST_ROWS:
        raise UserError(f"{name} has {len(frame)} dates at which all series have values: train them separately.")
    missing = frame.isna()
    for column, share in missing.mean().items():
        last = frame[column].last_valid_index()
        if share > MOST_FILLED and missing[column].sum() == missing.loc[last:, column].sum():
            raise UserError(
                f"The column {column!r} of {name} has its last value at {last}, before others: leave it out, or end "
                "the file there."
            )
        if share > MOST_FILLED:
            raise UserError(
                f"The column {column!r} of {name} lacks {share:.0%} of its values: at most {MOST_FILLED:.0%} are "
                "filled; leave it out with --columns, or fill it."
            )
        if last < frame.index[-1]:
            repairs.append(
                f"the last {missing.loc[last:, column].sum()} values of {column!r}, which are missing, were filled "
                "with the value before them; name columns that are known in advance with --known"
            )
            missing.loc[last:, column] = False
    holes = int(missing[~missing.all(axis=1)].to_numpy().sum())
    if holes:
        repairs.append(f"{holes} missing values were filled with the values before them")
    return frame.ffill()
