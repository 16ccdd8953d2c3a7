"""Runs of experiments: each is one function call with settings, a folder and a result file."""

import fcntl
import json
import os
import socket
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import cached_property
from importlib import import_module
from pathlib import Path
from typing import Any

from recurrify import UserError
from recurrify.results import load_result, save_result, write_whole

RESULT_FILE = "result.json"
SETTINGS_FILE = "settings.json"
ENDED_FILE = "ended.txt"
"""Why a run ended without a result: "stopped", or "failed: REASON" and the traceback."""
LOCK_FILE = ".lock"
"""Locked while a run is executed; holds the id of its process."""
DEADLINE = "RECURRIFY_DEADLINE"
"""Environment variable: the `time.time()` at which runs stop; jobs inherit it."""
Say = Callable[[str], None]
Results = dict[str, dict[str, Any]]


@dataclass(frozen=True, kw_only=True)
class Run:
    """One training or measurement, which resumes when it is run again."""

    name: str
    """Unique in its experiment; the folder of the run."""
    function: str
    """`package.module:function`, called as function(settings, folder, say); returns a JSON result, or None if it was
    stopped before its end and is ready to resume."""
    settings: Mapping[str, Any] = field(default_factory=dict)
    """JSON values. Three of them refer to other runs: `{"run": NAME}` is the folder of a run,
    `{"run": NAME, "file": PATH}` a file in it, and `{"best_of": {NAME: VALUE, ...}}` the value of the run whose result
    has the lowest `loss`."""

    @cached_property
    def needs(self) -> tuple[str, ...]:
        """The runs that the settings refer to: they must be finished before this one starts."""
        return tuple(dict.fromkeys(_references(self.settings)))


def _references(value: Any) -> Iterator[str]:
    if isinstance(value, Mapping):
        if isinstance(value.get("run"), str):
            yield value["run"]
        yield from value.get("best_of", ())
        for part in value.values():
            yield from _references(part)
    elif isinstance(value, list | tuple):
        for part in value:
            yield from _references(part)


def resolved(value: Any, folder: Path) -> Any:
    """Settings with the runs in `folder` in place of references to them."""
    if isinstance(value, Mapping):
        if isinstance(value.get("run"), str):
            return str(folder / value["run"] / value.get("file", ""))
        if "best_of" in value:
            results = {name: load_result(folder / name / RESULT_FILE) for name in value["best_of"]}
            best = best_run(list(results), results)
            if best is None:
                raise UserError(f"The loss is not finite in any of {', '.join(results)}: try other values.")
            return resolved(value["best_of"][best], folder)
        return {key: resolved(part, folder) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return [resolved(part, folder) for part in value]
    return value


def best_run(names: Sequence[str], results: Results) -> str | None:
    """The run with the lowest loss; None until all are finished. A loss that is not finite was saved as null."""
    if any(name not in results for name in names):
        return None
    losses = {name: loss for name in names if (loss := results[name].get("loss")) is not None}
    return min(losses, key=lambda name: losses[name], default=None)


def minutes_left() -> float | None:
    """Minutes until runs have to stop, at least a hundredth; None without a limit."""
    deadline = os.environ.get(DEADLINE)
    return None if deadline is None else max((float(deadline) - time.time()) / 60, 0.01)


def call(run: Run, folder: Path, say: Say) -> dict[str, Any] | None:
    """Execute a run in this process, and save its result or why it ended without one.

    A run that another process executes is waited for; if that finishes it, its result is returned.
    """
    module, _, name = run.function.partition(":")
    own = folder / run.name
    own.mkdir(parents=True, exist_ok=True)
    with _locked(own, say):
        found = read_result(folder, run)
        if found is not None:
            return found
        (own / ENDED_FILE).unlink(missing_ok=True)
        try:
            write_whole(own / SETTINGS_FILE, _identity(run).encode())
            result: dict[str, Any] | None = getattr(import_module(module), name)(
                resolved(run.settings, folder), own, say
            )
            if result is not None:
                save_result(own / RESULT_FILE, result)
        except Exception as error:
            _write_ended(own, f"failed: {reason(error)}\n\n{traceback.format_exc()}")
            raise
        except BaseException:  # Ctrl-C, or a signal
            _write_ended(own, "stopped")
            raise
        if result is None:
            _write_ended(own, "stopped")
    return result


def _write_ended(own: Path, text: str) -> None:
    with suppress(OSError, UserError):  # a full disk
        write_whole(own / ENDED_FILE, text.encode())


def reason(error: BaseException) -> str:
    """The first line of a message, as a sentence."""
    lines = [line for line in str(error).splitlines() if line.strip()] or [type(error).__name__]
    return lines[0].strip().removesuffix(".") + "."


def read_result(folder: Path, run: Run) -> dict[str, Any] | None:
    """The result of a finished run, or None. Raises `UserError` if its folder holds a run with other settings."""
    own = folder / run.name
    settings = own / SETTINGS_FILE
    if settings.is_file() and settings.read_text(encoding="utf-8") != _identity(run):
        raise UserError(f"{str(own)!r} holds a run with other settings: delete it, or choose another --root.")
    path = own / RESULT_FILE
    return load_result(path) if path.is_file() else None


def _identity(run: Run) -> str:
    return json.dumps({"function": run.function, "settings": dict(run.settings)}, indent=1, sort_keys=True) + "\n"


@contextmanager
def deadline(max_minutes: float | None) -> Iterator[None]:
    """Runs stop and save after so many minutes."""
    before = os.environ.get(DEADLINE)
    if max_minutes is not None:
        os.environ[DEADLINE] = str(time.time() + 60 * max_minutes)
    try:
        yield
    finally:
        if before is None:
            os.environ.pop(DEADLINE, None)
        else:
            os.environ[DEADLINE] = before


def time_is_up() -> bool:
    """Whether no further run may start."""
    return DEADLINE in os.environ and time.time() >= float(os.environ[DEADLINE])


@contextmanager
def _locked(own: Path, say: Say) -> Iterator[None]:
    """Two processes never execute the same run: the second one waits."""
    with open(own / LOCK_FILE, "a+", encoding="utf-8") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say(f"{own.name}: waiting for another process that executes it")
            fcntl.flock(file, fcntl.LOCK_EX)
        except OSError:  # a file system without locks
            pass
        with suppress(OSError):  # a full disk
            file.truncate(0)
            file.write(f"{os.getpid()} {socket.gethostname()}")
            file.flush()
        yield


def process_of(own: Path) -> int | None:
    """The process of this machine that executes the run of a folder."""
    with suppress(OSError, ValueError), open(own / LOCK_FILE, encoding="utf-8") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            process, _, host = file.read().partition(" ")
            return int(process) if host == socket.gethostname() else None
    return None
