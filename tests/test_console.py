"""What long work prints while it runs."""

import io
import threading
from itertools import pairwise

import pytest
from rich.console import Console

from recurrify import console
from recurrify.console import Pace, busy, progress_bar, time_left


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
    assert lines.line() == "training: 910 of 1,000 steps, 91 %, 9 min left"


def test_time_left_does_not_jump(clock: Clock) -> None:
    """Work of uneven length, whose reports are far apart."""
    pace, left = Pace(), []
    for done, step in enumerate([20, 40] * 30):
        pace.report(done)
        for _ in range(step):
            clock.now += 1
            left.append(pace.seconds_left(60))
    seen = [one for one in left if one is not None][300:]
    assert max(abs(later - earlier) for earlier, later in pairwise(seen)) < 100
    for remaining, one in enumerate(reversed(seen)):
        assert abs(one - remaining) < 0.05 * remaining + 60


def test_time_left_follows_a_slower_pace(clock: Clock) -> None:
    pace = Pace()
    for done in range(401):
        pace.report(done)
        clock.now += 1 if done < 100 else 5
    left = pace.seconds_left(500)
    assert left is not None
    assert 450 < left < 500


def test_lines_come_first_soon_and_then_rarely(monkeypatch: pytest.MonkeyPatch) -> None:
    waits: list[float] = []
    monkeypatch.setattr(console, "FIRST_SECONDS", 0.01)
    monkeypatch.setattr(console, "LINE_SECONDS", 1e6)
    printed = threading.Event()

    class Over(threading.Event):
        def wait(self, timeout: float | None = None) -> bool:
            waits.append(timeout or 0.0)
            if len(waits) > 1 and waits[-1] > 1e5:
                printed.set()
            return super().wait(timeout)

    monkeypatch.setattr(console.threading, "Event", Over)
    with busy("loading"):
        assert printed.wait(60)


@pytest.mark.parametrize(
    ("seconds", "words"), [(-1, "0 s left"), (59, "59 s left"), (90, "1.5 min left"), (340, "6 min left")]
)
def test_time_left(seconds: float, words: str) -> None:
    assert time_left(seconds) == words


@pytest.mark.parametrize("rank", ["0", "1"])
def test_long_work_is_never_silent(
    rank: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """One process speaks for those that train together."""
    monkeypatch.setenv("RANK", rank)
    monkeypatch.setattr(console, "FIRST_SECONDS", 0.01)
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


def test_silence_counts_from_the_beginning_of_the_work(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(console, "_said", -1e9)
    with console.heartbeat(lambda: "still working"):
        assert console._said > 0
    assert capsys.readouterr().err == ""
