"""Signals: what they interrupt, and at which moments."""

import io
import signal
import sys
from typing import Any

import pytest
import typer

from recurrify import interrupts
from recurrify.cli.main import main
from recurrify.interrupts import Interrupt


def test_signal_while_standard_error_is_written(monkeypatch: pytest.MonkeyPatch) -> None:
    """It cannot be entered a second time."""

    class Raw(io.RawIOBase):
        def writable(self) -> bool:
            return True

        def write(self, content: Any) -> int:
            signal.raise_signal(signal.SIGTERM)
            return len(content)

    monkeypatch.setattr(sys, "stderr", io.TextIOWrapper(io.BufferedWriter(Raw())))
    interrupt = Interrupt()
    with interrupt.listening():
        print("step 3", file=sys.stderr, flush=True)
    assert interrupt.heard


def test_ctrl_c_before_a_command_begins(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(typer.main, "get_command", lambda app: signal.raise_signal(signal.SIGINT))
    monkeypatch.setattr(sys, "argv", ["recurrify", "--version"])
    monkeypatch.setattr(interrupts, "_received", [])
    with pytest.raises(SystemExit) as caught:
        main()
    assert caught.value.code == 130
    assert "Stopped." in capsys.readouterr().err
