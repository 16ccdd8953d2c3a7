"""What long work says while it goes on."""

import io

import pytest
from rich.console import Console

from recurrify import console
from recurrify.console import progress_bar


class Clock:
    """Stands where it is put."""

    def __init__(self) -> None:
        self.now = 1000.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    found = Clock()
    monkeypatch.setattr(console, "time", found)
    return found


def test_lines_where_there_is_no_terminal(clock: Clock, capsys: pytest.CaptureFixture[str]) -> None:
    with progress_bar("scoring", 4000) as advance:
        for _ in range(4):
            clock.now += 10
            advance(1000)
    found = capsys.readouterr()
    assert found.out == ""
    # Behind 20 and 40 seconds; the pace is that of 1,000 in 10 seconds.
    assert found.err == "scoring: 2,000 of 4,000, 50 %, 0.3 min left\nscoring: 4,000 of 4,000, 100 %, 0.0 min left\n"


def test_short_work_is_silent(clock: Clock, capsys: pytest.CaptureFixture[str]) -> None:
    with progress_bar("scoring", 2) as advance:
        clock.now += 14
        advance(2)
    assert capsys.readouterr().err == ""


def test_what_was_done_another_time_says_nothing_of_the_pace(clock: Clock, capsys: pytest.CaptureFixture[str]) -> None:
    with progress_bar("training", 1000) as advance:
        clock.now += 20
        advance(900)
        clock.now += 60
        advance(10)
    said = capsys.readouterr().err.splitlines()
    assert said == ["training: 900 of 1,000, 90 %", "training: 910 of 1,000, 91 %, 9.0 min left"]


def test_one_voice_is_enough(clock: Clock, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "1")
    with progress_bar("scoring", 2) as advance:
        clock.now += 60
        advance(1)
    assert capsys.readouterr().err == ""


def test_a_bar_in_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    screen = io.StringIO()
    monkeypatch.setattr(console, "LINE_SECONDS", 0)
    monkeypatch.setattr(console, "err_console", Console(file=screen, force_terminal=True, width=100))
    with progress_bar("scoring", 2) as advance:
        advance(1)
    assert "scoring" in screen.getvalue()
    assert "━" in screen.getvalue()
    assert "min left" not in screen.getvalue()
