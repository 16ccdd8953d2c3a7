"""Processes side by side end with the one that started them, and begin nothing after Ctrl-C."""

from pathlib import Path

import pytest

from recurrify import interrupts
from recurrify.interrupts import unless_interrupted
from recurrify.processes import processes
from support.processes import ends_with_its_parent

PROGRAM = """
import os, sys, time
from pathlib import Path
from recurrify.processes import processes

def work(path):
    Path(path).write_text(str(os.getpid()))
    time.sleep(600)

if __name__ == "__main__":
    with processes(1) as pool:
        pool.submit(work, sys.argv[1]).result()
"""


def test_they_end_with_their_parent(tmp_path: Path) -> None:
    assert ends_with_its_parent(PROGRAM, tmp_path)


def test_what_has_not_begun_is_not_begun() -> None:
    with pytest.raises(KeyboardInterrupt), processes(1) as pool:  # noqa: PT012 - the block is what is interrupted
        futures = [pool.submit(int, "0") for _ in range(50)]
        raise KeyboardInterrupt
    assert any(future.cancelled() for future in futures)


def test_a_process_that_was_interrupted_begins_nothing_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(interrupts, "_received", [])
    begun = []

    def work(name: str) -> str:
        begun.append(name)
        if name == "second":
            raise KeyboardInterrupt
        return name

    assert unless_interrupted(work, "first") == "first"
    with pytest.raises(KeyboardInterrupt):
        unless_interrupted(work, "second")
    assert unless_interrupted(work, "third") is None
    assert begun == ["first", "second"]
