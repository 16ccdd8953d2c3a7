"""The forecaster as a scikit-learn estimator: apart, since scikit-learn takes a second to import."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Self

import pandas as pd
from sklearn.base import BaseEstimator
from sklearn.utils.validation import check_is_fitted

from recurrify import UserError
from recurrify.settings import check_types
from recurrify_papers.forecast.forecaster import (
    Tested,
    cross_validation,
    fit_series,
    forecast_after,
    load_trained,
    rolling_test,
    save_trained,
)
from recurrify_papers.forecast.reading import Series, Source, read_series
from recurrify_papers.forecast.scoring import scores
from recurrify_papers.forecast.settings import ForecastSettings


class Forecaster(BaseEstimator):
    """Forecasts the columns of a DataFrame or CSV file, in the manner of scikit-learn.

    Args:
        model: `auto` tries several within `max_minutes` and chooses on validation; or the name of one (`MODELS`).
        horizon: rows to forecast; None is about a season.
        settings: other fields of `ForecastSettings`, such as `{"width": 64}`.
    """

    def __init__(
        self,
        model: str = "auto",
        horizon: int | None = None,
        *,
        date_column: str | None = None,
        id_column: str | None = None,
        columns: Sequence[str] | None = None,
        known: Sequence[str] | None = None,
        freq: str | None = None,
        resample: str | None = None,
        max_minutes: float | None = None,
        seed: int = 0,
        settings: dict[str, Any] | None = None,
    ) -> None:
        self.model, self.horizon, self.date_column, self.id_column = model, horizon, date_column, id_column
        self.columns, self.known, self.freq, self.resample = columns, known, freq, resample
        self.max_minutes, self.seed, self.settings = max_minutes, seed, settings

    def _settings(self) -> ForecastSettings:
        mine = {name: value for name, value in self.get_params(deep=False).items() if name != "settings"}
        settings = ForecastSettings(data="", **mine | (self.settings or {}))
        check_types(settings)
        return settings

    def _read(self, data: Source | None) -> Series:
        check_is_fitted(self, "trained_")
        if data is None and not hasattr(self, "series_"):
            raise UserError("A loaded forecaster has no data: pass a file or DataFrame.")
        return self.series_ if data is None else read_series(data, **self._settings().layout)

    def _test(self, data: Source | None, windows: int | None = None) -> Tested:
        return rolling_test(self.trained_, self._read(data), self._settings(), windows=windows)

    def fit(self, data: Source, y: None = None) -> Self:
        """Train on a file or DataFrame; the last parts of it are for validation and test."""
        self.series_ = read_series(data, **self._settings().layout)
        fitted = fit_series(self._settings(), self.series_, say=lambda _: None)
        self.trained_, self.candidates_ = fitted.trained, {one.name: one.valid.mse for one in fitted.candidates}
        return self

    def predict(self, data: Source | None = None, level: float = 0.9) -> pd.DataFrame:
        """The forecast after the last date of the data (by default those of `fit`), with intervals."""
        series = self._read(data)
        return forecast_after(self.trained_, series, self._settings(), level)

    def cross_validate(
        self, data: Source | None = None, level: float = 0.9, windows: int | None = None
    ) -> pd.DataFrame:
        """Rolling-origin forecasts of the test part: id, date, cutoff, y, forecast, low, high. Of other data than those
        of `fit`, all is tested that is later."""
        if windows is not None and windows < 1:
            raise UserError(f"`windows` must be at least 1: got {windows}.")
        tested = self._test(data, windows)
        table, series = cross_validation(tested, level), tested.data.series
        return table.rename(columns={"unique_id": series.id_column or "unique_id", "date": series.date_column})

    def evaluate(self, data: Source | None = None) -> dict[str, Any]:
        """MSE, MAE, MASE, sMAPE, CRPS and coverage on the test part."""
        tested = self._test(data)
        return scores(tested.found, tested.data, self.trained_.season, tested.half_widths)

    def save(self, folder: str | Path) -> None:
        save_trained(self.trained_, folder)

    @classmethod
    def load(cls, folder: str | Path, **settings: Any) -> Self:
        """What `save` or `recurrify forecast train` wrote; `predict` then needs data."""
        trained = load_trained(folder)
        forecaster = cls(horizon=trained.horizon, known=trained.known, **settings)
        forecaster.trained_ = trained
        return forecaster
