"""Metrics have their definitions; intervals use known errors only and follow a drift."""

from dataclasses import replace
from functools import partial

import numpy as np
import pandas as pd
import pytest
import torch
from utilsforecast import losses
from utilsforecast.evaluation import evaluate

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


def test_scores_are_those_of_utilsforecast(data, found):
    half = np.random.default_rng(0).random((len(LEVELS), *found.truth.shape)).cumsum(axis=0)
    result = scores(found, data, 24, half)
    ends = {f"forecast-lo-{level}": found.forecast - one for level, one in zip(LEVELS, half, strict=True)}
    ends |= {f"forecast-hi-{level}": found.forecast + one for level, one in zip(LEVELS, half, strict=True)}
    parts = {"y": found.truth, "forecast": found.forecast} | ends
    table = pd.concat(
        pd.DataFrame({name: data.scaling.undo(part)[..., index].ravel() for name, part in parts.items()}).assign(
            unique_id=name, ds=np.arange(found.truth[..., 0].size)
        )
        for index, name in enumerate("ab")
    )
    train = pd.DataFrame(data.train_values, columns=["a", "b"]).melt(var_name="unique_id", value_name="y")
    train["ds"] = np.tile(np.arange(120), 2)
    mase = partial(losses.mase, seasonality=24)
    metrics = [losses.mse, losses.mae, mase, losses.smape, losses.scaled_crps, losses.coverage]
    expected = evaluate(table, metrics, train_df=train, level=list(LEVELS)).set_index(["unique_id", "metric"])[
        "forecast"
    ]
    names = {"mse": "mse_original", "mae": "mae_original", "scaled_crps": "crps"}
    for index, column in enumerate("ab"):
        for metric in ("mse", "mae", "mase", "smape", "scaled_crps"):
            own = result["columns"][column][names.get(metric, metric)]
            assert own == pytest.approx(expected[column, metric], rel=1e-5), metric
        for one in result["coverage"]:
            assert one["by_column"][column] == expected[column, f"coverage_level{one['level']}"]
        scaled = ((found.forecast - found.truth) ** 2)[..., index].mean()
        assert result["columns"][column]["mse"] == pytest.approx(scaled, rel=1e-5)
    for name in ("mse", "mae", "mase", "smape", "crps"):
        assert result[name] == pytest.approx(np.mean([result["columns"][column][name] for column in "ab"]))
    assert np.mean(result["mse_by_horizon"]) == pytest.approx(result["mse"], rel=1e-5)
    assert np.mean(result["mae_by_horizon"]) == pytest.approx(result["mae"], rel=1e-5)


def test_column_that_is_constant_in_training_has_no_mase_and_zeros_no_smape(data, found):
    series = replace(data.series, values=np.zeros_like(data.series.values))
    still = WindowedSeries(series, data.split, Scaling.of(series, 120), 24, 6)
    nothing = replace(found, forecast=np.zeros_like(found.forecast), truth=np.zeros_like(found.truth))
    result = scores(nothing, still, 24)
    assert np.isnan(result["mase"])
    assert (result["smape"], result["mse"]) == (0, 0)


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
