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


@pytest.fixture(scope="session")
def wave_series() -> Series:
    dates = pd.date_range("2020-01-01", periods=240, freq="h")
    return Series("waves", dates, daily_waves(240), ("a", "b"), "h", (), "0")


@pytest.fixture
def write_csv(tmp_path: Path) -> WriteCsv:
    """A CSV from dates and columns, or from text."""

    def write(text: str | None = None, name: str = "some.csv", rows: int = 400, **columns: object) -> Path:
        path = tmp_path / name
        if text is None:
            values = daily_waves(rows)
            table = pd.DataFrame(values, columns=["a", "b"], index=pd.date_range("2020-01-01", periods=rows, freq="h"))
            for column, content in columns.items():
                table[column] = content
            text = table.to_csv(index_label="date")
        path.write_text(text, encoding="utf-8")
        return path

    return write
