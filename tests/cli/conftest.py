"""Models and text for the command line, each made once."""

from pathlib import Path

import pytest
from rich.console import Console

from recurrify.cli import evaluate as evaluating
from support.commands import BUDGET, TRAINING, invoke, refused, transformers_as_before
from support.fixtures import base
from support.fixtures import many_texts as texts

__all__ = ["base", "refused", "texts", "transformers_as_before"]


@pytest.fixture(autouse=True)
def _wide(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tables as in a wide terminal: a column of temporary paths needs it."""
    monkeypatch.setattr(evaluating, "out_console", Console(width=400))


@pytest.fixture(scope="session")
def runs(base: Path, texts: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A recurrent run and a plain one, trained through the command line."""
    folder = tmp_path_factory.mktemp("runs")
    found = {}
    for name, mechanism in (("recurrent", "carry"), ("plain", "none")):
        out = folder / name
        invoke("train", "--model", base, "--data", texts, "--out", out, "--mechanism", mechanism, *TRAINING, *BUDGET)
        found[name] = out
    return found
