"""Many runs: starts what is not finished, shows where each run stands, and stops them."""

import os
import re
import signal
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from itertools import groupby
from pathlib import Path
from typing import Any, NamedTuple

from rich.live import Live as LiveTable
from rich.table import Table

from recurrify import UserError
from recurrify.console import err_console, heartbeat, time_left
from recurrify.errors import did_you_mean
from recurrify.interrupts import answering_ctrl_c, stop_at_once
from recurrify_papers.clusters import Here, Live, Resources, cancel_slurm, job_of, new_cluster, slurm_jobs
from recurrify_papers.runner import (
    ENDED_FILE,
    RESULT_FILE,
    Results,
    Run,
    Say,
    deadline,
    process_of,
    read_result,
    time_is_up,
)

MOST_ROWS = 20
"""Of the live table; the others are counted."""
TAIL_BYTES = 4096
IDLE = ("finished", "failed", "stopped", "waiting")


class Standing(NamedTuple):
    """Where a run stands."""

    state: str
    """finished, failed, stopped or waiting; else the state of its job: running, or queued and why."""
    note: str = ""
    """Its progress, or why it failed."""

    @property
    def is_live(self) -> bool:
        """Whether it runs, or will without further ado."""
        return self.state not in IDLE


def standing(run: Run, folder: Path, live: Mapping[str, str]) -> Standing:
    """Where a run stands; `live` has the runs that are submitted."""
    own = folder / run.name
    if (own / RESULT_FILE).is_file():
        return Standing("finished")
    job = job_of(own)
    lines = _last_lines(Path(job["log"])) if job else []
    log = lines[-1].removeprefix(f"{run.name}: ") if lines else ""
    if run.name in live:
        return Standing(live[run.name], log if live[run.name] == "running" else "")
    if process_of(own) is not None:
        return Standing("running", log)
    with suppress(FileNotFoundError):
        state, _, why = (own / ENDED_FILE).read_text(encoding="utf-8").partition("\n")[0].partition(": ")
        return Standing(state, why)
    if job and Path(job["log"]).is_file():
        raised = [line for line in lines if re.match(r"[\w.]*Error: ", line)]
        return Standing("failed", f"it ended without a result: {[log or 'its log is empty', *raised][-1]}")
    return Standing("waiting")


def standings(runs: Sequence[Run], folder: Path) -> dict[str, Standing]:
    """Where runs stand, seen from another process than the one that started them."""
    for run in runs:
        read_result(folder, run)  # raises an error if the folder holds other settings
    live = slurm_jobs(folder) if any(not (folder / run.name / RESULT_FILE).is_file() for run in runs) else {}
    return {run.name: standing(run, folder, live) for run in runs}


def _last_lines(log: Path) -> list[str]:
    """The end of a log; the last line is the progress of its run."""
    with suppress(OSError), log.open("rb") as file:
        file.seek(max(log.stat().st_size - TAIL_BYTES, 0))
        lines = file.read().decode(errors="replace").replace("\r", "\n").splitlines()
        return [line.strip() for line in lines if line.strip() and not line.startswith("submitit ")]
    return []


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
    finished = [name for name, run in by_name.items() if read_result(folder, run) is not None]
    failed: list[str] = []
    if len(finished) < len(by_name):
        if finished:
            say(f"{len(finished)} of {len(by_name)} runs are finished")
        with deadline(resources.max_minutes):
            failed = Sweep(list(by_name.values()), folder, say, resources).run()
    if failures is not None:
        failures += failed
    elif failed:
        raise UserError(f"{len(failed)} of {len(by_name)} runs failed: {' '.join(failed)} Run the same command again.")
    return {name: found for name, run in by_name.items() if (found := read_result(folder, run)) is not None}


class Sweep:
    """Submits each run once, as soon as the cluster takes it, and watches them until none is left."""

    def __init__(self, runs: Sequence[Run], folder: Path, say: Say, resources: Resources) -> None:
        self.folder, self.say = folder, say
        self.cluster, self.detach = new_cluster(resources, folder, say), resources.detach
        self.runs = {run.name: run for run in runs if not (folder / run.name / RESULT_FILE).is_file()}
        self.tried: set[str] = set()
        self.stands: dict[str, Standing] = {}
        self.begun = time.monotonic()

    def run(self) -> list[str]:
        """Run all; returns a sentence for each run that failed."""
        with answering_ctrl_c(stop_at_once, (signal.SIGTERM, signal.SIGHUP)), self._shown() as show:
            try:
                while self._step():
                    show()
            except KeyboardInterrupt:
                if self.cluster.stop():
                    raise
                self.say("The jobs continue: `recurrify experiment status` shows them, `cancel` stops them.")
        return [f"{name} failed: {one.note}" for name, one in self.stands.items() if one.state == "failed"]

    def _step(self) -> bool:
        """Submit what can be, and look once; False if nothing is left to wait for."""
        live = self.cluster.live()
        self._look(live)
        ready = self._ready(live)
        if ready:
            self.tried |= {run.name for run in ready}
            for needed, group in groupby(ready, key=self._unfinished):
                self.cluster.submit(list(group), needed)
            live = self.cluster.live()
            self._look(live)
        if not self._ready(live) and (not live or self.detach):
            return False
        if not ready:
            time.sleep(self.cluster.poll_seconds)
        return True

    def _unfinished(self, run: Run) -> tuple[str, ...]:
        return tuple(name for name in run.needs if name in self.runs and not self._is_finished(name))

    def _is_finished(self, name: str) -> bool:
        return (self.folder / name / RESULT_FILE).is_file()

    def _ready(self, live: Live) -> list[Run]:
        """Runs that can be submitted now, those with the same needs together."""
        stopped = any(one.state == "stopped" for one in self.stands.values())
        if time_is_up() or (stopped and not self.cluster.queues):
            return []
        waiting = [run for run in self.runs.values() if run.name not in self.tried and run.name not in live]
        found = [
            (needed, run)
            for run in waiting
            if not self._is_finished(run.name)
            and (not (needed := self._unfinished(run)) or (self.cluster.queues and live.keys() >= set(needed)))
        ]
        return [run for _, run in sorted(found, key=lambda pair: pair[0])][: self.cluster.free()]

    def _look(self, live: Live) -> None:
        """Report the runs that ended since the last look."""
        for name in self.tried | live.keys() & self.runs.keys():
            before, now = self.stands.get(name), standing(self.runs[name], self.folder, live)
            self.stands[name] = now
            if before is not None and before.state == now.state:
                continue
            if now.state == "finished":
                self.say(f"{name}: {self._progress()}")
            elif now.state in ("failed", "stopped"):
                self.say(f"{name} {now.state}{now.note and f': {now.note}'}")

    def _progress(self) -> str:
        counts = Counter(one.state.partition(":")[0] for one in list(self.stands.values()))
        done, total = counts.pop("finished", 0), len(self.runs)
        parts = [f"{done} of {total} runs done", *(f"{count} {state}" for state, count in counts.items())]
        if done:
            parts.append(f"about {time_left((time.monotonic() - self.begun) / done * (total - done))}")
        return ", ".join(parts)

    @contextmanager
    def _shown(self) -> Iterator[Callable[[], Any]]:
        """A table of all runs on a terminal, lines elsewhere; runs of this process show their own progress."""
        if isinstance(self.cluster, Here):
            yield lambda: None
        elif err_console.is_terminal:
            with LiveTable(console=err_console, auto_refresh=False, transient=True) as shown:
                yield lambda: shown.update(table(self.stands, self._progress()), refresh=True)
        else:
            with heartbeat(self._progress):
                yield lambda: None


def table(stands: Mapping[str, Standing], caption: str = "") -> Table:
    """Runs that are not finished, those that run first."""
    order = ("running", "failed", "stopped")
    rows = [(name, one) for name, one in stands.items() if one.state != "finished"]
    rows.sort(key=lambda row: order.index(row[1].state) if row[1].state in order else len(order))
    found = Table(box=None, pad_edge=False, title=caption or None, title_justify="left", title_style="", expand=True)
    widest = max((len(one.state) for _, one in rows), default=0)
    found.add_column("run", overflow="fold")
    found.add_column("state", min_width=widest)
    found.add_column("progress", overflow="ellipsis", no_wrap=True, ratio=1)
    for name, one in rows[:MOST_ROWS]:
        found.add_row(name, one.state, one.note)
    if len(rows) > MOST_ROWS:
        found.add_row(f"and {len(rows) - MOST_ROWS} more")
    return found


def cancel(runs: Sequence[Run], folder: Path) -> list[str]:
    """Stop runs, on whatever cluster they are; those that train save first. Returns their names."""
    unfinished = [run.name for run in runs if not (folder / run.name / RESULT_FILE).is_file()]
    queued = slurm_jobs(folder)
    jobs = {name: job_of(folder / name)["id"] for name in unfinished if name in queued}
    if jobs:
        cancel_slurm(list(jobs.values()))
    here = {name: process for name in unfinished if name not in jobs and (process := process_of(folder / name))}
    for process in here.values():
        with suppress(ProcessLookupError):  # it ended meanwhile
            os.kill(process, signal.SIGTERM)
    return [*jobs, *here]


def log_of(name: str, names: Sequence[str], folder: Path) -> Path:
    """The log of a run's last job; without a job, why the run failed."""
    if name not in names:
        raise UserError(f"There is no run {name!r} in it{did_you_mean(name, names)}: give a name such as {names[0]}.")
    job = job_of(folder / name)
    path = Path(job["log"]) if job else folder / name / ENDED_FILE
    if not path.is_file():
        raise UserError(f"{name!r} has no log: it did not run as a job, or is still queued.")
    return path
