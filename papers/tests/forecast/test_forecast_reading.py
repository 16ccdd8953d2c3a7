"""A CSV is read as it is, repaired in the open, or refused in one sentence."""

import numpy as np
import pandas as pd
import pytest

from recurrify.errors import UserError
from recurrify_papers.forecast.reading import read_series

HEADER = "date,x,y\n"
MONTHS = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct")


def lines(count: int = 10, skip: tuple[int, ...] = (), start: str = "2021-03-01", step: str = "h") -> list[str]:
    dates = pd.date_range(start, periods=count, freq=step)
    return [f"{date},{index},{index * 0.5}\n" for index, date in enumerate(dates) if index not in skip]


def test_a_good_file_is_read_without_repairs(write_csv):
    series = read_series(write_csv(HEADER + "".join(lines())))
    assert series.columns == ("x", "y")
    assert series.frequency == "h"
    assert series.repairs == ()
    np.testing.assert_array_equal(series.values[:, 1], np.arange(10) * 0.5)
    assert series.dates[3] == pd.Timestamp("2021-03-01 03:00")


def test_unsorted_rows_are_sorted_and_told(write_csv):
    series = read_series(write_csv(HEADER + "".join(reversed(lines()))))
    np.testing.assert_array_equal(series.values[:, 0], np.arange(10))
    assert "sorted" in series.repairs[0]


def test_a_repeated_row_is_left_out_and_told(write_csv):
    rows = lines()
    series = read_series(write_csv(HEADER + "".join([*rows, rows[4]])))
    np.testing.assert_array_equal(series.values[:, 0], np.arange(10))
    assert any("1 rows that repeated" in repair for repair in series.repairs)


def test_two_different_rows_of_one_date_are_refused(write_csv):
    with pytest.raises(UserError, match="different rows for the same date, 2021-03-01 04:00:00"):
        read_series(write_csv(HEADER + "".join([*lines(), "2021-03-01 04:00:00,77,2.0\n"])))


def test_missing_rows_take_the_value_before_and_never_a_later_one(write_csv):
    series = read_series(write_csv(HEADER + "".join(lines(60, skip=(20, 21)))))
    np.testing.assert_array_equal(series.values[18:23, 0], [18, 19, 19, 19, 22])
    assert len(series.dates) == 60
    assert any("2 rows missing" in repair for repair in series.repairs)


def test_missing_values_take_the_value_before(write_csv):
    rows = lines(60)
    rows[30] = rows[30].split(",")[0] + ",,15.0\n"
    series = read_series(write_csv(HEADER + "".join(rows)))
    assert series.values[30].tolist() == [29.0, 15.0]
    assert series.repairs == ("1 missing values of 'x' were filled with the value before (at most 1 in a row)",)


def test_rows_before_the_first_value_are_left_out(write_csv):
    rows = lines(60)
    rows[0] = rows[0].split(",")[0] + ",,0.0\n"
    series = read_series(write_csv(HEADER + "".join(rows)))
    assert series.values[0].tolist() == [1.0, 0.5]
    assert "the first 1 rows" in series.repairs[0]


def test_the_day_comes_first_where_the_steps_say_so(write_csv):
    dates = pd.date_range("2021-02-01", periods=200, freq="h")
    series = read_series(write_csv(HEADER + "".join(f"{date:%d/%m/%Y %H:%M},1,{date.day}\n" for date in dates)))
    assert list(series.dates) == list(dates)
    assert "day first" in series.repairs[0]


@pytest.mark.parametrize("how", ["%m/%d/%Y", "%d/%m/%Y", "%d.%m.%Y"])
@pytest.mark.parametrize("newest_first", [False, True])
def test_months_with_slashes_or_dots(write_csv, how, newest_first):
    dates = pd.date_range("2015-01-01", periods=40, freq="MS")
    written = reversed(dates) if newest_first else dates
    series = read_series(write_csv(HEADER + "".join(f"{date.strftime(how)},1,{date.year}\n" for date in written)))
    assert list(series.dates) == list(dates)
    assert series.frequency == "MS"
    assert any("day first" in repair for repair in series.repairs) == how.startswith("%d")


def test_the_day_comes_first_also_where_rows_are_missing(write_csv):
    dates = pd.date_range("2021-02-01", periods=200, freq="h").delete([50, 51])
    series = read_series(write_csv(HEADER + "".join(f"{date:%d/%m/%Y %H:%M},1,2\n" for date in dates)))
    assert (series.dates[0], series.dates[-1], len(series.dates)) == (dates[0], dates[-1], 200)


@pytest.mark.parametrize(
    ("start", "step", "how"),
    [("2015-01-01", "MS", "%m/%d/%Y"), ("2015-01-01", "D", "%d.%m.%Y"), ("2015-02-01", "D", "%d/%m/%Y")],
    ids=["months", "days", "days of February"],
)
def test_dates_that_are_regular_either_way_are_refused(write_csv, start, step, how):
    dates = pd.date_range(start, periods=12, freq=step)
    with pytest.raises(UserError, match=r"may begin with the day or with the month.*write them like 2016-07-01"):
        read_series(write_csv(HEADER + "".join(f"{date.strftime(how)},1,2\n" for date in dates)))


def test_days_of_a_local_clock_keep_their_dates(write_csv):
    dates = pd.date_range("2020-03-01", periods=60, freq="D", tz="Europe/Berlin")  # the clocks change on the 29th
    series = read_series(write_csv(HEADER + "".join(f"{date},1,2\n" for date in dates)))
    assert list(series.dates) == list(dates.tz_localize(None))
    assert series.repairs == ("the time zone was left out of the dates, which stay those of the local clock",)


def test_hours_of_a_local_clock_become_utc(write_csv):
    dates = pd.date_range("2020-03-28", periods=60, freq="h", tz="Europe/Berlin")
    series = read_series(write_csv(HEADER + "".join(f"{date},1,2\n" for date in dates)))
    assert list(series.dates) == list(dates.tz_convert("UTC").tz_localize(None))


def test_iso_dates_may_differ_in_how_much_they_tell(write_csv):
    dates = pd.date_range("2020-01-01", periods=20, freq="100ms")
    series = read_series(write_csv(HEADER + "".join(f"{date},1,2\n" for date in dates)))
    assert list(series.dates) == list(dates)


@pytest.mark.parametrize(("header", "left_out"), [(",date,x", "Unnamed: 0"), ("x,date,", "Unnamed: 2")])
def test_a_column_without_a_name_is_left_out(write_csv, header, left_out):
    text = header + "\n" + "".join(f"{index},2021-03-{index + 1:02},{index}\n" for index in range(10))
    series = read_series(write_csv(text))
    assert series.columns == ("x",)
    assert series.repairs == (f"the column without a name ({left_out!r}) was left out",)


def test_dates_may_stand_in_a_column_without_a_name(write_csv):
    series = read_series(write_csv(",x,y\n" + "".join(lines())))
    assert (series.columns, series.repairs, series.frequency) == (("x", "y"), (), "h")


def test_a_column_called_date_comes_before_one_called_time(write_csv):
    text = "time,date,x\n" + "".join(f"{index},2021-03-{index + 1:02},{index}\n" for index in range(10))
    series = read_series(write_csv(text))
    assert series.dates[3] == pd.Timestamp("2021-03-04")
    assert series.columns == ("time", "x")


def test_months_are_a_regular_step(write_csv):
    series = read_series(write_csv(HEADER + "".join(lines(12, step="MS", start="2021-01-01"))))
    assert series.frequency == "MS"
    assert series.repairs == ()


def test_time_zones_become_utc(write_csv):
    text = HEADER + "".join(line.replace(":00:00,", ":00:00+02:00,") for line in lines())
    series = read_series(write_csv(text))
    assert series.dates[2] == pd.Timestamp("2021-03-01 00:00")
    assert "UTC" in series.repairs[0]


def test_other_separators_and_columns_of_words(write_csv):
    text = "note;when;x\n" + "".join(f"fine;2021-03-{index + 1:02};{index}\n" for index in range(10))
    series = read_series(write_csv(text), date_column="when")
    assert series.columns == ("x",)
    assert series.repairs == ("the column 'note' holds texts such as 'fine', no numbers, and was left out",)


@pytest.mark.parametrize(
    ("separator", "written", "number", "kind"),
    [
        (";", "{day},5", 1.5, "a decimal comma"),
        ("\t", "-{day},25e1", -12.5, "a decimal comma"),
        (";", "{day}.234,5", 1234.5, "a decimal comma"),
        (";", "{day},234", 1.234, "a decimal comma"),
        (",", '"{day},5"', 1.5, "a decimal comma"),
        (",", '"{day},234.5"', 1234.5, "commas between thousands"),
        (",", '"{day},234,567"', 1234567.0, "commas between thousands"),
        (";", "{day}.234.567", 1234567.0, "dots between thousands"),
    ],
    ids=["decimal", "tab", "both", "three-decimals", "quoted", "thousands", "millions", "dots"],
)  # fmt: skip
def test_commas_in_numbers_are_read_and_told(write_csv, separator, written, number, kind):
    rows = [f"2021-03-{day:02}{separator}{day}{separator}{written.format(day=day)}\n" for day in range(1, 29)]
    series = read_series(write_csv(separator.join(["date", "x", "y"]) + "\n" + "".join(rows)))
    assert series.values[0].tolist() == [1.0, number]
    example = written.format(day=1).strip('"')
    assert series.repairs == (f"numbers such as {example} in column 'y' were read with {kind}",)


@pytest.mark.parametrize("ends", ["\r", "\r\n"], ids=["cr", "crlf"])
def test_other_line_ends(write_csv, ends):
    path = write_csv()
    path.write_bytes((HEADER + "".join(lines())).replace("\n", ends).encode())
    series = read_series(path)
    assert series.repairs == ()
    np.testing.assert_array_equal(series.values[:, 0], np.arange(10))


def test_empty_lines_are_left_out_and_told(write_csv):
    rows = lines()
    series = read_series(write_csv(HEADER + "".join([*rows[:4], "\n", *rows[4:], "\n\n"])))
    np.testing.assert_array_equal(series.values[:, 0], np.arange(10))
    assert series.repairs == ("1 empty lines were left out",)


def test_months_on_another_day_than_the_first(write_csv):
    dates = pd.date_range("2015-01-01", periods=40, freq="MS") + pd.Timedelta(days=14)
    series = read_series(write_csv(HEADER + "".join(f"{date},1,{date.year}\n" for date in dates)))
    assert series.frequency == "MS"
    assert list(series.dates) == list(dates - pd.Timedelta(days=14))
    assert series.repairs == ("the dates, on day 15 of their months, were moved to the first",)


@pytest.mark.parametrize("how", ["%y-%m-%d", "%y/%m/%d %H:%M", "%d.%m.%y"])
def test_years_of_two_digits_stand_where_it_is_regular(write_csv, how):
    dates = pd.date_range("2019-01-20", periods=60, freq="D")
    series = read_series(write_csv(HEADER + "".join(f"{date.strftime(how)},1,2\n" for date in dates)))
    assert list(series.dates) == list(dates)
    first = "year" if how.startswith("%y") else "day"
    told = f"dates such as {dates[0].strftime(how)} were read with the {first} first"
    assert series.repairs in ((told,), ())


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("", "is empty"),
        ("date\n2020-01-01\n", "one column only"),
        (HEADER, "has the names of columns but no rows"),
        ("date,x\n" + "".join(lines()), "more fields in its rows than names in its first line, 2"),
        ("date,x,x\n2020-01-01,1,2\n", "more than one column 'x'"),
        (HEADER + "".join(lines(5)), "has 5 dated rows, too few"),
        (HEADER + "".join(lines()) + "tomorrow,1,2\n", "line 12 has 'tomorrow'"),
        (HEADER + "".join(lines()) + ",1,2\n", "no date in line 12"),
        (HEADER + "".join(lines()).replace(",3,", ",three,"), "'three' in line 5"),
        (HEADER + "".join(lines()).replace(",3,", ",inf,"), "'inf' in line 5"),
        ("date,x,y\n" + "".join(f"{index},1,2\n" for index in range(10)), "numbers such as 0 in line 2, not dates"),
        (HEADER + "".join(lines(60)) + "2021-03-03 12:30:00,1,2\n", "off the grid"),
        (HEADER + "".join(lines(60, skip=tuple(range(20, 30)))), "10 of 60 rows are missing"),
        (HEADER + "".join(lines()).replace(",3,", ",,"), "1 of 10 rows"),
        ("date,x\n" + "".join(f"{line.split(',')[0]},word\n" for line in lines()), "no column of numbers"),
        (HEADER + "\n" + "".join(lines()).replace(",3,", ",three,"), "'three' in line 6"),
        (HEADER + "".join(lines(3)) + "\n\n" + ",1,2\n", "no date in line 7"),
        ("date,x" + "x" * 140_000 + "\n2020-01-01,1\n", "is not a regular CSV file .field larger than field limit"),
        ("It rained.\nAll day.\nHills, woods, and so on.\n", "line 3 has 3 fields, the lines before it 1"),
        ("date,x\n" + 'one,"two\n', "a quotation mark is never closed"),
        ("date,x\n" + "".join(f"{hour:02}:00,{hour}\n" for hour in range(20)), "such as '00:00', have no day"),
        ("date,x\n" + "".join(f"{name}-01,1\n" for name in MONTHS), "such as 'Jan-01', have a day or a year"),
        ("date,x\n" + "".join(f"{month:02}/01,1\n" for month in range(1, 13)), "a day or a year, but not both"),
        ("date,x\n" + "".join(f"01-01-{day:02},1\n" for day in range(1, 29)), "begin with the month or with the year"),
        ("date,x\n" + "".join(f'2021-03-{day:02},"{day},234"\n' for day in range(1, 29)), "between thousands or"),
        ("date;x;y\n" + "".join(f"2021-03-{day:02};1,{day};1.234\n" for day in range(1, 29)), "beside decimal commas"),
    ],
    ids=[
        "empty", "one-column", "header-only", "extra-fields", "same-name", "short", "bad-date", "no-date",
        "word", "infinite", "numbers-as-dates", "off-grid", "gaps", "holes", "words-only", "word-after-blank",
        "no-date-after-blank", "long-name", "story", "quotation", "time-only", "month-and-number", "two-numbers",
        "yy-mm-dd", "either-comma", "dots-beside-commas",
    ],
)  # fmt: skip
def test_what_cannot_be_repaired_is_refused(write_csv, text, told):
    with pytest.raises(UserError, match=told):
        read_series(write_csv(text))


def test_names_that_are_not_there_are_refused(write_csv, tmp_path):
    path = write_csv(HEADER + "".join(lines()))
    with pytest.raises(UserError, match="no column 'z': it has x, y"):
        read_series(path, columns=["z"])
    with pytest.raises(UserError, match="names 'x' more than once"):
        read_series(path, columns=["x", "y", "x"])
    with pytest.raises(UserError, match="no column 'when' for the dates"):
        read_series(path, date_column="when")
    with pytest.raises(UserError, match=r"nothing\.csv does not exist"):
        read_series(tmp_path / "nothing.csv")


@pytest.mark.parametrize("date", ["2020-01-01 00:00", "01/02/2020", "2020-01-01T00:00:00Z"])
def test_a_file_without_names_of_columns_is_refused(tmp_path, date):
    path = tmp_path / "bare.csv"
    path.write_text(f"{date},0.5,58.6\n" + "".join(f"2020-01-{day:02},{day},1\n" for day in range(2, 20)))
    with pytest.raises(UserError, match="must name the columns"):
        read_series(path)


def test_columns_may_be_named_by_numbers(tmp_path):
    path = tmp_path / "numbered.csv"
    path.write_text("date,1,2020\n" + "".join(f"2020-01-{day:02},{day},{day * day}\n" for day in range(1, 20)))
    assert read_series(path).columns == ("1", "2020")
