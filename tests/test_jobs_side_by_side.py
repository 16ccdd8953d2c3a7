"""Processes side by side: failures, stops, what happens when memory is full, and when the parent is killed."""

import subprocess
import sys
import time
from pathlib import Path

import pytest

from recurrify import ending_with_parent, side_by_side
from recurrify.side_by_side import INTERRUPTED, Task, run_side_by_side
from support.processes import comes, runs


def quiet(text: str) -> None:
    pass


def test_a_task_that_fails_does_not_stop_the_others(tmp_path: Path) -> None:
    def task(name: str, code: str) -> Task:
        return Task(name, ("-c", code), tmp_path / "logs" / f"{name}.log")

    made = [f"open({str(tmp_path / name)!r}, 'w')" for name in "ab"]
    tasks = [task("a", made[0]), task("bad", "import sys; sys.exit('Error: no room')"), task("b", made[1])]
    outcome = run_side_by_side(tasks, 2, quiet)
    assert outcome.finished
    assert outcome.failures == [f"bad ended with 'Error: no room', see {tmp_path / 'logs' / 'bad.log'}"]
    assert (tmp_path / "a").exists()
    assert (tmp_path / "b").exists()
    stopped = run_side_by_side([task("c", f"import sys; sys.exit({INTERRUPTED})")], 2, quiet)
    assert stopped == (False, [])


def test_the_cores_are_shared_out_unless_somebody_has_said_otherwise(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(side_by_side.os, "cpu_count", lambda: 8)
    monkeypatch.delenv("TORCHINDUCTOR_COMPILE_THREADS", raising=False)
    monkeypatch.setenv("OMP_NUM_THREADS", "5")
    code = "import os; print(*(os.environ[name] for name in ('OMP_NUM_THREADS', 'TORCHINDUCTOR_COMPILE_THREADS')))"
    log = tmp_path / "a.log"
    assert run_side_by_side([Task("a", ("-c", code), log)], 3, quiet) == (True, [])
    assert log.read_text().split() == ["5", "2"]


def test_one_without_room_beside_the_others_is_tried_again_with_fewer(tmp_path: Path) -> None:
    """The memory is a folder with room for two: whoever comes third fails as torch does."""
    code = (
        "import os, pathlib, sys, time\n"
        "me = pathlib.Path(sys.argv[1]) / sys.argv[2]; me.touch()\n"
        "full = len(os.listdir(sys.argv[1])) > 2\n"
        "time.sleep(0 if full else 2); me.unlink()\n"
        "sys.exit('torch.OutOfMemoryError: CUDA out of memory.' if full else 0)\n"
    )
    room = tmp_path / "room"
    room.mkdir()
    tasks = [Task(name, ("-c", code, str(room), name), tmp_path / f"{name}.log") for name in "abcd"]
    said: list[str] = []
    assert run_side_by_side(tasks, 4, said.append) == (True, [])
    again = [line for line in said if "no room in memory" in line]
    assert again
    assert all("from now on" in line for line in again)
    assert sorted(line for line in said if line.endswith(": done")) == [f"{name}: done" for name in "abcd"]


def test_what_the_log_said_another_time_does_not_count(tmp_path: Path) -> None:
    log = tmp_path / "a.log"
    log.write_text("CUDA out of memory\n")
    said: list[str] = []
    outcome = run_side_by_side([Task("a", ("-c", "raise SystemExit(3)"), log)], 3, said.append)
    assert said == ["a: did not finish"]
    assert outcome.failures == [f"a ended with 'no message', see {log}"]


def test_advice_behind_an_error_does_not_hide_it(tmp_path: Path) -> None:
    """As torch puts it where another process has the memory: five lines of advice follow."""
    code = "import sys; sys.exit('torch.AcceleratorError: CUDA error: out of memory' + '\\nadvice' * 5)"
    said: list[str] = []
    outcome = run_side_by_side([Task("a", ("-c", code), tmp_path / "a.log")], 2, said.append)
    assert said[0] == "a: no room in memory, tried again later; from now on 1 at a time"
    expected = f"a ended with 'torch.AcceleratorError: CUDA error: out of memory', see {tmp_path / 'a.log'}"
    assert outcome.failures == [expected]


def test_what_finds_no_room_alone_has_failed(tmp_path: Path) -> None:
    task = Task("a", ("-c", "import sys; sys.exit('CUDA out of memory')"), tmp_path / "a.log")
    outcome = run_side_by_side([task], 3, quiet)
    assert outcome.finished
    assert outcome.failures == [f"a ended with 'CUDA out of memory', see {tmp_path / 'a.log'}"]


def test_no_task_is_begun_with_less_time_left_than_it_needs(tmp_path: Path) -> None:
    short, long = (Task(name, ("-c", ""), tmp_path / f"{name}.log", minutes) for name, minutes in (("a", 0), ("b", 9)))
    said: list[str] = []
    assert run_side_by_side([long, short], 2, said.append, time.monotonic() + 60) == (False, [])
    assert said == ["a: done"]
    assert run_side_by_side([long], 2, quiet, time.monotonic() + 600) == (True, [])


def waited_for(path: Path) -> int:
    """The number of a process, which the process itself writes."""
    assert comes(lambda: path.is_file() and path.read_text() != "")
    return int(path.read_text())


WRITE_AND_WAIT = "import os, pathlib, sys, time; pathlib.Path(sys.argv[1]).write_text(str(os.getpid())); time.sleep(99)"
SIDE_BY_SIDE = (
    "import sys; from pathlib import Path; from recurrify.side_by_side import Task, run_side_by_side; "
    "arguments = ('-c', *sys.argv[1:]); run_side_by_side([Task('a', arguments, Path(sys.argv[2] + '.log'))], 1, print)"
)
ELSEWHERE = (
    "import runpy, sys; sys.platform = 'another'; del sys.argv[0]; runpy.run_path(sys.argv[0], run_name='__main__')"
)
BY_A_THREAD = (
    "import os, subprocess, sys; code, path, watched = sys.argv[1:]; "
    f"subprocess.run([sys.executable, '-c', {ELSEWHERE!r}, watched, str(os.getpid()), code, path])"
)


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="looks at processes in /proc")
@pytest.mark.parametrize("parent_code", [SIDE_BY_SIDE, BY_A_THREAD], ids=["side by side", "watched by a thread"])
def test_a_killed_parent_takes_its_tasks_along(parent_code: str, tmp_path: Path) -> None:
    """`kill -9` cannot be heard: without a watch the task would go on, and the same command would begin it again."""
    arguments = [WRITE_AND_WAIT, str(tmp_path / "process"), ending_with_parent.__file__]
    parent = subprocess.Popen([sys.executable, "-c", parent_code, *arguments], stdout=subprocess.DEVNULL)
    child = waited_for(tmp_path / "process")
    assert child != parent.pid
    assert runs(child)
    parent.kill()
    parent.wait()
    assert comes(lambda: not runs(child)), "it outlived its parent"


def test_a_task_whose_parent_is_gone_already_does_not_begin(tmp_path: Path) -> None:
    code = f"open({str(tmp_path / 'begun')!r}, 'w')"
    ended = subprocess.run([sys.executable, ending_with_parent.__file__, "1", code])
    assert ended.returncode
    assert not (tmp_path / "begun").exists()
