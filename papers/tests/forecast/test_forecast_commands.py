"""`recurrify forecast` from a CSV to a page, and what it rejects."""

import json
import subprocess
import sys

import pandas as pd
import pytest
from typer.testing import CliRunner

from recurrify.errors import UserError
from recurrify_papers.commands import forecast as commands
from recurrify_papers.commands.forecast import app
from recurrify_papers.forecast import forecaster, load_trained
from recurrify_papers.forecast.page import MODEL_TERMS, coverage, step_words, verdict
from recurrify_papers.forecast.scoring import backtest
from recurrify_papers.forecast.settings import MODELS

SMALL = [
    "--model", "rsa-informer", "--past", "24", "--horizon", "6", "--width", "16", "--set", "heads=4", "--device", "cpu",
    "--set", "counts=1,1,1,1,0,0", "--encoder-layers", "1", "--set", "epoch_windows=64",
]  # fmt: skip


def forecast(*words: object) -> str:
    """Run a command; a `UserError` is raised as it is."""
    result = CliRunner().invoke(app, [str(word) for word in words], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.output


@pytest.fixture
def run(write_csv, tmp_path):
    forecast("train", "--data", write_csv(), "--out", tmp_path / "run", "--model", "nlinear", "--horizon", "6")
    return tmp_path / "run"


def test_from_a_csv_to_a_forecast_and_a_page(run, tmp_path):
    assert {path.name for path in run.iterdir()} >= {
        "model",
        "run.json",
        "result.json",
        "evaluation.json",
        "forecast.html",
    }
    page = (run / "forecast.html").read_text()
    for part in (
        "nlinear is better by",
        "MASE",
        "6 steps of 1 hour",
        "Error by number of steps ahead",
        "Linear regression on the differences to the last value.",
        "90 % intervals hold",
        "Scores by column",
    ):
        assert part in page
    assert "2020-01-17" in page  # dates, not row numbers
    assert "https://" not in page.split("<script")[0]
    output = forecast("evaluate", run)
    assert "(MAE) than repeating the last season, MASE" in output
    scores = json.loads((run / "evaluation.json").read_text())["scores"]
    assert [row["model"] for row in scores] == ["nlinear", "last-value", "seasonal"]
    assert scores[0]["mse"] < scores[2]["mse"]
    forecast("predict", run, "--out", tmp_path / "next.csv", "--level", "0.8")
    table = pd.read_csv(tmp_path / "next.csv")
    assert list(table) == ["date", "a", "a_low", "a_high", "b", "b_low", "b_high"]
    assert len(table) == 6


def test_training_does_without_transformers(write_csv, tmp_path):
    program = "import sys; from recurrify_papers.commands.forecast import app; app(standalone_mode=False); "
    command = ["train", "--data", write_csv(), "--out", tmp_path / "run", *SMALL, "--epochs", "1"]
    ended = subprocess.run([sys.executable, "-c", program + "assert 'transformers' not in sys.modules", *command])
    assert ended.returncode == 0
    assert (tmp_path / "run" / "evaluation.json").is_file()


def test_chosen_model_is_tested_once(write_csv, tmp_path, monkeypatch):
    tested = []

    def counting(model, data, part, *windows):
        tested.append((type(model).__name__, part))
        return backtest(model, data, part, *windows)

    monkeypatch.setattr(forecaster, "backtest", counting)
    forecast("train", "--data", write_csv(), "--out", tmp_path / "run", "--model", "nlinear", "--horizon", "6")
    assert tested.count(("RidgeForecaster", "test")) == 1
    trained = (tmp_path / "run" / "evaluation.json").read_text()
    forecast("evaluate", tmp_path / "run")
    again = (tmp_path / "run" / "evaluation.json").read_text()
    assert json.loads(again)["scores"] == json.loads(trained)["scores"]


def test_finished_run_is_not_repeated(run, write_csv):
    before = (run / "result.json").read_bytes()
    again = ["train", "--data", write_csv(), "--out", run, "--model", "nlinear", "--horizon"]
    assert "finished" in forecast(*again, "6")
    assert (run / "result.json").read_bytes() == before
    with pytest.raises(UserError, match="other settings"):
        forecast(*again, "7")
    with pytest.raises(UserError, match="the training data changed"):
        forecast("train", "--data", write_csv(rows=500), *again[3:], "6")


def test_best_weights_are_usable_when_the_time_is_up(write_csv, tmp_path):
    command = ["train", "--data", write_csv(), "--out", tmp_path / "run", *SMALL, "--epochs", "3"]
    output = forecast(*command, "--max-minutes", "0.00001")
    assert "Run the same command to resume" in output
    assert load_trained(tmp_path / "run").name == "rsa-informer"
    forecast("predict", tmp_path / "run", "--out", tmp_path / "next.csv")
    forecast(*command)
    result = json.loads((tmp_path / "run" / "result.json").read_text())
    assert (result["finished"], len(result["history"])) == (True, 3)
    assert len(json.loads((tmp_path / "run" / "evaluation.json").read_text())["gates"]) == 2


def test_another_file_is_scored_on_unseen_dates(run, write_csv, tmp_path):
    longer = write_csv(name="longer.csv", rows=500)
    forecast("evaluate", run, "--data", longer)
    result = json.loads((run / "evaluation-longer.json").read_text())
    assert not result["own_data"]
    assert result["first_date"] == "2020-01-14 08:00:00"  # the training used 320 of 500 rows
    with pytest.raises(UserError, match=r"older has 0 rows after .* or --other-series"):
        forecast("evaluate", run, "--data", write_csv(name="older.csv", rows=300))
    forecast("evaluate", run, "--data", tmp_path / "older.csv", "--other-series")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--model", "prophet"], "`model` must be auto"),
        (["--horizon", "0"], "`horizon`"),
        (["--columns", "z"], "no column 'z'"),
        (["--split", "1/2"], "`split`"),
        (["--season", "390"], "`season`"),
        (["--horizon", "90", "--model", "seasonal"], "too short"),
    ],
)
def test_invalid_options_raise(write_csv, tmp_path, options, message):
    with pytest.raises(UserError, match=message):
        forecast("train", "--data", write_csv(), "--out", tmp_path / "run", *options)


def test_verdict_compares_on_the_windows_of_both():
    """A slow model is scored on some windows only."""
    shared = {"chosen": {"mse": 1.0, "mae": 1.0}, "other": {"mse": 2.0, "mae": 4.0}}
    rows = [{"model": "ets", "mse": 1.0, "mase": 0.5}, {"model": "seasonal", "mse": 9.0, "shared": shared}]
    assert verdict({"scores": rows}) == (
        "ets is better by 50% (MSE) and 75% (MAE) than repeating the last season, MASE 0.50."
    )


def test_coverage_of_few_windows_is_marked():
    result = {"scores": [{"coverage": [{"level": 90, "held": 0.648}]}], "calibration_windows": 2}
    assert coverage(result) == "coverage: 90 % interval 64.8%; only 2 validation windows: not reliable"
    assert coverage(result | {"calibration_windows": 20}) == "coverage: 90 % interval 64.8%"


def test_existing_files_are_not_overwritten(run, write_csv, tmp_path):
    path = write_csv(name="other.csv")
    with pytest.raises(UserError, match="which this command reads"):
        forecast("predict", run, "--data", path, "--out", path)
    with pytest.raises(UserError, match="holds other files"):
        forecast("train", "--data", path, "--out", tmp_path)
    with pytest.raises(UserError, match="no forecaster"):
        forecast("evaluate", tmp_path / "nothing")
    (tmp_path / "some.csv").unlink()
    with pytest.raises(UserError, match="pass the file with --data"):
        forecast("predict", run, "--out", tmp_path / "next.csv")


def test_bad_places_are_reported_before_torch_is_loaded(run, write_csv, tmp_path, monkeypatch):
    monkeypatch.setattr(commands, "_load_torch", lambda: pytest.fail("torch is loaded"))
    out = tmp_path / "some.csv" / "next"
    for command in (["train", "--data", write_csv()], ["evaluate", run], ["predict", run]):
        with pytest.raises(UserError, match="is a file, not a folder"):
            forecast(*command, "--out", out)
    (tmp_path / "ETTh1.csv").touch()
    with pytest.raises(UserError, match="is a file, not a folder"):
        forecast("table1", "--data", tmp_path, "--only", "ETTh1-24", "--out", out)
    with pytest.raises(UserError, match=r"ETTh2.csv does not exist"):
        forecast("table1", "--data", tmp_path, "--out", out)
    (run / "model" / "config.json").unlink()
    with pytest.raises(UserError, match="has no model yet"):
        forecast("evaluate", run)


def test_page_names_every_model_and_step():
    assert set(MODEL_TERMS) == set(MODELS) - {"auto"}
    steps = {"h": "1 hour", "15min": "15 minutes", "W-SUN": "1 week", "2QS-OCT": "2 quarters", "us": "us"}
    assert {step: step_words(step) for step in steps} == steps


def test_help_is_short_and_all_of_it_lists_every_setting():
    output = forecast("train", "--help")
    assert all(option in output for option in ("--known", "--id-column", "--resample", "--help-all"))
    assert len(output.splitlines()) <= 70
    assert "recurrence_rows" in forecast("train", "--help-all")
