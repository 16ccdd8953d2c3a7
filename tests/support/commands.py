"""Running the command line inside a test."""

import sys
from collections.abc import Callable, Iterator

import pytest
from transformers import logging
from typer.testing import CliRunner

from recurrify.cli import main as cli

TRAINING = ["--window", "8", "--windows", "3", "--batch", "4", "--learning-rate", "0.01", "--set", "warmup_steps=2"]
Command = Callable[..., str]
BUDGET = ["--max-tokens", "500", "--valid-every", "150"]


def invoke(*arguments: object) -> str:
    """Run a command that should succeed; returns its standard output."""
    found = CliRunner().invoke(cli.app, [str(argument) for argument in arguments], catch_exceptions=False)
    assert found.exit_code == 0, found.stderr
    return found.stdout


@pytest.fixture(autouse=True)
def transformers_as_before() -> Iterator[None]:
    """Commands silence transformers for the whole process."""
    before = logging.get_verbosity()
    yield
    logging.set_verbosity(before)
    logging.enable_progress_bar()


@pytest.fixture
def refused(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Command:
    """Run a command that should fail; returns its one sentence."""

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
