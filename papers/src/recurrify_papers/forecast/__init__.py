"""Forecasting of time series: a CSV in, a trained forecaster, its scores and its forecasts out."""

from recurrify_papers.forecast.prediction import forecast_beyond
from recurrify_papers.forecast.reading import Series, read_series
from recurrify_papers.forecast.running import train_forecaster, train_run
from recurrify_papers.forecast.saving import Forecaster, load_forecaster, save_forecaster
from recurrify_papers.forecast.scoring import evaluate_run
from recurrify_papers.forecast.settings import MODELS, ForecastSettings

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
