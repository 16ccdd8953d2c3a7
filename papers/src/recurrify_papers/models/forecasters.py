"""Forecasters to compare with: an LSTM or GRU, a linear one after DLinear (Zeng et al., 2023), and repeating the past.

Every forecaster takes the past and the calendar of past and future, and gives the whole forecast at once.
Shapes: B batch, L rows of past, P rows to forecast, C channels, F time features.
"""

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

from recurrify.errors import UserError


@dataclass(frozen=True, kw_only=True)
class SeasonalConfig:
    """Says the value of one season ago; a season of 1 repeats the last value."""

    season: int
    """Steps after which the data repeats."""
    past: int
    horizon: int

    def __post_init__(self) -> None:
        if not 1 <= self.season <= self.past:
            raise UserError(f"`season` must be between 1 and the past: got season={self.season}, past={self.past}.")


class SeasonalNaive(nn.Module):
    """No parameters, nothing to train: what every forecaster must beat."""

    def __init__(self, config: SeasonalConfig) -> None:
        super().__init__()
        self.config = config

    def forward(self, past_BLC: Tensor, past_time_BLF: Tensor, future_time_BPF: Tensor) -> Tensor:
        last_season = past_BLC[:, -self.config.season :]
        repeats = -(-self.config.horizon // self.config.season)
        return last_season.repeat(1, repeats, 1)[:, : self.config.horizon]


@dataclass(frozen=True, kw_only=True)
class LinearConfig:
    """A linear map for the trend and one for the rest, the same for all channels."""

    past: int
    horizon: int
    average: int = 25
    """Rows of the moving average that is the trend; odd."""

    def __post_init__(self) -> None:
        if self.average < 1 or self.average % 2 == 0:
            raise UserError(f"`average` must be odd and positive: got {self.average}.")


class LinearForecaster(nn.Module):
    """Trend and remainder, each by one matrix from the past to the future."""

    def __init__(self, config: LinearConfig) -> None:
        super().__init__()
        self.config = config
        self.trend = nn.Linear(config.past, config.horizon)
        self.rest = nn.Linear(config.past, config.horizon)
        for part in (self.trend, self.rest):
            # Both start as the mean of the past, as the original does.
            nn.init.constant_(part.weight, 1 / config.past)
            nn.init.zeros_(part.bias)

    def forward(self, past_BLC: Tensor, past_time_BLF: Tensor, future_time_BPF: Tensor) -> Tensor:
        past_BCL = past_BLC.transpose(1, 2)
        side = self.config.average // 2
        padded = functional.pad(past_BCL, (side, side), mode="replicate")
        trend_BCL = functional.avg_pool1d(padded, self.config.average, stride=1)
        forecast_BCP = self.trend(trend_BCL) + self.rest(past_BCL - trend_BCL)
        return forecast_BCP.transpose(1, 2)


@dataclass(frozen=True, kw_only=True)
class RecurrentConfig:
    """An LSTM or GRU that reads the past and goes on over the calendar of the future."""

    cell: str
    """lstm or gru."""
    channels: int
    time_features: int
    horizon: int
    width: int = 128
    layers: int = 2
    dropout: float = 0.05
    """Between layers and before the output."""

    def __post_init__(self) -> None:
        if self.cell not in ("lstm", "gru"):
            raise UserError(f"`cell` must be lstm or gru: got {self.cell!r}.")


class RecurrentForecaster(nn.Module):
    """Where the values are not known yet it reads zeros, the mean, and the calendar alone."""

    def __init__(self, config: RecurrentConfig) -> None:
        super().__init__()
        self.config = config
        cell = nn.LSTM if config.cell == "lstm" else nn.GRU
        between = config.dropout if config.layers > 1 else 0.0
        inputs = config.channels + config.time_features
        self.cell = cell(inputs, config.width, config.layers, batch_first=True, dropout=between)
        self.dropout = nn.Dropout(config.dropout)
        self.output = nn.Linear(config.width, config.channels)

    def forward(self, past_BLC: Tensor, past_time_BLF: Tensor, future_time_BPF: Tensor) -> Tensor:
        values = functional.pad(past_BLC, (0, 0, 0, self.config.horizon))
        times = torch.cat([past_time_BLF, future_time_BPF], dim=1)
        hidden, _ = self.cell(torch.cat([values, times], dim=2))
        return self.output(self.dropout(hidden[:, -self.config.horizon :]))
