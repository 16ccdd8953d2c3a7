"""A saved forecaster forecasts as before, beyond the end of a file, and refuses files it was not made for."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch

from recurrify.errors import UserError
from recurrify_papers.forecast.calendar import time_features
from recurrify_papers.forecast.prediction import forecast_beyond
from recurrify_papers.forecast.reading import Series
from recurrify_papers.forecast.running import Trained, train_forecaster
from recurrify_papers.forecast.saving import load_forecaster, save_forecaster
from recurrify_papers.forecast.settings import ForecastSettings

SETTINGS = ForecastSettings(
    data="waves.csv", out="out", model="rsa-informer", past=30, label=12, horizon=6, width=16, inner=16,
    encoder_layers=1, epochs=1, batch=16, learning_rate=1e-3, distil=True, mix=True,
)  # fmt: skip


@pytest.fixture
def trained(wave_series: Series) -> Trained:
    return train_forecaster(SETTINGS, wave_series, "b")


@pytest.fixture
def saved(trained: Trained, tmp_path: Path) -> Path:
    save_forecaster(trained.forecaster, tmp_path / "run" / "model")
    return tmp_path / "run"


def test_what_is_loaded_forecasts_as_what_was_saved(trained, saved, wave_series):
    before, after = (forecast_beyond(one, wave_series) for one in (trained.forecaster, load_forecaster(saved)))
    pd.testing.assert_frame_equal(before, after, rtol=1e-12)
    pd.testing.assert_frame_equal(after, forecast_beyond(load_forecaster(saved / "model"), wave_series))


def test_a_forecaster_from_before_rows_and_heads_could_be_exchanged(saved, wave_series):
    path = saved / "model" / "config.json"
    config = json.loads(path.read_text(encoding="utf-8"))
    assert config["model"]["config"]["mix"] is True
    forecasts = []
    for change in ({"mix": True}, {"mix": False}, {}):
        del config["model"]["config"]["mix"]
        config["model"]["config"] |= change
        path.write_text(json.dumps(config), encoding="utf-8")
        forecasts.append(forecast_beyond(load_forecaster(saved), wave_series))
    pd.testing.assert_frame_equal(forecasts[2], forecasts[1])
    assert not np.allclose(forecasts[0], forecasts[1])


def test_a_forecast_follows_the_end_of_the_file(trained, saved, wave_series):
    table = forecast_beyond(load_forecaster(saved), wave_series, level=0.8)
    later = pd.date_range("2020-01-11", periods=6, freq="h")
    assert list(table.index) == list(later)
    scaling, step = trained.forecaster.scaling, pd.Timedelta(hours=1)
    inputs = (
        scaling.apply(wave_series.values[-30:]),
        time_features(wave_series.dates[-30:], step),
        time_features(later, step),
    )
    with torch.inference_mode():
        scaled = trained.forecaster.model(*(torch.tensor(one[None], dtype=torch.float32) for one in inputs))[0]
    np.testing.assert_allclose(table[["a", "b"]].to_numpy(), scaling.undo(scaled.double().numpy()), rtol=1e-5)
    half = trained.forecaster.intervals.half_widths[1].numpy() * scaling.spread
    np.testing.assert_allclose(table["b_high"] - table["b"], half[:, 1], rtol=1e-5)
    np.testing.assert_allclose(table["a"] - table["a_low"], half[:, 0], rtol=1e-5)


def test_columns_are_found_by_name(saved, wave_series):
    turned = replace(wave_series, columns=("b", "a"), values=wave_series.values[:, ::-1])
    forecaster = load_forecaster(saved)
    pd.testing.assert_frame_equal(forecast_beyond(forecaster, turned), forecast_beyond(forecaster, wave_series))


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"columns": ("a", "c")}, "lacks the column 'b'"),
        ({"frequency": "15min"}, "step of waves is '15min', that of the model 'h'"),
        ({"rows": 29}, "has 29 rows, but the model reads 30"),
    ],
    ids=["columns", "step", "rows"],
)
def test_files_of_another_kind_are_refused(saved, wave_series, change, told):
    rows = change.pop("rows", None)
    other = replace(wave_series, **change)
    if rows:
        other = replace(other, dates=other.dates[:rows], values=other.values[:rows])
    with pytest.raises(UserError, match=told):
        forecast_beyond(load_forecaster(saved), other)


def test_an_interval_that_was_not_fitted_is_refused(saved, wave_series):
    with pytest.raises(UserError, match=r"one of 0\.5, 0\.8, 0\.9, 0\.95: got 0\.7"):
        forecast_beyond(load_forecaster(saved), wave_series, level=0.7)


def test_what_is_no_forecaster_is_refused(saved, tmp_path):
    with pytest.raises(UserError, match="There is no forecaster in"):
        load_forecaster(tmp_path)
    (saved / "model" / "model.safetensors").write_bytes(b"gone")
    with pytest.raises(UserError, match="cannot be loaded"):
        load_forecaster(saved)
