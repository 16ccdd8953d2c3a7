"""Forecasting of time series: a CSV or DataFrame in; a chosen model, its scores and its forecasts out.

Names are imported when they are first used: torch and pandas take seconds, which `--help` should not.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from recurrify_papers.forecast.settings import MODELS, ForecastSettings

if TYPE_CHECKING:
    from recurrify_papers.forecast.forecaster import Forecaster, load_trained, save_trained
    from recurrify_papers.forecast.reading import Layout, Series, read_series

_HOMES = {"forecaster": ("Forecaster", "load_trained", "save_trained"), "reading": ("Layout", "Series", "read_series")}
__all__ = [
    "MODELS",
    "ForecastSettings",
    "Forecaster",
    "Layout",
    "Series",
    "load_trained",
    "read_series",
    "save_trained",
]


def __getattr__(name: str) -> Any:
    for home, names in _HOMES.items():
        if name in names:
            return getattr(import_module(f"{__name__}.{home}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
