"""Forecasting of time series: a CSV or DataFrame in; a chosen model, its scores and its forecasts out.

Names are imported when they are first used: torch and pandas take seconds, which `--help` should not.
"""

from typing import TYPE_CHECKING

from recurrify.lazy import lazily
from recurrify_papers.forecast.settings import MODELS, ForecastSettings

if TYPE_CHECKING:
    from recurrify_papers.forecast.estimator import Forecaster
    from recurrify_papers.forecast.forecaster import load_trained, save_trained
    from recurrify_papers.forecast.reading import Series, read_series

__all__ = ["MODELS", "ForecastSettings", "Forecaster", "Series", "load_trained", "read_series", "save_trained"]

if not TYPE_CHECKING:  # or every name would seem to exist
    __getattr__ = lazily(__name__)
