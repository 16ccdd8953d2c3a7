"""What the commands say to people: results to standard output, everything else to standard error."""

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Table

out_console = Console()
err_console = Console(stderr=True)


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
    """A bar for long work; what it yields is called with how much was done."""
    columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.percentage:3.0f}%"))
    times = (TimeElapsedColumn(), TimeRemainingColumn())
    with Progress(*columns, *times, console=err_console, transient=True) as bar:
        task = bar.add_task(name, total=total)
        yield lambda done: bar.advance(task, done)
