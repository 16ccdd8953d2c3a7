"""What the commands say to people: results to standard output, everything else to standard error."""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

out_console = Console()
err_console = Console(stderr=True)


def is_first() -> bool:
    """One voice is enough where several processes train together."""
    return os.environ.get("RANK", "0") == "0"


def say(text: str) -> None:
    if not is_first():
        return
    err_console.print(text, style="dim", highlight=False, markup=False, soft_wrap=True)


@contextmanager
def progress_bar(name: str, total: int) -> Iterator[Callable[[int], None]]:
    """A bar for long work; what it yields is called with how much was done."""
    columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.percentage:3.0f}%"))
    times = (TimeElapsedColumn(), TimeRemainingColumn())
    with Progress(*columns, *times, console=err_console, transient=True) as bar:
        task = bar.add_task(name, total=total)
        yield lambda done: bar.advance(task, done)
