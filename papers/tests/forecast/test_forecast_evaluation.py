"""Scores against plain loops, every window once, and intervals that hold what they say."""

import math

import numpy as np
import pytest
import torch
from torch import nn

from recurrify.errors import UserError
from recurrify_papers.forecast.data import Scaling, Split, WindowedSeries
from recurrify_papers.forecast.evaluation import (
    LEVELS,
    evaluate_forecaster,
    fit_intervals,
    forecasts,
    mean_squared_error,
    shown_windows,
)
from recurrify_papers.models.forecasters import (
    LinearConfig,
    LinearForecaster,
    RecurrentConfig,
    RecurrentForecaster,
    SeasonalConfig,
    SeasonalNaive,
)

PAST, HORIZON = 30, 6
SPLIT = Split(120, 180, 240)


@pytest.fixture
def data(wave_series) -> WindowedSeries:
    return WindowedSeries(wave_series, SPLIT, Scaling.of(wave_series.values[:120]), PAST, HORIZON)


def naive(season: int) -> SeasonalNaive:
    return SeasonalNaive(SeasonalConfig(season=season, past=PAST, horizon=HORIZON))


def errors_by_loop(data: WindowedSeries, season: int) -> np.ndarray:
    """(N, P, C) in original units: each row less the row a season, or several, before its window's end."""
    values = data.series.values
    found = []
    for first in range(SPLIT.valid_end, SPLIT.test_end - HORIZON + 1):
        guess = [values[first - season + step % season] for step in range(HORIZON)]
        found.append(np.array(guess) - values[first : first + HORIZON])
    return np.array(found)


@pytest.mark.parametrize("season", [1, 4, 24])
def test_scores_are_those_of_a_plain_loop(data, season):
    found = evaluate_forecaster(naive(season), data)
    errors = errors_by_loop(data, season)
    scaled = errors / data.scaling.spread
    assert found["windows"] == len(errors) == 55
    assert found["mse"] == pytest.approx((scaled**2).mean(), rel=1e-5)
    assert found["mae"] == pytest.approx(np.abs(scaled).mean(), rel=1e-5)
    assert found["mse_original"] == pytest.approx((errors**2).mean(), rel=1e-5)
    assert found["mae_original"] == pytest.approx(np.abs(errors).mean(), rel=1e-5)
    assert found["mse_by_horizon"] == pytest.approx((scaled**2).mean((0, 2)), rel=1e-5)
    assert found["columns"]["b"]["mae_original"] == pytest.approx(np.abs(errors[..., 1]).mean(), rel=1e-5)


def test_as_published_the_last_windows_are_left_out(data):
    found = evaluate_forecaster(naive(1), data, as_published=True)
    scaled = errors_by_loop(data, 1)[:32] / data.scaling.spread
    assert found["windows"] == 32
    assert found["mse"] == pytest.approx((scaled**2).mean(), rel=1e-5)


def test_too_few_windows_for_the_published_way_are_refused(wave_series):
    data = WindowedSeries(wave_series, Split(120, 210, 240), Scaling.of(wave_series.values), PAST, HORIZON)
    with pytest.raises(UserError, match="fewer than 32 windows"):
        evaluate_forecaster(naive(1), data, as_published=True)


def test_many_batches_are_one(data, monkeypatch):
    whole = evaluate_forecaster(naive(4), data)
    monkeypatch.setattr("recurrify_papers.forecast.evaluation.EVALUATION_BATCH", 7)
    assert evaluate_forecaster(naive(4), data)["mse"] == pytest.approx(whole["mse"], rel=1e-12)
    assert mean_squared_error(naive(4), data, "test") == pytest.approx(whole["mse"], rel=1e-12)


@pytest.mark.parametrize(("asked", "places"), [(3, [0, 27, 54]), (1, [0]), (99, range(55))])
def test_some_windows_are_spread_over_the_part(data, asked, places):
    scaled = errors_by_loop(data, 1) / data.scaling.spread
    assert len(scaled) == 55
    found = mean_squared_error(naive(1), data, "test", windows=asked)
    assert found == pytest.approx((scaled[list(places)] ** 2).mean(), rel=1e-5)


def test_intervals_are_order_statistics_of_the_validation_errors(data):
    model = naive(1)
    intervals = fit_intervals(model, data)
    values = torch.stack([data.values_TC[first - 1] - data.values_TC[first] for first in range(120, 175)]).abs()
    ordered = values.sort(0).values
    for level, half_width in zip(LEVELS, intervals.half_widths, strict=True):
        torch.testing.assert_close(half_width[0], ordered[math.ceil(56 * level) - 1])
    held = evaluate_forecaster(model, data, intervals, part="valid")["coverage"]
    for level, one in zip(LEVELS, held, strict=True):
        assert level <= one["held"] <= level + 0.04


@pytest.mark.parametrize("rows", [0, 1, 4, 5, 6])
def test_intervals_in_several_passes_are_those_of_one(data, monkeypatch, rows):
    whole, batches = (
        fit_intervals(naive(4), data),
        [(forecast - batch.future).abs() for _, batch, forecast in forecasts(naive(4), data, "valid")],
    )
    ordered = torch.cat(batches).sort(0).values
    assert torch.equal(whole.half_widths, ordered[[math.ceil(56 * level) - 1 for level in LEVELS]])
    monkeypatch.setattr("recurrify_papers.forecast.evaluation.ERRORS_AT_ONCE", rows * 55 * 2 + 1)
    parts = fit_intervals(naive(4), data)
    assert torch.equal(parts.half_widths, whole.half_widths)
    assert (parts.levels, parts.windows) == (whole.levels, whole.windows) == (LEVELS, 55)


def test_coverage_is_counted_on_the_test_part(data):
    intervals = fit_intervals(naive(1), data)
    errors = np.abs(errors_by_loop(data, 1) / data.scaling.spread)
    expected = [(errors <= half.numpy() + 1e-9).mean() for half in intervals.half_widths]
    found = [one["held"] for one in evaluate_forecaster(naive(1), data, intervals)["coverage"]]
    assert found == pytest.approx(expected, abs=0.01)


def test_shown_windows_are_in_original_units(data):
    shown = shown_windows(naive(1), data, "b", fit_intervals(naive(1), data))
    first, last = shown[0], shown[-1]
    values = data.series.values[:, 1]
    assert first["first_date"] == str(data.series.dates[180])
    assert last["last_date"] == str(data.series.dates[239])
    assert first["truth"] == pytest.approx(values[180:186], abs=1e-4)
    assert first["past"] == pytest.approx(values[168:180], abs=1e-4)
    assert first["forecast"] == pytest.approx([values[179]] * HORIZON, abs=1e-4)
    assert first["level"] == 0.9
    assert all(low < high for low, high in zip(first["low"], first["high"], strict=True))


def test_the_linear_forecaster_is_two_maps_of_trend_and_rest():
    model = LinearForecaster(LinearConfig(past=9, horizon=2, average=3)).double()
    nn.init.normal_(model.trend.weight)
    nn.init.normal_(model.rest.weight)
    past = torch.randn(1, 9, 2, dtype=torch.float64)
    found = model(past, torch.zeros(1, 9, 1), torch.zeros(1, 2, 1))
    for channel in range(2):
        row = past[0, :, channel]
        trend = torch.stack([row[[max(t - 1, 0), t, min(t + 1, 8)]].mean() for t in range(9)])
        expected = model.trend.weight @ trend + model.rest.weight @ (row - trend)
        torch.testing.assert_close(found[0, :, channel], expected)


@pytest.mark.parametrize("cell", ["lstm", "gru"])
def test_a_recurrent_forecaster_reads_the_past_and_the_calendar_ahead(cell):
    model = RecurrentForecaster(RecurrentConfig(cell=cell, channels=2, time_features=1, horizon=3, width=8)).eval()
    past, times, ahead = torch.randn(1, 5, 2), torch.randn(1, 5, 1), torch.randn(1, 3, 1)
    found = model(past, times, ahead)
    assert found.shape == (1, 3, 2)
    assert not torch.allclose(found, model(past + 1, times, ahead))
    later = ahead.clone()
    later[:, 2] += 1
    changed = model(past, times, later)
    torch.testing.assert_close(found[:, :2], changed[:, :2])
    assert not torch.allclose(found[:, 2], changed[:, 2])


def test_a_season_longer_than_the_past_is_refused():
    with pytest.raises(UserError, match="season=31, past=30"):
        naive(31)
