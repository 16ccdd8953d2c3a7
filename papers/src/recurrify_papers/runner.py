"""Runs of experiments: each is one function call with settings, a folder and a result file.

`run_all` starts what is not finished: in this process, or through submitit in processes of this machine or on Slurm.
"""

import fcntl
import gc
import json
import os
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from importlib import import_module
from pathlib import Path
from typing import Any

from recurrify import UserError
from recurrify.results import load_result, save_result, write_whole

RESULT_FILE = "result.json"
SETTINGS_FILE = "settings.json"
CLUSTERS = ("local", "slurm", "debug")
DEADLINE = "RECURRIFY_DEADLINE"
"""Environment variable: the `time.time()` at which runs stop; jobs on this machine inherit it."""
POLL_SECONDS = 0.5
SLURM_HOURS = 24
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


@dataclass(frozen=True, kw_only=True)
class Resources:
    """Where runs are executed, how many at a time, and for how long."""

    cluster: str = "local"
    """local: this machine, in this process if `jobs` is 1; slurm; debug: always this process."""
    jobs: int = 1
    max_minutes: float | None = None
    """Stop after so many minutes; unfinished runs are saved and resume later."""
    slurm: Mapping[str, Any] = field(default_factory=dict)
    """Parameters of submitit's executor, such as `slurm_partition`."""

    @property
    def here(self) -> bool:
        """Whether runs are executed in this process."""
        return self.cluster == "debug" or (self.cluster == "local" and self.jobs == 1)

    def __post_init__(self) -> None:
        if self.cluster not in CLUSTERS:
            raise UserError(f"`cluster` must be one of {', '.join(CLUSTERS)}: got {self.cluster!r}.")


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


def run_all(
    runs: Sequence[Run],
    folder: Path,
    say: Say,
    resources: Resources | None = None,
    failures: list[str] | None = None,
) -> Results:
    """Run what is not finished yet; return the results of all finished runs by name.

    A failed run does not stop the others. Its sentence is added to `failures`; without that list, `UserError` is raised
    at the end.
    """
    resources = resources or Resources()
    by_name = {run.name: run for run in runs}
    results = {name: found for name, run in by_name.items() if (found := read_result(folder, run)) is not None}
    waiting = [run for name, run in by_name.items() if name not in results]
    failed: list[str] = []
    if waiting:
        if results:
            say(f"{len(results)} of {len(by_name)} runs are finished")
        with _deadline(resources.max_minutes):
            failed = _run_waiting(waiting, folder, results, say, resources)
    if failures is not None:
        failures += failed
    elif failed:
        raise UserError(f"{len(failed)} runs failed: {' '.join(failed)} Run the same command to try them again.")
    return results


def minutes_left() -> float | None:
    """Minutes until runs have to stop, at least a hundredth; None without a limit."""
    deadline = os.environ.get(DEADLINE)
    return None if deadline is None else max((float(deadline) - time.time()) / 60, 0.01)


def call(run: Run, folder: Path, say: Say) -> dict[str, Any] | None:
    """Run it in this process and save its result."""
    module, _, name = run.function.partition(":")
    own = folder / run.name
    own.mkdir(parents=True, exist_ok=True)
    with _locked(own):
        write_whole(own / SETTINGS_FILE, _identity(run).encode())
        result: dict[str, Any] | None = getattr(import_module(module), name)(resolved(run.settings, folder), own, say)
        if result is not None:
            save_result(own / RESULT_FILE, result)
    return result


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


# ---- executing runs --------------------------------------------------------------------------------------


def _run_waiting(waiting: Sequence[Run], folder: Path, results: Results, say: Say, resources: Resources) -> list[str]:
    """Execute runs as soon as what they need is finished; returns a sentence for each that failed."""
    failed: list[str] = []
    queue = list(waiting)
    running: dict[str, tuple[Run, Any]] = {}
    started, done = time.time(), 0
    if not resources.here:
        say(f"{len(queue)} runs, {resources.jobs} at a time; logs are in {folder}/*/log")
    try:
        while True:
            while len(running) < (1 if resources.here else resources.jobs) and not _time_is_up():
                run = next((run for run in queue if set(run.needs) <= results.keys()), None)
                if run is None:
                    break
                queue.remove(run)
                running[run.name] = (run, (_execute if resources.here else _submit)(run, folder, say, resources))
            if not running:
                return failed
            ended = [pair for pair in running.values() if pair[1].done()]
            if not ended:
                time.sleep(POLL_SECONDS)
            for run, job in ended:
                del running[run.name]
                error = job.exception()
                result = read_result(folder, run)
                if result is not None:
                    results[run.name] = result
                    done += 1
                    left = (time.time() - started) / done * (len(waiting) - done) / 60
                    say(f"{run.name}: {done} of {len(waiting)} runs done, about {left:.0f} min left")
                elif error is not None:
                    failed.append(f"{run.name} failed: {_reason(error)}")
                    say(failed[-1])
    finally:
        for _, job in running.values():  # after Ctrl-C: jobs save themselves and stop
            job.cancel()


@dataclass
class Ended:
    """A run that was executed in this process, with the methods of submitit's jobs."""

    error: Exception | None

    def done(self) -> bool:
        return True

    def exception(self) -> Exception | None:
        return self.error


def _execute(run: Run, folder: Path, say: Say, resources: Resources) -> Ended:
    try:
        call(run, folder, say)
    except Exception as error:
        (folder / run.name / "error.txt").write_text(traceback.format_exc(), encoding="utf-8")
        return Ended(error)
    finally:
        torch = sys.modules.get("torch")
        if torch is not None and torch.cuda.is_initialized():
            gc.collect()
            torch.cuda.empty_cache()
    return Ended(None)


@dataclass
class Job:
    """What submitit executes. After a time limit or preemption it is requeued and resumes from its checkpoint."""

    run: Run
    folder: str
    devices: str | None

    def __call__(self) -> dict[str, Any] | None:
        from recurrify.console import say

        if self.devices is None:
            os.environ.pop("CUDA_VISIBLE_DEVICES", None)  # submitit hides all GPUs from local jobs
        else:
            os.environ["CUDA_VISIBLE_DEVICES"] = self.devices
        os.environ |= {"TRANSFORMERS_VERBOSITY": "error", "HF_HUB_DISABLE_PROGRESS_BARS": "1"}
        return call(self.run, Path(self.folder), say)

    def checkpoint(self, *_: Any) -> Any:
        from submitit.helpers import DelayedSubmission

        return DelayedSubmission(self)


def _submit(run: Run, folder: Path, say: Say, resources: Resources) -> Any:
    from submitit import AutoExecutor

    executor = AutoExecutor(folder=folder / run.name / "log", cluster=resources.cluster)
    minutes = minutes_left() or 60 * SLURM_HOURS
    executor.update_parameters(name=run.name, timeout_min=int(minutes) + 10, stderr_to_stdout=True, **resources.slurm)
    return executor.submit(Job(run, str(folder.resolve()), os.environ.get("CUDA_VISIBLE_DEVICES")))


def _reason(error: BaseException) -> str:
    """The first line of a message. submitit's message is the traceback of its job, whose last error is the reason."""
    lines = [line for line in str(error).splitlines() if line.strip()] or [type(error).__name__]
    raised = [line.partition("Error: ")[2] for line in lines if line[:1].isalpha() and "Error: " in line]
    reason = raised[-1] if "Traceback" in str(error) and raised else lines[0]
    return reason.strip().removesuffix(".") + "."


# ---- shared ----------------------------------------------------------------------------------------------


@contextmanager
def _deadline(max_minutes: float | None) -> Iterator[None]:
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


def _time_is_up() -> bool:
    deadline = os.environ.get(DEADLINE)
    return deadline is not None and time.time() >= float(deadline)


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Two processes never execute the same run."""
    with open(folder / ".lock", "w", encoding="utf-8") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise UserError(f"{str(folder)!r} is in use by another process: wait for it, or stop it.") from None
        yield
