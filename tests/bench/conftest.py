"""Refused commands, and transformers as it was before them."""

import sys
from collections.abc import Callable, Iterator

import pytest
from transformers import logging

from recurrify import cli

Command = Callable[..., str]


@pytest.fixture(autouse=True)
def _as_before() -> Iterator[None]:
    """The commands quieten transformers for the whole process."""
    before = logging.get_verbosity()
    yield
    logging.set_verbosity(before)
    logging.enable_progress_bar()


@pytest.fixture
def refused(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Command:
    """Run a command that should be refused; gives its one sentence."""

    def run(*arguments: object) -> str:
        monkeypatch.setattr(sys, "argv", ["recurrify", *[str(argument) for argument in arguments]])
        with pytest.raises(SystemExit) as caught:
            cli.main()
        written = capsys.readouterr().err
        assert caught.value.code == 2, written
        before, mark, sentence = written.rpartition("Error: ")
        assert mark, written
        assert "Traceback" not in before
        assert "\n" not in sentence.rstrip("\n"), sentence
        return sentence.strip()

    return run
