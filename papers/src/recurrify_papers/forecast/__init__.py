"""Forecasting of time series: a CSV or DataFrame in; a chosen model, its scores and its forecasts out.

Names are imported when they are first used: torch and pandas take seconds, which `--help` should not.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from recurrify_papers.forecast.settings import MODELS, ForecastSettings

if TYPE_CHECKING:
    from recurrify_papers.forecast.forecaster import Forecaster, load_trained, save_trained
    from recurrify_papers.forecast.reading import Series, read_series

__all__ = ["MODELS", "ForecastSettings", "Forecaster", "Series", "load_trained", "read_series", "save_trained"]


def __getattr__(name: str) -> Any:
    home = "reading" if name in ("Series", "read_series") else "forecaster"
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{home}"), name)
