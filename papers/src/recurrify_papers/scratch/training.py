"""Training a language model from scratch on a stream of symbols, such that a stop and a restart change nothing.

All that the next step depends on is saved: the weights, the optimiser's moments, the state of every lane, the step, and
the state of the random numbers that dropout draws from.
"""

import gc
import json
import math
import time
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor, nn

from recurrify.errors import UserError
from recurrify.interrupts import Interrupt
from recurrify.results import write_whole
from recurrify.speed.products import quick_products
from recurrify_papers.pretrain.training import WARM_STEPS
from recurrify_papers.scratch.lanes import Lanes, Score
from recurrify_papers.scratch.settings import ScratchSettings
from recurrify_papers.scratch.stepping import Stepper, chosen_speed

TRAINING_FILE = "training.safetensors"
SECONDS_BETWEEN_SAVES = 300
"""What is lost at most when a run is killed; a large model takes seconds to save."""

Validate = Callable[[nn.Module], Score]
Watch = Callable[[dict[str, float]], None]
"""Told the numbers of each validation."""
Tick = Callable[[int], None]
"""Told how many steps were done."""
Tell = Callable[[str], None]
"""Told what is not as it was asked for, in a sentence."""


@dataclass
class Progress:
    """How far a run has come, over all its invocations."""

    step: int = 0
    seconds: float = 0.0
    """Of training, without validating and saving."""
    timed_steps: int = 0
    """Those that count for the speed: not the first of each invocation, in which things are compiled."""
    timed_seconds: float = 0.0
    waiting: list[float] = field(default_factory=list)
    """Losses since the last point of the curve."""
    peak_bytes: int | None = None
    """The most memory of a GPU that tensors took, in any invocation."""
    training: list[dict[str, float]] = field(default_factory=list)
    """The curve: by step, the mean loss since the point before, and the seconds of training until then."""
    validation: list[dict[str, float]] = field(default_factory=list)


@dataclass(frozen=True)
class ScratchOutcome:
    finished: bool
    """False when its minutes ran out or it was interrupted: the same command goes on with it."""
    interrupted: bool
    progress: Progress
    speed: str
    """How the steps were run."""

    @property
    def steps_per_second(self) -> float | None:
        """Of training alone; None where there were too few steps to tell."""
        timed = self.progress.timed_seconds
        return self.progress.timed_steps / timed if timed else None


class Run:
    """A run on its way."""

    def __init__(self, model: nn.Module, ids_T: Tensor, settings: ScratchSettings, folder: Path | None) -> None:
        self.model, self.settings, self.folder = model, settings, folder
        self.stepper = Stepper(model, Lanes(ids_T, settings.batch, settings.length), settings)
        self.progress = Progress()
        self.losses = torch.zeros(settings.log_steps, device=ids_T.device)
        self.taken = 0
        """Steps whose losses are still on the device."""
        self.started = 0.0
        """When the first of them began."""
        self.cold_steps = WARM_STEPS
        self.saved = time.monotonic()
        torch.manual_seed(settings.seed)
        if self.stepper.device.type == "cuda":
            _forget_peak(self.stepper.device)
        if folder is not None:
            _load(folder, self)

    def step(self) -> None:
        if self.taken == 0:
            self.started = time.monotonic()
        self.losses[self.taken].copy_(self.stepper(self.progress.step))
        self.taken += 1
        self.progress.step += 1
        if self.progress.step % self.settings.log_steps == 0 or self.progress.step == self.settings.steps:
            self.fetch()
            losses = self.progress.waiting
            point = {"step": self.progress.step, "loss": math.fsum(losses) / len(losses)}
            self.progress.training.append(point | {"training_seconds": round(self.progress.seconds, 3)})
            self.progress.waiting = []

    def fetch(self) -> None:
        """Wait for the device, and look at what it found."""
        if not self.taken:
            return
        found = self.losses[: self.taken].tolist()
        seconds = time.monotonic() - self.started
        self.progress.seconds += seconds
        if self.cold_steps > 0:
            self.cold_steps -= self.taken
        else:
            self.progress.timed_steps += self.taken
            self.progress.timed_seconds += seconds
        for index, loss in enumerate(found):
            if not math.isfinite(loss):
                raise self._not_finite("loss", self.progress.step - self.taken + index + 1)
        self.progress.waiting += found
        self.taken = 0

    def _not_finite(self, what: str, step: int) -> UserError:
        saved = None if self.folder is None else saved_step(self.folder)
        kept = "nothing was saved yet" if saved is None else f"the checkpoint of step {saved} is good"
        return UserError(
            f"The {what} is not finite at step {step}: {kept}; lower the learning rate and use a new output folder, or "
            "look at the settings and the data."
        )

    def validate(self, validate: Validate) -> dict[str, float]:
        self.fetch()
        self.model.eval()
        score = validate(self.model)
        self.model.train()
        entry = {
            "step": self.progress.step,
            "loss": score.loss,
            "bits_per_symbol": score.bits_per_symbol,
            "training_seconds": round(self.progress.seconds, 3),
        }
        self.progress.validation.append(entry)
        return entry

    def save(self) -> None:
        self.fetch()
        if not bool(torch.isfinite(nn.utils.get_total_norm(list(self.model.parameters())))):
            raise self._not_finite("norm of the weights", self.progress.step)
        if self.stepper.device.type == "cuda":
            peak = torch.cuda.max_memory_allocated(self.stepper.device)
            self.progress.peak_bytes = max(peak, self.progress.peak_bytes or 0)
        if self.folder is not None:
            _save(self.folder, self)
        self.saved = time.monotonic()

    @property
    def is_due(self) -> bool:
        """Whether it has gone on for long without being saved."""
        return time.monotonic() - self.saved > SECONDS_BETWEEN_SAVES


def fit(
    model: nn.Module,
    ids_T: Tensor,
    settings: ScratchSettings,
    validate: Validate | None = None,
    folder: Path | None = None,
    watch: Watch | None = None,
    tick: Tick | None = None,
    tell: Tell | None = None,
) -> ScratchOutcome:
    """Train `model` in place, on the device where it and the stream are.

    With a `folder` the run is saved there every few minutes, when its time is up, at Ctrl-C and at its end, and goes on
    from what is there.
    """
    begun = time.monotonic()
    run = Run(model, ids_T, settings, folder)
    if tell is not None and run.stepper.speed != (asked := chosen_speed(settings, ids_T.device)):
        tell(f"every step runs eagerly, not by {asked}: the model's state changes its shape all epoch long")
    if tick is not None:
        tick(run.progress.step)
    interrupt = Interrupt()
    # oneDNN has LSTM layers whole, which is worth more than its products cost.
    recurrent = any(isinstance(module, nn.RNNBase) for module in model.modules())
    model.train()
    with interrupt.listening():
        while run.progress.step < settings.steps:
            with nullcontext() if recurrent else quick_products():
                run.step()
            if tick is not None:
                tick(1)
            last = run.progress.step == settings.steps
            if validate is not None and (last or run.progress.step % settings.valid_steps == 0):
                entry = run.validate(validate)
                if watch is not None:
                    watch(entry)
            time_is_up = time.monotonic() - begun > 60 * (settings.max_minutes or math.inf)
            stops = interrupt.heard or time_is_up
            if last or stops or run.is_due:
                run.save()
            if stops:
                break
    model.eval()
    return ScratchOutcome(
        finished=run.progress.step == settings.steps,
        interrupted=interrupt.heard,
        progress=run.progress,
        speed=run.stepper.speed,
    )


def saved_step(folder: Path) -> int | None:
    """How far the run in a folder has come; None where nothing was saved."""
    path = folder / TRAINING_FILE
    return _read(path, tensors=False)[0]["step"] if path.is_file() else None


def _forget_peak(device: torch.device) -> None:
    # The steps of a run before this one hold each other until they are collected, and their memory would count.
    gc.collect()
    torch.cuda.reset_peak_memory_stats(device)


def _save(folder: Path, run: Run) -> None:
    """One file, whole or not at all."""
    tensors = {f"weights.{name}": value for name, value in run.model.state_dict().items()}
    for index, moments in run.stepper.optimizer.state_dict()["state"].items():
        tensors |= {f"optimizer.{index}.{name}": value for name, value in moments.items()}
    tensors |= {f"state.{name}": value for name, value in run.stepper.state._asdict().items()}
    tensors["random.cpu"] = torch.get_rng_state()
    if run.stepper.device.type == "cuda":
        tensors["random.cuda"] = torch.cuda.get_rng_state(run.stepper.device)
    # Cloned, for the format refuses tensors that share memory.
    whole = {name: value.detach().cpu().clone().contiguous() for name, value in tensors.items()}
    write_whole(folder / TRAINING_FILE, save(whole, metadata={"progress": json.dumps(asdict(run.progress))}))


def _load(folder: Path, run: Run) -> None:
    path = folder / TRAINING_FILE
    if not path.is_file():
        return
    facts, tensors = _read(path)
    stepper = run.stepper
    try:
        run.model.load_state_dict(_under("weights.", tensors))
        moments: dict[int, dict[str, Tensor]] = {}
        for name, value in _under("optimizer.", tensors).items():
            index, _, moment = name.partition(".")
            moments.setdefault(int(index), {})[moment] = value
        groups = stepper.optimizer.state_dict()["param_groups"]
        stepper.optimizer.load_state_dict({"state": moments, "param_groups": groups})
        state = {name: value.to(stepper.device) for name, value in _under("state.", tensors).items()}
        stepper.state = type(stepper.state)(**state)
        run.progress = Progress(**facts)
        torch.set_rng_state(tensors["random.cpu"])
        if stepper.device.type == "cuda" and "random.cuda" in tensors:
            torch.cuda.set_rng_state(tensors["random.cuda"], stepper.device)
    except (ValueError, KeyError, TypeError, RuntimeError) as error:
        raise _damaged(path, error) from error


def _read(path: Path, tensors: bool = True) -> tuple[dict[str, Any], dict[str, Tensor]]:
    try:
        with safe_open(path, framework="pt") as file:
            facts = json.loads(file.metadata()["progress"])
            return facts, {name: file.get_tensor(name) for name in (file.keys() if tensors else ())}
    except (OSError, ValueError, KeyError, TypeError, SafetensorError) as error:
        raise _damaged(path, error) from error


def _damaged(path: Path, error: Exception) -> UserError:
    reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
    return UserError(f"{path} cannot be gone on from ({reason}): delete it to begin anew, or choose another folder.")


def _under(prefix: str, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    return {name.removeprefix(prefix): value for name, value in tensors.items() if name.startswith(prefix)}
