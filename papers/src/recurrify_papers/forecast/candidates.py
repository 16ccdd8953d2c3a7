"""From settings to trained forecasters: networks, ridge regressions, statistical and naive models; and a choice."""

import importlib.util
import math
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, fields, replace
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import torch
from scipy.linalg import solve
from torch import nn

from recurrify import RSAConfig, UserError
from recurrify.console import progress_bar
from recurrify.data import pick_device
from recurrify_papers.forecast.data import WindowedSeries, default_horizon, split_rows, usual_season
from recurrify_papers.forecast.reading import Series
from recurrify_papers.forecast.scoring import SLOW_WINDOWS, Backtest, backtest, joined
from recurrify_papers.forecast.settings import NAIVE, NETWORKS, RIDGE, STATISTICAL, ForecastSettings, whole_numbers
from recurrify_papers.forecast.training import Progress, Training, Watch, chosen_precision, epoch_starts
from recurrify_papers.models.forecasters import (
    AverageConfig,
    AverageForecaster,
    LinearForecaster,
    MixerConfig,
    MixerForecaster,
    RidgeConfig,
    RidgeForecaster,
    SeasonalConfig,
    SeasonalNaive,
    StatisticalConfig,
    StatisticalForecaster,
    WindowConfig,
)
from recurrify_papers.models.informer import Informer, InformerConfig

Say = Callable[[str], None]
FIRST_DILATION = 3
DEFAULT_PAST = 96
AUTO_MINUTES = 1.0
AUTO_NETWORKS = ("tsmixer", "rsa-informer", "informer")
EXTRAS = {"tsmixer": ("neuralforecast", "neural")} | dict.fromkeys(STATISTICAL, ("statsforecast", "forecast"))
"""The package that a model needs, and the extra that installs it."""
AUTO_WINDOWS = 400
"""Windows on which `auto` scores networks, spread evenly."""
AUTO_NETWORK: dict[str, Any] = {
    "width": 64,
    "inner": 256,
    "learning_rate": 1e-3,
    "epochs": 10,
    "epoch_windows": 3200,
    "valid_windows": 200,
}
"""Networks small enough for a CPU within the budget of `auto`."""
FEWEST_NETWORK_WINDOWS = 500
"""Below, `auto` trains no network."""
LEAST_NETWORK_MINUTES = 0.05
STATISTICAL_SHARE = 0.5
"""Of the budget of `auto`, for all statistical models."""
STATISTICAL_ROWS = 200
"""A statistical model is fitted to this many rows, or ten seasons."""
LONGEST_SEASON = {"arima": 12}
"""With a longer one a forecast takes minutes."""
SEASONS = (1, 2, 4, 7, 14)
KINDS = {"nlinear": "nlinear", "dlinear": "dlinear", "median": "seasonal"}
AVERAGED = ("nlinear", "median")
LONGEST_PAST = {"nlinear": 720, "dlinear": 240, "median": 480}
"""Pasts that ridge regression tries, in seasons and rows."""
PENALTIES = (1e-4, 1e-3, 1e-2, 1e-1)
"""Ridge penalties that are tried, as shares of the mean variance of the inputs."""
FIT_WINDOWS, TRIED_WINDOWS, MOST_GROUPS = 6000, 400, 64
MEDIAN_STEPS, MEDIAN_ROWS = 30, 50_000
"""Of the search for least absolute errors: steps, and windows times columns."""


@dataclass(frozen=True)
class Candidate:
    name: str
    model: nn.Module
    validated: nn.Module
    """The model before it was fitted to validation, too."""
    valid: Backtest
    seconds: float
    progress: Progress | None = None
    is_finished: bool = True


def resolved(settings: ForecastSettings, series: Series) -> ForecastSettings:
    """The settings with the lengths that this series gets by default."""
    horizon = settings.horizon or default_horizon(series)
    rows = split_rows(series, settings.split).train_end
    longest = rows - horizon
    if longest < 1:
        raise UserError(
            f"The training part of {series.name} has {rows:,} rows, too few for a forecast of {horizon:,}: choose a "
            "shorter --horizon or a longer file."
        )
    season = settings.season or min(usual_season(series), longest)
    past = settings.past or max(1, min(DEFAULT_PAST, longest // 3))
    for name, length in (("season", season), ("past", past)):
        if length > longest:
            raise UserError(
                f"`{name}` must be at most {longest:,}, the rows for training of {series.name} less a forecast of "
                f"{horizon:,}: got {length:,}."
            )
    return replace(
        settings,
        horizon=horizon,
        season=season,
        past=past,
        label=past // 2 if settings.label is None else settings.label,
        inner=settings.inner or 4 * settings.width,
        device=str(pick_device(settings.device)),
    )


def default_dilations(counts: tuple[int, ...]) -> tuple[int, ...]:
    """3, 6, 12, ... within each dilated kind: a cosine head and the sine head that shares its parameters are alike."""
    return tuple(FIRST_DILATION * 2**head for count in counts[3:] for head in range(count))


def config_from(settings: ForecastSettings, kind: Any, **own: Any) -> Any:
    """A configuration of a model: the settings that have the names of its fields, and those that only it has."""
    names = [entry.name for entry in fields(kind) if hasattr(settings, entry.name)]
    return kind(**{name: getattr(settings, name) for name in names} | own)


def new_network(settings: ForecastSettings, channels: int, time_features: int) -> nn.Module:
    """A network with random weights."""
    if settings.model == "linear":
        return LinearForecaster(config_from(settings, WindowConfig))
    if settings.model == "tsmixer":
        layers = settings.encoder_layers
        return MixerForecaster(config_from(settings, MixerConfig, channels=channels, layers=layers))
    sizes = {"channels": channels, "time_features": time_features}
    attention = "full" if settings.model.endswith("transformer") else "prob"
    rsa = recurrence_config(settings) if settings.model.startswith("rsa-") else None
    return Informer(config_from(settings, InformerConfig, attention=attention, rsa=rsa, **sizes))


def recurrence_config(settings: ForecastSettings) -> RSAConfig:
    counts: Any = whole_numbers("counts", settings.counts)
    chosen = settings.dilations
    dilations = default_dilations(counts) if chosen is None else whole_numbers("dilations", chosen)
    return RSAConfig(heads=settings.heads, counts=counts, dilations=dilations, gate_start=settings.gate_start)


def is_installed(model: str) -> bool:
    return model not in EXTRAS or importlib.util.find_spec(EXTRAS[model][0]) is not None


def check_installed(model: str) -> None:
    """Raises `UserError` if the package of a model is missing."""
    if not is_installed(model):
        package, extra = EXTRAS[model]
        raise UserError(f'`model={model}` needs {package}: pip install "recurrify-papers[{extra}]".')


def naive_model(settings: ForecastSettings) -> SeasonalNaive:
    season = 1 if settings.model == "last-value" else settings.season
    return SeasonalNaive(config_from(settings, SeasonalConfig, season=season, past=season))


@torch.inference_mode()
def fit_ridge(settings: ForecastSettings, data: WindowedSeries) -> RidgeForecaster:
    """Ridge regression in closed form; past, penalty, and shared or separate weights are chosen on validation.

    `median` then gets weights that minimise absolute errors.
    """
    assert settings.season
    kind = KINDS[settings.model]
    rows = data.split.train_end - data.horizon
    longest = min(LONGEST_PAST[settings.model], rows // 2)
    season = settings.season if 2 * settings.season <= rows else 1
    tried = {settings.season * count for count in SEASONS if settings.season * count <= longest}
    pasts = sorted(tried | {max(1, min(data.past, longest))})
    if kind == "seasonal":
        seasons = max(1, longest // season - 1)
        pasts = [season * (count + 1) for count in SEASONS if count <= seasons]
    if kind == "dlinear":
        pasts = pasts[-1:]  # its inputs of one past are not part of those of a longer one
    known = len(data.series.known.columns)
    config = RidgeConfig(past=pasts[-1], horizon=data.horizon, kind=kind, known=known, season=season)
    moments = _moments(config, data)
    groups = {1, data.channels} if data.channels <= MOST_GROUPS else {1}
    models = (
        _solved(replace(config, past=past, groups=count, penalty=penalty), *moments)
        for past, count, penalty in product(pasts, groups, PENALTIES)
    )
    best = min(models, key=lambda model: backtest(model, data, "valid", TRIED_WINDOWS).mse)
    return least_absolute(best, data) if settings.model == "median" else best


@torch.inference_mode()
def least_absolute(model: RidgeForecaster, data: WindowedSeries) -> RidgeForecaster:
    """The model with weights that minimise absolute instead of squared errors, so that it forecasts medians.

    Alternating direction method of multipliers (Boyd et al., 2011, section 6.1): each step is one ridge regression with
    the same matrix, to a truth from which errors beyond a threshold are taken out.
    """
    config, shape = replace(model.config, loss="absolute"), (model.config.groups, -1)
    windows = min(FIT_WINDOWS, MEDIAN_ROWS // data.channels)
    inputs, truths = zip(*_training_pairs(model, data, windows), strict=True)
    inputs_GND = torch.cat(inputs, dim=1).reshape(*shape, config.inputs)
    truth_GNP = torch.cat(truths, dim=1).reshape(*shape, config.horizon)
    back_GDN = inputs_GND.transpose(1, 2)
    factor_GDD = torch.linalg.cholesky(_penalised((back_GDN @ inputs_GND).double(), config.penalty))
    weight_GDP: torch.Tensor = model.weight_GDP
    errors_GNP = inputs_GND @ weight_GDP - truth_GNP
    threshold, multiplier_GNP = errors_GNP.abs().mean(), torch.zeros_like(errors_GNP)
    for _ in range(MEDIAN_STEPS):
        moved_GNP = errors_GNP + multiplier_GNP
        multiplier_GNP = moved_GNP.clamp(-threshold, threshold)
        target_GNP = truth_GNP + moved_GNP - 2 * multiplier_GNP
        weight_GDP = torch.cholesky_solve((back_GDN @ target_GNP).double(), factor_GDD).float()
        errors_GNP = inputs_GND @ weight_GDP - truth_GNP
    return _with_weights(config, weight_GDP)


@torch.inference_mode()
def refitted(model: nn.Module, data: WindowedSeries) -> nn.Module:
    """For a short file, ridge regression fitted to training and validation; any other model as it is."""
    if not (data.is_short and isinstance(model, RidgeForecaster)):
        return model
    data = data.with_validation()
    found = _solved(replace(model.config, loss="squared"), *_moments(model.config, data))
    return found if model.config.loss == "squared" else least_absolute(found, data)


def _solved(config: RidgeConfig, gram_CDD: torch.Tensor, cross_CDP: torch.Tensor) -> RidgeForecaster:
    """From moments of this past or a longer one."""
    kept = slice(gram_CDD.shape[-1] - config.inputs, None)  # the inputs end with the latest rows
    gram, cross = gram_CDD[:, kept, kept], cross_CDP[:, kept]
    if config.groups == 1:
        gram, cross = gram.sum(0, keepdim=True), cross.sum(0, keepdim=True)
    penalised = _penalised(gram, config.penalty).cpu().numpy()
    solved = [solve(one, own, assume_a="pos") for one, own in zip(penalised, cross.cpu().numpy(), strict=True)]
    return _with_weights(config, torch.tensor(np.stack(solved), device=gram.device))


def _penalised(gram_GDD: torch.Tensor, penalty: float) -> torch.Tensor:
    size = gram_GDD.diagonal(dim1=1, dim2=2)
    weight = size.mean(1, keepdim=True) * penalty * torch.ones_like(size)
    weight[:, -1] = 1e-8  # the bias
    return gram_GDD + torch.diag_embed(weight)


def _with_weights(config: RidgeConfig, weight_GDP: torch.Tensor) -> RidgeForecaster:
    model = RidgeForecaster(config).to(weight_GDP.device)
    model.weight_GDP.copy_(weight_GDP)
    return model


def _moments(config: RidgeConfig, data: WindowedSeries) -> tuple[torch.Tensor, torch.Tensor]:
    """(C, D, D) and (C, D, P): products of the inputs with themselves and with the truth, summed over windows."""
    size, device = config.inputs, data.values_TC.device
    gram = torch.zeros(data.channels, size, size, dtype=torch.float64, device=device)
    cross = torch.zeros(data.channels, size, data.horizon, dtype=torch.float64, device=device)
    for inputs_CBD, truth_CBP in _training_pairs(RidgeForecaster(config), data, FIT_WINDOWS):
        gram += inputs_CBD.transpose(1, 2) @ inputs_CBD
        cross += inputs_CBD.transpose(1, 2) @ truth_CBP
    return gram, cross


def _training_pairs(model: RidgeForecaster, data: WindowedSeries, most: int) -> Iterator[tuple[torch.Tensor, ...]]:
    """(C, B, D) and (C, B, P): inputs of training windows, and what their linear map should give, by batches."""
    data = data.with_past(model.config.past)
    data.check("train")
    for batch in map(data.batch, data.starts("train", most).split(512)):
        inputs_BCD, level_BCP = model.inputs(batch.past, batch.future_time)
        yield inputs_BCD.transpose(0, 1), (batch.future.transpose(1, 2) - level_BCP).transpose(0, 1)


def statistical_model(settings: ForecastSettings, data: WindowedSeries) -> StatisticalForecaster:
    past = min(data.split.train_end, max(STATISTICAL_ROWS, 10 * (settings.season or 1)))
    scaling = {name: tuple(getattr(data.scaling, name).tolist()) for name in ("mean", "spread")}
    name = STATISTICAL[settings.model]
    return StatisticalForecaster(config_from(settings, StatisticalConfig, past=past, name=name, **scaling))


def train_candidate(
    settings: ForecastSettings,
    data: WindowedSeries,
    folder: Path | None = None,
    watch: Watch | None = None,
    shows_bar: bool = False,
    windows: int | None = None,
) -> Candidate:
    """Fit one model; the same seed gives the same model. With a folder, a network's training is saved and resumed."""
    check_installed(settings.model)
    started, progress, is_finished = time.monotonic(), None, True
    if settings.model in NETWORKS:
        model, progress = _train_network(settings, data, folder, watch, shows_bar)
        is_finished = progress.stops(settings)
        with chosen_precision(settings):
            valid = backtest(model, data, "valid", windows)
    elif settings.model == "average":
        return averaged([train_candidate(replace(settings, model=name), data) for name in AVERAGED])
    else:
        found = []
        for fold in data.folds():
            model = _fitted(settings, fold)
            found.append(backtest(model, fold, "valid"))
        valid = joined(found)
    final = refitted(model, data)
    return Candidate(settings.model, final, model, valid, time.monotonic() - started, progress, is_finished)


def averaged(candidates: list[Candidate]) -> Candidate:
    """Of linear models: the mean of their forecasts."""
    model = _mean_of([one.model for one in candidates])
    validated = _mean_of([one.validated for one in candidates])
    forecast = np.mean([one.valid.forecast for one in candidates], axis=0)
    valid = replace(candidates[0].valid, forecast=forecast)
    return Candidate("average", model, validated, valid, sum(one.seconds for one in candidates))


def _mean_of(parts: Sequence[Any]) -> AverageForecaster:
    past = max(part.config.past for part in parts)
    config = AverageConfig(past=past, horizon=parts[0].config.horizon, parts=tuple(part.config for part in parts))
    found = AverageForecaster(config)
    found.parts = nn.ModuleList(parts)
    return found


def _fitted(settings: ForecastSettings, data: WindowedSeries) -> nn.Module:
    if settings.model in RIDGE:
        return fit_ridge(settings, data)
    return naive_model(settings) if settings.model in NAIVE else statistical_model(settings, data)


def _train_network(
    settings: ForecastSettings, data: WindowedSeries, folder: Path | None, watch: Watch | None, shows_bar: bool
) -> tuple[nn.Module, Progress]:
    data.check("train")
    torch.manual_seed(settings.seed)
    model = new_network(settings, data.channels, data.times_TF.shape[1]).to(settings.device)
    training = Training(model, data, settings, folder)
    steps = settings.epochs * len(epoch_starts(data, settings, 0))
    with progress_bar("training", steps, "steps") if shows_bar else nullcontext() as tick:
        return model, training.run(watch, tick)


def train_candidates(settings: ForecastSettings, data: WindowedSeries, say: Say) -> Iterator[Candidate]:
    """All models that `auto` can afford within its budget of `max_minutes`, naive ones first."""
    started, budget = time.monotonic(), 60 * (settings.max_minutes or AUTO_MINUTES)
    linear = [train_candidate(replace(settings, model=name), data) for name in RIDGE]
    yield from (train_candidate(replace(settings, model=name), data) for name in NAIVE)
    yield from linear
    yield averaged([one for one in linear if one.name in AVERAGED])
    for name in filter(is_installed, STATISTICAL):
        if time.monotonic() + _expected_seconds(name, settings, data) < started + STATISTICAL_SHARE * budget:
            yield train_candidate(replace(settings, model=name), data)
        else:
            say(f"{name}: left out, it takes longer than the time allows; choose it with --model {name}")
    network = replace(settings, **AUTO_NETWORK)
    is_enough = len(data.starts("train")) >= FEWEST_NETWORK_WINDOWS
    networks = list(filter(is_installed, AUTO_NETWORKS)) if is_enough else []
    for index, name in enumerate(networks):
        minutes = (started + budget - time.monotonic()) / (len(networks) - index) / 60
        if minutes < LEAST_NETWORK_MINUTES:
            say(f"{name}: left out, the time is up; choose it with --model {name}")
        else:
            yield train_candidate(replace(network, model=name, max_minutes=minutes), data, windows=AUTO_WINDOWS)


def _expected_seconds(name: str, settings: ForecastSettings, data: WindowedSeries) -> float:
    """Of a backtest on validation and test, by the second forecast of one column; the first call compiles."""
    if (settings.season or 1) > LONGEST_SEASON.get(name, math.inf):
        return math.inf
    model, seconds = statistical_model(replace(settings, model=name), data), 0.0
    for _ in range(2):
        started = time.monotonic()
        model.forecast(data.train_values[-model.config.past :, 0])
        seconds = time.monotonic() - started
    windows = [min(SLOW_WINDOWS, len(one.starts("valid"))) for one in (*data.folds(), data)]
    return seconds * data.channels * sum(windows)


def best_of(candidates: list[Candidate]) -> Candidate:
    """The lowest sum of MSE and MAE on validation, both relative to seasonal naive.

    A model that is worse than seasonal naive in one of them is chosen only if there is no other. A model that was
    scored on some windows only is compared on these.
    """
    baseline = next(one.valid for one in candidates if one.name == "seasonal")

    def error(one: Candidate, rows: np.ndarray) -> tuple[bool, float]:
        found, naive = one.valid.at(rows), baseline.at(rows)
        relative = [found.mse / max(naive.mse, 1e-12), found.mae / max(naive.mae, 1e-12)]
        return max(relative) > 1, sum(relative)

    by_windows = sorted(candidates, key=lambda one: len(one.valid.first_rows), reverse=True)
    best = by_windows[0]
    for other in by_windows[1:]:
        shared = np.intersect1d(best.valid.first_rows, other.valid.first_rows)
        if len(shared) and error(other, shared) < error(best, shared):
            best = other
    return best
