"""The pages of experiments and forecasts in a real browser."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from recurrify.pages import write_page
from recurrify.results import load_result
from recurrify_papers.experiment import experiments
from recurrify_papers.report import experiment_page
from support.browser import check_page, needs_browser, started
from support.commands import invoke

pytestmark = needs_browser
RESULTS = Path(__file__).parents[1] / "results"


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with started() as driver:
        yield driver


@pytest.mark.parametrize("name", ["table2", "slides-lengths"])
def test_experiment(browser: Any, name: str, tmp_path: Path) -> None:
    page = experiment_page(load_result(RESULTS / f"{name}.json"), experiments()[name])
    write_page(tmp_path / "page.html", page)
    check_page(browser, tmp_path / "page.html")


def test_forecast(browser: Any, tmp_path: Path) -> None:
    hours = pd.date_range("2020-01-01", periods=300, freq="h", name="date")
    noise = np.random.default_rng(0).normal(size=300)
    pd.DataFrame({"load": np.sin(np.arange(300) / 4) + 0.1 * noise}, index=hours).to_csv(tmp_path / "load.csv")
    run = tmp_path / "run"
    invoke("forecast", "train", "--data", tmp_path / "load.csv", "--out", run, "--model", "nlinear", "--horizon", 6)
    check_page(browser, run / "forecast.html")
