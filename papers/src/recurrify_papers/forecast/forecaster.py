"""From a series to a trained forecaster, its forecasts and scores; and a folder to save it in."""

import json
import math
from contextlib import suppress
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save
from torch import nn

from recurrify import UserError
from recurrify.attention import RecurrenceEncoding
from recurrify.data import pick_device
from recurrify.records import CONFIG_FILE, MODEL_FOLDER
from recurrify.results import write_whole
from recurrify_papers.forecast.candidates import (
    AUTO_NETWORKS,
    AUTO_WINDOWS,
    Candidate,
    Say,
    best_of,
    naive_model,
    resolved,
    train_candidate,
    train_candidates,
)
from recurrify_papers.forecast.data import Scaling, Split, WindowedSeries, all_times, split_rows, spread_before
from recurrify_papers.forecast.reading import Series
from recurrify_papers.forecast.scoring import LEVELS, Backtest, backtest, scores, tracked_intervals
from recurrify_papers.forecast.settings import NAIVE, ForecastSettings
from recurrify_papers.forecast.training import Watch, chosen_precision
from recurrify_papers.models import forecasters, informer

WEIGHTS_FILE = "model.safetensors"
FORMAT = "recurrify forecaster 5"
SHOWN_WINDOWS, SHOWN_FORECASTS, SHOWN_LEVEL = 4, 160, 90
"""Windows of each column whose forecasts are part of an evaluation; with many columns one is."""
CLASSES: dict[str, tuple[Any, Any]] = {
    "average": (forecasters.AverageConfig, forecasters.AverageForecaster),
    "informer": (informer.InformerConfig, informer.Informer),
    "linear": (forecasters.WindowConfig, forecasters.LinearForecaster),
    "mixer": (forecasters.MixerConfig, forecasters.MixerForecaster),
    "ridge": (forecasters.RidgeConfig, forecasters.RidgeForecaster),
    "statistical": (forecasters.StatisticalConfig, forecasters.StatisticalForecaster),
    "seasonal": (forecasters.SeasonalConfig, forecasters.SeasonalNaive),
}
"""By the word in a saved configuration."""


@dataclass(frozen=True, kw_only=True)
class Trained:
    """A model with all that a forecast needs to know about its data."""

    name: str
    """Of the model."""
    model: nn.Module
    validated: nn.Module
    """The model before it was fitted to validation, too: its errors there calibrate intervals."""
    columns: tuple[str, ...]
    known: tuple[str, ...]
    frequency: str
    season: int
    horizon: int
    scaling: Scaling
    half_widths: np.ndarray
    """(V, P, C): of the intervals for forecasts after the end of the file, in scaled units."""
    spread_rows: int
    """Of a short file: `half_widths` are multiples of the spread of so many rows before the forecast."""
    valid_end: str
    """Date of the last validation row: later ones were not used to choose anything."""
    checksum: str = ""
    """Of the data; "" in older ones."""

    @property
    def past(self) -> int:
        """Rows that the model reads."""
        return self.model.config.past  # type: ignore[union-attr, return-value]


@dataclass(frozen=True)
class Fitted:
    """The outcome of a training."""

    trained: Trained
    chosen: Candidate
    candidates: list[Candidate]
    test: Backtest
    """Of the chosen model."""


def windows_of(settings: ForecastSettings, series: Series) -> WindowedSeries:
    split = split_rows(series, settings.split)
    assert settings.past
    assert settings.horizon
    scaling = Scaling.of(series, split.train_end)
    data = WindowedSeries(series, split, scaling, settings.past, settings.horizon, settings.device)
    data.check("valid")
    data.check("test")
    return data


def fit_series(
    settings: ForecastSettings,
    series: Series,
    say: Say,
    folder: Path | None = None,
    watch: Watch | None = None,
    shows_bar: bool = False,
) -> Fitted:
    """Train the model of the settings, or all that `auto` can afford, and choose on validation."""
    settings = resolved(settings, series)
    data = windows_of(settings, series)
    if settings.model == "auto":
        candidates = []
        for one in train_candidates(settings, data, say):
            say(f"{one.name}: validation MSE {one.valid.mse:.4f}, MAE {one.valid.mae:.4f}, {one.seconds:.1f} s")
            candidates.append(one)
    else:
        candidates = [train_candidate(settings, data, folder, watch, shows_bar)]
    chosen = best_of(candidates) if len(candidates) > 1 else candidates[0]
    with chosen_precision(settings):
        test = backtest(chosen.model, data, "test")
    assert settings.season
    trained = Trained(
        name=chosen.name,
        model=chosen.model,
        validated=chosen.validated,
        columns=series.columns,
        known=tuple(series.known.columns),
        frequency=series.frequency,
        season=settings.season,
        horizon=data.horizon,
        scaling=data.scaling,
        half_widths=tracked_intervals(chosen.valid, test)[1],
        spread_rows=data.spread_rows,
        valid_end=str(series.dates[data.split.valid_end - 1]),
        checksum=series.checksum,
    )
    return Fitted(trained, chosen, candidates, test)


def save_trained(trained: Trained, folder: str | Path) -> None:
    """The configuration is written last: a folder that has one is complete."""
    folder = Path(folder)
    kind = next(name for name, (_, model_class) in CLASSES.items() if type(trained.model) is model_class)
    config = {entry.name: getattr(trained, entry.name) for entry in fields(Trained)}
    described: Any = trained.model.config
    config |= {"format": FORMAT, "model": {"kind": kind, "config": asdict(described)}}
    config["scaling"] = {name: values.tolist() for name, values in vars(trained.scaling).items()}
    models = nn.ModuleDict({"model": trained.model, "validated": config.pop("validated")})
    tensors = models.state_dict() | {"half_widths": torch.tensor(config.pop("half_widths"))}
    # Both models may be one, and safetensors does not save shared memory.
    contents = save({name: value.clone().cpu().contiguous() for name, value in tensors.items()})
    write_whole(folder / WEIGHTS_FILE, contents)
    write_whole(folder / CONFIG_FILE, (json.dumps(config, indent=2) + "\n").encode())


def load_trained(path: str | Path) -> Trained:
    """Read what `save_trained` wrote, from its folder or from the folder of its run."""
    folder = Path(path)
    if not (folder / CONFIG_FILE).is_file():
        folder = folder / MODEL_FOLDER
    if not (folder / CONFIG_FILE).is_file():
        raise UserError(
            f"There is no forecaster in {str(path)!r}: pass the --out folder of `recurrify forecast train`."
        )
    try:
        config: dict[str, Any] = json.loads((folder / CONFIG_FILE).read_text(encoding="utf-8"))
        if config.pop("format") != FORMAT:
            raise ValueError("another version of recurrify wrote it: train it again")
        tensors = load_file(folder / WEIGHTS_FILE)
        half_widths = tensors.pop("half_widths").numpy()
        description = config.pop("model")
        config_class, model_class = CLASSES[description["kind"]]
        pair = {one: model_class(config_class(**description["config"])) for one in ("model", "validated")}
        nn.ModuleDict(pair).eval().load_state_dict(tensors)
        scaling = Scaling(**{name: np.array(values) for name, values in config.pop("scaling").items()})
        config |= {name: tuple(config[name]) for name in ("columns", "known")}
        return Trained(**pair, half_widths=half_widths, scaling=scaling, **config)
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RuntimeError, SafetensorError) as error:
        raise UserError(f"The forecaster in {str(folder)!r} cannot be loaded: {error}.") from error


def matching(trained: Trained, series: Series) -> Series:
    """The columns of the model; raises `UserError` if the series has others, another step or too few rows."""
    missing = [name for name in trained.columns if name not in series.columns]
    if missing:
        raise UserError(f"{series.name} has no column {missing[0]!r}, which the model needs.")
    if series.frequency != trained.frequency:
        raise UserError(
            f"The step of {series.name} is {series.frequency!r}, that of the model {trained.frequency!r}: pass "
            f"--resample {trained.frequency}, or train another model."
        )
    if len(series.dates) < trained.past:
        raise UserError(
            f"{series.name} has {len(series.dates)} rows, but the model reads {trained.past}: use a longer file."
        )
    return series.only(trained.columns)


def level_index(level: float) -> int:
    known = [one / 100 for one in LEVELS]
    if level not in known:
        raise UserError(f"`level` must be one of {', '.join(map(str, known))}: got {level}.")
    return known.index(level)


@torch.inference_mode()
def forecasts_after(trained: Trained, series: Series, level: float, half_widths: np.ndarray) -> dict[str, pd.DataFrame]:
    """The forecast of each column after the last date, with the ends of its interval."""
    series, place, past = matching(trained, series), level_index(level), trained.past
    later = pd.date_range(series.dates[-1], periods=trained.horizon + 1, freq=trained.frequency)[1:]
    device = next(iter(trained.model.state_dict().values()), torch.zeros(())).device
    times = all_times(series, series.dates[-past:].append(later), trained.scaling)
    values_TC = trained.scaling.apply(series)
    parts = values_TC[-past:], times[:past], times[past:]
    inputs = [torch.tensor(one, dtype=torch.float32, device=device)[None] for one in parts]
    scaled = trained.model(*inputs)[0].double().cpu().numpy()
    lowest = np.minimum(trained.scaling.floor, values_TC[-past:].min(axis=0))
    center = trained.scaling.undo(np.maximum(scaled, lowest))
    rows = len(values_TC)
    spread_C = spread_before(values_TC, np.array([rows]), min(trained.spread_rows, rows))[0, 0]
    half = half_widths[place] * spread_C * trained.scaling.spread
    # Models compute in float32: digits beyond a millionth of the spread are noise.
    digits = [min(300, 6 - math.floor(math.log10(spread))) for spread in trained.scaling.spread]
    low = np.maximum(center - half, trained.scaling.undo(lowest))
    ends = {"forecast": center, "low": low, "high": center + half}
    tables = {}
    for index, name in enumerate(trained.columns):
        columns = {end: values[:, index].round(digits[index]) for end, values in ends.items()}
        tables[name] = pd.DataFrame(columns, index=later)
    return tables


def forecast_after(trained: Trained, series: Series, settings: ForecastSettings, level: float = 0.9) -> pd.DataFrame:
    """The forecast after the last date: long as the file, or wide with columns x, x_low and x_high. Rows that are newer
    than the training correct its intervals."""
    half_widths = trained.half_widths
    if trained.checksum != series.checksum:
        with suppress(UserError):  # too few newer rows
            half_widths = rolling_test(trained, series, settings).half_widths_after
    tables = forecasts_after(trained, series, level, half_widths)
    table = pd.concat(tables, names=[series.id_column or "unique_id", series.date_column])
    if series.id_column is not None:
        return table.reset_index()
    wide = table.unstack(0).swaplevel(axis=1)[list(trained.columns)]
    wide.columns = [name if end == "forecast" else f"{name}_{end}" for name, end in wide.columns]
    return wide.reset_index()


@dataclass(frozen=True)
class Tested:
    """A backtest with the intervals that were known at each of its forecasts."""

    data: WindowedSeries
    found: Backtest
    half_widths: np.ndarray
    """(V, N, P, C)."""
    half_widths_after: np.ndarray
    """(V, P, C): of a forecast after the last of them, in spreads."""
    calibrated: int
    """Earlier windows from whose errors the intervals begin."""


def tested_rows(trained: Trained, series: Series, settings: ForecastSettings, unseen: bool) -> Split:
    """The parts of a file for a test. Of another file than that of the training, all is tested that was not used to
    train, after some rows that calibrate the intervals; `unseen` leaves out dates that the training used."""
    split, rows = split_rows(series, settings.split), len(series.dates)
    seen = int((series.dates <= pd.Timestamp(trained.valid_end)).sum()) if unseen else 0
    if trained.checksum == series.checksum:
        return Split(split.train_end, max(split.valid_end, seen), split.test_end)
    if rows - seen < trained.horizon:
        raise UserError(
            f"{series.name} has {rows - seen} rows after {date_words(trained.valid_end)}, the last date that the "
            f"training used, and a forecast takes {trained.horizon}: use a file with later rows, or --other-series for "
            "one of another place."
        )
    calibrating = max(trained.horizon, split.valid_end - split.train_end)
    first = max(seen, trained.past + calibrating)
    return Split(first - calibrating, first, rows)


def date_words(date: Any) -> str:
    """A date, without its time if that is midnight."""
    return str(pd.Timestamp(date)).removesuffix(" 00:00:00")


def rolling_test(
    trained: Trained,
    series: Series,
    settings: ForecastSettings,
    unseen: bool = True,
    windows: int | None = None,
    later: Backtest | None = None,
) -> Tested:
    """Backtest on the test part, unless `later` is one; `unseen` leaves out dates that the training used."""
    series = matching(trained, series)
    split = tested_rows(trained, series, settings, unseen)
    settings = replace(settings, device=str(pick_device(settings.device)))
    data = WindowedSeries(series, split, trained.scaling, trained.past, trained.horizon, settings.device)
    with chosen_precision(settings):
        earlier = backtest(trained.validated.to(settings.device), data, "valid")
        later = later or backtest(trained.model.to(settings.device), data, "test", windows)
    return Tested(data, later, *tracked_intervals(earlier, later), len(earlier.first_rows))


def cross_validation(tested: Tested, level: float = 0.9) -> pd.DataFrame:
    """Rolling-origin forecasts as one long table: unique_id, date, cutoff, y, forecast, low, high."""
    found, data, half_NPC = tested.found, tested.data, tested.half_widths[level_index(level)]
    lowest = np.minimum(data.scaling.floor, found.forecast)
    parts = {"y": found.truth, "forecast": found.forecast}
    parts |= {"low": np.maximum(found.forecast - half_NPC, lowest), "high": found.forecast + half_NPC}
    original = {name: data.scaling.undo(values.astype(np.float64)) for name, values in parts.items()}
    windows, horizon, channels = found.truth.shape
    rows = np.tile((found.first_rows[:, None] + np.arange(horizon)).ravel(), channels)
    cutoffs = np.tile(np.repeat(found.first_rows - 1, horizon), channels)
    columns: dict[str, Any] = {"unique_id": np.repeat(np.array(data.series.columns, dtype=object), windows * horizon)}
    columns |= {"date": data.series.dates[rows], "cutoff": data.series.dates[cutoffs]}
    columns |= {name: values.transpose(2, 0, 1).ravel() for name, values in original.items()}
    return pd.DataFrame(columns)


def shown_windows(tested: Tested) -> list[dict[str, Any]]:
    """Some forecasts with their past and intervals, in original units, for the page."""
    series, horizon = tested.data.series, tested.data.horizon
    count = max(1, min(SHOWN_WINDOWS, SHOWN_FORECASTS // len(series.columns)))
    chosen = np.unique(np.linspace(len(tested.found.first_rows) - 1, 0, count).round().astype(int))
    found = tested.found.at(tested.found.first_rows[chosen])
    some = replace(tested, found=found, half_widths=tested.half_widths[:, chosen])
    table = cross_validation(some, SHOWN_LEVEL / 100)
    shown = []
    for (column, cutoff), window in table.groupby(["unique_id", "cutoff"], sort=False):
        first = series.dates.get_loc(cutoff) + 1
        rows = slice(max(0, first - 2 * horizon), first + horizon)
        shown.append(
            {
                "column": column,
                "dates": [str(date) for date in series.dates[rows]],
                "truth": series.values[rows, series.columns.index(column)].tolist(),
                **{end: window[end].tolist() for end in ("forecast", "low", "high")},
            }
        )
    return shown


def coming_windows(trained: Trained, series: Series, half_widths: np.ndarray) -> list[dict[str, Any]]:
    """The forecast after the last date in the form of `shown_windows`, but without a truth; none if covariates that
    should be known are not."""
    try:
        tables = forecasts_after(trained, series, SHOWN_LEVEL / 100, half_widths)
    except UserError:
        return []
    shown = []
    for column, table in tables.items():
        past = slice(max(0, len(series.dates) - 2 * trained.horizon), None)
        dates = series.dates[past].append(pd.DatetimeIndex(table.index))
        truth = series.values[past, series.columns.index(column)].tolist()
        shown.append({"column": column, "dates": list(map(str, dates)), "truth": truth, **table.to_dict("list")})
    return shown


def evaluation(
    trained: Trained,
    series: Series,
    settings: ForecastSettings,
    fitted: Fitted | None = None,
    unseen: bool = True,
) -> dict[str, Any]:
    """Scores on the test part, the chosen model first; right after the training, also those of its other candidates.

    `shared` has the errors of the chosen model and of another one on the windows of both.
    """
    tested = rolling_test(trained, series, settings, unseen, later=fitted.test if fitted else None)
    data = tested.data
    rows = [{"model": trained.name} | scores(tested.found, data, trained.season, tested.half_widths)]
    known = replace(settings, season=trained.season, horizon=trained.horizon)
    others: dict[str, nn.Module] = {name: naive_model(replace(known, model=name)) for name in NAIVE}
    others |= {one.name: one.model for one in fitted.candidates} if fitted else {}
    for name, model in others.items():
        if name != trained.name:
            found = backtest(model, data, "test", AUTO_WINDOWS if name in AUTO_NETWORKS else None)
            pair = {"chosen": tested.found.at(found.first_rows), "other": found.at(tested.found.first_rows)}
            shared = {who: {"mse": one.mse, "mae": one.mae} for who, one in pair.items()}
            rows.append({"model": name, "shared": shared} | scores(found, data, trained.season))
    own_data = trained.checksum == series.checksum
    half_widths = trained.half_widths if own_data else tested.half_widths_after
    return {
        "model": trained.name,
        "data": series.name,
        "columns": list(trained.columns),
        "own_data": own_data,
        "first_date": date_words(series.dates[data.split.valid_end]),
        "last_date": date_words(series.dates[data.split.test_end - 1]),
        "calibration_windows": tested.calibrated,
        "frequency": series.frequency,
        "season": trained.season,
        "horizon": trained.horizon,
        "repairs": list(series.repairs),
        "scores": rows,
        "windows": [*shown_windows(tested), *coming_windows(trained, series, half_widths)],
        "gates": gates(trained.model),
    }


def gates(model: nn.Module) -> dict[str, float]:
    """By layer, the share of the recurrence in its heads' output."""
    return {
        name.removesuffix(".attention.encoding"): module.gate().item()
        for name, module in model.named_modules()
        if isinstance(module, RecurrenceEncoding)
    }
