"""A run is scored on what it has not seen, beside naive forecasts that look back as far as they need to."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from recurrify.errors import UserError
from recurrify_papers.forecast.calendar import usual_season
from recurrify_papers.forecast.reading import Series, read_series
from recurrify_papers.forecast.running import train_run
from recurrify_papers.forecast.saving import CONFIG_FILE, load_forecaster
from recurrify_papers.forecast.scoring import evaluate_run
from recurrify_papers.forecast.seasons import with_season
from recurrify_papers.forecast.settings import ForecastSettings
from support.commands import invoke


@pytest.fixture
def settings(write_csv, tmp_path) -> ForecastSettings:
    return ForecastSettings(
        data=str(write_csv()), out=str(tmp_path / "run"), model="last-value", past=24, label=4, horizon=4
    )


@pytest.fixture
def said() -> list[str]:
    return []


@pytest.fixture
def run(settings, said) -> Path:
    train_run(settings, said.append)
    return Path(settings.out)


def test_a_model_knows_where_its_validation_ended(run):
    dates = pd.date_range("2020-01-01", periods=400, freq="h")
    forecaster = load_forecaster(run)
    assert (forecaster.train_end, forecaster.valid_end) == (str(dates[279]), str(dates[319]))
    assert forecaster.intervals.windows == 40 - 4 + 1


def test_its_own_file_is_scored_in_silence(run, said):
    result = evaluate_run(run, said.append)
    assert said == []
    assert result["own_data"] is True
    assert {score["windows"] for score in result["scores"]} == {80 - 4 + 1}


def test_windows_of_the_training_are_left_out_of_a_shorter_file(run, said, settings, write_csv):
    """Of the 390 rows that are left, the last fifth begins within the validation part."""
    lines = Path(settings.data).read_text(encoding="utf-8").splitlines(keepends=True)
    other = write_csv("".join(lines[:391]), name="shorter.csv")
    result = evaluate_run(run, said.append, str(other))
    assert "this is not the file that the model was trained on" in said[0]
    assert said[1].startswith("shorter: the test part begins at 2020-01-14 00:00:00, but the model was trained and")
    assert "up to 2020-01-14 07:00:00: 8 windows are left out" in said[1]
    assert result["first_date"] == "2020-01-14 08:00:00"
    assert {score["windows"] for score in result["scores"]} == {70 - 4 + 1}
    whole = evaluate_run(run, said.append, str(other), other_series=True)
    assert {score["windows"] for score in whole["scores"]} == {78 - 4 + 1}


def test_a_file_of_training_rows_alone_is_refused(run, said, settings, write_csv):
    lines = Path(settings.data).read_text(encoding="utf-8").splitlines(keepends=True)
    other = write_csv("".join(lines[:321]), name="seen.csv")
    with pytest.raises(UserError, match=r"validated up to 2020-01-14 07:00:00, and no forecast .* seen begins later"):
        evaluate_run(run, said.append, str(other))


def test_models_without_dates_are_scored_and_told(run, said, write_csv):
    path = run / "model" / CONFIG_FILE
    config = json.loads(path.read_text(encoding="utf-8"))
    for name in ("train_end", "valid_end", "validation_windows"):
        del config[name]
    path.write_text(json.dumps(config), encoding="utf-8")
    evaluate_run(run, said.append)
    assert said == []
    evaluate_run(run, said.append, str(write_csv(rows=390, name="shorter.csv")))
    assert "does not say where its training ended" in said[1]


def test_forecasts_are_shown_from_the_dates_that_are_named(run, said):
    dates = [pd.Timestamp("2020-01-15"), pd.Timestamp("2020-01-14 08:00")]
    shown = evaluate_run(run, said.append, windows=dates)["windows"]
    assert [window["first_date"] for window in shown] == ["2020-01-15 00:00:00", "2020-01-14 08:00:00"]
    for wrong in ("2020-01-14 07:00", "2020-01-15 00:30", "2020-01-17 13:00"):
        with pytest.raises(UserError, match="must lie from 2020-01-14 08:00:00 to 2020-01-17 12:00:00"):
            evaluate_run(run, said.append, windows=[pd.Timestamp(wrong)])


def season_error(series: Series, season: int, split: tuple[int, int], horizon: int) -> float:
    """In original units, by a plain loop."""
    values = series.values
    errors = [
        values[first + step] - values[first + step - season * (step // season + 1)]
        for first in range(split[0], split[1] - horizon + 1)
        for step in range(horizon)
    ]
    return float(np.abs(errors).mean())


def test_a_season_longer_than_the_past_looks_back_beyond_it(settings, said):
    settings = replace(settings, past=8, season=30)
    train_run(settings, said.append)
    result = evaluate_run(settings.out, said.append)
    found = {score["model"]: score for score in result["scores"]}
    expected = season_error(read_series(settings.data), 30, (320, 400), 4)
    assert found["seasonal"]["mae_original"] == pytest.approx(expected, rel=1e-5)
    assert found["seasonal"]["windows"] == found["last-value"]["windows"] == 77

    own = replace(settings, model="seasonal", out=f"{settings.out}-seasonal")
    train_run(own, said.append)
    assert load_forecaster(own.out).past == 30
    again = evaluate_run(own.out, said.append)["scores"][0]
    assert again["mae_original"] == pytest.approx(expected, rel=1e-5)


def test_years_have_no_season_and_it_is_said(settings, said, write_csv):
    years = pd.date_range("1820-01-01", periods=200, freq="YS")
    text = "date,x\n" + "".join(f"{year.date()},{number % 11}\n" for number, year in enumerate(years))
    settings = replace(settings, data=str(write_csv(text, name="years.csv")))
    train_run(settings, said.append)
    result = evaluate_run(settings.out, said.append)
    assert [score["model"] for score in result["scores"]] == ["last-value"]
    assert "no seasonal forecast to compare with: The rows of years are a year or more apart" in said[1]
    with pytest.raises(UserError, match="there is no season to repeat"):
        train_run(replace(settings, model="seasonal", out=f"{settings.out}2"), said.append)
    assert not Path(f"{settings.out}2").exists()


def test_seasons_go_by_the_calendar(wave_series):
    day = pd.Timedelta(days=1)
    assert (usual_season(day, "B"), usual_season(day, "D"), usual_season(365 * day)) == (5, 7, None)
    business = replace(wave_series, dates=pd.date_range("2020-01-01", periods=240, freq="B"), frequency="B")
    settings = ForecastSettings(data="x", out="y", model="seasonal", past=3, label=1, horizon=2)
    found = with_season(settings, business)
    assert (found.season, found.past) == (5, 5)


def test_too_few_validation_windows_for_a_level_are_told(settings, said, write_csv, tmp_path, monkeypatch):
    settings = replace(settings, data=str(write_csv(rows=120, name="few.csv")), past=8, label=4)
    train_run(settings, said.append)
    told = (
        "few: the 95% intervals are only as wide as the largest error on the 9 validation windows, and may hold less: "
        "95% takes at least 19 windows"
    )
    assert said == [told]
    monkeypatch.setattr("recurrify_papers.commands.forecast.say", said.append)
    for level, sentences in (("0.9", [told]), ("0.95", [told, told])):
        invoke("forecast", "predict", settings.out, "--out", tmp_path / "next.csv", "--level", level)
        assert said == sentences


def test_scores_of_another_kind_do_not_take_the_place_of_the_own(run, write_csv, tmp_path):
    other = write_csv(rows=420, name="later.csv")
    for options in ([], ["--as-published"], ["--data", other], ["--data", other, "--as-published"]):
        invoke("forecast", "evaluate", run, "--device", "cpu", *options)
    names = [f"evaluation{ending}.json" for ending in ("", "-as-published", "-later", "-later-as-published")]
    assert sorted(path.name for path in run.glob("evaluation*")) == sorted(names)
    invoke("forecast", "plot", run, *(run / name for name in names[1:]), "--out", tmp_path / "page.html")
    page = (tmp_path / "page.html").read_text(encoding="utf-8")
    for data in ("some", "some (as published)", "later (not the training&#x27;s file)"):
        assert page.count(f"<td>{data}</td>") == 2  # the model and the seasonal forecast
    assert page.count("<td>later (not the training&#x27;s file, as published)</td>") == 2


def test_runs_of_the_same_name_and_of_other_columns_are_told_apart(settings, said, tmp_path):
    folders = [tmp_path / "first" / "run", tmp_path / "second" / "run"]
    for folder, columns in zip(folders, (("a",), ("a", "b")), strict=True):
        train_run(replace(settings, out=str(folder), columns=columns), said.append)
        invoke("forecast", "evaluate", folder, "--device", "cpu")
    invoke("forecast", "plot", *folders, "--out", tmp_path / "page.html")
    page = (tmp_path / "page.html").read_text(encoding="utf-8")
    for name, columns in (("first/run", "a"), ("second/run", "a, b")):
        assert f">{name}</th><td>last-value</td><td>some</td><td>{columns}</td>" in page
        assert f"seasonal (some, 4, {columns})</text>" in page
