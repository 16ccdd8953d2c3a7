"""Training of networks with the whole series on the device: one look-up per batch, and CUDA graphs.

Every epoch has its own seed, so a run that resumes after an epoch takes the same steps as one that never stopped.
"""

import math
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from recurrify import UserError
from recurrify.interrupts import Interrupt
from recurrify.train import finish_checkpoint, last_whole_checkpoint
from recurrify_papers.forecast.data import WindowedSeries
from recurrify_papers.forecast.scoring import backtest
from recurrify_papers.forecast.settings import ForecastSettings
from recurrify_papers.graphs import CapturedStep, capturable_optimizer, set_rate
from recurrify_papers.scratch.stepping import matmul_context, precision_context

STATE_FILE = "training.pt"
LARGEST_SHARE_OF_SAVING = 0.05
"""Of the time: short epochs are not all saved."""
Watch = Callable[[dict[str, Any]], None]
"""Called with the numbers of each epoch."""
Tick = Callable[[int], None]
"""Called with the number of steps done."""


@dataclass
class Progress:
    """What a training has reached; all of it is saved."""

    epoch: int = 0
    """Finished epochs."""
    best_loss: float = math.inf
    best_epoch: int = 0
    history: list[dict[str, float]] = field(default_factory=list)
    best: dict[str, Tensor] = field(default_factory=dict)
    """The weights of the best epoch."""

    def stops(self, settings: ForecastSettings) -> bool:
        waited = self.epoch - self.best_epoch
        return self.epoch >= settings.epochs or 0 < settings.patience <= waited


def chosen_precision(settings: ForecastSettings) -> AbstractContextManager[Any]:
    return precision_context(settings.precision == "bf16", torch.device(settings.device))


def learning_rate(settings: ForecastSettings, epoch: int) -> float:
    """Of an epoch, counted from 0."""
    halvings = epoch // settings.halve_every
    factors = {
        "halve": 0.5**halvings,
        "published": 0.5 ** max(0, halvings - 1),
        "cosine": 0.5 * (1 + math.cos(math.pi * epoch / settings.epochs)),
        "constant": 1.0,
    }
    return settings.learning_rate * factors[settings.schedule]


class Step:
    """One update from the windows that begin at given rows; returns the loss on the device."""

    def __init__(self, model: nn.Module, data: WindowedSeries, settings: ForecastSettings) -> None:
        from recurrify.speed import leave_out_cudnn  # imports torch's compiler, which linear models do without

        self.settings, self.data, self.model = settings, data, model
        device = torch.device(settings.device)
        self.captures = device.type == "cuda" and settings.speed == "auto"
        leave_out_cudnn()
        self.optimizer = capturable_optimizer(
            model, settings.learning_rate, 0.0, device, settings.recurrence_learning_rate
        )
        self.captured: CapturedStep | None = None

    def __call__(self, starts_B: Tensor) -> Tensor:
        if not self.captures:
            return self._update(starts_B)
        if self.captured is None:
            self.starts_B = starts_B.clone()
            dtype = torch.bfloat16 if self.settings.precision == "bf16" else torch.float32
            self.captured = CapturedStep(self.model, lambda: self._update(self.starts_B), self.optimizer, dtype=dtype)
        self.starts_B.copy_(starts_B)
        return self.captured()

    def _update(self, starts_B: Tensor) -> Tensor:
        self.optimizer.zero_grad(set_to_none=True)
        batch = self.data.batch(starts_B)
        with chosen_precision(self.settings):
            forecast = self.model(batch.past, batch.past_time, batch.future_time)
        loss = nn.functional.mse_loss(forecast.float(), batch.future)
        loss.backward()
        self.optimizer.step()
        return loss.detach()


def epoch_starts(data: WindowedSeries, settings: ForecastSettings, epoch: int) -> Tensor:
    """(N, B): the windows of an epoch in full batches."""
    starts = data.starts("train")
    generator = torch.Generator().manual_seed(settings.seed * 1_000_003 + epoch)
    wanted = min(len(starts), settings.epoch_windows or len(starts))
    batch = min(settings.batch, wanted)
    # Drop the rest before sorting, or the last windows of the series would never be seen in sequential order.
    chosen = torch.randperm(len(starts), generator=generator)[: wanted // batch * batch]
    if settings.order == "sequential":
        chosen = chosen.sort().values
    return starts[chosen.to(starts.device)].view(-1, batch)


class Training:
    """Trains a model in place, and resumes after the last epoch that its folder holds."""

    def __init__(
        self, model: nn.Module, data: WindowedSeries, settings: ForecastSettings, folder: Path | None = None
    ) -> None:
        self.model, self.data, self.settings, self.folder = model, data, settings, folder
        self.step = Step(model, data, settings)
        self.progress = Progress()
        self.interrupt = Interrupt()
        self.deadline = time.monotonic() + 60 * (settings.max_minutes or math.inf)
        checkpoint = None if folder is None else last_whole_checkpoint(folder)
        if checkpoint is not None:
            self._load(checkpoint / STATE_FILE)

    def run(self, watch: Watch | None = None, tick: Tick | None = None) -> Progress:
        """Train to the end, for `max_minutes`, or until Ctrl-C or SIGTERM, which are raised.

        The model is left with the weights of the best epoch, or of the last step if no epoch is finished.
        """
        settings, progress, next_save = self.settings, self.progress, 0.0
        if tick is not None:
            tick(progress.epoch * len(epoch_starts(self.data, settings, 0)))
        listening = self.interrupt.listening() if self.folder is not None else nullcontext()
        with listening, matmul_context(settings.precision, torch.device(settings.device)):
            while not progress.stops(settings) and self._epoch(tick):
                started = time.monotonic()
                if self.folder is not None and (progress.stops(settings) or started >= next_save):
                    self._save(self.folder)
                    next_save = time.monotonic() + (time.monotonic() - started) / LARGEST_SHARE_OF_SAVING
                if watch is not None:
                    watch(progress.history[-1])
        if progress.best:
            self.model.load_state_dict(progress.best)
        self.model.eval()
        if self.interrupt.heard:
            raise KeyboardInterrupt
        return progress

    def _epoch(self, tick: Tick | None) -> bool:
        """False if it was stopped before the last step: its steps are then taken again by a run that resumes."""
        settings, progress, began = self.settings, self.progress, time.monotonic()
        torch.manual_seed(settings.seed * 1_000_003 + progress.epoch)
        set_rate(self.step.optimizer, learning_rate(settings, progress.epoch))
        self.model.train()
        batches = epoch_starts(self.data, settings, progress.epoch)
        total = torch.zeros((), device=self.data.values_TC.device)
        for starts_B in batches:
            if self.interrupt.heard or time.monotonic() > self.deadline:
                return False
            total += self.step(starts_B)
            if tick is not None:
                tick(1)
        losses = {"train_mse": total.item() / len(batches)}
        seconds = round(time.monotonic() - began, 3)
        with chosen_precision(settings):
            losses["valid_mse"] = backtest(self.model, self.data, "valid", settings.valid_windows).mse
        if not all(map(math.isfinite, losses.values())):
            raise UserError(
                f"The loss is not finite in epoch {progress.epoch + 1}: use a lower --learning-rate and a new folder."
            )
        progress.epoch += 1
        progress.history.append({"epoch": progress.epoch, **losses, "seconds": seconds})
        if losses["valid_mse"] < progress.best_loss:
            progress.best_loss, progress.best_epoch = losses["valid_mse"], progress.epoch
            progress.best = {name: value.detach().clone() for name, value in self.model.state_dict().items()}
        return True

    def _save(self, folder: Path) -> None:
        path = folder / f"checkpoint-{self.progress.epoch}"
        path.mkdir(parents=True)
        state = {"model": self.model.state_dict(), "optimizer": self.step.optimizer.state_dict()}
        torch.save(state | {"progress": asdict(self.progress)}, path / STATE_FILE)
        finish_checkpoint(path)

    def _load(self, path: Path) -> None:
        try:
            state = torch.load(path, map_location=self.data.values_TC.device, weights_only=True)
            self.model.load_state_dict(state["model"])
            groups = self.step.optimizer.state_dict()["param_groups"]
            self.step.optimizer.load_state_dict({"state": state["optimizer"]["state"], "param_groups": groups})
            self.progress = Progress(**state["progress"])
        except Exception as error:  # torch.load raises many kinds for a damaged file
            raise UserError(f"{path} cannot be resumed from ({error}): delete it, or choose another folder.") from error
