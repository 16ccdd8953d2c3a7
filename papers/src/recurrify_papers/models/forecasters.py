"""Forecasters to compare with: naive, linear, statistical models of statsforecast, and TSMixer.

Every forecaster takes the past and the calendar of past and future, and returns the whole forecast at once. Calendars
may end with known covariates.
Shapes: B batch, L rows of past, P rows to forecast, C columns, F time features, K known covariates, G groups of columns
with their own weights (1 or C), D inputs of a linear map.
"""

import logging
import warnings
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from recurrify import UserError

STEADY = 7
"""Seasons after which a value that was the same in all of them is repeated, such as zeros at night."""
AVERAGE = 25
"""Rows of the moving average that is the trend."""


@dataclass(frozen=True, kw_only=True)
class WindowConfig:
    past: int
    """Rows that are read."""
    horizon: int
    """Rows to forecast."""


@dataclass(frozen=True, kw_only=True)
class SeasonalConfig(WindowConfig):
    """Repeats the last season; a season of 1 repeats the last value."""

    season: int

    def __post_init__(self) -> None:
        if not 1 <= self.season <= self.past:
            raise UserError(f"`season` must be between 1 and the past: got season={self.season}, past={self.past}.")


class SeasonalNaive(nn.Module):
    """No parameters: what every forecaster must beat."""

    def __init__(self, config: SeasonalConfig) -> None:
        super().__init__()
        self.config = config

    def forward(self, past_BLC: Tensor, past_time_BLF: Tensor, future_time_BPF: Tensor) -> Tensor:
        return repeated(past_BLC[:, -self.config.season :], self.config.horizon)


def repeated(season_BSC: Tensor, horizon: int) -> Tensor:
    """(B, P, C): the season again and again."""
    repeats = -(-horizon // season_BSC.shape[1])
    return season_BSC.repeat(1, repeats, 1)[:, :horizon]


def trend_of(past_BCL: Tensor) -> Tensor:
    """The moving average, with the ends repeated."""
    side = AVERAGE // 2
    return functional.avg_pool1d(functional.pad(past_BCL, (side, side), mode="replicate"), AVERAGE, stride=1)


class LinearForecaster(nn.Module):
    """DLinear (Zeng et al., 2023) for gradient descent: trend and remainder, each by one matrix, shared by columns."""

    def __init__(self, config: WindowConfig) -> None:
        super().__init__()
        self.config = config
        self.trend = nn.Linear(config.past, config.horizon)
        self.rest = nn.Linear(config.past, config.horizon)
        for part in (self.trend, self.rest):
            nn.init.constant_(part.weight, 1 / config.past)  # the mean of the past, as in the original
            nn.init.zeros_(part.bias)

    def forward(self, past_BLC: Tensor, past_time_BLF: Tensor, future_time_BPF: Tensor) -> Tensor:
        past_BCL = past_BLC.transpose(1, 2)
        trend_BCL = trend_of(past_BCL)
        return (self.trend(trend_BCL) + self.rest(past_BCL - trend_BCL)).transpose(1, 2)


@dataclass(frozen=True, kw_only=True)
class RidgeConfig(WindowConfig):
    kind: str
    """nlinear: differences to the last value; dlinear: trend and remainder; seasonal: differences over a season."""
    groups: int = 1
    known: int = 0
    """Known covariates at the end of the calendar."""
    penalty: float = 0.0
    """Ridge penalty, as a share of the mean variance of the inputs."""
    season: int = 1
    """A value that was the same in each of the last `STEADY` seasons is repeated."""
    loss: str = "squared"
    """squared or absolute errors, which its weights minimise."""

    @property
    def inputs(self) -> int:
        rows = {"nlinear": self.past, "dlinear": 2 * self.past, "seasonal": self.past - self.season}
        return rows[self.kind] + self.known * self.horizon + 1


class RidgeForecaster(nn.Module):
    """NLinear or DLinear (Zeng et al., 2023), or a map of seasonal differences, with known covariates.

    Its weights come from ridge regression or minimise absolute errors.
    """

    def __init__(self, config: RidgeConfig) -> None:
        super().__init__()
        self.config = config
        self.weight_GDP = nn.Parameter(torch.zeros(config.groups, config.inputs, config.horizon), requires_grad=False)

    def inputs(self, past_BLC: Tensor, future_time_BPF: Tensor) -> tuple[Tensor, Tensor]:
        """(B, C, D), and (B, C, P) that is added to the forecast."""
        past_BCL, season = past_BLC.transpose(1, 2), self.config.season
        level_BCP = past_BCL[..., -1:].expand(-1, -1, self.config.horizon)
        if self.config.kind == "nlinear":
            parts = [past_BCL - past_BCL[..., -1:]]
        elif self.config.kind == "seasonal":
            parts = [past_BCL[..., season:] - past_BCL[..., :-season]]
            level_BCP = repeated(past_BLC[:, -season:], self.config.horizon).transpose(1, 2)
        else:
            trend_BCL = trend_of(past_BCL)
            parts, level_BCP = [trend_BCL, past_BCL - trend_BCL], torch.zeros_like(level_BCP)
        if self.config.known:
            known_BQ = future_time_BPF[..., -self.config.known :].flatten(1)
            parts.append(known_BQ[:, None].expand(-1, past_BCL.shape[1], -1))
        return torch.cat([*parts, torch.ones_like(level_BCP[..., :1])], dim=-1), level_BCP

    def forward(self, past_BLC: Tensor, past_time_BLF: Tensor, future_time_BPF: Tensor) -> Tensor:
        inputs_BCD, level_BCP = self.inputs(past_BLC, future_time_BPF)
        if self.config.groups == 1:
            forecast_BCP = inputs_BCD @ self.weight_GDP[0]
        else:
            forecast_BCP = torch.einsum("bcd,cdp->bcp", inputs_BCD, self.weight_GDP)
        forecast_BPC = (forecast_BCP + level_BCP).transpose(1, 2)
        season, horizon = self.config.season, self.config.horizon
        if self.config.past < STEADY * season:
            return forecast_BPC
        seasons_BKSC = past_BLC[:, -STEADY * season :].unflatten(1, (STEADY, season))
        is_steady_BSC = (seasons_BKSC == seasons_BKSC[:, -1:]).all(dim=1)
        return torch.where(repeated(is_steady_BSC, horizon), repeated(seasons_BKSC[:, -1], horizon), forecast_BPC)


@dataclass(frozen=True, kw_only=True)
class AverageConfig(WindowConfig):
    parts: tuple[RidgeConfig, ...]

    def __post_init__(self) -> None:
        made = (RidgeConfig(**one) if isinstance(one, dict) else one for one in self.parts)
        object.__setattr__(self, "parts", tuple(made))


class AverageForecaster(nn.Module):
    """The mean of several linear forecasts."""

    def __init__(self, config: AverageConfig) -> None:
        super().__init__()
        self.config = config
        self.parts = nn.ModuleList(map(RidgeForecaster, config.parts))

    def forward(self, past_BLC: Tensor, past_time_BLF: Tensor, future_time_BPF: Tensor) -> Tensor:
        pasts = (past_BLC[:, -one.past :] for one in self.config.parts)
        found = [part(past, past_time_BLF, future_time_BPF) for part, past in zip(self.parts, pasts, strict=True)]
        return torch.stack(found).mean(dim=0)


@dataclass(frozen=True, kw_only=True)
class StatisticalConfig(WindowConfig):
    name: str
    """A class of statsforecast.models: AutoETS, AutoTheta or AutoARIMA."""
    season: int
    mean: tuple[float, ...]
    """Of each column: the models see original units, in which values may be positive, for example."""
    spread: tuple[float, ...]


class StatisticalForecaster(nn.Module):
    """A model of statsforecast that is fitted to the past of each forecast."""

    is_slow: ClassVar[bool] = True

    def __init__(self, config: StatisticalConfig) -> None:
        super().__init__()
        self.config = config

    def forecast(self, past_L: np.ndarray) -> np.ndarray:
        """(P,): of one column; the last value where the model cannot be fitted."""
        from statsforecast import models

        model = getattr(models, self.config.name)(season_length=self.config.season)
        with warnings.catch_warnings(), np.errstate(all="ignore"):
            warnings.simplefilter("ignore")
            try:
                found: np.ndarray = model.forecast(y=np.ascontiguousarray(past_L), h=self.config.horizon)["mean"]
            except Exception:  # too few rows, for example: statsforecast raises many kinds
                return np.full(self.config.horizon, past_L[-1])
            return found

    def forward(self, past_BLC: Tensor, past_time_BLF: Tensor, future_time_BPF: Tensor) -> Tensor:
        original_BLC = past_BLC.double().cpu().numpy() * self.config.spread + self.config.mean
        found_BPC = np.stack([np.stack([self.forecast(past_L) for past_L in one.T], 1) for one in original_BLC])
        return torch.tensor((found_BPC - self.config.mean) / self.config.spread).to(past_BLC)


@dataclass(frozen=True, kw_only=True)
class MixerConfig(WindowConfig):
    channels: int
    width: int = 64
    """Width inside the part that mixes columns."""
    layers: int = 2
    dropout: float = 0.05


class MixerForecaster(nn.Module):
    """TSMixer (Chen et al., 2023) of neuralforecast, in our training; it sees no calendar."""

    def __init__(self, config: MixerConfig) -> None:
        super().__init__()
        from neuralforecast.models import TSMixer

        self.config = config
        logging.getLogger("lightning_fabric.utilities.seed").setLevel(logging.WARNING)
        self.model = TSMixer(
            h=config.horizon,
            input_size=config.past,
            n_series=config.channels,
            n_block=config.layers,
            ff_dim=config.width,
            dropout=config.dropout,
            random_seed=torch.initial_seed() % 2**32,
        )

    def forward(self, past_BLC: Tensor, past_time_BLF: Tensor, future_time_BPF: Tensor) -> Tensor:
        forecast: Tensor = self.model({"insample_y": past_BLC})
        return forecast
