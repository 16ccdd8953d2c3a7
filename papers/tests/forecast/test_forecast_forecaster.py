"""Candidates, the choice between them, and the Forecaster: DataFrames in and out, saved and loaded."""

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
import torch
from sklearn.base import clone
from sklearn.exceptions import NotFittedError

from recurrify.errors import UserError
from recurrify_papers.forecast import Forecaster, load_trained
from recurrify_papers.forecast import candidates as candidates_module
from recurrify_papers.forecast.candidates import (
    _moments,
    _solved,
    best_of,
    fit_ridge,
    is_installed,
    resolved,
    train_candidate,
    train_candidates,
)
from recurrify_papers.forecast.forecaster import coming_windows, windows_of
from recurrify_papers.forecast.reading import read_series
from recurrify_papers.forecast.scoring import Backtest, backtest
from recurrify_papers.forecast.settings import ForecastSettings
from recurrify_papers.models.forecasters import RidgeConfig, RidgeForecaster

from conftest import daily_waves, hourly  # isort: skip

FRAME = hourly(daily_waves(400))
SETTINGS = ForecastSettings(data="", horizon=6, past=24)


@pytest.fixture(scope="module")
def fitted() -> Forecaster:
    return Forecaster("nlinear", horizon=6).fit(FRAME)


@pytest.mark.parametrize("kind", ["nlinear", "dlinear"])
@pytest.mark.parametrize("groups", [1, 2], ids=["shared", "separate"])
def test_ridge_is_the_closed_form(kind, groups, monkeypatch):
    for name, value in {"PENALTIES": (1e-2,), "SEASONS": (), "MOST_GROUPS": groups}.items():
        monkeypatch.setattr(candidates_module, name, value)
    fake = lambda model, *_: SimpleNamespace(mse=-model.config.groups)  # noqa: E731
    monkeypatch.setattr(candidates_module, "backtest", fake)
    series = read_series(FRAME)
    settings = resolved(replace(SETTINGS, model=kind, past=8), series)
    data = windows_of(settings, series)
    model = fit_ridge(settings, data)
    assert (model.config.past, model.config.groups) == (8, groups)
    batch = data.batch(data.starts("train"))
    inputs, level = model.inputs(batch.past, batch.future_time)
    truth = batch.future.transpose(1, 2) - level
    for index, one in enumerate([slice(None)] if groups == 1 else [slice(0, 1), slice(1, 2)]):
        x, y = (part[:, one].reshape(-1, part.shape[-1]).double().numpy() for part in (inputs, truth))
        penalty = np.full(x.shape[1], 1e-2 * np.mean(np.sum(x * x, axis=0)))
        penalty[-1] = 0  # the bias
        weight = np.linalg.solve(x.T @ x + np.diag(penalty), x.T @ y)
        np.testing.assert_allclose(model.weight_GDP[index], weight, atol=1e-3)


def test_auto_never_loses_to_seasonal_naive_on_validation():
    series = read_series(FRAME)
    settings = resolved(replace(SETTINGS, max_minutes=0.02), series)
    found = list(train_candidates(settings, windows_of(settings, series), lambda _: None))
    names = [one.name for one in found]
    assert names[:6] == ["last-value", "seasonal", "nlinear", "dlinear", "median", "average"]
    best, naive = best_of(found).valid, found[1].valid
    assert best.mse < naive.mse
    assert best.errors.mean() < naive.errors.mean()


def test_choice_weighs_both_errors_and_beats_seasonal_naive_in_both():
    """Three models by the sizes of their errors: seasonal naive, one with a lower MSE but a higher MAE, one between."""
    sizes = {"seasonal": [0.0, 2.0], "lower_mse": [1.1, 1.1], "between": [0.5, 1.4]}
    found = []
    for name, errors in sizes.items():
        forecast = np.array(errors)[:, None, None]
        valid = Backtest(np.arange(2), forecast, np.zeros_like(forecast), np.ones_like(forecast))
        found.append(SimpleNamespace(name=name, valid=valid))
    assert best_of(found).name == "between"
    assert best_of(found[:2]).name == "seasonal"


def test_median_minimises_absolute_errors():
    generator = np.random.default_rng(0)
    values = daily_waves(400, columns=1, noise=0) + generator.exponential(1.0, size=(400, 1)) ** 2
    series = read_series(hourly(values))
    settings = resolved(replace(SETTINGS, past=8), series)
    data = windows_of(settings, series)
    median = fit_ridge(replace(settings, model="median"), data)
    squared = _solved(median.config, *_moments(median.config, data))
    found = [backtest(model, data, "train") for model in (squared, median)]
    assert found[1].errors.mean() < 0.96 * found[0].errors.mean()
    assert found[1].mse > found[0].mse
    above = (found[1].truth > found[1].forecast).mean()
    assert above == pytest.approx(0.5, abs=0.05)


def test_average_is_the_mean_of_two_models_and_is_saved(tmp_path):
    series = read_series(FRAME)
    settings = resolved(SETTINGS, series)
    data = windows_of(settings, series)
    nlinear, median, average = (
        train_candidate(replace(settings, model=name), data) for name in ("nlinear", "median", "average")
    )
    mean = (nlinear.valid.forecast + median.valid.forecast) / 2
    np.testing.assert_allclose(average.valid.forecast, mean, atol=1e-6)
    again = backtest(average.validated, data, "valid").forecast
    np.testing.assert_allclose(again, mean[-len(again) :], atol=1e-5)
    forecaster = Forecaster("average", horizon=6).fit(FRAME)
    forecaster.save(tmp_path)
    pd.testing.assert_frame_equal(Forecaster.load(tmp_path).predict(FRAME), forecaster.predict())


def test_value_that_was_the_same_for_seven_seasons_is_repeated():
    values = np.random.default_rng(0).normal(size=(2, 8 * 4, 1))
    values[0, 1::4] = 3.0
    values[1, 4 + 2 :: 4] = 5.0
    model = RidgeForecaster(RidgeConfig(past=32, horizon=6, kind="nlinear", season=4)).eval()
    past = torch.tensor(values, dtype=torch.float32)
    forecast = model(past, past, past[:, :6])[..., 0]
    expected = past[:, -1:, 0].repeat(1, 6)  # without weights: the last value
    expected[0, [1, 5]] = 3.0
    expected[1, 2] = 5.0
    torch.testing.assert_close(forecast, expected)


def test_what_is_never_negative_is_not_forecast_to_be():
    power = np.maximum(daily_waves(400, columns=1), 0)
    forecaster = Forecaster("nlinear", horizon=24).fit(hourly(power))
    table = forecaster.cross_validate()
    assert table["forecast"].min() == pytest.approx(0, abs=1e-6)
    assert table["low"].min() == pytest.approx(0, abs=1e-6)
    assert forecaster.predict()["a_low"].min() == 0
    shifted = Forecaster("nlinear", horizon=24).fit(hourly(power - 1))
    assert shifted.cross_validate()["forecast"].min() < -1


def test_a_past_below_what_training_knew_is_forecast_as_it_is():
    power = np.maximum(daily_waves(400, columns=1), 0)
    power[-60:] -= 2  # in the test part alone
    forecaster = Forecaster("seasonal", horizon=24).fit(hourly(power))
    assert forecaster.predict()["a"].min() == pytest.approx(-2)


@pytest.mark.parametrize("name", ["ets", "theta"])
def test_statistical_models_forecast_in_original_units(name):
    values = 50 + 10 * np.sin(2 * np.pi * np.arange(60) / 4) + np.arange(60)
    frame = pd.DataFrame({"ds": pd.date_range("2000", periods=60, freq="QS"), "y": values})
    series = read_series(frame)
    settings = resolved(ForecastSettings(data="", model=name, horizon=2), series)
    candidate = train_candidate(settings, windows_of(settings, series))
    assert candidate.valid.mse < 0.05
    model = candidate.model
    np.testing.assert_allclose(model.forecast(values[: model.config.past]), values[[36, 37]], rtol=0.05)


def test_short_files_are_validated_twice_refitted_and_have_intervals_that_grow(tmp_path):
    generator = np.random.default_rng(0)
    size = np.linspace(1, 5, 400)[:, None]
    frame = hourly(daily_waves(400, noise=0) + size * generator.normal(size=(400, 2)))
    forecaster = Forecaster("nlinear", horizon=6).fit(frame)
    trained = forecaster.trained_
    assert not torch.equal(trained.model.weight_GDP, trained.validated.weight_GDP)
    table = forecaster.cross_validate()
    widths = (table["high"] - table["low"]).groupby(table["cutoff"]).mean()
    assert widths.iloc[-20:].mean() > 1.2 * widths.iloc[:20].mean()
    assert forecaster.evaluate()["coverage"][2]["held"] == pytest.approx(0.9, abs=0.05)
    forecaster.save(tmp_path)
    loaded = Forecaster.load(tmp_path)
    pd.testing.assert_frame_equal(loaded.predict(frame), forecaster.predict())
    pd.testing.assert_frame_equal(loaded.cross_validate(frame), table)
    series = read_series(frame)
    settings = resolved(replace(SETTINGS, model="seasonal"), series)
    first_rows = train_candidate(settings, windows_of(settings, series)).valid.first_rows
    assert (first_rows[0], first_rows[-1]) == (160, 314)  # from 40 % of the rows on, up to the test part


@pytest.mark.skipif(not is_installed("tsmixer"), reason="neuralforecast is not installed")
def test_tsmixer_is_trained_saved_and_loaded(tmp_path):
    settings = {"past": 24, "width": 8, "epochs": 4, "learning_rate": 1e-2}
    forecaster = Forecaster("tsmixer", horizon=6, settings=settings).fit(FRAME)
    assert forecaster.evaluate()["mse"] < Forecaster("last-value", horizon=6).fit(FRAME).evaluate()["mse"]
    forecaster.save(tmp_path)
    pd.testing.assert_frame_equal(Forecaster.load(tmp_path).predict(FRAME), forecaster.predict())


def test_slow_models_are_compared_on_their_own_windows():
    series = read_series(FRAME)
    settings = resolved(SETTINGS, series)
    data = windows_of(settings, series)
    naive = train_candidate(replace(settings, model="seasonal"), data)
    few = replace(naive, name="slow")
    for factor, chosen in ((0.9, "slow"), (1.1, "seasonal")):
        kept = naive.valid.at(naive.valid.first_rows[:20])
        valid = replace(kept, forecast=kept.truth + (kept.forecast - kept.truth) * factor)
        assert best_of([naive, replace(few, valid=valid)]).name == chosen


def test_predict_continues_the_dates_in_the_format_of_the_data(fitted):
    wide = fitted.predict()
    assert list(wide) == ["date", "a", "a_low", "a_high", "b", "b_low", "b_high"]
    assert wide["date"].tolist() == list(pd.date_range(FRAME.index[-1], periods=7, freq="h")[1:])
    assert ((wide["a_low"] < wide["a"]) & (wide["a"] < wide["a_high"])).all()
    np.testing.assert_allclose(wide["a"], daily_waves(406, noise=0)[400:, 0], atol=0.4)
    assert (fitted.predict(level=0.5)["a_high"] < wide["a_high"]).all()
    long = FRAME.reset_index().melt("date", var_name="unique_id", value_name="y")
    table = Forecaster("nlinear", horizon=6).fit(long).predict()
    assert list(table) == ["unique_id", "date", "forecast", "low", "high"]
    np.testing.assert_allclose(table["forecast"], [*wide["a"], *wide["b"]], atol=1e-4)
    shops = long.rename(columns={"unique_id": "shop", "date": "hour"})
    other = Forecaster("seasonal", horizon=6, id_column="shop", date_column="hour").fit(shops)
    assert list(other.predict())[:2] == list(other.cross_validate())[:2] == ["shop", "hour"]


def test_cross_validation_is_a_table_of_rolling_forecasts(fitted):
    table = fitted.cross_validate(windows=5)
    assert list(table) == ["unique_id", "date", "cutoff", "y", "forecast", "low", "high"]
    assert len(table) == 5 * 6 * 2
    assert (table["cutoff"] < table["date"]).all()
    truth = FRAME.stack().rename_axis(["date", "unique_id"]).rename("truth").reset_index()
    joined = table.merge(truth, on=["date", "unique_id"])
    np.testing.assert_allclose(joined["y"], joined["truth"], rtol=1e-5)
    result = fitted.evaluate()
    assert result["mase"] < 1
    assert 0.8 < result["coverage"][2]["held"] < 1


def test_columns_may_have_the_names_of_our_tables():
    frame = FRAME.set_axis(["y", "forecast"], axis=1)
    forecaster = Forecaster("seasonal", horizon=6).fit(frame)
    assert set(forecaster.evaluate()["columns"]) == {"y", "forecast"}
    assert list(forecaster.predict())[1:] == ["y", "y_low", "y_high", "forecast", "forecast_low", "forecast_high"]
    assert set(forecaster.cross_validate()["unique_id"]) == {"y", "forecast"}


def test_saved_forecaster_predicts_the_same(fitted, tmp_path):
    fitted.save(tmp_path)
    loaded = Forecaster.load(tmp_path)
    pd.testing.assert_frame_equal(loaded.predict(FRAME), fitted.predict())
    assert load_trained(tmp_path).valid_end == str(FRAME.index[319])
    with pytest.raises(UserError, match="no column 'b'"):
        loaded.predict(FRAME[["a"]])
    with pytest.raises(UserError, match="step"):
        loaded.predict(FRAME.set_axis(pd.date_range("2020", periods=400, freq="D", name="date")))
    with pytest.raises(UserError, match="longer file"):
        loaded.predict(FRAME.iloc[:10])
    with pytest.raises(UserError, match="`level`"):
        loaded.predict(FRAME, level=0.7)
    with pytest.raises(UserError, match="no forecaster"):
        load_trained(tmp_path / "other")
    (tmp_path / "model.safetensors").write_bytes(b"nothing")
    with pytest.raises(UserError, match="cannot be loaded"):
        load_trained(tmp_path)


def test_other_data_are_scored_on_all_later_dates(fitted, tmp_path):
    series = hourly(daily_waves(700))
    own = fitted.cross_validate()
    later = fitted.cross_validate(series)
    assert own["date"].min() == later["date"].min() == FRAME.index[320]
    assert later["date"].max() == series.index[-1]
    mine = later[later["date"].isin(own["date"]) & (later["cutoff"] <= own["cutoff"].max())]
    np.testing.assert_allclose(mine["forecast"], own["forecast"], atol=1e-6)
    new = fitted.cross_validate(series.iloc[450:])
    assert new["date"].max() == series.index[-1]
    assert len(new["cutoff"].unique()) > 100  # of 250 rows; the others are the past, and calibrate
    with pytest.raises(UserError, match="has 0 rows after 2020-01-14 07:00:00"):
        fitted.evaluate(FRAME.iloc[:300])


def test_newer_data_correct_the_intervals_of_a_forecast(fitted):
    series = hourly(daily_waves(700))
    wild = series.copy()
    wild.iloc[450:] += np.random.default_rng(0).normal(0, 3, (250, 2))
    calm, wide = (fitted.predict(one) for one in (series, wild))
    ratio = (wide["a_high"] - wide["a"]).mean() / (calm["a_high"] - calm["a"]).mean()
    assert ratio > 3
    few = fitted.predict(FRAME.iloc[:322])  # too few newer rows to learn from
    assert (few["a_high"] > few["a"]).all()


def test_misuse_raises_one_sentence(fitted, tmp_path):
    for options, message in (
        ({"horizon": "a"}, "`horizon` must be a whole number"),
        ({"horizon": 500}, "too few for a forecast of 500"),
        ({"settings": {"past": 500}}, "`past` must be at most 216"),
    ):
        with pytest.raises(UserError, match=message):
            Forecaster(**{"model": "nlinear", **options}).fit(FRAME)
    with pytest.raises(NotFittedError):
        Forecaster().predict()
    fitted.save(tmp_path)
    with pytest.raises(UserError, match="has no data"):
        Forecaster.load(tmp_path).predict()
    with pytest.raises(UserError, match="`windows`"):
        fitted.cross_validate(windows=0)


def test_page_shows_the_forecast_after_the_end(fitted):
    *_, last = coming_windows(fitted.trained_, fitted.series_, fitted.trained_.half_widths)
    assert last["dates"][-6:] == [str(date) for date in fitted.predict()["date"]]
    assert last["forecast"] == fitted.predict()["b"].tolist()
    assert last["truth"] == FRAME["b"].tolist()[-12:]


def test_known_covariates_improve_a_forecast():
    generator = np.random.default_rng(0)
    promotion = generator.integers(0, 2, 500).astype(float)
    frame = pd.DataFrame(
        {"ds": pd.date_range("2020", periods=500, freq="D"), "sales": 10 + 5 * promotion, "promo": promotion}
    )
    frame["sales"] += generator.normal(size=500) * 0.1
    frame.loc[490:, "sales"] = np.nan
    known = Forecaster("nlinear", horizon=7, known=["promo"]).fit(frame)
    assert (
        known.evaluate()["mae"]
        < 0.2 * Forecaster("nlinear", horizon=7, columns=["sales"]).fit(frame.iloc[:490]).evaluate()["mae"]
    )
    np.testing.assert_allclose(known.predict()["sales"], 10 + 5 * promotion[490:497], atol=0.6)
    with pytest.raises(UserError, match="known covariates up to"):
        known.predict(frame.iloc[:492])


def test_forecaster_is_a_scikit_learn_estimator():
    forecaster = Forecaster("seasonal", horizon=3, seed=4)
    assert clone(forecaster).get_params() == forecaster.get_params()
    assert "horizon=3" in repr(forecaster)


def test_short_monthly_series_works_with_defaults():
    trend = np.arange(144) * 2 + 100
    values = trend * (1 + 0.2 * np.sin(2 * np.pi * np.arange(144) / 12))
    frame = pd.DataFrame({"unique_id": "air", "ds": pd.date_range("1949", periods=144, freq="ME"), "y": values})
    forecaster = Forecaster(max_minutes=0.02).fit(frame)
    assert len(forecaster.predict()) == 12
    assert forecaster.evaluate()["mase"] < 1
    assert set(forecaster.candidates_) >= {"seasonal", "nlinear"}


def test_nine_rows_are_enough():
    values = np.arange(9) % 7 + 0.5
    frame = pd.DataFrame({"ds": pd.date_range("2020", periods=9, freq="D"), "y": values})
    assert len(Forecaster(max_minutes=0.001).fit(frame).predict()) == 1


def test_unaffordable_models_are_named():
    series = read_series(FRAME, columns=["a"])
    settings = resolved(replace(SETTINGS, max_minutes=0.001), series)
    said: list[str] = []
    list(train_candidates(settings, windows_of(settings, series), said.append))
    assert any("left out" in line and "--model ets" in line for line in said)
