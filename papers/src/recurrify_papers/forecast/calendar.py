"""Where a date stands in its hour, day, week, month and year, as numbers from −0.5 to 0.5."""

import numpy as np
import pandas as pd

MINUTE, HOUR, DAY, WEEK = (pd.Timedelta(minutes=1), pd.Timedelta(hours=1), pd.Timedelta(days=1), pd.Timedelta(weeks=1))
YEAR = pd.Timedelta(days=365)


def time_features(dates: pd.DatetimeIndex, step: pd.Timedelta) -> np.ndarray:
    """(T, F): only what changes from row to row at this step, the finest first."""
    finest_first = [
        (step < MINUTE, dates.second / 59),
        (step < HOUR, dates.minute / 59),
        (step < DAY, dates.hour / 23),
        (step < WEEK, dates.day_of_week / 6),
        (step < pd.Timedelta(days=28), (dates.day - 1) / 30),
        (step < pd.Timedelta(days=28), (dates.day_of_year - 1) / 365),
        (step >= pd.Timedelta(days=28), (dates.month - 1) / 11),
    ]
    chosen = [np.asarray(values, dtype=np.float32) - 0.5 for wanted, values in finest_first if wanted]
    return np.stack(chosen, axis=1)


def usual_season(step: pd.Timedelta, frequency: str = "") -> int | None:
    """Steps after which such data usually repeats: a day, for days a week, for longer steps a year.

    None for years and longer steps, which have no season; a week of business days (`frequency` B) has five.
    """
    if frequency == "B":
        return 5
    if step < DAY:
        return max(1, round(DAY / step))
    if step < WEEK:
        return max(1, round(WEEK / step))
    steps = round(YEAR / step)
    return steps if steps > 1 else None
