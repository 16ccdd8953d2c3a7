"""Metrics equal those of utilsforecast; conformal intervals use known errors only and follow a drift."""

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import torch
from utilsforecast import losses

from recurrify.errors import UserError
from recurrify_papers.forecast.data import Scaling, Split, WindowedSeries
from recurrify_papers.forecast.scoring import (
    LEVELS,
    QUANTILES,
    Backtest,
    backtest,
    calibrated,
    mean_squared_error,
    rolling_intervals,
    scores,
)
from recurrify_papers.models.forecasters import (
    LinearConfig,
    LinearForecaster,
    RecurrentConfig,
    RecurrentForecaster,
    SeasonalConfig,
    SeasonalNaive,
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


def test_metrics_are_those_of_utilsforecast(data, found):
    half = np.random.default_rng(0).random((len(LEVELS), *found.truth.shape)).cumsum(axis=0)
    result = scores(found, data, 24, half)
    truth, forecast, width = (
        data.scaling.undo(found.truth),
        data.scaling.undo(found.forecast),
        half * data.scaling.spread,
    )
    columns = {0.5: forecast}
    for level, one in zip(LEVELS, width, strict=True):
        columns |= {(1 - level) / 2: forecast - one, (1 + level) / 2: forecast + one}
    count = len(truth) * 6
    table = pd.DataFrame({"unique_id": np.repeat(["a", "b"], count), "ds": np.tile(np.arange(count), 2)})
    flat = {"y": truth, "m": forecast, **{f"q{q}": columns[q] for q in QUANTILES}}
    table = table.assign(**{name: values.transpose(2, 0, 1).ravel() for name, values in flat.items()})
    train = pd.DataFrame({"unique_id": np.repeat(["a", "b"], 120), "ds": np.tile(np.arange(120), 2)})
    train["y"] = data.train_values.T.ravel()
    expected = {
        "mae_original": losses.mae(table, ["m"]),
        "mse_original": losses.mse(table, ["m"]),
        "smape": losses.smape(table, ["m"]),
        "mase": losses.mase(table, ["m"], seasonality=24, train_df=train),
        "crps": losses.scaled_crps(table, {"m": [f"q{q}" for q in QUANTILES]}, np.array(QUANTILES)),
    }
    for name, theirs in expected.items():
        assert result[name] == pytest.approx(theirs["m"].mean(), rel=1e-5), name
        assert result["columns"]["b"][name] == pytest.approx(theirs.set_index("unique_id")["m"]["b"], rel=1e-5)
    assert result["coverage"][2]["held"] == pytest.approx((found.errors <= half[2]).mean())
    assert result["mse"] == pytest.approx(np.mean((found.forecast - found.truth) ** 2), rel=1e-6)
    assert np.mean(result["mse_by_horizon"]) == pytest.approx(result["mse"])


def test_some_windows_are_spread_evenly(data):
    model = SeasonalNaive(SeasonalConfig(past=1, horizon=6, season=1))
    assert backtest(model, data, "test", 3).first_rows.tolist() == [180, 207, 234]
    whole = np.mean(backtest(model, data, "test").errors ** 2)
    assert mean_squared_error(model, data.with_past(1), "test") == pytest.approx(whole, rel=1e-5)


def test_half_widths_are_order_statistics():
    errors = np.random.default_rng(0).random((99, 2, 3))
    half = calibrated(errors)
    for level, one in zip(LEVELS, half, strict=True):
        np.testing.assert_array_equal(one, np.sort(errors, axis=0)[int(np.ceil(100 * level)) - 1])
    np.testing.assert_array_equal(calibrated(errors[:3])[3], errors[:3].max(axis=0))


def drifting(rows: int, first: int, growth: float, seed: int) -> Backtest:
    generator = np.random.default_rng(seed)
    size = np.linspace(1, growth, rows)[:, None, None]
    forecast = generator.normal(size=(rows, 3, 2)) * size
    return Backtest(first + np.arange(rows), forecast, np.zeros((rows, 3, 2)), np.ones((rows, 1, 2)))


def test_rolling_intervals_follow_a_drift_and_see_no_later_error():
    earlier, later = drifting(400, 0, 1, 0), drifting(2000, 400, 1.6, 1)
    half = rolling_intervals(earlier, later)
    held = (later.errors <= half[2]).mean()
    fixed = (later.errors <= calibrated(earlier.errors)[2]).mean()
    assert abs(held - 0.9) < 0.02 < abs(fixed - 0.9)
    changed = replace(later, forecast=later.forecast.copy())
    changed.forecast[1000:] += 100
    np.testing.assert_array_equal(rolling_intervals(earlier, changed)[:, :1000], half[:, :1000])


def test_linear_forecaster_maps_trend_and_remainder():
    model = LinearForecaster(LinearConfig(past=30, horizon=4))
    torch.nn.init.normal_(model.trend.weight)
    past = torch.randn(2, 30, 3)
    padded = torch.cat([past[:, :1].expand(-1, 12, -1), past, past[:, -1:].expand(-1, 12, -1)], dim=1)
    trend = padded.unfold(1, 25, 1).mean(-1).transpose(1, 2)
    torch.testing.assert_close(trend_of(past.transpose(1, 2)), trend)
    expected = model.trend(trend) + model.rest(past.transpose(1, 2) - trend)
    torch.testing.assert_close(model(past, past, past), expected.transpose(1, 2))


@pytest.mark.parametrize("cell", ["lstm", "gru"])
def test_recurrent_forecaster_reads_the_past_and_the_calendar_ahead(cell):
    config = RecurrentConfig(past=7, horizon=3, cell=cell, channels=2, time_features=1, width=8, dropout=0.0)
    model = RecurrentForecaster(config).eval()
    past, past_time, future_time = torch.randn(2, 7, 2), torch.randn(2, 7, 1), torch.randn(2, 3, 1)
    forecast = model(past, past_time, future_time)
    assert forecast.shape == (2, 3, 2)
    later = future_time.clone()
    later[:, -1] += 1
    changed = model(past, past_time, later)
    torch.testing.assert_close(changed[:, :-1], forecast[:, :-1])
    assert not torch.allclose(changed[:, -1], forecast[:, -1])
    assert not torch.allclose(model(past + 1, past_time, future_time), forecast)


def test_season_longer_than_the_past_raises():
    with pytest.raises(UserError, match="`season`"):
        SeasonalConfig(past=3, horizon=2, season=4)
