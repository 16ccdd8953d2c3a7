"""Whole jobs: a file in, a trained forecaster and its scores out."""

import time
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from recurrify.console import progress_bar
from recurrify.errors import UserError
from recurrify.records import LOCK_FILE
from recurrify.results import load_result, provenance, save_result
from recurrify_papers.forecast.building import new_forecaster
from recurrify_papers.forecast.data import (
    Scaling,
    WindowedSeries,
    choose_target,
    constant_columns,
    only_column,
    split_rows,
)
from recurrify_papers.forecast.evaluation import Intervals, evaluate_forecaster, fit_intervals
from recurrify_papers.forecast.reading import Series, read_series
from recurrify_papers.forecast.saving import CONFIG_FILE, Forecaster, load_forecaster, save_forecaster
from recurrify_papers.forecast.seasons import with_season
from recurrify_papers.forecast.settings import ForecastSettings
from recurrify_papers.forecast.shapes import recurrence_shapes
from recurrify_papers.forecast.training import Outcome, Watch, fit, how_far, precision_context, steps_per_epoch

Say = Callable[[str], None]
RESULT_FILE = "result.json"


@dataclass(frozen=True)
class Trained:
    model: nn.Module
    data: WindowedSeries
    outcome: Outcome
    intervals: Intervals | None
    """Of the best epoch; None where the time was up before the end."""
    target: str
    recurrence_start: list[dict[str, Any]] = field(default_factory=list)
    """`recurrence_shapes` before the first step."""

    @property
    def forecaster(self) -> Forecaster:
        """What can be saved, of a training that has come to its end."""
        assert self.intervals is not None
        dates, split = self.data.series.dates, self.data.split
        return Forecaster(
            model=self.model,
            columns=self.data.series.columns,
            target=self.target,
            frequency=self.data.series.frequency,
            past=self.data.past,
            horizon=self.data.horizon,
            scaling=self.data.scaling,
            intervals=self.intervals,
            train_end=str(dates[split.train_end - 1]),
            valid_end=str(dates[split.valid_end - 1]),
            recurrence_start=self.recurrence_start,
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
        say(
            f"{series.name}: the last {unused:,} of {rows:,} rows lie behind the test part: nothing is trained or "
            "scored on them; shares such as --split 0.7/0.1/0.2 use the whole file"
        )


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

    With a `folder` the training is saved there now and then, and goes on from what is there.
    """
    begun = time.monotonic()
    settings = with_season(settings, series)
    data = prepare(series, settings, settings.split)
    torch.manual_seed(settings.seed)
    model = new_forecaster(settings, data.channels, data.times_TF.shape[1], series.step).to(settings.device)
    # Told by the seed alone, so a run that goes on finds the same.
    recurrence_start = recurrence_shapes(model)
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
    return Trained(model, data, outcome, intervals, target, recurrence_start)


def train_run(settings: ForecastSettings, say: Say, watch: Watch | None = None) -> dict[str, Any]:
    """`recurrify forecast train`: into `settings.out` go run.json, model/ and result.json."""
    started = time.time()
    folder = Path(settings.out)
    series, target = read_for(settings, say)
    settings = replace(settings, data_checksum=series.checksum)
    try_out(settings, series)
    earlier = ForecastSettings.read(folder)
    if earlier is not None:
        settings.check_same_run(earlier)
    elif folder.is_dir() and any(path.name != LOCK_FILE for path in folder.iterdir()):
        raise UserError(f"{settings.out!r} holds other files: choose a new output folder.")
    there = _finished_result(folder) if earlier is not None else None
    if there is not None:
        say(f"{settings.out!r} is finished: nothing is left to do")
        return there
    constant = constant_columns(series, split_rows(series, settings.split).train_end)
    for name in constant:
        say(
            f"{series.name}: the column {name!r} is constant in the training part; it is only centred, not scaled, and "
            "its errors near 0 lower the mean scores: leave it out with --columns"
        )
    tell_unused_rows(series, settings.split, say)
    settings.write()
    before = how_far(folder)
    if before is not None:
        say(f"going on {before}")
    trained = train_forecaster(settings, series, target, folder, watch, shows_bar=True)
    result: dict[str, Any] = {
        "finished": trained.outcome.finished,
        "stopped": trained.outcome.stopped,
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
    if trained.intervals is not None:
        with precision_context(settings):
            result["validation"] = evaluate_forecaster(trained.model, trained.data, part="valid")
        save_forecaster(trained.forecaster, folder / "model")
        told = trained.intervals.told_unreached()
        if told is not None:
            say(f"{series.name}: {told}")
    result["provenance"] = provenance(
        settings.to_dict(), seed=settings.seed, data_checksum=series.checksum, started=started
    )
    save_result(folder / RESULT_FILE, result)
    return result


def _finished_result(folder: Path) -> dict[str, Any] | None:
    """Of a run that came to its end and still has its model: what it measured stays as it was."""
    if not (folder / RESULT_FILE).is_file() or not (folder / "model" / CONFIG_FILE).is_file():
        return None
    result = load_result(folder / RESULT_FILE)
    if result.get("finished") is not True:
        return None
    try:
        load_forecaster(folder)
    except UserError:
        return None  # spoilt since: it is made again from what the training saved
    return result


def try_out(settings: ForecastSettings, series: Series) -> None:
    """Refuse a file too short, a season that cannot be or a model that cannot be, before anything is written."""
    settings = replace(settings, device="cpu", speed="auto")
    if settings.season is not None:
        with_season(replace(settings, model="seasonal"), series)
    settings = with_season(settings, series)
    data = prepare(series, settings, settings.split)
    with torch.device("meta"):
        new_forecaster(settings, data.channels, data.times_TF.shape[1], series.step)
