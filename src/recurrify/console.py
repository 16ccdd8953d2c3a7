"""What the commands say to people: results to standard output, everything else to standard error."""

import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Table

__all__ = ["err_console", "is_first", "out_console", "progress_bar", "say", "show_table"]

out_console = Console()
err_console = Console(stderr=True)
LINE_SECONDS = 15
"""Between the lines that stand for a bar where the output is no terminal."""


def is_first() -> bool:
    """One voice is enough where several processes train together."""
    return os.environ.get("RANK", "0") == "0"


def say(text: str) -> None:
    if not is_first():
        return
    err_console.print(text, style="dim", highlight=False, markup=False, soft_wrap=True)


def show_table(caption: str, header: Sequence[str], rows: Sequence[Sequence[str]], text_columns: int) -> None:
    """A table on standard output: the first columns are words and may be folded, the others numbers."""
    table = Table(box=None, pad_edge=False, title=caption, title_justify="left")
    for column, name in enumerate(header):
        words = column < text_columns
        table.add_column(name, justify="left" if words else "right", no_wrap=not words, overflow="fold")
    for row in rows:
        table.add_row(*row)
    out_console.print(table, soft_wrap=True, markup=False)
    out_console.print()


@contextmanager
def progress_bar(name: str, total: int) -> Iterator[Callable[[int], None]]:
    """A bar for long work, or plain lines where the output is no terminal: a log shows no bar, and long silence looks
    like a fault. What it yields is called with how much was done."""
    if not err_console.is_terminal:
        yield _Lines(name, total).advance
        return
    columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.percentage:3.0f}%"))
    times = (TimeElapsedColumn(), TimeRemainingColumn())
    with Progress(*columns, *times, console=err_console, transient=True) as bar:
        task = bar.add_task(name, total=total)
        yield lambda done: bar.advance(task, done)


class _Lines:
    """A line now and then: how much is done, its share, and the minutes left."""

    def __init__(self, name: str, total: int) -> None:
        self.name, self.total, self.done = name, total, 0
        self.last_line = time.monotonic()
        self.begun, self.before = 0.0, -1

    def advance(self, done: int) -> None:
        now = time.monotonic()
        self.done += done
        if self.before < 0:
            # Work that goes on tells first what was done another time: it says nothing of today's pace.
            self.begun, self.before = now, self.done
        if now - self.last_line < LINE_SECONDS:
            return
        self.last_line = now
        text = f"{self.name}: {self.done:,} of {self.total:,}, {100 * self.done / max(self.total, 1):.0f} %"
        if self.done > self.before:
            left = (self.total - self.done) * (now - self.begun) / (self.done - self.before)
            text += f", {max(left, 0.0) / 60:.1f} min left"
        say(text)


def perplexity_level(perplexity: float, digits: int) -> str:
    """Short enough for a line even where a model knows nothing of the text."""
    return f"{perplexity:,.{digits}f}" if perplexity < 1e5 else f"{perplexity:.4g}"
