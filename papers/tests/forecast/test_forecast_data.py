"""Splits as published, scaling without a look ahead, and every window where it belongs."""

import re
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import torch

from recurrify.errors import UserError
from recurrify_papers.forecast.calendar import time_features, usual_season
from recurrify_papers.forecast.data import (
    Scaling,
    Split,
    WindowedSeries,
    choose_target,
    constant_columns,
    only_column,
    split_rows,
)
from recurrify_papers.forecast.reading import Series

ETT = ("HUFL", "HULL", "MUFL", "MULL", "LUFL", "LULL", "OT")


def series_of(rows: int, step: str = "h", columns: tuple[str, ...] = ("x",)) -> Series:
    dates = pd.date_range("2016-07-01", periods=rows, freq=step)
    values = np.arange(rows * len(columns), dtype=float).reshape(rows, -1)
    return Series("some", dates, values, columns, step, (), "0")


@pytest.mark.parametrize(
    ("rows", "step", "columns", "expected"),
    [
        (17_420, "h", ETT, (8_640, 11_520, 14_400)),
        (69_680, "15min", ETT, (34_560, 46_080, 57_600)),
        (20_000, "h", ("OT",), (14_000, 16_000, 20_000)),
        (20_000, "D", ETT, (14_000, 16_000, 20_000)),
        (35_064, "h", ("Visibility", "WetBulbCelsius"), (24_544, 28_052, 35_064)),
    ],
    ids=["etth", "ettm", "one of ETT's names", "ETT's names by day", "weather"],
)
def test_the_published_splits(rows, step, columns, expected):
    assert split_rows(series_of(rows, step, columns), "auto") == expected


def test_one_column_of_ett_is_split_as_all_of_it():
    series = replace(series_of(17_420, "h", ETT), file_columns=ETT)
    assert split_rows(only_column(series, "OT"), "auto") == (8_640, 11_520, 14_400)


@pytest.mark.parametrize(
    "split", ["0.7/0.3", "a/b/c", "0.7/0.1/0.1", "1/0/0", "12/4/4 weeks", "inf/4/4 months", "9e9/4/4 months"]
)
def test_bad_splits_are_refused(split):
    with pytest.raises(UserError, match="split"):
        split_rows(series_of(100), split)


@pytest.mark.parametrize(
    ("rows", "step", "split", "expected"),
    [
        (200, "MS", "120/40/40 months", (120, 160, 200)),
        (21, "ME", "12/4/4 months", (12, 16, 20)),
        (500, "B", "12/4/4 months", (256, 342, 428)),
        (90, "W-SUN", "12/4/4 months", (52, 69, 86)),
    ],
    ids=["months", "ends of months", "business days", "weeks"],
)
def test_months_go_by_the_calendar(rows, step, split, expected):
    """Of 30 days, unless each row is a month itself."""
    series = series_of(rows, step)
    assert split_rows(series, split) == expected
    if step in ("B", "W-SUN"):
        ends = [series.dates[0] + pd.Timedelta(days=30 * months) for months in (12, 16, 20)]
        assert expected == tuple(int((series.dates < end).sum()) for end in ends)


def test_steps_of_months_take_whole_months():
    with pytest.raises(UserError, match="whole months"):
        split_rows(series_of(100, "MS"), "12.5/4/4 months")


def test_too_few_months_are_refused():
    with pytest.raises(UserError, match=r"too short for '12/4/4 months': it ends with 2016-07-05 03:00:00, before"):
        split_rows(series_of(100), "12/4/4 months")


def test_scaling_knows_the_training_rows_alone():
    series = series_of(100)
    scaling = Scaling.of(series.values[:60])
    data = WindowedSeries(series, Split(60, 80, 100), scaling, past=4, horizon=2)
    assert data.values_TC[:60].mean().item() == pytest.approx(0, abs=1e-6)
    assert data.values_TC[:60].std(correction=0).item() == pytest.approx(1)
    np.testing.assert_allclose(scaling.undo(scaling.apply(series.values)), series.values)


def test_a_constant_column_is_centred_and_named():
    values = np.full((100, 1), 0.1) * 3
    series = Series("flat", series_of(100).dates, values, ("x",), "h", (), "0")
    scaling = Scaling.of(values)
    assert scaling.spread.tolist() == [1.0]
    np.testing.assert_allclose(scaling.apply(values), 0, atol=1e-12)
    assert constant_columns(series, 60) == ["x"]
    assert constant_columns(series_of(100), 60) == []


def test_a_small_spread_around_a_large_number_is_no_constant():
    values = 1e9 + 0.4 * np.random.default_rng(0).normal(size=(100, 1))
    series = replace(series_of(100), values=values)
    assert constant_columns(series, 100) == []
    assert Scaling.of(values).apply(values).std() == pytest.approx(1)


@pytest.mark.parametrize(
    ("row", "number"), [(slice(None, None, 2), 1e307), (10, 1e300), (70, 1e30), (90, 1e300)],
    ids=["spread", "training", "validation", "test"],
)  # fmt: skip
def test_numbers_too_large_to_reckon_with_are_refused(row, number):
    series = series_of(100)
    series.values[row] = number
    with pytest.raises(
        UserError, match=re.escape(f"column 'x' of some holds numbers too large for a forecast, such as {number:g}")
    ):
        WindowedSeries(series, Split(60, 80, 100), Scaling.of(series.values[:60]), past=4, horizon=2)


def test_windows_lie_where_they_belong():
    series = series_of(20)
    data = WindowedSeries(series, Split(10, 15, 20), Scaling(np.zeros(1), np.ones(1)), past=4, horizon=2)
    assert data.starts("train").tolist() == [0, 1, 2, 3, 4]
    assert data.starts("valid").tolist() == [6, 7, 8, 9]
    assert data.starts("test").tolist() == [11, 12, 13, 14]
    # Every pair of neighbouring rows of the test part is forecast once, and no row of another part.
    forecast = data.batch(data.starts("test")).future[:, :, 0]
    assert forecast.tolist() == [[15, 16], [16, 17], [17, 18], [18, 19]]
    batch = data.batch(torch.tensor([6, 2]))
    assert batch.past[:, :, 0].tolist() == [[6, 7, 8, 9], [2, 3, 4, 5]]
    times = time_features(series.dates, series.step)
    np.testing.assert_allclose(batch.past_time[1].numpy(), times[2:6])
    np.testing.assert_allclose(batch.future_time[1].numpy(), times[6:8])


def test_published_numbers_of_test_windows():
    series = series_of(17_420, "h", ETT)
    data = WindowedSeries(series, split_rows(series, "auto"), Scaling.of(series.values), past=48, horizon=24)
    assert [len(data.starts(part)) for part in ("train", "valid", "test")] == [8_569, 2_857, 2_857]


@pytest.mark.parametrize(("split", "part"), [((5, 15, 20), "train"), ((10, 11, 20), "valid"), ((10, 19, 20), "test")])
def test_a_part_too_short_for_a_window_is_refused(split, part):
    with pytest.raises(UserError, match=f"The {part} part of some is too short"):
        WindowedSeries(series_of(20), Split(*split), Scaling(np.zeros(1), np.ones(1)), past=4, horizon=2)


def test_calendar_of_hours_and_minutes():
    date = pd.DatetimeIndex(["2017-12-31 23:45"])
    hourly = time_features(date, pd.Timedelta(hours=1))[0]
    np.testing.assert_allclose(hourly, [0.5, 0.5, 0.5, 364 / 365 - 0.5], rtol=1e-6)  # a Sunday
    minutes = time_features(date, pd.Timedelta(minutes=15))[0]
    np.testing.assert_allclose(minutes, [45 / 59 - 0.5, *hourly], rtol=1e-6)
    assert time_features(date, pd.Timedelta(days=30)).tolist() == [[0.5]]


@pytest.mark.parametrize(("step", "season"), [("15min", 96), ("1h", 24), ("1D", 7), ("7D", 52), ("30D", 12)])
def test_usual_seasons(step, season):
    assert usual_season(pd.Timedelta(step)) == season


def test_the_target_must_be_a_column():
    assert choose_target(series_of(10, columns=("x", "y")), None) == "y"
    with pytest.raises(UserError, match="got 'z'"):
        choose_target(series_of(10), "z")


def test_only_the_parts_that_are_needed_must_hold_a_window():
    series, split = series_of(100), Split(60, 61, 100)
    scaling = Scaling.of(series.values[:60])
    assert len(WindowedSeries(series, split, scaling, past=4, horizon=2, needed=["test"]).starts("test")) == 38
    with pytest.raises(UserError, match=r"The valid part of some is too short.*or another --split"):
        WindowedSeries(series, split, scaling, past=4, horizon=2)
    with pytest.raises(UserError, match=r"The test part of some is too short.*give a longer file\.$"):
        WindowedSeries(series, Split(60, 99, 100), scaling, past=4, horizon=2, needed=["test"])
