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
    "busy",
    "err_console",
    "heartbeat",
    "is_first",
    "out_console",
    "perplexity_level",
    "progress_bar",
    "say",
    "show_table",
    "time_left",
]

out_console = Console()
err_console = Console(stderr=True)
LINE_SECONDS = 6.0
"""Between two lines of a log, where there is no terminal to show a bar."""
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
    """Print `line()` whenever nothing was printed for some seconds, until the block ends.

    Of nested blocks the innermost speaks; None keeps silent, for what shows progress in another way.
    """
    _lines.append(line)
    over = threading.Event()

    def beat() -> None:
        while not over.wait(max(_said + LINE_SECONDS - time.monotonic(), 0.01)):
            if line is not None and line is _lines[-1] and time.monotonic() - _said >= LINE_SECONDS:
                say(line())

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
    with heartbeat(None), Progress(*columns, *times, console=err_console, transient=True) as bar:
        task = bar.add_task(name, total=total)
        yield lambda done: bar.advance(task, done)


class _Lines:
    """How much is done, its share, and the time left."""

    def __init__(self, name: str, total: int, unit: str) -> None:
        self.name, self.total, self.unit, self.done = name, total, unit, 0
        self.begun, self.before = time.monotonic(), -1

    def advance(self, done: int) -> None:
        self.done += done
        if self.before < 0:
            # A resumed job first reports earlier work, which does not count towards today's pace.
            self.begun, self.before = time.monotonic(), self.done

    def line(self) -> str:
        counted = f"{self.done:,} of {self.total:,} {self.unit}, " if self.unit else ""
        text = f"{self.name}: {counted}{100 * self.done / max(self.total, 1):.0f} %"
        if self.done >= self.total:
            return f"{text}, finishing"
        if self.done > self.before >= 0:
            pace = (time.monotonic() - self.begun) / (self.done - self.before)
            text += f", {time_left(pace * (self.total - self.done))}"
        return text


def time_left(seconds: float) -> str:
    """The time left in words."""
    return f"{max(seconds, 0.0) / 60:.1f} min left" if seconds >= 60 else f"{max(seconds, 0.0):.0f} s left"


def perplexity_level(perplexity: float, digits: int) -> str:
    """A perplexity in few characters, however large it is."""
    return f"{perplexity:,.{digits}f}" if perplexity < 1e5 else f"{perplexity:.4g}"
