"""One process at a time trains in a folder."""

import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import pytest

from recurrify import run_lock as module
from recurrify.errors import UserError
from recurrify.run_lock import LOCK_FILE, run_lock
from support.processes import comes

HOLD = """
import fcntl, sys, time
file = open(sys.argv[1], "ab")
fcntl.flock(file, fcntl.LOCK_EX)
open(sys.argv[1] + ".held", "w").close()
time.sleep(600)
"""


def is_free(folder: Path) -> bool:
    """Whether the lock can be taken at once."""
    with pytest.MonkeyPatch.context() as patch, suppress(UserError):
        patch.setattr(module, "WAIT_SECONDS", 0.0)
        with run_lock(folder):
            return True
    return False


def test_one_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "WAIT_SECONDS", 0.0)
    with (
        run_lock(tmp_path / "run"),
        run_lock(tmp_path / "other"),
        pytest.raises(UserError, match=r"Another process is training in .*run'"),
        run_lock(tmp_path / "run"),
    ):
        pytest.fail("two at once")
    assert is_free(tmp_path / "run")


def test_processes_that_train_together_share_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with run_lock(tmp_path):
        monkeypatch.setenv("RANK", "1")
        with run_lock(tmp_path):
            pass
        monkeypatch.setenv("RANK", "0")
        assert not is_free(tmp_path)


def test_nothing_is_left_behind(tmp_path: Path) -> None:
    there, new = tmp_path / "there", tmp_path / "new"
    there.mkdir()
    for folder in (there, new):
        with pytest.raises(UserError), run_lock(folder):
            raise UserError("no such model")
    assert not list(there.iterdir())
    assert not new.exists()
    with run_lock(new):
        (new / "run.json").touch()
    assert [path.name for path in new.iterdir()] == ["run.json"]


def test_many_take_turns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each removes the file that it held while others wait for it; threads lock as processes do."""
    monkeypatch.setattr(module, "WAIT_SECONDS", 60.0)
    monkeypatch.setattr(module, "POLL_SECONDS", 0.0005)
    inside: list[int] = []
    together: list[int] = []

    def enter_often(who: int) -> None:
        for _ in range(50):
            with run_lock(tmp_path):
                inside.append(who)
                time.sleep(0.001)
                together.append(len(inside))
                inside.remove(who)

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(enter_often, range(4)))
    assert together == [1] * 200


def test_lock_of_a_killed_process_is_free(tmp_path: Path) -> None:
    file = tmp_path / LOCK_FILE
    other = subprocess.Popen([sys.executable, "-c", HOLD, str(file)])
    assert comes(lambda: file.with_name(f"{LOCK_FILE}.held").exists())
    assert not is_free(tmp_path)
    other.kill()
    other.wait()
    assert is_free(tmp_path)


def test_folder_that_cannot_be_made(tmp_path: Path) -> None:
    """The run itself reports it better."""
    (tmp_path / "file").write_text("mine")
    with run_lock(tmp_path / "file"):
        pass
    assert (tmp_path / "file").read_text() == "mine"
