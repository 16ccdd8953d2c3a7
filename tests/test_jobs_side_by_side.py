"""Processes side by side: failures, stops, and what happens when memory is full."""

from pathlib import Path

from recurrify.jobs.side_by_side import INTERRUPTED, Task, run_side_by_side


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
