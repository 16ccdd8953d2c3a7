"""Messy files are repaired in the open, or rejected with one sentence."""

import numpy as np
import pandas as pd
import pytest

from recurrify.errors import UserError
from recurrify_papers.forecast.reading import read_series

DAYS = pd.date_range("2022-01-01", periods=40, freq="D")


def csv(dates, values=None, header="date,x", separator=",") -> str:
    values = range(len(dates)) if values is None else values
    rows = [f"{date}{separator}{value}" for date, value in zip(dates, values, strict=True)]
    return "\n".join([header.replace(",", separator), *rows]) + "\n"


def test_regular_file_needs_no_repairs(write_csv):
    series = read_series(write_csv(rows=100))
    assert (series.columns, series.frequency, series.repairs) == (("a", "b"), "h", ())
    assert series.values.shape == (100, 2)
    assert len(series.checksum) == 64


@pytest.mark.parametrize(
    ("written", "first", "frequency"),
    [
        (DAYS.strftime("%Y-%m-%d"), "2022-01-01", "D"),
        (DAYS.strftime("%d.%m.%Y"), "2022-01-01", "D"),
        (DAYS.strftime("%m/%d/%Y"), "2022-01-01", "D"),
        (DAYS.strftime("%d-%b-%Y"), "2022-01-01", "D"),
        (DAYS.strftime("%Y%m%d"), "2022-01-01", "D"),
        (range(1960, 2000), "1960-01-01", "YS-JAN"),
        (pd.date_range("1960-01-01", periods=40, freq="MS").strftime("%Y-%m"), "1960-01-01", "MS"),
        (pd.date_range("1960-01-01", periods=40, freq="MS").strftime("%d/%m/%Y"), "1960-01-01", "MS"),
        ([f"{1980 + index // 4}Q{index % 4 + 1}" for index in range(40)], "1980-01-01", "QS-OCT"),
        ([1_600_000_000 + 3600 * index for index in range(40)], "2020-09-13 12:26:40", "h"),
        ([1_600_000_000_000 + 60_000 * index for index in range(40)], "2020-09-13 12:26:40", "min"),
        (pd.date_range("2022-01-03", periods=40, freq="B").strftime("%Y-%m-%d"), "2022-01-03", "B"),
        (pd.date_range("2022-01-01", periods=40, freq="15min", tz="Europe/Berlin"), "2021-12-31 23:00", "15min"),
    ],
    ids=["iso", "dots", "slashes", "names", "digits", "years", "months", "day-first", "quarters", "unix", "ms",
         "business", "zones"],
)  # fmt: skip
def test_dates_and_steps_are_found(write_csv, written, first, frequency):
    series = read_series(write_csv(csv(list(written))))
    assert series.dates[0] == pd.Timestamp(first)
    assert series.frequency == frequency
    assert list(series.values[:, 0]) == list(range(40))


@pytest.mark.parametrize(
    ("separator", "cells", "number", "repair"),
    [
        (";", ["1,5", "1.234,5"], 1.5, "a decimal comma"),
        ("\t", ["-1,5", "2"], -1.5, "a decimal comma"),
        (",", ['"1,234.5"', "2"], 1234.5, "commas between thousands"),
    ],
)
def test_commas_in_numbers_are_read_and_reported(write_csv, separator, cells, number, repair):
    series = read_series(write_csv(csv(DAYS.date, cells * 20, separator=separator)))
    assert series.values[0, 0] == number
    assert repair in series.repairs[0]


def test_rows_are_sorted_filled_and_deduplicated(write_csv):
    days = pd.date_range("2022-01-01", periods=60, freq="D")
    frame = pd.DataFrame({"date": days, "x": np.arange(60.0), "words": "a", "y": 1.0})
    frame.loc[10, "x"], frame.loc[0, "y"] = np.nan, np.nan
    frame = pd.concat([frame.drop(index=20), frame.iloc[[5]]]).iloc[::-1]
    series = read_series(write_csv(frame.to_csv(index=False)))
    assert series.columns == ("x", "y")
    assert list(series.dates) == list(days[1:])
    # A missing value takes the one before it, never a later one.
    assert series.values[[9, 19], 0].tolist() == [9.0, 19.0]
    said = " ".join(series.repairs)
    for part in ("sorted", "1 repeated", "1 missing rows were added", "'words'", "1 missing values", "first 1 rows"):
        assert part in said


def test_months_on_another_day_move_to_the_first(write_csv):
    dates = [date + pd.Timedelta(days=14) for date in pd.date_range("2000-01-01", periods=30, freq="MS")]
    series = read_series(write_csv(csv(dates)))
    assert (series.frequency, series.dates[0]) == ("MS", pd.Timestamp("2000-01-01"))
    with_gap = [date for index, date in enumerate(pd.date_range("2000-01-01", periods=60, freq="MS")) if index != 7]
    assert read_series(write_csv(csv(with_gap))).frequency == "MS"


def test_irregular_rows_are_resampled(write_csv):
    dates = [
        date + pd.Timedelta(minutes=index % 7)
        for index, date in enumerate(pd.date_range("2022", periods=90, freq="20min"))
    ]
    path = write_csv(csv(dates))
    with pytest.raises(UserError, match="--resample"):
        read_series(path)
    series = read_series(path, resample="h")
    assert (series.frequency, len(series.dates), series.values[0, 0]) == ("h", 30, 1.0)


@pytest.mark.parametrize("id_column", ["unique_id", "store"])
def test_long_format_becomes_one_column_per_series(write_csv, id_column):
    frame = pd.DataFrame(
        {id_column: np.repeat(["n", "s"], 30), "ds": np.tile(DAYS[:30], 2), "y": np.arange(60.0)}
    ).sample(frac=1, random_state=0)
    frame = frame[~((frame[id_column] == "s") & (frame["ds"] < DAYS[4]))]
    layout = {"id_column": None if id_column == "unique_id" else id_column}
    for source in (write_csv(frame.to_csv(index=False)), frame):
        series = read_series(source, **layout)
        assert (series.columns, series.id_column, series.date_column) == (("n", "s"), id_column, "ds")
        assert series.values[0].tolist() == [4.0, 34.0]  # all series have begun
    with pytest.raises(UserError, match="several rows for series"):
        read_series(pd.concat([frame, frame]), **layout)
    with pytest.raises(UserError, match="'s' of the DataFrame has its last value at 2022-01-20"):
        read_series(frame[(frame[id_column] == "n") | (frame["ds"] < DAYS[20])], **layout)
    with pytest.raises(UserError, match="'promo' of the DataFrame differs between series"):
        read_series(frame.assign(promo=np.arange(56.0)), **layout, known=["promo"])


def test_known_covariates_reach_beyond_the_last_value():
    frame = pd.DataFrame({"date": DAYS, "x": np.arange(40.0), "holiday": np.arange(40) % 7 == 0})
    frame.loc[30:, "x"] = np.nan
    series = read_series(frame.astype({"holiday": float}), known=["holiday"])
    assert (len(series.dates), series.columns, len(series.known)) == (30, ("x",), 40)


def test_values_missing_at_the_end_and_columns_that_tell_series_apart_are_named():
    frame = pd.DataFrame({"date": DAYS, "x": np.arange(40.0), "holiday": 1.0})
    frame.loc[38:, "x"] = np.nan
    (repair,) = read_series(frame).repairs
    assert "the last 2 values of 'x'" in repair
    assert "--known" in repair
    both = pd.concat([frame.assign(shop="north"), frame.assign(shop="south", x=5.0)])
    with pytest.raises(UserError, match="pass --id-column shop"):
        read_series(both)
    assert read_series(frame.set_index("date")["holiday"]).columns == ("holiday",)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "not a regular CSV"),
        ("date\n2020-01-01\n", "needs dates"),
        ("2020-01-01,1\n2020-01-02,2\n", "must name the columns"),
        (csv(DAYS.date, ["x"] * 40), "no column of numbers"),
        (csv(DAYS.date, ["1", "oops"] * 20), "'oops' in row 2"),
        (csv(DAYS.date, ["1", "inf"] * 20), "'inf' in row 2"),
        (csv(DAYS.date, ["1.002,5", "4,5", "off", *["3,25"] * 37], separator=";"), "'off' in row 3"),
        (csv(["2020-01-01", "soon"] * 20), "'soon' in row 2"),
        (csv(DAYS[:5].date), "5 dated rows"),
        (csv([*DAYS.date, DAYS[3].date()]), "different rows for 2022-01-04"),
        (csv(list(DAYS[:20].date) + list(DAYS[25:].date)), "lacks 5 of 40 rows"),
        (csv(DAYS.date, ["", "", "", *range(37)]), "first value at 2022-01-04"),
        (csv(DAYS.date, [1, *[""] * 3, *range(36)]), "lacks 8%"),
        (csv([f"{day:02}/02/2022" for day in range(1, 13)]), "day or month"),
        (csv(DAYS.date, ["1.234", "5.678"] * 20, separator=";"), "decimal point or a dot"),
        ("date,x\n2020-01-01,1,2\n2020-01-02,1,2\n", "not a regular CSV"),
    ],
)
def test_unreadable_files_raise_one_sentence(write_csv, text, message):
    with pytest.raises(UserError, match=message):
        read_series(write_csv(text))


def test_unknown_names_raise(write_csv, tmp_path):
    path = write_csv()
    for layout in (
        {"columns": ["z"]},
        {"date_column": "z"},
        {"id_column": "z"},
        {"known": ["z"], "columns": ["a"]},
    ):
        with pytest.raises(UserError, match="'z'"):
            read_series(path, **layout)
    with pytest.raises(UserError, match=r"'date' of some holds dates"):
        read_series(path, columns=["date"])
    with pytest.raises(UserError, match="leave one to be forecast"):
        read_series(path, known=["a", "b"])
    with pytest.raises(UserError, match="`data` must be a DataFrame or the path of a file: got list"):
        read_series([1.0, 2.0])
    with pytest.raises(UserError, match="The DataFrame needs dates"):
        read_series(pd.DataFrame())
    with pytest.raises(UserError, match="less than freq=D: pass --resample D"):
        read_series(path, freq="D")
    with pytest.raises(UserError, match="like h, 15min"):
        read_series(path, freq="soon")
    with pytest.raises(UserError, match="cannot be read"):
        read_series(tmp_path / "missing.csv")


def test_compressed_files_are_read(write_csv, tmp_path):
    packed = tmp_path / "some.csv.gz"
    pd.read_csv(write_csv()).to_csv(packed, index=False)
    assert read_series(packed).name == "some"
