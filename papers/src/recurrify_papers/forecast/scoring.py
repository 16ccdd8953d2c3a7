"""A finished run scored: on the test part of its own file or of another, never in silence on what it has seen."""

import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd
from torch import nn

from recurrify.errors import UserError
from recurrify.results import provenance
from recurrify_papers.forecast.building import new_forecaster
from recurrify_papers.forecast.data import Split, WindowedSeries, split_rows
from recurrify_papers.forecast.evaluation import Intervals, evaluate_forecaster, shown_windows
from recurrify_papers.forecast.prediction import check_fits, with_columns
from recurrify_papers.forecast.reading import Series
from recurrify_papers.forecast.running import Say, read_for, tell_unused_rows
from recurrify_papers.forecast.saving import Forecaster, load_forecaster
from recurrify_papers.forecast.seasons import with_season
from recurrify_papers.forecast.settings import ForecastSettings
from recurrify_papers.forecast.shapes import recurrence_shapes

EVALUATION_FILE = "evaluation.json"


def evaluate_run(
    run: str | Path,
    say: Say,
    data: str | None = None,
    as_published: bool = False,
    device: str = "cpu",
    other_series: bool = False,
    windows: Sequence[pd.Timestamp] = (),
) -> dict[str, Any]:
    """`recurrify forecast evaluate`: the test part of the run's own file, or of another one of the same kind.

    The naive forecasts are scored on the same windows, for a number without them says little. Windows that begin at
    dates of training or validation are left out, unless the file is of an `other_series`. `windows` are dates from
    which forecasts are shown.
    """
    started = time.time()
    forecaster = load_forecaster(run)
    settings = _settings_of(run, data, device)
    # Only what the model reads: other columns may be as broken as they like.
    series, _ = read_for(replace(settings, univariate=False, columns=forecaster.columns), say)
    check_fits(forecaster, series)
    tell_unused_rows(series, settings.split, say)
    own = _is_own_file(settings, series, forecaster, say)
    series = with_columns(series, forecaster.columns)
    split = split_rows(series, settings.split)
    if not other_series:
        split = _unseen(split, series, forecaster, say)
    tested = _windows(settings, series, split, forecaster, forecaster.past)
    model = forecaster.model.to(settings.device)
    intervals = replace(forecaster.intervals, half_widths=forecaster.intervals.half_widths.to(tested.values_TC.device))
    shown = shown_windows(model, tested, forecaster.target, intervals, first_dates=windows)
    return {
        "model": settings.model,
        "data": series.name,
        "columns": list(forecaster.columns),
        "own_data": own,
        "other_series": other_series,
        "as_published": as_published,
        "first_date": str(series.dates[split.valid_end]),
        "frequency": series.frequency,
        "target": forecaster.target,
        "horizon": settings.horizon,
        "repairs": list(series.repairs),
        "scores": _scores(model, tested, intervals, settings, forecaster, as_published, say),
        "windows": shown,
        "recurrence": recurrence_shapes(model),
        "recurrence_start": forecaster.recurrence_start,
        "provenance": provenance(
            settings.to_dict(), seed=settings.seed, data_checksum=series.checksum, started=started
        ),
    }


def _settings_of(run: str | Path, data: str | None, device: str) -> ForecastSettings:
    settings = ForecastSettings.read(run)
    if settings is None:
        raise UserError(f"There is no run in {str(run)!r}: give the --out folder of `forecast train`.")
    # However it was trained, scoring needs no captured graph.
    return replace(settings, data=data or str(file_of(settings)), device=device, speed="auto")


def file_of(settings: ForecastSettings) -> Path:
    """That a run was trained on."""
    path = Path(settings.data)
    if not path.is_file():
        raise UserError(
            f"The file that the run was trained on, {settings.data}, is not there (from {Path.cwd()}): give it with "
            "--data, or run the command where it was trained."
        )
    return path


def _is_own_file(settings: ForecastSettings, series: Series, forecaster: Forecaster, say: Say) -> bool:
    """Whether the file is the one of the training, byte by byte; said where it is not."""
    if settings.data_checksum in (None, series.checksum):
        return True
    say(f"{series.name}: this is not the file that the model was trained on, or it has changed since (its checksum)")
    if forecaster.valid_end is None:
        say(
            f"{series.name}: the model does not say where its training ended, so whether it has seen this test part "
            "is not checked: train it again to know"
        )
    return False


def _unseen(split: Split, series: Series, forecaster: Forecaster, say: Say) -> Split:
    """The split with its test part cut to what begins after the model's validation part."""
    if forecaster.valid_end is None:
        return split
    seen = int((series.dates <= pd.Timestamp(forecaster.valid_end)).sum())
    if seen <= split.valid_end:
        return split
    way_out = "a file of another place or thing is scored with --other-series"
    if split.test_end - seen < forecaster.horizon:
        raise UserError(
            f"The model was trained and validated up to {forecaster.valid_end}, and no forecast of the test part of "
            f"{series.name} begins later: give a file that goes on for longer; {way_out}."
        )
    say(
        f"{series.name}: the test part begins at {series.dates[split.valid_end]}, but the model was trained and "
        f"validated up to {forecaster.valid_end}: {seen - split.valid_end:,} windows are left out; {way_out}"
    )
    return split._replace(valid_end=seen)


def _windows(
    settings: ForecastSettings, series: Series, split: Split, forecaster: Forecaster, past: int
) -> WindowedSeries:
    return WindowedSeries(series, split, forecaster.scaling, past, forecaster.horizon, settings.device, ["test"])


def _scores(
    model: nn.Module,
    tested: WindowedSeries,
    intervals: Intervals,
    settings: ForecastSettings,
    forecaster: Forecaster,
    as_published: bool,
    say: Say,
) -> list[dict[str, Any]]:
    """Of the model, then of the naive forecasts on the same windows."""
    scores = [{"model": settings.model} | evaluate_forecaster(model, tested, intervals, as_published=as_published)]
    series = tested.series
    for name in ("last-value", "seasonal"):
        if name == settings.model:
            continue
        try:
            mine = with_season(replace(settings, model=name), series)
            naive = new_forecaster(mine, tested.channels, tested.times_TF.shape[1], series.step)
            # A season may be longer than what the model reads: the rows are there.
            looking_back = _windows(settings, series, tested.split, forecaster, mine.past)
        except UserError as error:
            say(f"{series.name}: no {name} forecast to compare with: {error}")
            continue
        scores.append({"model": name} | evaluate_forecaster(naive, looking_back, as_published=as_published))
    return scores
