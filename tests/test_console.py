"""What long work prints while it runs."""

import io
import threading

import pytest
from rich.console import Console

from recurrify import console
from recurrify.console import busy, progress_bar, time_left


class Clock:
    """A clock that stands still until it is set."""

    now = 1000.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    found = Clock()
    monkeypatch.setattr(console, "time", found)
    return found


def test_line_has_the_time_left(clock: Clock) -> None:
    lines = console._Lines("training", 1000, "steps")
    assert lines.line() == "training: 0 of 1,000 steps, 0 %"
    lines.advance(900)  # of an earlier start, which does not count towards the pace
    assert lines.line() == "training: 900 of 1,000 steps, 90 %"
    clock.now += 60
    lines.advance(10)
    assert lines.line() == "training: 910 of 1,000 steps, 91 %, 9.0 min left"


@pytest.mark.parametrize(("seconds", "words"), [(-1, "0 s left"), (59, "59 s left"), (90, "1.5 min left")])
def test_time_left(seconds: float, words: str) -> None:
    assert time_left(seconds) == words


@pytest.mark.parametrize("rank", ["0", "1"])
def test_long_work_is_never_silent(
    rank: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """One process speaks for those that train together."""
    monkeypatch.setenv("RANK", rank)
    monkeypatch.setattr(console, "LINE_SECONDS", 0.01)
    printed = threading.Event()
    real = console.say
    monkeypatch.setattr(console, "say", lambda text: (real(text), printed.set())[0])
    for work in (busy("loading"), progress_bar("scoring", 4)):
        printed.clear()
        with work:
            printed.clear()
            assert rank == "1" or printed.wait(60)
    written = capsys.readouterr()
    assert written.out == ""
    for words in ("loading\nloading: 0 s\n", "scoring: 0 of 4 tokens, 0 %\n"):
        assert (words in written.err) == (rank == "0")


def test_short_work_prints_no_line(capsys: pytest.CaptureFixture[str]) -> None:
    with progress_bar("scoring", 2) as advance:
        advance(2)
    assert capsys.readouterr().err == ""


def test_bar_in_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    screen = io.StringIO()
    monkeypatch.setattr(console, "err_console", Console(file=screen, force_terminal=True, width=100))
    with progress_bar("scoring", 2) as advance:
        advance(1)
    assert "scoring" in screen.getvalue()
    assert "━" in screen.getvalue()
    assert "left" not in screen.getvalue()
