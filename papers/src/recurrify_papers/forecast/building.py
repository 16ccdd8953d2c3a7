"""From settings to a forecaster, and from a saved configuration back to one."""

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

import pandas as pd
from torch import nn

from recurrify.attention.config import RSAConfig
from recurrify.errors import UserError
from recurrify_papers.forecast.calendar import usual_season
from recurrify_papers.forecast.settings import ForecastSettings
from recurrify_papers.models.forecasters import (
    LinearConfig,
    LinearForecaster,
    RecurrentConfig,
    RecurrentForecaster,
    SeasonalConfig,
    SeasonalNaive,
)
from recurrify_papers.models.informer import Informer, InformerConfig

FIRST_DILATION = 3
CLASSES: dict[str, tuple[Any, Any]] = {
    "informer": (InformerConfig, Informer),
    "recurrent": (RecurrentConfig, RecurrentForecaster),
    "linear": (LinearConfig, LinearForecaster),
    "seasonal": (SeasonalConfig, SeasonalNaive),
}
"""By the word in a saved configuration: its class, and the class it configures."""


def default_dilations(counts: tuple[int, ...]) -> tuple[int, ...]:
    """3, 6, 12, … within each dilated kind: a cosine head and the sine head it shares parameters with dilate alike."""
    return tuple(FIRST_DILATION * 2**head for count in counts[3:] for head in range(count))


def recurrence_config(settings: ForecastSettings) -> RSAConfig | None:
    if not settings.model.startswith("rsa-"):
        return None
    if len(settings.counts) != 6:
        raise UserError(f"`counts` must be six numbers of heads: got {settings.counts}.")
    dilations = default_dilations(settings.counts) if settings.dilations is None else settings.dilations
    first, second, third, fourth, fifth, sixth = settings.counts
    return RSAConfig(
        heads=settings.heads,
        counts=(first, second, third, fourth, fifth, sixth),
        dilations=dilations,
        gate_start=settings.gate_start,
    )


def new_forecaster(settings: ForecastSettings, channels: int, time_features: int, step: pd.Timedelta) -> nn.Module:
    """Random weights, in the shape that the settings say."""
    lengths = {"past": settings.past, "horizon": settings.horizon}
    if settings.model in ("last-value", "seasonal"):
        season = 1 if settings.model == "last-value" else settings.season or usual_season(step) or 1
        return SeasonalNaive(SeasonalConfig(season=season, **lengths))
    if settings.model == "linear":
        return LinearForecaster(LinearConfig(**lengths))
    if settings.model in ("lstm", "gru"):
        recurrent = RecurrentConfig(
            cell=settings.model,
            channels=channels,
            time_features=time_features,
            horizon=settings.horizon,
            width=settings.width,
            layers=settings.encoder_layers,
            dropout=settings.dropout,
        )
        return RecurrentForecaster(recurrent)
    config = InformerConfig(
        channels=channels,
        time_features=time_features,
        **lengths,
        label=settings.label,
        width=settings.width,
        heads=settings.heads,
        inner=settings.inner,
        encoder_layers=settings.encoder_layers,
        decoder_layers=settings.decoder_layers,
        dropout=settings.dropout,
        attention="full" if settings.model.endswith("transformer") else "prob",
        factor=settings.factor,
        distil=settings.distil,
        mix=settings.mix,
        rsa=recurrence_config(settings),
        recurrence_rows="selected" if settings.recurrence_rows == "selected" else "all",
    )
    return Informer(config)


def described(model: nn.Module) -> dict[str, Any]:
    """What `rebuilt` makes the same forecaster from, less its weights."""
    for kind, (_, model_class) in CLASSES.items():
        if isinstance(model, model_class):
            return {"kind": kind, "config": asdict(model.config)}
    raise TypeError(f"not a forecaster: {type(model).__name__}")


def rebuilt(description: Mapping[str, Any]) -> nn.Module:
    config_class, model_class = CLASSES[description["kind"]]
    return model_class(config_class(**description["config"]))
