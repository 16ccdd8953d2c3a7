"""The evaluation of a run: its model, other candidates and naive forecasts on the same test windows."""

import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from torch import nn

from recurrify.attention import RecurrenceEncoding
from recurrify.results import provenance
from recurrify_papers.forecast.candidates import AUTO_NETWORKS, AUTO_WINDOWS, naive_model
from recurrify_papers.forecast.forecaster import load_trained, rolling_test, shown_windows
from recurrify_papers.forecast.reading import Series
from recurrify_papers.forecast.scoring import backtest, scores
from recurrify_papers.forecast.settings import NAIVE, ForecastSettings


def evaluate_run(
    run: str | Path,
    settings: ForecastSettings,
    series: Series,
    models: Mapping[str, nn.Module] | None = None,
    unseen: bool = True,
) -> dict[str, Any]:
    """Scores on the test part, the chosen model first; `models` are other candidates by name."""
    started, trained = time.time(), load_trained(run)
    tested = rolling_test(trained, series, settings, unseen)
    data = tested.data
    rows = [{"model": trained.name} | scores(tested.found, data, trained.season, tested.half_widths)]
    known = replace(settings, season=trained.season, horizon=trained.horizon)
    others: dict[str, nn.Module] = {name: naive_model(replace(known, model=name)) for name in NAIVE}
    for name, model in (others | dict(models or {})).items():
        if name != trained.name:
            windows = AUTO_WINDOWS if name in AUTO_NETWORKS else None
            found = backtest(model, data, "test", windows)
            rows.append({"model": name} | scores(found, data, trained.season))
    return {
        "model": trained.name,
        "data": series.name,
        "columns": list(trained.columns),
        "own_data": settings.data_checksum in (None, series.checksum),
        "first_date": str(series.dates[data.split.valid_end]),
        "last_date": str(series.dates[data.split.test_end - 1]),
        "frequency": series.frequency,
        "season": trained.season,
        "horizon": trained.horizon,
        "repairs": list(series.repairs),
        "scores": rows,
        "windows": shown_windows(tested),
        "gates": gates(trained.model),
        "provenance": provenance(
            settings.to_dict(), seed=settings.seed, data_checksum=series.checksum, started=started
        ),
    }


def gates(model: nn.Module) -> dict[str, float]:
    """By layer, the share of the recurrence in its heads' output."""
    return {
        name.removesuffix(".attention.encoding"): module.gate().item()
        for name, module in model.named_modules()
        if isinstance(module, RecurrenceEncoding)
    }
