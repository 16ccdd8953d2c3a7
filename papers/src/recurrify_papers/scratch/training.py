"""The training loop of models from scratch. A run that is stopped and resumed ends with the same weights.

A checkpoint is a folder in Trainer's layout: weights, optimizer, random numbers, the carried state, and
`trainer_state.json`, which is written last.
"""

import gc
import json
import math
import time
from collections.abc import Callable
from contextlib import nullcontext, suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import nn

from recurrify import UserError
from recurrify.evaluate import StoppedEvaluation
from recurrify.interrupts import Interrupt
from recurrify.results import write_whole
from recurrify.speed import quick_products
from recurrify.train import finish_checkpoint, last_whole_checkpoint
from recurrify_papers.scratch.rows import Batches, Score
from recurrify_papers.scratch.settings import ScratchSettings
from recurrify_papers.scratch.stepping import Loss, Stepper, next_symbol_loss

WEIGHTS = "model.safetensors"
SECONDS_BETWEEN_SAVES = 300
WARM_STEPS = 20
"""Steps that do not count for the speed: compilation and first allocations."""

Validate = Callable[[nn.Module, Callable[[int], None]], Score]
"""The score of a model; it reports the symbols of each forward pass to its second argument, which may end it."""


@dataclass
class Progress:
    """The state of a run over all its invocations."""

    step: int = 0
    seconds: float = 0.0
    """Training time, without validation and saving."""
    waiting: list[float] = field(default_factory=list)
    """Losses since the last point of the curve."""
    peak_bytes: int | None = None
    """Peak GPU memory of tensors in any invocation."""
    training: list[dict[str, float]] = field(default_factory=list)
    """The curve: mean loss since the point before, and training time."""
    validation: list[dict[str, float]] = field(default_factory=list)

    @property
    def steps_per_second(self) -> float | None:
        """Speed of training alone; None after too few steps."""
        warm = [point for point in self.training if point["step"] >= WARM_STEPS]
        seconds = warm[-1]["training_seconds"] - warm[0]["training_seconds"] if warm else 0.0
        return (warm[-1]["step"] - warm[0]["step"]) / seconds if seconds > 0 else None


@dataclass(frozen=True)
class ScratchOutcome:
    """How an invocation ended."""

    finished: bool
    """False after `max_minutes` or an interrupt: the same command resumes the run."""
    interrupted: bool
    progress: Progress
    speed: str
    """How most steps ran: eager, compile or graph."""


class Run:
    """A run in progress."""

    def __init__(
        self, model: nn.Module, rows: Batches, settings: ScratchSettings, loss: Loss, folder: Path | None
    ) -> None:
        self.model, self.settings, self.folder = model, settings, folder
        self.stepper = Stepper(model, rows, settings, loss)
        self.progress = Progress()
        self.losses = torch.zeros(settings.log_steps, device=rows.device)
        self.pending = 0
        """Steps whose losses are still on the device."""
        self.started = 0.0
        """When the first of them began."""
        self.saved = time.monotonic()
        torch.manual_seed(settings.seed)
        if self.stepper.device.type == "cuda":
            gc.collect()  # the memory of an earlier run in this process would count
            torch.cuda.reset_peak_memory_stats(self.stepper.device)
        checkpoint = None if folder is None else last_whole_checkpoint(folder)
        if checkpoint is not None:
            self._load(checkpoint)

    def step(self) -> None:
        if self.pending == 0:
            self.started = time.monotonic()
        self.losses[self.pending].copy_(self.stepper(self.progress.step))
        self.pending += 1
        self.progress.step += 1
        if self.progress.step % self.settings.log_steps == 0 or self.progress.step == self.settings.steps:
            self.fetch()
            loss = math.fsum(self.progress.waiting) / len(self.progress.waiting)
            self.progress.training.append(self._point(loss))
            self.progress.waiting = []

    def fetch(self) -> None:
        """Wait for the device, and check its losses."""
        if not self.pending:
            return
        found = self.losses[: self.pending].tolist()
        self.progress.seconds += time.monotonic() - self.started
        for index, loss in enumerate(found):
            if not math.isfinite(loss):
                raise self._not_finite("loss", self.progress.step - self.pending + index + 1)
        self.progress.waiting += found
        self.pending = 0

    @property
    def is_unvalidated(self) -> bool:
        """Whether this step is to be validated, and is not."""
        step = self.progress.step
        is_due = step > 0 and (step == self.settings.steps or step % self.settings.valid_steps == 0)
        return is_due and not any(entry["step"] == step for entry in self.progress.validation)

    def validate(self, validate: Validate, tick: Callable[[int], None]) -> dict[str, float]:
        self.fetch()
        self.model.eval()
        try:
            score = validate(self.model, tick)
        finally:
            self.model.train()
        self.progress.validation.append(self._point(score.loss) | {"bits_per_symbol": score.bits_per_symbol})
        return self.progress.validation[-1]

    def _point(self, loss: float) -> dict[str, float]:
        return {"step": self.progress.step, "loss": loss, "training_seconds": round(self.progress.seconds, 3)}

    def _not_finite(self, what: str, step: int) -> UserError:
        saved = None if self.folder is None else last_whole_checkpoint(self.folder)
        kept = "there is no checkpoint yet" if saved is None else f"{saved.name} is still valid"
        return UserError(
            f"The {what} is not finite at step {step}: {kept}. Lower the learning rate and use a new output folder, or "
            "check the settings and the data."
        )

    def save(self) -> None:
        """Write a checkpoint; the one before it is kept, in case that this one is damaged."""
        self.fetch()
        if not bool(torch.isfinite(nn.utils.get_total_norm(list(self.model.parameters())))):
            raise self._not_finite("norm of the weights", self.progress.step)
        device = self.stepper.device
        random = {"cpu": torch.get_rng_state()}
        if device.type == "cuda":
            self.progress.peak_bytes = max(torch.cuda.max_memory_allocated(device), self.progress.peak_bytes or 0)
            random["cuda"] = torch.cuda.get_rng_state(device)
        self.saved = time.monotonic()
        if self.folder is None:
            return
        path = self.folder / f"checkpoint-{self.progress.step}"
        path.mkdir(parents=True, exist_ok=True)
        save_file({name: value.detach().cpu() for name, value in self.model.state_dict().items()}, path / WEIGHTS)
        torch.save(self.stepper.optimizer.state_dict(), path / "optimizer.pt")
        torch.save({"last_epoch": self.progress.step}, path / "scheduler.pt")
        carried = {name: value.clone() for name, value in self.stepper.state._asdict().items()}
        torch.save(carried | {"settled": self.stepper.settled}, path / "carried.pt")
        torch.save(random, path / "rng_state.pth")
        state = {"global_step": self.progress.step, "progress": asdict(self.progress)}
        write_whole(path / "trainer_state.json", json.dumps(state).encode())
        finish_checkpoint(path)

    def _load(self, path: Path) -> None:
        stepper = self.stepper
        self.model.load_state_dict(load_file(path / WEIGHTS))
        stepper.optimizer.load_state_dict(torch.load(path / "optimizer.pt", map_location=stepper.device))
        carried: dict[str, Any] = torch.load(path / "carried.pt", map_location=stepper.device)
        stepper.settled = carried.pop("settled")
        stepper.state = type(stepper.state)(**carried)
        self.progress = Progress(**json.loads((path / "trainer_state.json").read_text())["progress"])
        random = torch.load(path / "rng_state.pth")
        torch.set_rng_state(random["cpu"])
        if stepper.device.type == "cuda" and "cuda" in random:
            torch.cuda.set_rng_state(random["cuda"], stepper.device)


def fit(
    model: nn.Module,
    rows: Batches,
    settings: ScratchSettings,
    *,
    loss: Loss = next_symbol_loss,
    validate: Validate | None = None,
    folder: Path | None = None,
    on_validation: Callable[[dict[str, float]], None] = lambda entry: None,
    on_steps: Callable[[int], None] = lambda steps: None,
) -> ScratchOutcome:
    """Train `model` in place, on the device of the batches.

    Args:
        model: The model.
        rows: The training batches, in order; the state starts again with each epoch.
        settings: The settings of the run.
        loss: The loss of a batch.
        validate: Scores the model during training.
        folder: Where checkpoints are written: every five minutes, at the end, after `max_minutes` and on an interrupt.
            Training resumes from the last one. A signal ends a validation; the run that resumes repeats it.
        on_validation: Receives the numbers of each validation.
        on_steps: Receives the number of steps done.
    """
    begun = time.monotonic()
    run, interrupt = Run(model, rows, settings, loss, folder), Interrupt()
    on_steps(run.progress.step)
    # oneDNN runs LSTM layers as a whole, which is worth more than its products cost.
    recurrent = any(isinstance(module, nn.RNNBase) for module in model.modules())
    model.train()

    def check_signal(symbols: int) -> None:
        if interrupt.heard:
            raise StoppedEvaluation

    def validate_if_due() -> None:
        if validate is not None and run.is_unvalidated:
            with suppress(StoppedEvaluation):
                on_validation(run.validate(validate, check_signal))

    with interrupt.listening():
        validate_if_due()  # if a signal ended the validation of the checkpoint
        while run.progress.step < settings.steps and not interrupt.heard:
            with nullcontext() if recurrent else quick_products():
                run.step()
            on_steps(1)
            last = run.progress.step == settings.steps
            validate_if_due()
            now = time.monotonic()
            stops = interrupt.heard or now - begun > 60 * (settings.max_minutes or math.inf)
            if last or stops or now - run.saved > SECONDS_BETWEEN_SAVES:
                run.save()
            if stops:
                break
    model.eval()
    return ScratchOutcome(
        finished=run.progress.step == settings.steps and not (validate is not None and run.is_unvalidated),
        interrupted=interrupt.heard,
        progress=run.progress,
        speed=run.stepper.used_speed,
    )
