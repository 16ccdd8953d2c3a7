"""`recurrify forecast` from a CSV to a forecast and a page, and what it refuses."""

import re
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from recurrify.cli import main as cli
from recurrify.results import load_result
from recurrify_papers.forecast.saving import load_forecaster
from recurrify_papers.forecast.settings import ForecastSettings
from support.commands import invoke

LENGTHS = ["--past", "24", "--horizon", "4", "--device", "cpu"]
LEARNING = ["--epochs", "1", "--epoch-windows", "64", "--learning-rate", "1e-3"]
SMALL = [*LENGTHS, *LEARNING, "--width", "16", "--inner", "16", "--encoder-layers", "1"]


def train(path: Path, out: Path, *more: object) -> str:
    """Options that mean nothing to a model are refused, so each gets its own."""
    naive = {"last-value", "seasonal"} & set(more)
    options = LENGTHS if naive else [*LENGTHS, *LEARNING] if "linear" in more else SMALL
    return invoke("forecast", "train", "--data", path, "--out", out, *options, *more)


def test_from_a_csv_to_a_forecast_and_a_page(write_csv, tmp_path):
    path = write_csv(flat=3.0)
    said = train(path, tmp_path / "run")
    assert re.search(r"validation, all windows: MSE \d", said)
    result = load_result(tmp_path / "run" / "result.json")
    assert result["constant_columns"] == ["flat"]
    # The same command again has nothing left to do.
    train(path, tmp_path / "run")
    assert load_result(tmp_path / "run" / "result.json") == result

    said = invoke("forecast", "evaluate", tmp_path / "run", "--device", "cpu")
    assert "90% interval" in said
    found = load_result(tmp_path / "run" / "evaluation.json")
    assert [score["model"] for score in found["scores"]] == ["rsa-informer", "last-value", "seasonal"]
    assert {score["windows"] for score in found["scores"]} == {80 - 4 + 1}

    invoke("forecast", "predict", tmp_path / "run", "--out", tmp_path / "next.csv", "--level", "0.95")
    table = pd.read_csv(tmp_path / "next.csv", index_col="date", parse_dates=True)
    assert table.index[0] == pd.Timestamp("2020-01-17 16:00")
    assert list(table.columns[:3]) == ["a", "a_low", "a_high"]
    assert np.isfinite(table.to_numpy()).all()

    invoke("forecast", "plot", tmp_path / "run", "--out", tmp_path / "page.html")
    page = (tmp_path / "page.html").read_text(encoding="utf-8")
    for title in ("Scores", "Error by horizon", "Forecasts over the truth", "What the recurrence learned"):
        assert f"<h2>{title}</h2>" in page
    assert page.count("<svg") == 1 + 4 + 1 + 2  # horizons, windows, gates, layers
    start, end = (found[name][0] for name in ("recurrence_start", "recurrence"))
    assert f">{start['gate']:.3f} → {end['gate']:.3f}<" in page
    assert f">{start['heads'][0]['theta']:.3f} → {end['heads'][0]['theta']:.3f}<" in page
    assert ">a, b, flat<" in page
    held = found["scores"][0]["coverage"][2]
    assert held["level"] == 0.9
    assert f"flat {100 * held['by_column']['flat']:.1f} %" in page
    assert held["held"] == pytest.approx(np.mean(list(held["by_column"].values())))


def test_the_recurrence_learns_at_its_own_rate_unless_told(refused, write_csv, tmp_path):
    path, out = write_csv(), tmp_path / "run"
    train(path, out, "--recurrence-learning-rate", "1e-3")  # the rate of the others
    # As runs have it that are older than this default; the same rate, given, goes on with them.
    assert ForecastSettings.read(out).recurrence_learning_rate is None
    assert "recurrence_learning_rate=None there, 0.03 now" in refused("train", "--data", path, "--out", out, *SMALL)
    train(path, out, "--recurrence-learning-rate", "1e-3")
    for model, rate in (("rsa-informer", 3e-2), ("informer", None)):
        train(path, tmp_path / model, "--model", model)
        assert ForecastSettings.read(tmp_path / model).recurrence_learning_rate == rate


def test_one_column_alone(write_csv, tmp_path):
    train(write_csv(), tmp_path / "run", "--univariate", "--target", "a", "--model", "linear")
    invoke("forecast", "predict", tmp_path / "run", "--out", tmp_path / "next.csv")
    assert list(pd.read_csv(tmp_path / "next.csv").columns) == ["date", "a", "a_low", "a_high"]


@pytest.fixture
def said(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    sentences: list[str] = []
    monkeypatch.setattr("recurrify_papers.commands.forecast.say", sentences.append)
    return sentences


def test_columns_called_like_ends_of_intervals_stay_what_they_are(write_csv, tmp_path, said):
    train(write_csv(a_low=np.arange(400.0)), tmp_path / "run", "--model", "last-value")
    invoke("forecast", "predict", tmp_path / "run", "--out", tmp_path / "next.csv")
    assert said == ["some: it has columns named like intervals, so these end in _interval_low and _interval_high"]
    table = pd.read_csv(tmp_path / "next.csv")
    assert list(table.columns[:4]) == ["date", "a", "a_interval_low", "a_interval_high"]
    assert table["a_low"].tolist() == pytest.approx([399.0] * 4, rel=1e-6)


def test_a_column_called_date_that_holds_numbers(write_csv, tmp_path):
    text = write_csv().read_text(encoding="utf-8").replace("date,a,b", "when,date,b")
    train(write_csv(text), tmp_path / "run", "--model", "last-value", "--date-column", "when")
    invoke("forecast", "predict", tmp_path / "run", "--out", tmp_path / "next.csv")
    header = (tmp_path / "next.csv").read_text(encoding="utf-8").splitlines()[0]
    assert header == "forecast_date,date,date_low,date_high,b,b_low,b_high"


def test_rows_behind_the_test_part_are_told(write_csv, tmp_path, said):
    train(write_csv(), tmp_path / "run", "--model", "last-value", "--split", "0.3/0.1/0.1 months")
    (told,) = said
    assert told.startswith("some: the last 40 of 400 rows lie behind the test part: nothing is trained or scored")
    invoke("forecast", "evaluate", tmp_path / "run", "--device", "cpu")
    assert said == [told, told]


def test_several_runs_on_one_page_share_their_naive_forecasts(write_csv, tmp_path):
    for model in ("linear", "seasonal"):
        train(write_csv(), tmp_path / model, "--model", model)
        invoke("forecast", "evaluate", tmp_path / model, "--device", "cpu")
    invoke("forecast", "plot", tmp_path / "linear", tmp_path / "seasonal", "--out", tmp_path / "page.html")
    page = (tmp_path / "page.html").read_text(encoding="utf-8")
    assert page.count("last-value (some, 4)</text>") == 1
    assert "Forecasts over the truth: seasonal" in page


@pytest.fixture
def refused(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    def run(*arguments: object) -> str:
        monkeypatch.setattr(sys, "argv", ["recurrify", "forecast", *map(str, arguments)])
        with pytest.raises(SystemExit) as caught:
            cli.main()
        assert caught.value.code == 2
        written = capsys.readouterr().err
        assert "Traceback" not in written
        return written.rpartition("Error: ")[2].strip()

    return run


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (["--model", "oracle"], "`model` must be one of"),
        (["--counts", "a,b"], "`counts` must be whole numbers"),
        (["--counts", "9,0,0,0,0,0"], "`counts` must name at least one head"),
        (["--target", "z"], "`target` must be a column"),
        (["--past", "900"], "too short"),
        (["--split", "12/4/4 months"], "train with shares, --split 0.7/0.1/0.2"),
        (["--columns", "a,z"], "has no column 'z'"),
        (["--columns", "a,a"], "names 'a' more than once"),
        (["--speed", "graph"], "needs a CUDA device"),
        (["--seed", str(2**32)], "`seed` must be at most 4294967295"),
        (["--model", "informer", "--counts", "0,2,2,0,2,2"], "`counts` belongs to the rsa- models"),
        (["--model", "transformer", "--recurrence-rows", "all"], "`recurrence_rows` belongs to the rsa- models"),
        (["--model", "rsa-transformer", "--recurrence-rows", "all"], "`recurrence_rows` belongs to rsa-informer"),
        (["--model", "gru"], "`inner` means nothing to gru"),
        (["--model", "linear"], "`width` means nothing to linear"),
        (["--model", "seasonal"], "means nothing to seasonal"),
        (["--model", "transformer", "--factor", "3"], "`factor` means nothing to transformer"),
        (["--model", "rsa-transformer", "--factor", "3"], "`factor` means nothing to rsa-transformer"),
        (["--factor", "0"], "`factor` must be at least 1"),
        (["--season", "277"], "`season` must fit into the training part of some before a forecast, 276 rows: got 277"),
    ],
    ids=[
        "model",
        "counts",
        "heads",
        "target",
        "past",
        "split",
        "columns",
        "twice",
        "speed",
        "seed",
        "no-rsa",
        "no-rows",
        "no-selection",
        "not-of-gru",
        "not-of-linear",
        "not-of-seasonal",
        "not-of-transformer",
        "not-of-rsa-transformer",
        "factor",
        "season",
    ],
)
def test_bad_options_of_train(refused, write_csv, tmp_path, options, told):
    sentence = refused("train", "--data", write_csv(), "--out", tmp_path / "run", *SMALL, *options)
    assert told in sentence
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("model", ["lstm", "linear", "last-value"])
@pytest.mark.parametrize("option", [("--mix",), ("--factor", "3")])
def test_models_without_a_decoder_have_nothing_to_mix_or_to_sample(refused, write_csv, tmp_path, model, option):
    sentence = refused("train", "--data", write_csv(), "--out", tmp_path / "run", "--model", model, *option)
    assert f"`{option[0][2:]}` means nothing to {model}" in sentence


def test_mix_and_factor_go_into_the_model(refused, write_csv, tmp_path):
    path, run = write_csv(), tmp_path / "run"
    train(path, run, "--mix", "--factor", "3")
    config = load_forecaster(run).model.config
    assert (config.mix, config.factor) == (True, 3)
    assert "mix=True there, False now" in refused("train", "--data", path, "--out", run, *SMALL, "--factor", "3")
    train(path, tmp_path / "full", "--model", "transformer", "--mix")
    assert load_forecaster(tmp_path / "full").model.config.mix


def test_a_forecast_is_not_written_over_a_folder(refused, write_csv, tmp_path, monkeypatch):
    train(write_csv(), tmp_path / "run", "--model", "last-value")
    monkeypatch.chdir(tmp_path)
    assert refused("predict", "run", "--out", ".").startswith(". is a folder")
    assert refused("predict", "run", "--out", "run").startswith("run is a folder")


def test_what_a_command_reads_is_never_written_over(refused, write_csv, tmp_path):
    path, run = write_csv(), tmp_path / "run"
    train(path, run, "--model", "last-value")
    whole = path.read_bytes()
    for command in ("predict", "evaluate", "plot"):
        assert "which this command reads" in refused(command, run, "--out", path), command
    newer = write_csv(name="newer.csv", rows=410)
    assert "which this command reads" in refused("predict", run, "--data", newer, "--out", newer)
    assert path.read_bytes() == whole
    invoke("forecast", "evaluate", run, "--device", "cpu")
    for command in ("evaluate", "plot"):  # somebody else's table
        assert "holds something else" in refused(command, run, "--out", newer), command
    for of_run in ("run.json", "model/model.safetensors"):
        for command in ("predict", "evaluate"):
            assert "which this command reads" in refused(command, run, "--out", run / of_run), command
    invoke("forecast", "evaluate", run, "--device", "cpu", "--out", run / "evaluation.json")
    for _ in range(2):  # its own forecast it may replace
        invoke("forecast", "predict", run, "--out", tmp_path / "next.csv")
    assert refused("train", "--data", path, "--out", tmp_path / "next.csv", *SMALL).endswith("give another name.")


def test_a_run_whose_file_is_gone_says_so(refused, write_csv, tmp_path):
    path, run = write_csv(), tmp_path / "run"
    train(path, run, "--model", "last-value")
    moved = path.rename(tmp_path / "moved.csv")
    for sentence in (refused("predict", run, "--out", tmp_path / "next.csv"), refused("evaluate", run)):
        assert f"trained on, {path}, is not there" in sentence
    invoke("forecast", "predict", run, "--data", moved, "--out", tmp_path / "next.csv")


def test_how_a_training_went_is_told(write_csv, tmp_path, said):
    path, run = write_csv(), tmp_path / "run"
    spoilt = [
        "--model",
        "linear",
        "--epochs",
        "6",
        "--patience",
        "1",
        "--learning-rate",
        "10",
        "--schedule",
        "constant",
    ]
    train(path, run, *spoilt)
    epochs = len(load_result(run / "result.json")["history"])
    assert epochs < 6
    assert said[-1].startswith("stopped early: none of the last 1 epochs")
    (run / "result.json").unlink()
    train(path, run, *spoilt)
    assert f"going on after epoch {epochs}" in said
    told = invoke("forecast", "evaluate", run, "--device", "cpu")
    assert "By MSE, linear is no better here than last-value and seasonal" in told
    assert "of that of b: 50%" in told
    assert "best epoch" not in train(path, tmp_path / "naive", "--model", "last-value")


def test_a_forecast_has_no_more_digits_than_the_model(write_csv, tmp_path):
    whole = [float(number % 7) for number in range(400)]
    train(write_csv(c=whole), tmp_path / "run", "--model", "seasonal", "--season", "7")
    invoke("forecast", "predict", tmp_path / "run", "--out", tmp_path / "next.csv")
    assert pd.read_csv(tmp_path / "next.csv")["c"].tolist() == [1.0, 2.0, 3.0, 4.0]


def test_small_changes_of_a_large_number_are_forecast(write_csv, tmp_path):
    large = [1.7e9 + number % 7 / 10 for number in range(400)]
    train(write_csv(c=large), tmp_path / "run", "--model", "seasonal", "--season", "7")
    invoke("forecast", "predict", tmp_path / "run", "--out", tmp_path / "next.csv")
    found = pd.read_csv(tmp_path / "next.csv")["c"].to_numpy()
    np.testing.assert_allclose(found - 1.7e9, [0.1, 0.2, 0.3, 0.4], atol=1e-6)


def test_numbers_too_large_leave_no_folder(refused, write_csv, tmp_path):
    sentence = refused("train", "--data", write_csv(c=[1e307, -1e307] * 200), "--out", tmp_path / "run", *SMALL)
    assert "column 'c' of some holds numbers too large" in sentence
    assert not (tmp_path / "run").exists()


def test_what_was_never_trained_cannot_be_used(refused, tmp_path):
    assert "There is no forecaster" in refused("evaluate", tmp_path)
    assert "There is no forecaster" in refused("predict", tmp_path, "--out", tmp_path / "next.csv")
    assert "There is no forecaster" in refused("plot", tmp_path)
    ForecastSettings(data="some.csv", out=str(tmp_path)).write()
    assert "has not come to its end" in refused("evaluate", tmp_path)


def test_what_was_never_evaluated_cannot_be_plotted(refused, write_csv, tmp_path):
    train(write_csv(), tmp_path / "run", "--model", "last-value")
    assert "run `recurrify forecast evaluate" in refused("plot", tmp_path / "run")


def test_a_folder_with_other_files_is_left_alone(refused, write_csv, tmp_path):
    path = write_csv()
    assert "holds other files" in refused("train", "--data", path, "--out", tmp_path, *SMALL)


def test_a_file_that_has_changed_is_another_run(refused, write_csv, tmp_path):
    train(write_csv(), tmp_path / "run", "--model", "seasonal")
    seasonal = [*LENGTHS, "--model", "seasonal"]
    sentence = refused("train", "--data", write_csv(rows=401), "--out", tmp_path / "run", *seasonal)
    assert "holds a run with other settings (data_checksum=" in sentence
    # What cannot be at all is told first.
    assert "too short" in refused("train", "--data", write_csv(), "--out", tmp_path / "run", "--past", "900")


def test_a_model_that_was_spoilt_is_made_again_without_training(refused, write_csv, tmp_path):
    path, run = write_csv(), tmp_path / "run"
    train(path, run, "--model", "linear")
    weights = run / "model" / "model.safetensors"
    whole, validation = weights.read_bytes(), load_result(run / "result.json")["validation"]
    weights.write_bytes(whole[:100])
    assert "cannot be loaded" in refused("predict", run, "--out", tmp_path / "next.csv")
    assert "epoch 1:" not in train(path, run, "--model", "linear")
    assert weights.read_bytes() == whole
    assert load_result(run / "result.json")["validation"] == validation


def test_table1_without_its_data(refused, tmp_path):
    assert "ETTh1.csv does not exist" in refused("table1", "run", "--data", tmp_path, "--only", "ETTh1-24")
    assert "There is no result" in refused("table1", "report", "--root", tmp_path)
