"""Whole jobs: a file in, a trained forecaster and its scores out."""

import time
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from recurrify.console import progress_bar
from recurrify.errors import UserError
from recurrify.forecast.building import new_forecaster
from recurrify.forecast.data import (
    Scaling,
    WindowedSeries,
    choose_target,
    constant_columns,
    only_column,
    split_rows,
)
from recurrify.forecast.evaluation import Intervals, evaluate_forecaster, fit_intervals, shown_windows
from recurrify.forecast.prediction import check_fits, with_columns
from recurrify.forecast.reading import Series, read_series
from recurrify.forecast.saving import Forecaster, load_forecaster, save_forecaster
from recurrify.forecast.settings import ForecastSettings
from recurrify.forecast.shapes import recurrence_shapes
from recurrify.forecast.training import Outcome, Watch, fit, precision_context, steps_per_epoch
from recurrify.results import provenance, save_result

Say = Callable[[str], None]
RESULT_FILE, EVALUATION_FILE = "result.json", "evaluation.json"


@dataclass(frozen=True)
class Trained:
    model: nn.Module
    data: WindowedSeries
    outcome: Outcome
    intervals: Intervals | None
    """Of the best epoch; None where the time was up before the end."""
    target: str

    @property
    def forecaster(self) -> Forecaster:
        """What can be saved, of a training that has come to its end."""
        assert self.intervals is not None
        return Forecaster(
            model=self.model,
            columns=self.data.series.columns,
            target=self.target,
            frequency=self.data.series.frequency,
            past=self.data.past,
            horizon=self.data.horizon,
            scaling=self.data.scaling,
            intervals=self.intervals,
        )


def read_for(settings: ForecastSettings, say: Say) -> tuple[Series, str]:
    """The series a run reads, and the name of its target; repairs are said aloud."""
    series = read_series(settings.data, settings.date_column, settings.columns)
    for repair in series.repairs:
        say(f"{series.name}: {repair}")
    target = choose_target(series, settings.target)
    return (only_column(series, target) if settings.univariate else series), target


def tell_unused_rows(series: Series, split: str, say: Say) -> None:
    """Months may end before the file does."""
    rows = len(series.dates)
    unused = rows - split_rows(series, split).test_end
    if unused:
        say(f"{series.name}: the last {unused:,} of {rows:,} rows lie behind the test part and are not used")


def prepare(series: Series, settings: ForecastSettings, split: str, scaling: Scaling | None = None) -> WindowedSeries:
    """Split, scale by the training rows (or as a trained model was), and put on the device."""
    rows = split_rows(series, split)
    if scaling is None:
        scaling = Scaling.of(series.values[: rows.train_end])
    return WindowedSeries(series, rows, scaling, settings.past, settings.horizon, settings.device)


def train_forecaster(
    settings: ForecastSettings,
    series: Series,
    target: str,
    folder: Path | None = None,
    watch: Watch | None = None,
    shows_bar: bool = False,
) -> Trained:
    """Weights from the seed, training, and intervals from the validation part. The same seed gives the same model.

    With a `folder` the training is saved there after each epoch, and goes on from what is there.
    """
    begun = time.monotonic()
    data = prepare(series, settings, settings.split)
    torch.manual_seed(settings.seed)
    model = new_forecaster(settings, data.channels, data.times_TF.shape[1], series.step).to(settings.device)
    outcome = Outcome(True, 0, [], None)
    if settings.trains:
        bar = progress_bar("training", settings.epochs * steps_per_epoch(data, settings))
        with bar if shows_bar else nullcontext() as tick:
            outcome = fit(model, data, settings, folder, watch, tick, begun)
    model.eval()
    intervals = None
    if outcome.finished:
        with precision_context(settings):
            intervals = fit_intervals(model, data)
    return Trained(model, data, outcome, intervals, target)


def train_run(settings: ForecastSettings, say: Say, watch: Watch | None = None) -> dict[str, Any]:
    """`recurrify forecast train`: into `settings.out` go run.json, model/ and result.json."""
    started = time.time()
    folder = Path(settings.out)
    series, target = read_for(settings, say)
    settings = replace(settings, data_checksum=series.checksum)
    _try_out(settings, series)
    earlier = ForecastSettings.read(folder)
    if earlier is not None:
        settings.check_same_run(earlier)
    elif folder.is_dir() and any(folder.iterdir()):
        raise UserError(f"{settings.out!r} holds other files: choose a new output folder.")
    constant = constant_columns(series, split_rows(series, settings.split).train_end)
    for name in constant:
        say(f"{series.name}: the column {name!r} is constant in the training part; it is only centred, not scaled")
    tell_unused_rows(series, settings.split, say)
    settings.write()
    trained = train_forecaster(settings, series, target, folder, watch, shows_bar=True)
    result: dict[str, Any] = {
        "finished": trained.outcome.finished,
        "model": settings.model,
        "data": series.name,
        "horizon": settings.horizon,
        "repairs": list(series.repairs),
        "constant_columns": constant,
        "parameters": sum(parameter.numel() for parameter in trained.model.parameters()),
        "best_epoch": trained.outcome.best_epoch,
        "history": trained.outcome.history,
        "seconds_per_epoch": trained.outcome.seconds_per_epoch,
    }
    if trained.outcome.finished:
        with precision_context(settings):
            result["validation"] = evaluate_forecaster(trained.model, trained.data, part="valid")
        save_forecaster(trained.forecaster, folder / "model")
    result["provenance"] = provenance(
        settings.to_dict(), seed=settings.seed, data_checksum=series.checksum, started=started
    )
    save_result(folder / RESULT_FILE, result)
    return result


def _try_out(settings: ForecastSettings, series: Series) -> None:
    """Refuse a file too short or a model that cannot be, before anything is written."""
    data = prepare(series, replace(settings, device="cpu", speed="auto"), settings.split)
    with torch.device("meta"):
        new_forecaster(settings, data.channels, data.times_TF.shape[1], series.step)


def evaluate_run(
    run: str | Path, say: Say, data: str | None = None, as_published: bool = False, device: str = "cpu"
) -> dict[str, Any]:
    """`recurrify forecast evaluate`: the test part of the run's own file, or of another one of the same kind.

    The naive forecasts are scored on the same windows, for a number without them says little.
    """
    started = time.time()
    forecaster = load_forecaster(run)
    settings = _settings_of(run, data, device)
    # Only what the model reads: other columns may be as broken as they like.
    series, _ = read_for(replace(settings, univariate=False, columns=forecaster.columns), say)
    check_fits(forecaster, series)
    tell_unused_rows(series, settings.split, say)
    windows = prepare(with_columns(series, forecaster.columns), settings, settings.split, forecaster.scaling)
    model = forecaster.model.to(settings.device)
    intervals = replace(forecaster.intervals, half_widths=forecaster.intervals.half_widths.to(windows.values_TC.device))
    scores = [{"model": settings.model} | evaluate_forecaster(model, windows, intervals, as_published=as_published)]
    for name, naive in naive_forecasters(settings, series).items():
        if name != settings.model:
            scores.append({"model": name} | evaluate_forecaster(naive, windows, as_published=as_published))
    return {
        "model": settings.model,
        "data": series.name,
        "frequency": series.frequency,
        "target": forecaster.target,
        "horizon": settings.horizon,
        "repairs": list(series.repairs),
        "scores": scores,
        "windows": shown_windows(model, windows, forecaster.target, intervals),
        "recurrence": recurrence_shapes(model),
        "provenance": provenance(
            settings.to_dict(), seed=settings.seed, data_checksum=series.checksum, started=started
        ),
    }


def naive_forecasters(settings: ForecastSettings, series: Series) -> dict[str, nn.Module]:
    """Last value and, where the past holds a season, the season before."""
    found = {}
    for name in ("last-value", "seasonal"):
        try:
            found[name] = new_forecaster(replace(settings, model=name), len(series.columns), 1, series.step)
        except UserError:
            continue  # a season longer than the past
    return found


def _settings_of(run: str | Path, data: str | None, device: str) -> ForecastSettings:
    settings = ForecastSettings.read(run)
    if settings is None:
        raise UserError(f"There is no run in {str(run)!r}: give the --out folder of `forecast train`.")
    # However it was trained, scoring needs no captured graph.
    return replace(settings, data=data or settings.data, device=device, speed="auto")
