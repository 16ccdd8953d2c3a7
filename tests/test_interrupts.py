"""Worker processes end with the one that started them, and begin nothing after Ctrl-C."""

import multiprocessing
import os
import time
from pathlib import Path

import pytest

from recurrify import interrupts
from recurrify.demo import end_with_parent
from recurrify.interrupts import unless_interrupted
from support.processes import comes, runs


def work(path: str) -> None:
    end_with_parent()
    Path(path).write_text(str(os.getpid()))
    time.sleep(600)


def test_workers_end_with_their_parent(tmp_path: Path) -> None:
    """The parent is killed outright and can tell them nothing."""
    written, context = tmp_path / "process", multiprocessing.get_context("fork")
    parent = os.fork()
    if parent == 0:
        context.Process(target=work, args=[str(written)]).start()
        time.sleep(600)
    assert comes(lambda: written.exists() and bool(written.read_text()))
    child = int(written.read_text())
    assert runs(child)
    os.kill(parent, 9)
    os.waitpid(parent, 0)
    assert comes(lambda: not runs(child))


def test_a_process_that_was_interrupted_begins_nothing_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(interrupts, "_received", [])
    begun = []

    def begin(name: str) -> str:
        begun.append(name)
        if name == "second":
            raise KeyboardInterrupt
        return name

    assert unless_interrupted(begin, "first") == "first"
    with pytest.raises(KeyboardInterrupt):
        unless_interrupted(begin, "second")
    assert unless_interrupted(begin, "third") is None
    assert begun == ["first", "second"]
