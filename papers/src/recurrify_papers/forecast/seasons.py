"""The season of the naive seasonal forecast: one that was named, or the usual one, and rows enough to look back."""

from dataclasses import replace

from recurrify.errors import UserError
from recurrify_papers.forecast.calendar import usual_season
from recurrify_papers.forecast.data import split_rows
from recurrify_papers.forecast.reading import Series
from recurrify_papers.forecast.settings import ForecastSettings


def with_season(settings: ForecastSettings, series: Series) -> ForecastSettings:
    """For the seasonal forecast: its season, and a past that holds it, whatever the others read; others stay as is."""
    if settings.model != "seasonal":
        return settings
    season = settings.season or usual_season(series.step, series.frequency)
    if season is None:
        raise UserError(
            f"The rows of {series.name} are a year or more apart, so there is no season to repeat: name one with "
            "--season, or use last-value."
        )
    longest = split_rows(series, settings.split).train_end - settings.horizon
    if season > longest:
        raise UserError(
            f"`season` must fit into the training part of {series.name} before a forecast, {max(longest, 0)} rows: "
            f"got {season}."
        )
    return replace(settings, season=season, past=max(settings.past, season))
