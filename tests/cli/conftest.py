"""Models and text for the command line, each made once."""

import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from rich.console import Console
from transformers import logging

from recurrify import cli
from support.commands import BUDGET, TRAINING, invoke
from support.runs import model_folder, text_folder

Command = Callable[..., str]


@pytest.fixture(autouse=True)
def _as_before() -> Iterator[None]:
    """The commands quieten transformers for the whole process."""
    before = logging.get_verbosity()
    yield
    logging.set_verbosity(before)
    logging.enable_progress_bar()


@pytest.fixture(autouse=True)
def _wide(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tables as in a wide terminal: a column of temporary paths needs it."""
    monkeypatch.setattr(cli, "out_console", Console(width=400))


@pytest.fixture(scope="session")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return model_folder(tmp_path_factory.mktemp("models") / "base")


@pytest.fixture(scope="session")
def texts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return text_folder(tmp_path_factory.mktemp("data") / "texts", documents=60)


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


@pytest.fixture
def refused(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Command:
    """Run a command that should be refused; gives its one sentence."""

    def run(*arguments: object) -> str:
        monkeypatch.setattr(sys, "argv", ["recurrify", *[str(argument) for argument in arguments]])
        with pytest.raises(SystemExit) as caught:
            cli.main()
        written = capsys.readouterr().err
        assert caught.value.code == 2, written
        assert "Traceback" not in written
        before, mark, sentence = written.rpartition("Error: ")
        assert mark, written
        assert "Error" not in before
        assert sentence.endswith("\n")
        assert "\n" not in sentence.rstrip("\n"), sentence
        return sentence.strip()

    return run
