"""Small series with a daily wave, as files and as objects."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from recurrify_papers.forecast.reading import Series

WriteCsv = Callable[..., Path]


def daily_waves(rows: int, columns: int = 2, noise: float = 0.1, seed: int = 0) -> np.ndarray:
    generator = np.random.default_rng(seed)
    hours = np.arange(rows)[:, None]
    phases, sizes = np.arange(columns), 1 + np.arange(columns)
    return 5 * phases + sizes * np.sin(2 * np.pi * hours / 24 + phases) + noise * generator.normal(size=(rows, columns))


def hourly(values: np.ndarray, start: str = "2020-01-01") -> pd.DataFrame:
    dates = pd.date_range(start, periods=len(values), freq="h", name="date")
    return pd.DataFrame(values, columns=[chr(97 + index) for index in range(values.shape[1])], index=dates)


@pytest.fixture(scope="session")
def wave_series() -> Series:
    frame = hourly(daily_waves(240))
    return Series(
        name="waves", dates=pd.DatetimeIndex(frame.index), values=frame.to_numpy(), columns=("a", "b"), frequency="h"
    )


@pytest.fixture
def write_csv(tmp_path: Path) -> WriteCsv:
    """A CSV from text, or of waves with other columns."""

    def write(text: str | None = None, name: str = "some.csv", rows: int = 400, **columns: object) -> Path:
        path = tmp_path / name
        path.write_text(
            hourly(daily_waves(rows)).assign(**columns).to_csv() if text is None else text, encoding="utf-8"
        )
        return path

    return write
