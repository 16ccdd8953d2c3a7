"""Metrics have their definitions; intervals use known errors only and follow a drift."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from recurrify.errors import UserError
from recurrify_papers.forecast.data import Scaling, Split, WindowedSeries
from recurrify_papers.forecast.scoring import (
    LEVELS,
    Backtest,
    backtest,
    scores,
    tracked_intervals,
)
from recurrify_papers.models.forecasters import (
    LinearForecaster,
    SeasonalConfig,
    SeasonalNaive,
    WindowConfig,
    trend_of,
)


@pytest.fixture(scope="module")
def data(wave_series) -> WindowedSeries:
    return WindowedSeries(wave_series, Split(120, 180, 240), Scaling.of(wave_series, 120), 24, 6)


@pytest.fixture(scope="module")
def found(data) -> Backtest:
    return backtest(SeasonalNaive(SeasonalConfig(past=24, horizon=6, season=24)), data, "test")


def test_backtest_forecasts_every_window(data, found):
    values = data.values_TC.numpy()
    assert found.first_rows.tolist() == list(range(180, 235))
    for index, first in enumerate(found.first_rows):
        np.testing.assert_allclose(found.truth[index], values[first : first + 6], rtol=1e-6)
        np.testing.assert_allclose(found.forecast[index], values[first - 24 : first - 18], rtol=1e-6)


def test_metrics_have_their_definitions(data, found):
    half = np.random.default_rng(0).random((len(LEVELS), *found.truth.shape)).cumsum(axis=0)
    result = scores(found, data, 24, half)
    truth, forecast = data.scaling.undo(found.truth), data.scaling.undo(found.forecast)
    error, width = np.abs(truth - forecast), half * data.scaling.spread
    naive = np.abs(data.train_values[24:] - data.train_values[:-24]).mean(axis=0)
    losses = []
    for level, one in zip(LEVELS, width, strict=True):
        for quantile, sign in (((1 - level / 100) / 2, -1), ((1 + level / 100) / 2, 1)):
            apart = truth - (forecast + sign * one)
            losses.append(np.maximum(quantile * apart, (quantile - 1) * apart).mean(axis=(0, 1)))
    expected = {
        "mse": ((found.forecast - found.truth) ** 2).mean(axis=(0, 1)),
        "mae_original": error.mean(axis=(0, 1)),
        "mase": error.mean(axis=(0, 1)) / naive,
        "smape": (error / (np.abs(truth) + np.abs(forecast))).mean(axis=(0, 1)),
        "crps": 2 * np.mean(losses, axis=0) / np.abs(truth).mean(axis=(0, 1)),
    }
    for name, by_column in expected.items():
        assert result[name] == pytest.approx(by_column.mean(), rel=1e-4), name
        assert result["columns"]["b"][name] == pytest.approx(by_column[1], rel=1e-4)
    assert result["coverage"][2]["held"] == pytest.approx((found.errors <= half[2]).mean())
    assert result["coverage"][2]["level"] == 90
    assert np.mean(result["mse_by_horizon"]) == pytest.approx(result["mse"], rel=1e-5)


def test_some_windows_are_spread_evenly(data):
    model = SeasonalNaive(SeasonalConfig(past=1, horizon=6, season=1))
    assert backtest(model, data, "test", 3).first_rows.tolist() == [180, 207, 234]


def drifting(rows: int, first: int, growth: float, seed: int) -> Backtest:
    generator = np.random.default_rng(seed)
    size = np.linspace(1, growth, rows)[:, None, None]
    forecast = generator.normal(size=(rows, 3, 2)) * size
    return Backtest(first + np.arange(rows), forecast, np.zeros((rows, 3, 2)), np.ones((rows, 1, 2)))


def test_intervals_follow_a_drift_and_see_no_later_error():
    earlier, later = drifting(400, 0, 1, 0), drifting(2000, 400, 1.6, 1)
    half, last = tracked_intervals(earlier, later)
    held = [(later.errors <= one).mean() for one in half]
    assert held == pytest.approx([level / 100 for level in LEVELS], abs=0.01)
    for level, one in zip(LEVELS, half[:, 0], strict=True):  # split conformal intervals at first
        expected = np.sort(earlier.errors, axis=0)[int(np.ceil(401 * level / 100)) - 1]
        np.testing.assert_allclose(one, expected)
    assert (np.diff(half, axis=0) >= 0).all()
    assert last[2].mean() == pytest.approx(half[2, -1].mean(), rel=0.2)
    changed = replace(later, forecast=later.forecast.copy())
    changed.forecast[1000:] += 100
    again, _ = tracked_intervals(earlier, changed)
    np.testing.assert_array_equal(again[:, :1001], half[:, :1001])
    assert (again[:, 1001, 0] != half[:, 1001, 0]).any()  # the first step ahead is known at once


def test_intervals_of_few_windows_begin_at_the_largest_error():
    earlier, later = drifting(3, 0, 1, 0), drifting(2, 3, 1, 1)
    np.testing.assert_allclose(tracked_intervals(earlier, later)[0][3, 0], earlier.errors.max(axis=0))


def test_linear_forecaster_maps_trend_and_remainder():
    model = LinearForecaster(WindowConfig(past=30, horizon=4))
    torch.nn.init.normal_(model.trend.weight)
    past = torch.randn(2, 30, 3)
    padded = torch.cat([past[:, :1].expand(-1, 12, -1), past, past[:, -1:].expand(-1, 12, -1)], dim=1)
    trend = padded.unfold(1, 25, 1).mean(-1).transpose(1, 2)
    torch.testing.assert_close(trend_of(past.transpose(1, 2)), trend)
    expected = model.trend(trend) + model.rest(past.transpose(1, 2) - trend)
    torch.testing.assert_close(model(past, past, past), expected.transpose(1, 2))


def test_season_longer_than_the_past_raises():
    with pytest.raises(UserError, match="`season`"):
        SeasonalConfig(past=3, horizon=2, season=4)
