"""Where runs are executed: in this process, or as submitit's jobs in processes of this machine or on Slurm."""

import gc
import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from recurrify import UserError
from recurrify.interrupts import TERMINATED, last_signal
from recurrify.results import load_result, write_whole
from recurrify_papers.runner import ENDED_FILE, Run, Say, call, minutes_left

CLUSTERS = ("local", "slurm", "debug")
JOB_FILE = "job.json"
"""In the folder of a run: the cluster, id and log of its last job."""
LOGS = "jobs"
"""Below the folder of runs: submitit's files."""
HOURS = 24.0
"""Time limit of a job."""
SAVING_SECONDS = 120
"""How long before the time limit a job is asked to save and queue again."""
REQUEUES = 1000
GONE_SECONDS = 15.0
"""How long files of a Slurm job may take to appear after it has left the queue."""
Live = dict[str, str]
"""Runs that are submitted, by name: "running", or why they are queued."""


@dataclass(frozen=True, kw_only=True)
class Resources:
    """Where runs are executed, how many at a time, with what and for how long."""

    cluster: str = "local"
    """local: this machine, in this process if `jobs` is 1 and all GPUs may be used; slurm; debug: always this
    process."""
    jobs: int | None = None
    """Runs at a time; by default one on this machine, and as many as Slurm allows."""
    gpus_per_run: int | None = None
    """0 or 1: GPUs of each run; by default runs on this machine share all."""
    time: float | None = None
    """Time limit of a job of Slurm in minutes; some time before it, the run is saved and queued again."""
    partition: str | None = None
    max_minutes: float | None = None
    """Stop after so many minutes; unfinished runs are saved and resume later."""
    slurm: Mapping[str, Any] = field(default_factory=dict)
    """Other parameters of submitit's executor, such as `slurm_account`."""
    detach: bool = False
    """Do not wait for jobs of Slurm."""

    def __post_init__(self) -> None:
        if self.cluster not in CLUSTERS:
            raise UserError(f"`cluster` must be one of {', '.join(CLUSTERS)}: got {self.cluster!r}.")
        if self.gpus_per_run not in (None, 0, 1):
            raise UserError(
                f"`gpus_per_run` is 0 or 1, because a run is one process: got {self.gpus_per_run}. `torchrun` trains "
                "one model on several GPUs."
            )
        if self.cluster != "slurm" and (self.partition or self.detach or self.time is not None):
            raise UserError(
                f"`partition`, `detach` and `time` are for Slurm: got cluster={self.cluster!r}. `max_minutes` stops "
                "runs anywhere."
            )
        saving = self.slurm.get("slurm_signal_delay_s", SAVING_SECONDS)
        # Slurm sends signals up to a minute early.
        if self.time is not None and isinstance(saving, int) and 60 * self.time <= saving + 60:
            raise UserError(
                f"`time` is {self.time:g} minutes, but jobs are asked to save up to {saving + 60} seconds before their "
                "time limit: give more time, or a smaller slurm_signal_delay_s."
            )


def new_cluster(resources: Resources, folder: Path, say: Say) -> "Here | Local | Slurm":
    """The cluster of these resources, for runs in a folder."""
    if resources.cluster == "slurm":
        return Slurm(resources, folder)
    if resources.cluster == "debug" or ((resources.jobs or 1) == 1 and resources.gpus_per_run is None):
        return Here(folder, say)
    return Local(resources, folder)


class Here:
    """This process: `submit` returns when the run has ended."""

    queues = False
    """Whether runs may be submitted before what they need is finished."""
    poll_seconds = 0.0

    def __init__(self, folder: Path, say: Say) -> None:
        self.folder, self.say = folder, say

    def free(self) -> int:
        """How many runs can be submitted now."""
        return 1

    def live(self) -> Live:
        """The runs that have not ended."""
        return {}

    def submit(self, runs: Sequence[Run], needed: Iterable[str] = ()) -> None:
        """Submit runs that need the same unfinished ones."""
        for run in runs:
            try:
                call(run, self.folder, self.say)
            except Exception:
                if not (self.folder / run.name / ENDED_FILE).is_file():  # the disk is full
                    raise
            torch = sys.modules.get("torch")
            if torch is not None and torch.cuda.is_initialized():
                gc.collect()
                torch.cuda.empty_cache()

    def stop(self) -> bool:
        """Stop runs after Ctrl-C; False leaves them running."""
        return True


@dataclass
class Job:
    """What submitit executes. After a time limit or preemption it is queued again, and resumes from its checkpoint."""

    run: Run
    folder: str
    devices: str | None = None
    """GPUs of a local job: submitit's own choice is the first ones for every job."""

    def __call__(self) -> dict[str, Any] | None:
        from submitit import JobEnvironment

        from recurrify.console import say

        if JobEnvironment().cluster == "local":
            os.environ.pop("CUDA_VISIBLE_DEVICES", None)
            if self.devices is not None:
                os.environ["CUDA_VISIBLE_DEVICES"] = self.devices
        os.environ |= {"TRANSFORMERS_VERBOSITY": "error", "HF_HUB_DISABLE_PROGRESS_BARS": "1"}
        signal.signal(signal.SIGUSR1, signal.getsignal(_requeue_signal()))
        signal.signal(signal.SIGTERM, _end)  # training replaces both by its own
        result = None
        with suppress(KeyboardInterrupt):
            result = call(self.run, Path(self.folder), say)
        if result is None:
            _end(last_signal())
        return result

    def checkpoint(self, *_: Any) -> Any:
        """What submitit executes after a time limit."""
        from submitit.helpers import DelayedSubmission

        return DelayedSubmission(self)


def _requeue_signal() -> int:
    """The signal whose handler, submitit's, queues the job again and ends its process."""
    from submitit import JobEnvironment

    return int(getattr(signal, f"SIG{JobEnvironment.USR_SIG}"))


def _end(number: int | None, frame: Any = None) -> None:
    """End this job after a signal; queue it again if its time is up or it is preempted."""
    if number in (signal.SIGUSR1, _requeue_signal()) or (number == signal.SIGTERM and _is_preempted()):
        signal.raise_signal(_requeue_signal())
    sys.exit(TERMINATED)


def _is_preempted() -> bool:
    """Whether Slurm will stop this job, but has not yet. One that ended by itself would count as failed."""
    job = os.environ.get("SLURM_JOB_ID")
    return job is not None and _slurm("squeue", "--noheader", f"--jobs={job}", "--format=%T").strip() == "RUNNING"


class _Jobs:
    """Submits runs through submitit, and records the job of each."""

    def __init__(self, resources: Resources, folder: Path) -> None:
        self.resources, self.folder = resources, folder.resolve()

    def submitted(self, jobs: Sequence[Job], name: str, **parameters: Any) -> list[Any]:
        """Submit jobs; on Slurm several become an array."""
        from submitit import AutoExecutor
        from submitit.core.utils import FailedJobError, FailedSubmissionError

        resources = self.resources
        minutes = resources.time or (minutes_left() or 60 * HOURS) + 10
        if resources.gpus_per_run is not None:
            parameters["gpus_per_node"] = resources.gpus_per_run
        try:
            executor = AutoExecutor(self.folder / LOGS, cluster=resources.cluster, slurm_max_num_timeout=REQUEUES)
            executor.update_parameters(
                name=name, timeout_min=max(1, round(minutes)), stderr_to_stdout=True, **parameters
            )
            with executor.batch():
                found = [executor.submit(job) for job in jobs]
        except (FailedJobError, FailedSubmissionError, RuntimeError, NameError, TypeError, ValueError) as error:
            lines = [line for line in str(error).splitlines() if line.strip()]
            line = lines[0 if isinstance(error, NameError) else -1].strip()  # submitit's own errors, or those of sbatch
            raise UserError(f"Jobs cannot be submitted to {resources.cluster}: {line}") from error
        for job, one in zip(jobs, found, strict=True):
            about = {"cluster": resources.cluster, "id": one.job_id, "log": str(one.paths.stdout)}
            own = self.folder / job.run.name
            own.mkdir(parents=True, exist_ok=True)
            write_whole(own / JOB_FILE, json.dumps(about).encode())
        return found


class Local(_Jobs):
    """Processes of this machine."""

    queues = False
    poll_seconds = 0.5

    def __init__(self, resources: Resources, folder: Path) -> None:
        super().__init__(resources, folder)
        self.jobs = resources.jobs or 1
        self.running: dict[str, tuple[Any, str | None]] = {}
        self.devices: list[str | None] = [os.environ.get("CUDA_VISIBLE_DEVICES")] * self.jobs
        if resources.gpus_per_run is not None:
            self.devices = _gpus(self.jobs, resources.gpus_per_run)

    def free(self) -> int:
        """How many runs can be submitted now."""
        return self.jobs - len(self.running)

    def live(self) -> Live:
        """The runs that have not ended."""
        for name, (job, devices) in list(self.running.items()):
            if job.done():
                del self.running[name]
                self.devices.append(devices)
        return dict.fromkeys(self.running, "running")

    def submit(self, runs: Sequence[Run], needed: Iterable[str] = ()) -> None:
        """Start runs."""
        for run in runs:
            devices = self.devices.pop(0)
            # Ctrl-C in a terminal reaches all its processes; jobs get SIGTERM from this one instead, and save.
            handler = signal.signal(signal.SIGINT, signal.SIG_IGN)
            try:
                (job,) = self.submitted([Job(run, str(self.folder), devices)], run.name)
            finally:
                signal.signal(signal.SIGINT, handler)
            self.running[run.name] = job, devices

    def stop(self) -> bool:
        """Let runs save and end."""
        for job, _ in self.running.values():
            if not job.done():
                os.kill(int(job.job_id), signal.SIGTERM)
        while self.live():
            time.sleep(self.poll_seconds)
        return True


def _gpus(jobs: int, each: int) -> list[str | None]:
    """The GPUs of each of so many jobs."""
    import torch

    named = os.environ.get("CUDA_VISIBLE_DEVICES")
    found = [str(i) for i in range(torch.cuda.device_count())] if named is None else [i for i in named.split(",") if i]
    if jobs * each > len(found):
        raise UserError(f"--jobs {jobs} with --gpus-per-run {each} needs {jobs * each} GPUs: there are {len(found)}.")
    return [",".join(found[each * job : each * (job + 1)]) for job in range(jobs)]


class Slurm(_Jobs):
    """Jobs of Slurm, which outlive this process."""

    queues = True
    poll_seconds = 5.0

    def __init__(self, resources: Resources, folder: Path) -> None:
        super().__init__(resources, folder)
        if shutil.which("sbatch") is None:
            raise _missing("sbatch")
        self.seen: dict[str, float] = {}
        self.found: Live = {}

    def free(self) -> int:
        """Slurm queues as many as there are."""
        return sys.maxsize

    def live(self) -> Live:
        """The runs in the queue, and those that left it so recently that their files may be missing."""
        try:
            self.found = slurm_jobs(self.folder)
        except UserError:
            if not self.seen:
                raise  # later, the controller may be restarting
        now = time.monotonic()
        self.seen |= dict.fromkeys(self.found, now)
        ending = {name: "ending" for name, last in self.seen.items() if now - last < GONE_SECONDS}
        return ending | self.found

    def submit(self, runs: Sequence[Run], needed: Iterable[str] = ()) -> None:
        """Submit runs that need the same unfinished ones, as an array."""
        own = dict(self.resources.slurm)
        additional = {"kill-on-invalid-dep": "yes", "requeue": True, **own.pop("slurm_additional_parameters", {})}
        parameters = {"slurm_signal_delay_s": SAVING_SECONDS, "slurm_partition": self.resources.partition} | own
        if self.resources.jobs is not None:
            parameters["slurm_array_parallelism"] = self.resources.jobs
        ids = [job_of(self.folder / name)["id"] for name in needed]
        if ids:
            parameters["slurm_dependency"] = ":".join(["afterok", *ids])
        name = runs[0].name if len(runs) == 1 else f"{runs[0].name}+{len(runs) - 1}"
        known = {name: value for name, value in parameters.items() if value is not None}
        self.submitted(
            [Job(run, str(self.folder)) for run in runs], name, slurm_additional_parameters=additional, **known
        )

    def stop(self) -> bool:
        """Jobs continue without this process."""
        return False


def job_of(own: Path) -> dict[str, str]:
    """The last job of the run in a folder; empty if there was none."""
    path = own / JOB_FILE
    found: dict[str, str] = load_result(path) if path.is_file() else {}
    if found and not {"cluster", "id", "log"} <= found.keys():
        raise UserError(f"{path} is not the record of a job: delete it and run again.")
    return found


def slurm_jobs(folder: Path) -> Live:
    """The runs of a folder that are in Slurm's queue."""
    jobs = {path.parent.name: job_of(path.parent) for path in folder.glob(f"*/{JOB_FILE}")}
    names = {job["id"]: name for name, job in jobs.items() if job["cluster"] == "slurm"}
    if not names:
        return {}
    queue = _slurm("squeue", "--me", "--noheader", "--array", "--format=%i|%T|%r").splitlines()
    rows = [line.split("|") for line in queue]
    return {
        names[job]: f"queued: {why.lower()}".removesuffix(": none") if state == "PENDING" else state.lower()
        for job, state, why in rows
        if job in names
    }


def cancel_slurm(ids: Sequence[str]) -> None:
    """Cancel jobs; those that train save first."""
    _slurm("scancel", *ids)


def _slurm(*command: str) -> str:
    try:
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout
    except FileNotFoundError:
        raise _missing(command[0]) from None
    except subprocess.CalledProcessError as error:
        raise UserError(f"`{shlex.join(command)}` failed: {error.stderr.strip()}") from None


def _missing(command: str) -> UserError:
    return UserError(f"{command!r} is not installed: run this on a machine of the cluster, or use --cluster local.")
