"""Which column holds the dates, also where they are numbers; and what is told of columns that are no target."""

import bz2
import gzip
import io
import lzma
import zipfile
from collections.abc import Callable

import numpy as np
import pandas as pd
import pytest

from recurrify.errors import UserError
from recurrify_papers.forecast.data import choose_target
from recurrify_papers.forecast.reading import read_series

DAYS = pd.date_range("2021-03-01", periods=40)
HOURS = pd.date_range("2021-03-01", periods=40, freq="h")
YEARS = pd.date_range("1700-01-01", periods=40, freq="YS")


def csv(header: str, row: Callable[[int], tuple[object, ...]], rows: int = 40) -> str:
    return header + "\n" + "".join(",".join(map(str, row(index))) + "\n" for index in range(rows))


def unix(date: pd.Timestamp, factor: int = 1) -> int:
    return int((date - pd.Timestamp(0)) / pd.Timedelta(seconds=1)) * factor


@pytest.mark.parametrize(
    ("name", "dates", "written", "kind"),
    [
        ("year", YEARS, lambda date: date.year, "years"),
        ("tag", DAYS, lambda date: f"{date:%Y%m%d}", "dates like YYYYMMDD"),
        ("date", DAYS, lambda date: f"{date:%Y%m%d}", "dates like YYYYMMDD"),
        ("date", HOURS, lambda date: f"{date:%Y%m%d%H}", "dates like YYYYMMDDHH"),
        ("time", HOURS, lambda date: f"{date:%Y%m%d%H%M}", "dates like YYYYMMDDHHMM"),
        ("timestamp", HOURS, unix, "Unix seconds, in UTC"),
        ("timestamp", HOURS, lambda date: f"{unix(date)}.0", "Unix seconds, in UTC"),
        ("Time", HOURS, lambda date: unix(date, 1000), "Unix milliseconds, in UTC"),
    ],
    ids=["year", "any-name", "yyyymmdd", "yyyymmddhh", "yyyymmddhhmm", "seconds", "float-seconds", "milliseconds"],
)
@pytest.mark.parametrize("newest_first", [False, True])
def test_dates_written_as_numbers_are_read_and_told(write_csv, name, dates, written, kind, newest_first):
    ordered = dates[::-1] if newest_first else dates
    series = read_series(write_csv(csv(f"{name},x", lambda index: (written(ordered[index]), index))))
    assert list(series.dates) == list(dates)
    assert series.repairs[0] == f"numbers such as {written(ordered[0])} in column {name!r} were read as {kind}"
    assert series.columns == ("x",)


def test_unix_seconds_under_another_name_are_read_where_they_are_named(write_csv):
    path = write_csv(csv("t,x", lambda index: (unix(HOURS[index]), index)))
    assert list(read_series(path, date_column="t").dates) == list(HOURS)
    with pytest.raises(UserError, match=r"none of t, x has a date.*name a column of Unix seconds with --date-column"):
        read_series(path)


@pytest.mark.parametrize(
    ("first", "told"),
    [(0, "such as 0 in line 2"), (20220101, "such as 20220132 in line 33"), (99_999_990, "such as 99999990 in line 2")],
)
def test_numbers_that_are_no_dates_are_refused_with_a_way_out(write_csv, first, told):
    path = write_csv(csv("date,x", lambda index: (first + index, index)))
    for asked in (None, "date"):
        with pytest.raises(UserError, match=f"{told}, not dates: write dates such as 2022-01-01") as refused:
            read_series(path, date_column=asked)
        assert "--date-column" not in str(refused.value)


def test_who_has_named_the_column_is_not_told_to_name_it(write_csv):
    path = write_csv(csv("when,x", lambda index: ("soon" if index == 7 else DAYS[index], index)))
    with pytest.raises(UserError, match=r"line 9 has 'soon'.*or name the right column with --date-column"):
        read_series(path)
    with pytest.raises(UserError, match=r"line 9 has 'soon'.*write them like 2016-07-01 00:00\.$"):
        read_series(path, date_column="when")


@pytest.mark.parametrize("name", ["day", "Month", "week", "year", "ds", "date_time", "Date/Time"])
def test_a_column_is_found_by_its_name_wherever_it_stands(write_csv, name):
    series = read_series(write_csv(csv(f"visitors,sales,{name}", lambda index: (index, index * 2, DAYS[index]))))
    assert (series.columns, series.repairs) == (("visitors", "sales"), ())
    assert list(series.dates) == list(DAYS)


@pytest.mark.parametrize(
    ("header", "row"),
    [
        ("visitors,when", lambda index: (index, DAYS[index])),
        ("day,visitors,when", lambda index: (DAYS[index].day_name(), index, DAYS[index])),
        ("clock,visitors,when", lambda index: ("10:30", index, DAYS[index])),
        ("updated,visitors,when", lambda index: ("n/a" if index else "2024-05-01", index, DAYS[index])),
        ("visitors,updated,when", lambda index: (index, "2024-05-01", DAYS[index])),
        ("visitors,size,when", lambda index: (index, f'"{index % 12 + 1},{index % 28 + 1}"', DAYS[index])),
        ("visitors,year,when", lambda index: (index, DAYS[index].year, DAYS[index])),
    ],
    ids=["numbers", "weekdays", "clock", "hardly-any", "same-day", "decimal-commas", "year-beside"],
)  # fmt: skip
def test_the_only_column_of_dates_is_found_and_told(write_csv, header, row):
    series = read_series(write_csv(csv(header, row)))
    assert list(series.dates) == list(DAYS)
    assert series.repairs[0] == "the dates are those of the column 'when', the only one that holds any"


def test_a_part_of_the_date_does_not_take_its_place(write_csv):
    text = csv("when,year,month,x", lambda index: (DAYS[index], 2021, f"{DAYS[index]:%Y-%m}", index))
    series = read_series(write_csv(text))
    assert list(series.dates) == list(DAYS)
    assert series.columns == ("year", "x")


@pytest.mark.parametrize(
    ("header", "row", "told"),
    [
        ("visitors,sales,note", lambda index: (index, index, "fine"),
         r"none is called date, .*day.*year or the like, and none of visitors, sales, note has a date in every row"),
        ("x,made,sold", lambda index: (index, DAYS[index], DAYS[index]),
         "several columns of dates, made, sold: choose one"),
        ("year,month,day,x", lambda index: (2021, DAYS[index].month, DAYS[index].day, index),
         "its dates in several columns, day, month, year: join them"),
    ],
    ids=["none", "two", "parts"],
)  # fmt: skip
def test_a_file_without_one_column_of_dates_is_refused(write_csv, header, row, told):
    with pytest.raises(UserError, match=told):
        read_series(write_csv(csv(header, row)))


def test_measurements_that_look_like_years_are_not_dates(write_csv):
    with pytest.raises(UserError, match="no column of dates"):
        read_series(write_csv(csv("visitors,x", lambda index: (1800 + index * 7 % 40, index))))


@pytest.mark.parametrize(
    ("header", "last", "told"),
    [
        ("date,x,note", "fine", "the last column, 'note', was left out: the target is 'x'"),
        ("date,x,flat", 3, "the last column, 'flat', is constant: the target is 'x'"),
    ],
    ids=["texts", "constant"],
)  # fmt: skip
def test_another_target_than_the_last_column_is_told(write_csv, header, last, told):
    path = write_csv(csv(header, lambda index: (DAYS[index], index, last)))
    series = read_series(path)
    assert series.repairs[-1] == f"{told}, unless --target names another"
    assert choose_target(series, None) == "x"
    # Who chooses the columns, as every command does after the training, needs no word about the others.
    assert read_series(path, columns=["x"]).repairs == ()


def test_a_constant_column_stays_and_is_the_target_only_alone_or_named(write_csv):
    series = read_series(write_csv(csv("date,x,flat", lambda index: (DAYS[index], index, 3))))
    assert series.columns == ("x", "flat")
    assert choose_target(series, "flat") == "flat"
    alone = read_series(write_csv(csv("date,flat", lambda index: (DAYS[index], 3))))
    assert (choose_target(alone, None), alone.repairs) == ("flat", ())


def test_texts_in_front_of_the_target_do_not_name_it(write_csv):
    series = read_series(write_csv(csv("date,note,x", lambda index: (DAYS[index], "fine", index))))
    assert series.repairs == ("the column 'note' holds texts such as 'fine', no numbers, and was left out",)


def zipped(content: bytes) -> bytes:
    into = io.BytesIO()
    with zipfile.ZipFile(into, "w") as file:
        file.writestr("some.csv", content)
    return into.getvalue()


@pytest.mark.parametrize(
    ("pack", "kind"), [(gzip.compress, "gzip"), (zipped, "zip"), (lzma.compress, "xz"), (bz2.compress, "bzip2")]
)
def test_a_compressed_file_is_called_so(tmp_path, pack, kind):
    path = tmp_path / "some.csv"
    path.write_bytes(pack(csv("date,x", lambda index: (DAYS[index], index)).encode()))
    with pytest.raises(UserError, match=rf"is compressed \({kind}.*unpack it"):
        read_series(path)


def test_added_rows_are_told_once_and_other_gaps_by_themselves(write_csv):
    def lines(hole: int | None) -> str:
        text = csv("date,x,y", lambda index: (HOURS[index], "" if index == hole else index, index))
        return "".join(line for line in text.splitlines(keepends=True) if f"{HOURS[20]}" not in line)

    added = "added, with the values before: 1 row missing from the regular step of 1 hour"
    added += " (at most 1 in a row)"
    series = read_series(write_csv(lines(None)))
    assert series.repairs == (added,)
    np.testing.assert_array_equal(series.values[19:22, 1], [19, 19, 21])
    assert read_series(write_csv(lines(21))).repairs == (
        added,
        "1 missing values of 'x', beside those of the added rows, were filled with the value before "
        "(at most 2 in a row)",
    )


@pytest.mark.parametrize(
    ("dates", "what", "frequency"),
    [
        (pd.bdate_range("2022-01-03", periods=130), "the business days", "B"),
        (pd.date_range("2012-01-01", periods=130, freq="MS"), "the months", "MS"),
        (pd.date_range("2012-01-01", periods=130, freq="MS") + pd.Timedelta(days=14), "the months", "MS"),
        (pd.date_range("2012-01-31", periods=130, freq=pd.offsets.MonthEnd()), "the ends of months", "ME"),
        (pd.date_range("2022-01-01", periods=130, freq="15min"), "the regular step of 15 minutes", "15min"),
    ],
    ids=["business days", "months", "days in months", "ends of months", "quarters of hours"],
)
def test_missing_rows_are_added_where_the_step_is_known(write_csv, dates, what, frequency):
    table = pd.DataFrame({"x": range(130)}, index=dates).drop(dates[[20, 60, 61]])
    table.loc[dates[30], "x"] = None
    series = read_series(write_csv(table.to_csv(index_label="date")))
    assert series.frequency == frequency
    assert series.values[[19, 20, 30, 60, 61, 62], 0].tolist() == [19, 19, 29, 59, 59, 62]
    assert f"added, with the values before: 3 rows missing from {what} (at most 2 in a row)" in series.repairs
    assert "1 missing values of 'x', beside those of the added rows, were filled" in " ".join(series.repairs)


def test_business_days_and_a_saturday_are_no_step(write_csv):
    dates = pd.bdate_range("2022-01-03", periods=60).append(pd.DatetimeIndex(["2022-02-05"])).sort_values()
    with pytest.raises(UserError, match="most are 1 day apart"):
        read_series(write_csv(pd.DataFrame({"x": range(61)}, index=dates).to_csv(index_label="date")))


@pytest.mark.parametrize("written", ["%m/%d/%Y", "%d/%m/%Y"])
def test_months_with_a_gap_are_read_with_the_right_part_first(write_csv, written):
    months = pd.date_range("2015-01-01", periods=60, freq="MS")
    series = read_series(
        write_csv(csv("date,x", lambda index: (f"{months[index + (index > 19)]:{written}}", index), 59))
    )
    assert list(series.dates) == list(months)


@pytest.mark.parametrize(
    "dates", [pd.bdate_range("2022-01-03", periods=60), pd.date_range("2015-01-01", periods=60, freq="MS")]
)
def test_local_dates_stay_with_a_gap(write_csv, dates):
    series = read_series(write_csv(csv("date,x", lambda index: (f"{dates[index + (index > 19)]}+01:00", index), 59)))
    assert list(series.dates) == list(dates)


def test_days_of_months_are_told_to_move_with_a_gap_too(write_csv):
    dates = pd.date_range("2015-01-01", periods=60, freq="MS") + pd.Timedelta(days=14)
    series = read_series(write_csv(csv("date,x", lambda index: (dates[index + (index > 19)], index), 59)))
    assert series.repairs[0] == "the dates, on day 15 of their months, were moved to the first"


@pytest.mark.parametrize(
    ("header", "row"),
    [
        ("week,x", lambda index: (2001 + index, index)),
        ("time,x", lambda index: (1600 + index, index)),
        ("id,x", lambda index: (2001 + index, index)),
        ("odometer,x", lambda index: (1700 + 3 * index, index)),
        ("date,x", lambda index: (2022010100 + index, index)),  # its 25th hour
    ],
    ids=["weeks", "times of day", "numbers of rows", "measurements", "hours from 1 to 60"],
)
def test_numbers_that_look_like_dates_are_not_taken_for_them(write_csv, header, row):
    with pytest.raises(UserError, match="write dates such as 2022-01-01"):
        read_series(write_csv(csv(header, row)))


def test_texts_that_are_dates_come_before_numbers_that_may_be(write_csv):
    series = read_series(write_csv(csv("id,year,moment,x", lambda index: (index, 2050 - index, DAYS[index], index))))
    assert list(series.dates) == list(DAYS)
    named_later = read_series(write_csv(csv("reported,x,dates", lambda index: (DAYS[index], index, DAYS[index]))))
    assert named_later.columns == ("x",)
