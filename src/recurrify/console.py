"""What commands print: results to standard output, everything else to standard error."""

import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Table

__all__ = [
    "Pace",
    "busy",
    "err_console",
    "heartbeat",
    "is_first",
    "large",
    "out_console",
    "perplexity_level",
    "progress_bar",
    "say",
    "scaled",
    "show_table",
    "time_left",
]

out_console = Console()
err_console = Console(stderr=True)
FIRST_SECONDS, LINE_SECONDS = 6.0, 10.0
"""Before the first line of a log, and between later ones, where there is no terminal to show a bar."""
PACE_SECONDS = 180.0
"""How far back the time left looks at least."""
UNITS = ((1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"))
_said = time.monotonic()
"""When the last line was printed."""
_lines: list[Callable[[], str] | None] = []
"""What open heartbeats print, the innermost last."""


def is_first() -> bool:
    """Whether this process speaks: of processes that train together, the first."""
    return os.environ.get("RANK", "0") == "0"


def say(text: str) -> None:
    """Print a line of progress."""
    global _said
    _said = time.monotonic()
    if is_first():
        err_console.print(text, style="dim", highlight=False, markup=False, soft_wrap=True)


def show_table(caption: str, header: Sequence[str], rows: Sequence[Sequence[str]], text_columns: int) -> None:
    """Print a table; the first `text_columns` columns hold words, which may wrap, the others numbers."""
    table = Table(box=None, pad_edge=False, title=caption, title_justify="left")
    for column, name in enumerate(header):
        words = column < text_columns
        table.add_column(name, justify="left" if words else "right", no_wrap=not words, overflow="fold")
    for row in rows:
        table.add_row(*row)
    out_console.print(table, soft_wrap=True, markup=False)
    out_console.print()


@contextmanager
def heartbeat(line: Callable[[], str] | None) -> Iterator[None]:
    """Print `line()` when nothing was printed for some seconds, and then at longer intervals, until the block ends.

    Of nested blocks the innermost speaks; None keeps silent, for what shows progress in another way.
    """
    global _said
    if not _lines:  # silence before the work began does not count
        _said = time.monotonic()
    _lines.append(line)
    over = threading.Event()

    def beat() -> None:
        pause = FIRST_SECONDS
        while not over.wait(max(_said + pause - time.monotonic(), 0.01)):
            if line is not None and line is _lines[-1] and time.monotonic() - _said >= pause:
                say(line())
                pause = LINE_SECONDS

    thread = threading.Thread(target=beat, daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
        _lines.remove(line)


@contextmanager
def busy(what: str) -> Iterator[None]:
    """Say what is being done, and for how long, while the block runs."""
    say(what)
    begun = time.monotonic()
    with heartbeat(lambda: f"{what}: {time.monotonic() - begun:.0f} s"):
        yield


@contextmanager
def progress_bar(name: str, total: int, unit: str = "tokens") -> Iterator[Callable[[int], None]]:
    """A progress bar on a terminal, lines elsewhere; call what it yields with the amount of work done.

    Lines count the work in `unit`; without one they show only its share.
    """
    if not is_first():
        yield lambda done: None
        return
    if not err_console.is_terminal:
        lines = _Lines(name, total, unit)
        with heartbeat(lines.line):
            yield lines.advance
        return
    columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.percentage:3.0f}%"))
    times = (TimeElapsedColumn(), TimeRemainingColumn())
    shown = Progress(*columns, *times, console=err_console, transient=True, speed_estimate_period=PACE_SECONDS)
    with heartbeat(None), shown as bar:
        task = bar.add_task(name, total=total)
        yield lambda done: bar.advance(task, done)


class Pace:
    """The time left of some work. Recent work counts most, and between reports of work the time left counts down."""

    def __init__(self) -> None:
        self.done: float | None = None
        self.begun = self.reported = self.interval = 0.0
        self.seconds = self.work = 0.0
        """Recent work and how long it took; earlier work has faded."""

    def report(self, done: float) -> None:
        """Take all the work done so far. The first report does not count: it may be work of an earlier start."""
        now = time.monotonic()
        if self.done is None:
            self.begun = now
        else:
            self.interval = now - self.reported
            fade = 0.5 ** (self.interval / max(PACE_SECONDS, (now - self.begun) / 2))
            self.seconds = fade * self.seconds + self.interval
            self.work = fade * self.work + done - self.done
        self.done, self.reported = done, now

    def seconds_left(self, total: float) -> float | None:
        """Until `total` is done; None if that is not known yet."""
        if self.done is None or self.work <= 0:
            return None
        waited = time.monotonic() - self.reported
        overdue = max(waited - 3 * self.interval, 0.0)  # work may be uneven
        return (self.seconds + overdue) / self.work * (total - self.done) - min(waited, self.interval)


class _Lines:
    """How much is done, its share, and the time left."""

    def __init__(self, name: str, total: int, unit: str) -> None:
        self.name, self.total, self.unit, self.done = name, total, unit, 0
        self.pace = Pace()

    def advance(self, done: int) -> None:
        self.done += done
        self.pace.report(self.done)

    def line(self) -> str:
        counted = f"{self.done:,} of {self.total:,} {self.unit}, " if self.unit else ""
        text = f"{self.name}: {counted}{100 * self.done / max(self.total, 1):.0f} %"
        if self.done >= self.total:
            return f"{text}, finishing"
        left = self.pace.seconds_left(self.total)
        return text if left is None else f"{text}, {time_left(left)}"


def time_left(seconds: float) -> str:
    """The time left in words."""
    if seconds < 60:
        return f"{max(seconds, 0.0):.0f} s left"
    return f"{seconds / 60:.{1 if seconds < 300 else 0}f} min left"


def large(value: float) -> str:
    """1234567 as "1.23 M"; used for FLOPs, where three digits are all that is meant."""
    number, unit = scaled(value)
    return f"{number:#.3g}".rstrip(".") + unit


def scaled(value: float) -> tuple[float, str]:
    """1234567 as 1.234567 and " M"."""
    for size, unit in UNITS:
        # A little early, so that 999,999 rounds to "1.00 M" and not to "1.00e+03 k".
        if abs(value) >= size * 0.9995:
            return value / size, f" {unit}"
    return value, ""


def perplexity_level(perplexity: float, digits: int) -> str:
    """A perplexity in few characters, however large it is."""
    return f"{perplexity:,.{digits}f}" if perplexity < 1e5 else f"{perplexity:.4g}"
