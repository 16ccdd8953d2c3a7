"""Forecasting of time series: a CSV in, a trained forecaster, its scores and its forecasts out."""

from recurrify.forecast.prediction import forecast_beyond
from recurrify.forecast.reading import Series, read_series
from recurrify.forecast.running import train_forecaster, train_run
from recurrify.forecast.saving import Forecaster, load_forecaster, save_forecaster
from recurrify.forecast.scoring import evaluate_run
from recurrify.forecast.settings import MODELS, ForecastSettings

__all__ = [
    "MODELS",
    "ForecastSettings",
    "Forecaster",
    "Series",
    "evaluate_run",
    "forecast_beyond",
    "load_forecaster",
    "read_series",
    "save_forecaster",
    "train_forecaster",
    "train_run",
]
