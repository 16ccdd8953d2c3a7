"""Splits as published, scaling by the training rows, windows, and defaults by the step."""

import numpy as np
import pandas as pd
import pytest

from recurrify.errors import UserError
from recurrify_papers.forecast.data import (
    Scaling,
    Split,
    WindowedSeries,
    default_horizon,
    split_rows,
    time_features,
    usual_season,
)
from recurrify_papers.forecast.reading import Series

ETT = ("HUFL", "HULL", "MUFL", "MULL", "LUFL", "LULL", "OT")


def series(rows: int, step: str = "h", columns: tuple[str, ...] = ("x",)) -> Series:
    dates = pd.date_range("2016-07-01", periods=rows, freq=step)
    values = np.arange(rows * len(columns), dtype=float).reshape(rows, -1)
    return Series(name="some", dates=dates, values=values, columns=columns, frequency=step, file_columns=columns)


@pytest.mark.parametrize(
    ("rows", "step", "columns", "expected"),
    [
        (17_420, "h", ETT, Split(8640, 11_520, 14_400)),
        (69_680, "15min", ETT, Split(34_560, 46_080, 57_600)),
        (2_000, "h", ETT, Split(1400, 1600, 2000)),  # too short for 20 months
        (35_064, "h", ("a", "b"), Split(24_544, 28_052, 35_064)),
        (144, "MS", ("x",), Split(86, 116, 144)),
    ],
    ids=["ETTh", "ETTm", "short ETTh", "WTH", "short"],
)
def test_automatic_splits(rows, step, columns, expected):
    assert split_rows(series(rows, step, columns), "auto") == expected


@pytest.mark.parametrize("split", ["0.5/0.5", "a/b/c", "0.5/0.1/0.1", "1/1/1 years", "-1/1/1 months", "900/1/1 months"])
def test_invalid_splits_raise(split):
    with pytest.raises(UserError, match=r"split|too few"):
        split_rows(series(200), split)


def test_months_of_monthly_data():
    assert split_rows(series(60, "MS"), "24/12/12 months") == Split(24, 36, 48)


def test_windows_belong_to_the_part_of_their_forecast():
    data = series(100)
    windows = WindowedSeries(data, Split(50, 70, 100), Scaling.of(data, 50), past=8, horizon=4)
    assert windows.starts("train").tolist() == list(range(39))
    assert windows.starts("valid").tolist() == list(range(42, 59))
    assert windows.starts("test", 3).tolist() == [62, 75, 88]
    batch = windows.batch(windows.starts("valid")[:1])
    first = batch.future[0, 0, 0].item() * windows.scaling.spread[0] + windows.scaling.mean[0]
    assert first == pytest.approx(50)
    assert windows.with_past(20).starts("valid").tolist() == list(range(30, 47))


def test_published_numbers_of_test_windows():
    data = series(17_420, columns=ETT)
    windows = WindowedSeries(data, split_rows(data, "auto"), Scaling.of(data, 8640), past=48, horizon=24)
    assert [len(windows.starts(part)) for part in ("train", "valid", "test")] == [8569, 2857, 2857]


def test_scaling_uses_the_training_rows_alone():
    data = series(100, columns=("x", "y"))
    data.values[:, 1] = 7.0
    scaling = Scaling.of(data, 50)
    assert scaling.spread.tolist() == [data.values[:50, 0].std(), 1.0]
    np.testing.assert_allclose(scaling.undo(scaling.apply(data)), data.values)
    data.values[60, 0] = 1e300
    with pytest.raises(UserError, match="too large"):
        scaling.apply(data)


def test_parts_without_a_window_raise():
    data = series(100)
    for split, part in ((Split(10, 50, 100), "train"), (Split(90, 92, 100), "valid"), (Split(60, 97, 100), "test")):
        with pytest.raises(UserError, match=f"{part} part .* too short"):
            WindowedSeries(data, split, Scaling.of(data, 10), past=8, horizon=4).check(part)


def test_time_features_vary_at_the_step():
    hours = pd.DatetimeIndex(["2020-01-01 00:00", "2020-12-31 23:00"])
    np.testing.assert_allclose(
        time_features(hours, pd.Timedelta("1h")), [[-0.5, -1 / 6, -0.5, -0.5], [0.5, 0, 0.5, 0.5]]
    )
    assert time_features(hours, pd.Timedelta("15min")).shape == (2, 5)
    assert time_features(hours, pd.Timedelta("30D")).shape == (2, 1)


@pytest.mark.parametrize(
    ("step", "season", "horizon"),
    [("15min", 96, 96), ("h", 24, 24), ("D", 7, 14), ("B", 5, 10), ("W-SUN", 52, 13), ("MS", 12, 12), ("YS", 1, 4)],
)
def test_seasons_and_horizons_follow_the_step(step, season, horizon):
    data = series(2000 if step != "YS" else 60, step)
    assert (usual_season(data), default_horizon(data)) == (season, horizon)
