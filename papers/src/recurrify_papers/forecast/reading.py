"""A CSV of dated rows, checked and repaired in the open: every repair is told, and what cannot be repaired is refused.

Repairs: rows are sorted by date; rows that repeat another one exactly are left out; rows missing from a regular grid
are added; values that are missing are those of the row before (never of a later one, or the future would leak into the
past); rows in front of the first value of a column are left out. No more than `MOST_FILLED` of a column may be filled.
"""

import csv
import hashlib
import io
import re
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pandas as pd

from recurrify.errors import UserError
from recurrify_papers.forecast.dates import (
    MOST_MISSING,
    find_date_column,
    grids_of,
    in_words,
    line_of,
    months_of,
    read_dates,
    regular_step,
    usual_step,
)
from recurrify_papers.forecast.numerals import check_beside_commas, is_constant, read_numbers

MOST_FILLED = MOST_MISSING
"""The largest share of a column that may be filled in."""
UNNAMED = r"Unnamed: \d+"
"""What pandas calls a column without a name."""
FEWEST_ROWS = 8
COMPRESSED = {
    rb"\x1f\x8b": "gzip",
    rb"PK\x03\x04": "zip, which an Excel workbook is, too",
    rb"\xfd7zXZ\x00": "xz",
    rb"BZh[1-9]1AY&SY": "bzip2",
    rb"\x28\xb5\x2f\xfd": "zstd",
}
"""By what a file begins with."""


@dataclass(frozen=True)
class Series:
    """Numbers at regular steps of time."""

    name: str
    """The file's name without its ending."""
    dates: pd.DatetimeIndex
    values: np.ndarray
    """(T, C), float64."""
    columns: tuple[str, ...]
    frequency: str
    """The step, as pandas writes it: h, 15min, D, MS, …"""
    repairs: tuple[str, ...]
    """A sentence for each thing that was mended."""
    checksum: str
    """SHA-256 of the file."""
    file_columns: tuple[str, ...] = ()
    """All columns of the file but the dates, also those that are not read."""

    @property
    def step(self) -> pd.Timedelta:
        """The usual step; months and business days vary around it."""
        return pd.Timedelta(np.median(np.diff(self.dates.to_numpy())))

    @property
    def default_target(self) -> str:
        """The last column, as in ETT; one that never changes tells nothing, so it is the target only among such."""
        changing = [name for name, one in zip(self.columns, is_constant(self.values), strict=True) if not one]
        return (changing or self.columns)[-1]


def read_series(path: str | Path, date_column: str | None = None, columns: Sequence[str] | None = None) -> Series:
    """Read a CSV with one column of dates; `columns` chooses among the others, None takes all that hold numbers."""
    path = Path(path)
    content = _read_bytes(path)
    repairs: list[str] = []
    table, separator, told = _parse(path, content)
    repairs += told
    named_dates, told = find_date_column(path, table, date_column)
    repairs += told
    _check_header(path, table, named_dates)
    dates, told = read_dates(path, table[named_dates], is_asked=date_column is not None)
    repairs += told
    values, told = _numbers(path, table.drop(columns=named_dates), columns, separator)
    repairs += told
    frame, told = _in_order(path, values.set_axis(dates))
    repairs += told
    frame, frequency, added, told = _on_a_grid(path, frame)
    repairs += told
    frame, told = _filled(path, frame, added)
    repairs += told
    series = Series(
        name=path.stem,
        dates=pd.DatetimeIndex(frame.index),
        values=frame.to_numpy(dtype=np.float64),
        columns=tuple(frame.columns),
        frequency=frequency,
        repairs=tuple(repairs),
        checksum=hashlib.sha256(content).hexdigest(),
        file_columns=tuple(name for name in table.columns if name != named_dates),
    )
    return series if columns is not None else replace(series, repairs=(*repairs, *_told_target(series)))


def _told_target(series: Series) -> list[str]:
    """Where the target is not the last column of the file, which one would expect it to be."""
    last = [name for name in series.file_columns if not re.fullmatch(UNNAMED, name)][-1]
    target = series.default_target
    if last == target:
        return []
    why = "is constant" if last in series.columns else "was left out"
    return [f"the last column, {last!r}, {why}: the target is {target!r}, unless --target names another"]


def _read_bytes(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except FileNotFoundError:
        raise UserError(f"{path} does not exist: give the path of a CSV file.") from None
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error.strerror or error}.") from error


def _parse(path: Path, content: bytes) -> tuple[pd.DataFrame, str, list[str]]:
    """The table as texts, with the places of its rows in the file as its index; the separator; and what was mended."""
    packed = [kind for first, kind in COMPRESSED.items() if re.match(first, content)]
    if packed:
        raise UserError(
            f"{path} is compressed ({packed[0]}), and such files are not read: unpack it, and give the CSV file."
        )
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError:
        raise UserError(f"{path} is not UTF-8 text: save it as a CSV in UTF-8.") from None
    text = text.replace("\r\n", "\n").replace("\r", "\n").rstrip("\n") + "\n"
    first_line = text.split("\n", 1)[0]
    if not first_line.strip():
        raise UserError(f"{path} is empty, or its first line is: the first line must name the columns.")
    separator = max(",;\t", key=first_line.count)
    try:
        header = [name.strip() for name in next(csv.reader([first_line], delimiter=separator))]
        table = _table(path, text, separator, header)
    except UserError:
        raise
    except (csv.Error, pd.errors.ParserError, ValueError) as error:
        raise UserError(
            f"{path} is not a regular CSV file ({_irregular(error)}): give one whose first line names the columns, and "
            "whose other lines have a date and numbers under these names."
        ) from error
    if len(table.columns) < 2:
        raise UserError(
            f"{path} has one column only, {header[0]!r}: dates and at least one column of numbers are needed."
        )
    empty = table.isna().all(axis=1)
    table = table[~empty].rename(columns=lambda name: str(name).strip())
    if table.empty:
        raise UserError(f"{path} has the names of columns but no rows: at least {FEWEST_ROWS} are needed.")
    return table, separator, [f"{int(empty.sum())} empty lines were left out"] if empty.any() else []


def _irregular(error: Exception) -> str:
    """What pandas says of a row in words for programmers, in ours."""
    told = str(error).strip().rstrip(".")
    found = re.search(r"Expected (\d+) fields in line (\d+), saw (\d+)", told)
    if found is not None:
        before, line, fields = found.groups()
        return f"line {line} has {fields} fields, the lines before it {before}"
    return "a quotation mark is never closed" if "inside string" in told else told


def _table(path: Path, text: str, separator: str, header: list[str]) -> pd.DataFrame:
    twice = sorted({name for name in header if name and header.count(name) > 1})
    if twice:
        raise UserError(f"{path} has more than one column {twice[0]!r}: give every column a name of its own.")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error", pd.errors.ParserWarning)
            # With empty lines among them, which `_parse` takes out: a row's index then tells its line in the file.
            return pd.read_csv(
                io.StringIO(text),
                sep=separator,
                dtype=str,
                skipinitialspace=True,
                index_col=False,
                skip_blank_lines=False,
            )
    except pd.errors.ParserWarning as error:
        raise UserError(
            f"{path} has more fields in its rows than names in its first line, {len(header)}: name every column."
        ) from error


def _check_header(path: Path, table: pd.DataFrame, dates: str) -> None:
    """Refuse a file whose first line is a row: it would be lost, and its numbers would be names."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of dates in no usual format
        is_date = any(map(str.isdigit, dates)) and pd.notna(pd.to_datetime(dates, errors="coerce", utc=True))
    if is_date and pd.to_numeric(pd.Series(table.columns.drop(dates)), errors="coerce").notna().any():
        raise UserError(
            f"The first line of {path} must name the columns, such as date,value: got a row, "
            f"{', '.join(map(str, table.columns))!r}."
        )


def _numbers(
    path: Path, table: pd.DataFrame, asked: Sequence[str] | None, separator: str
) -> tuple[pd.DataFrame, list[str]]:
    unknown = [name for name in asked or () if name not in table.columns]
    if unknown:
        raise UserError(f"{path} has no column {unknown[0]!r}: it has {', '.join(map(str, table.columns))}.")
    twice = [name for name in asked or () if list(asked or ()).count(name) > 1]
    if twice:
        raise UserError(f"`columns` names {twice[0]!r} more than once: name each column once.")
    told: list[str] = []
    found = {}
    plain: list[str] = []
    for name in asked if asked is not None else table.columns:
        if asked is None and re.fullmatch(UNNAMED, name):
            told.append(f"the column without a name ({name!r}) was left out")
            continue
        numbers, written = read_numbers(str(path), table[name], separator)
        if numbers.isna().all():
            if asked is not None:
                raise UserError(
                    f"The column {name!r} of {path} holds {_of_what(table[name])}: leave it out of --columns."
                )
            told.append(f"the column {name!r} holds {_of_what(table[name])} and was left out")
            continue
        if written is None:
            plain.append(name)
        else:
            told.append(written)
        _check_finite(path, table[name], numbers)
        found[str(name)] = numbers.astype(float)
    if not found:
        raise UserError(f"{path} has no column of numbers beside its dates.")
    if any("decimal comma" in sentence for sentence in told):
        for name in plain:
            check_beside_commas(str(path), table[name])
    return pd.DataFrame(found), told


def _of_what(column: pd.Series) -> str:
    written = column.dropna()
    return f"texts such as {written.iloc[0]!r}, no numbers," if len(written) else "nothing"


def _check_finite(path: Path, column: pd.Series, numbers: pd.Series) -> None:
    bad = (numbers.isna() & column.notna()).to_numpy() | np.isinf(numbers.to_numpy(dtype=float))
    if bad.any():
        raise UserError(
            f"The column {column.name!r} of {path} has {column[bad].iloc[0]!r} in line {line_of(column[bad])}, which "
            "is not a finite number: mend it, leave the cell empty, or choose other columns with --columns."
        )


def _in_order(path: Path, frame: pd.DataFrame) -> tuple[pd.DataFrame, list[str]]:
    told = []
    if not frame.index.is_monotonic_increasing:
        frame = frame.sort_index(kind="stable")
        told.append("the rows were not in the order of their dates and were sorted")
    repeated = frame.index.duplicated(keep="first")
    if repeated.any():
        without = frame[~repeated]
        same = frame[repeated].fillna(np.inf) == without.loc[frame.index[repeated]].fillna(np.inf).to_numpy()
        if not same.to_numpy().all():
            date = frame.index[repeated][~same.all(axis=1).to_numpy()][0]
            raise UserError(
                f"{path} has different rows for the same date, {date}: keep one of them (a file that holds several "
                "series must be split into one file each)."
            )
        frame = without
        told.append(f"{int(repeated.sum())} rows that repeated another one were left out")
    if len(frame) < FEWEST_ROWS:
        raise UserError(
            f"{path} has {len(frame)} dated rows, too few to learn from: at least {FEWEST_ROWS} are needed."
        )
    return frame, told


def _on_a_grid(path: Path, frame: pd.DataFrame) -> tuple[pd.DataFrame, str, np.ndarray, list[str]]:
    """The frame with one row for each step, the step, and which rows were added."""
    dates = pd.DatetimeIndex(frame.index)
    none = np.zeros(len(dates), dtype=bool)
    frequency = regular_step(dates)
    if frequency is not None:
        return frame, frequency, none, []
    months = months_of(dates)
    frequency = None if months is None else regular_step(months)
    if frequency is not None:
        return frame.set_axis(months), frequency, none, [_moved(dates)]
    grids = grids_of(dates)
    if grids:
        what, on_it, grid = grids[0]
        frequency = regular_step(grid)
        assert frequency is not None
        is_new = ~grid.isin(on_it)
        rows = "1 row" if is_new.sum() == 1 else f"{is_new.sum()} rows"
        told = [f"added, with the values before: {rows} missing from {what} (at most {_longest(is_new)} in a row)"]
        moved = [] if on_it[0] == dates[0] else [_moved(dates)]
        return frame.set_axis(on_it).reindex(grid), frequency, is_new, [*moved, *told]
    step = usual_step(dates)
    off = dates[(dates - dates[0]) % step != pd.Timedelta(0)]
    rows = round((dates[-1] - dates[0]) / step) + 1
    reason = f"{off[0]} is off the grid" if len(off) else f"{rows - len(dates):,} of {rows:,} rows are missing"
    raise UserError(
        f"The dates of {path} have no regular step: most are {in_words(step)} apart, but {reason}; "
        "resample the file to a regular step first."
    )


def _moved(dates: pd.DatetimeIndex) -> str:
    return f"the dates, on day {dates[0].day} of their months, were moved to the first"


def _longest(marked: np.ndarray) -> int:
    """Of how many rows the longest run of marked ones is."""
    return int(pd.Series(marked).groupby((~marked).cumsum()).sum().max())


def _filled(path: Path, frame: pd.DataFrame, added: np.ndarray) -> tuple[pd.DataFrame, list[str]]:
    """The values of rows that were added to the file have been told with these rows."""
    told = []
    first_known = {name: int(frame[name].notna().to_numpy().argmax()) for name in frame}
    latest = max(first_known, key=lambda name: first_known[name])
    leading = first_known[latest]
    if leading > MOST_FILLED * len(frame):
        raise UserError(
            f"The column {latest!r} of {path} has its first value only at {frame.index[leading]}: "
            "leave the column out with --columns, or begin the file later."
        )
    if leading:
        frame, added = frame.iloc[leading:], added[leading:]
        told.append(f"the first {leading} rows, in which a column has no value yet, were left out")
    empty = frame.isna()
    for name in frame:
        count = int(empty[name].sum())
        if count > MOST_FILLED * len(frame):
            raise UserError(
                f"The column {name!r} of {path} has no value in {count} of {len(frame)} rows, more than "
                f"{MOST_FILLED:.0%}: mend it, or leave it out with --columns."
            )
        own = int(empty[name][~added].sum())
        if own:
            beside = ", beside those of the added rows," if own < count else ""
            told.append(
                f"{own} missing values of {name!r}{beside} were filled with the value before (at most "
                f"{_longest(empty[name].to_numpy())} in a row)"
            )
    return frame.ffill(), told
