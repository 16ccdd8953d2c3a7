"""Training with the whole series on the device: no data loader, one look-up for each batch, and CUDA graphs.

Every epoch is seeded by itself, and a stop within one keeps the states of the random numbers, so a run that goes on
takes the steps of one that never stopped.
"""

import json
import math
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor, nn

from recurrify.attention.encoding import recurrence_parameters
from recurrify.attention.kernels import TRITON_INSTALLED
from recurrify.errors import UserError
from recurrify.results import write_whole
from recurrify.speed.backends import leave_out_cudnn
from recurrify.speed.capturing import capturable_optimizer, capture, on_side_stream, set_rate
from recurrify.speed.compiling import compiled
from recurrify_papers.forecast.data import WindowedSeries
from recurrify_papers.forecast.evaluation import mean_squared_error
from recurrify_papers.forecast.settings import ForecastSettings
from recurrify_papers.forecast.stopping import Stop
from recurrify_papers.models.informer import Informer

STATE_FILE = "training.safetensors"
STEPS_BEFORE_CAPTURE = 3
"""Ordinary steps that let libraries and allocator settle, and pointwise parts be compiled, before a CUDA graph is
captured."""
STEPS_BETWEEN_LOOKS = 50
"""At the clock: each look waits for the device."""
LARGEST_SHARE_OF_SAVING = 0.05
"""Of the time: where epochs are short, not each of them is saved."""

FACTS = ("epoch", "best_loss", "best_epoch", "history", "steps", "seconds")
"""Of `Progress`, that are written down beside the tensors."""

Watch = Callable[[dict[str, Any]], None]
"""Told the numbers of each epoch."""
Tick = Callable[[int], None]
"""Told how many steps were done."""


@dataclass
class Progress:
    """How far a training has come."""

    epoch: int = 0
    """Epochs that are done."""
    best_loss: float = math.inf
    best_epoch: int = 0
    history: list[dict[str, float]] = field(default_factory=list)
    best: dict[str, Tensor] = field(default_factory=dict)
    """The weights of the best epoch."""
    steps: int = 0
    """Of the epoch that is open, where the time was up within it."""
    seconds: float = 0.0
    """That these steps took."""
    within: dict[str, Tensor] = field(default_factory=dict)
    """What these steps left behind: their losses added up, and the states of the random numbers."""

    def stops(self, settings: ForecastSettings) -> bool:
        waited = self.epoch - self.best_epoch
        return self.epoch >= settings.epochs or 0 < settings.patience <= waited


@dataclass(frozen=True)
class Outcome:
    finished: bool
    """False where the time was up; the same run goes on from there."""
    best_epoch: int
    history: list[dict[str, float]]
    seconds_per_epoch: float | None
    """Of training alone, the quickest epoch of this invocation."""
    stopped: str | None = None
    """Where the time was up."""

    @property
    def valid_mse(self) -> float | None:
        """Of the best epoch; None for what is not trained."""
        return self.history[self.best_epoch - 1]["valid_mse"] if self.history else None


def precision_context(settings: ForecastSettings) -> AbstractContextManager[Any]:
    device = torch.device(settings.device).type
    if settings.precision == "bf16":
        # A captured graph must not reuse casts made outside of it.
        return torch.autocast(device, dtype=torch.bfloat16, cache_enabled=False)
    return nullcontext()


def learning_rate(settings: ForecastSettings, epoch: int) -> float:
    """Of an epoch, counted from 0."""
    halvings = epoch // settings.halve_every
    if settings.schedule == "halve":
        return settings.learning_rate * 0.5**halvings
    if settings.schedule == "published":
        return settings.learning_rate * 0.5 ** max(0, halvings - 1)
    if settings.schedule == "cosine":
        return settings.learning_rate * 0.5 * (1 + math.cos(math.pi * epoch / settings.epochs))
    return settings.learning_rate


class Step:
    """One update of the weights from the windows that begin at given rows; gives the loss, still on the device.

    What is captured as a graph has its pointwise parts fused, where the model can and `fused` is not False.
    """

    def __init__(self, model: nn.Module, data: WindowedSeries, settings: ForecastSettings, fused: bool = True) -> None:
        self.settings, self.data, self.model = settings, data, model
        device = torch.device(settings.device)
        on_cuda = device.type == "cuda"
        # cuDNN's LSTM and GRU keep a state of their own, and are one call anyway.
        usual = "graph" if on_cuda and settings.model not in ("lstm", "gru") else "plain"
        self.speed = usual if settings.speed == "auto" else settings.speed
        self.forward: Callable[..., Tensor] = compiled(model) if self.speed == "compile" else model
        if isinstance(model, Informer):
            model.fuse(fused and self.speed == "graph" and TRITON_INSTALLED)
        leave_out_cudnn()
        self.optimizer = capturable_optimizer(
            model.parameters(),
            settings.learning_rate,
            settings.weight_decay,
            device,
            apart=recurrence_parameters(model),
            apart_rate=settings.recurrence_learning_rate,
        )
        self.replay: Callable[[], None] | None = None
        self.ordinary_steps = 0

    def __call__(self, starts_B: Tensor) -> Tensor:
        if self.speed != "graph":
            return self._update(starts_B)
        if self.ordinary_steps < STEPS_BEFORE_CAPTURE:
            self.ordinary_steps += 1
            return on_side_stream(lambda: self._update(starts_B))
        if self.replay is None:
            self.starts_B = starts_B.clone()
            # Without gradients left over, those made while capturing lie in the graph's own memory, and each replay
            # overwrites them.
            self.optimizer.zero_grad(set_to_none=True)
            self.replay = capture(self._captured)
        self.starts_B.copy_(starts_B)
        self.replay()
        return self.loss

    def _update(self, starts_B: Tensor) -> Tensor:
        self.optimizer.zero_grad(set_to_none=True)
        loss = self._backward(starts_B)
        self.optimizer.step()
        return loss.detach()

    def _backward(self, starts_B: Tensor) -> Tensor:
        batch = self.data.batch(starts_B)
        with precision_context(self.settings):
            forecast = self.forward(batch.past, batch.past_time, batch.future_time)
        loss = nn.functional.mse_loss(forecast.float(), batch.future)
        loss.backward()
        return loss

    def _captured(self) -> None:
        self.loss = self._backward(self.starts_B).detach()
        self.optimizer.step()


def epoch_starts(data: WindowedSeries, settings: ForecastSettings, epoch: int) -> Tensor:
    """(N, B): the windows of an epoch in full batches; what is left of the last batch waits for another epoch."""
    starts = data.starts("train")
    generator = torch.Generator().manual_seed(settings.seed * 1_000_003 + epoch)
    wanted = min(len(starts), settings.epoch_windows or len(starts))
    batch = min(settings.batch, wanted)
    # Cut before it is sorted, or the last windows of the series would never be seen in the order of time.
    chosen = torch.randperm(len(starts), generator=generator)[: wanted // batch * batch]
    if settings.order == "sequential":
        chosen = chosen.sort().values
    return starts[chosen.to(starts.device)].view(-1, batch)


def steps_per_epoch(data: WindowedSeries, settings: ForecastSettings) -> int:
    return len(epoch_starts(data, settings, 0))


def fit(
    model: nn.Module,
    data: WindowedSeries,
    settings: ForecastSettings,
    folder: Path | None = None,
    watch: Watch | None = None,
    tick: Tick | None = None,
    begun: float | None = None,
) -> Outcome:
    """Train `model` in place and leave it with the weights of its best epoch.

    With a `folder` the run is saved there after the first and the last epoch, after those between as often as a
    twentieth of the time allows, and within one when `max_minutes` are over or at Ctrl-C (which is then raised); it
    goes on from what is there. The minutes count from `begun`, a `time.monotonic()`, or else from now.
    """
    if torch.device(settings.device).type == "cuda" and settings.precision != "fp32":
        torch.set_float32_matmul_precision("high")
    deadline = math.inf
    if settings.max_minutes is not None:
        deadline = (time.monotonic() if begun is None else begun) + 60 * settings.max_minutes
    step = Step(model, data, settings)
    progress = Progress()
    if folder is not None:
        _load(folder, model, step.optimizer, progress)
    if tick is not None:
        tick(progress.epoch * steps_per_epoch(data, settings) + progress.steps)
    fastest, stop, next_save, unsaved = math.inf, Stop(deadline), 0.0, False
    with nullcontext() if folder is None else stop.listening():
        while not progress.stops(settings) and not stop.heard:
            seconds = _one_epoch(model, step, data, settings, progress, tick, stop)
            if seconds is not None:
                fastest = min(fastest, seconds)
            unsaved = folder is not None
            if folder is not None and (saving := time.monotonic()) >= next_save:
                _save(folder, model, step.optimizer, progress)
                next_save, unsaved = saving + (time.monotonic() - saving) / LARGEST_SHARE_OF_SAVING, False
            if seconds is None:
                break
            if watch is not None:
                watch(progress.history[-1])
        if folder is not None and unsaved:
            _save(folder, model, step.optimizer, progress)
    if stop.heard:
        raise KeyboardInterrupt
    if progress.best:
        model.load_state_dict(progress.best)
    model.eval()
    return Outcome(
        progress.stops(settings),
        progress.best_epoch,
        progress.history,
        None if math.isinf(fastest) else fastest,
        None if progress.stops(settings) else _where(progress, steps_per_epoch(data, settings)),
    )


def _where(progress: Progress, steps: int) -> str:
    told = f"in epoch {progress.epoch + 1}, after {progress.steps:,} of its {steps:,} steps"
    seconds = progress.seconds / progress.steps * steps if progress.steps else None
    if progress.history:
        seconds = progress.history[-1]["seconds"]
    return told if seconds is None else f"{told} (an epoch takes about {seconds / 60:.1f} minutes)"


def _one_epoch(
    model: nn.Module,
    step: Step,
    data: WindowedSeries,
    settings: ForecastSettings,
    progress: Progress,
    tick: Tick | None,
    stop: Stop,
) -> float | None:
    """The seconds that training took; None where it was to stop before the last step."""
    torch.manual_seed(settings.seed * 1_000_003 + progress.epoch)
    set_rate(step.optimizer, learning_rate(settings, progress.epoch))
    model.train()
    device = data.values_TC.device
    batches = epoch_starts(data, settings, progress.epoch)
    total = torch.zeros((), device=device)
    if progress.within:
        total.copy_(progress.within["loss"])
        _restore_random(progress.within, device)
    begun = time.monotonic() - progress.seconds
    # Steps are only queued on a GPU, hundreds ahead: the clock means nothing before they are done, and waiting costs.
    between = STEPS_BETWEEN_LOOKS if device.type == "cuda" else 1
    for number in range(progress.steps, len(batches)):
        if stop.is_due(total, looks_at_clock=(number - progress.steps) % between == 0):
            progress.steps, progress.seconds = number, time.monotonic() - begun
            progress.within = {"loss": total} | _random_states(device)
            return None
        total += step(batches[number])
        if tick is not None:
            tick(1)
    train_loss = total.item() / len(batches)
    seconds = time.monotonic() - begun
    _check_finite("training", train_loss, progress)
    model.eval()
    with precision_context(settings):
        valid_loss = mean_squared_error(model, data, "valid", settings.valid_windows)
    # The last step of an epoch may be the one that spoils the weights: its own loss is from before.
    _check_finite("validation", valid_loss, progress)
    progress.epoch += 1
    progress.steps, progress.seconds, progress.within = 0, 0.0, {}
    progress.history.append(
        {"epoch": progress.epoch, "train_mse": train_loss, "valid_mse": valid_loss, "seconds": round(seconds, 3)}
    )
    if valid_loss < progress.best_loss:
        progress.best_loss, progress.best_epoch = valid_loss, progress.epoch
        progress.best = {name: value.detach().clone() for name, value in model.state_dict().items()}
    return seconds


def _check_finite(part: str, loss: float, progress: Progress) -> None:
    if not math.isfinite(loss):
        raise UserError(
            f"The {part} loss is not finite in epoch {progress.epoch + 1}: training stopped, and what was saved before "
            "is good; lower the learning rate and use a new output folder, or look at the data."
        )


def _random_states(device: torch.device) -> dict[str, Tensor]:
    states = {"random.cpu": torch.get_rng_state()}
    return states | ({"random.cuda": torch.cuda.get_rng_state(device)} if device.type == "cuda" else {})


def _restore_random(within: dict[str, Tensor], device: torch.device) -> None:
    torch.set_rng_state(within["random.cpu"].cpu())
    if device.type == "cuda" and "random.cuda" in within:
        torch.cuda.set_rng_state(within["random.cuda"].cpu(), device)


def _save(folder: Path, model: nn.Module, optimizer: torch.optim.Optimizer, progress: Progress) -> None:
    """One file, whole or not at all: the weights now and at their best, the optimiser's moments, and the history."""
    tensors = {f"now.{name}": value for name, value in model.state_dict().items()}
    tensors |= {f"best.{name}": value for name, value in progress.best.items()}
    tensors |= {f"within.{name}": value for name, value in progress.within.items()}
    for index, moments in optimizer.state_dict()["state"].items():
        tensors |= {f"optimizer.{index}.{name}": value for name, value in moments.items()}
    facts = {name: getattr(progress, name) for name in FACTS}
    # Cloned, for the format refuses tensors that share memory.
    whole = {name: value.detach().cpu().clone().contiguous() for name, value in tensors.items()}
    write_whole(folder / STATE_FILE, save(whole, metadata={"progress": json.dumps(facts)}))


def _load(folder: Path, model: nn.Module, optimizer: torch.optim.Optimizer, progress: Progress) -> None:
    path = folder / STATE_FILE
    if not path.is_file():
        return
    try:
        with safe_open(path, framework="pt") as file:
            facts = json.loads(file.metadata()["progress"])
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118, it is no mapping
        device = next(model.parameters()).device
        model.load_state_dict(_under("now.", tensors))
        progress.best = {name: value.to(device) for name, value in _under("best.", tensors).items()}
        progress.within = _under("within.", tensors)
        state: dict[int, dict[str, Tensor]] = {}
        for name, value in _under("optimizer.", tensors).items():
            index, _, moment = name.partition(".")
            state.setdefault(int(index), {})[moment] = value
        optimizer.load_state_dict({"state": state, "param_groups": optimizer.state_dict()["param_groups"]})
        for name, value in facts.items():
            setattr(progress, name, value)
    except (OSError, ValueError, KeyError, TypeError, RuntimeError, SafetensorError) as error:
        raise UserError(f"{path} cannot be gone on from ({error}): delete it, or choose another folder.") from error


def how_far(folder: Path) -> str | None:
    """What a training has saved there, in words."""
    path = folder / STATE_FILE
    if not path.is_file():
        return None
    try:
        with safe_open(path, framework="pt") as file:
            facts = json.loads(file.metadata()["progress"])
        within = f" and {facts['steps']:,} steps of the next" if facts["steps"] else ""
        return f"after epoch {facts['epoch']}{within}"
    except (OSError, ValueError, KeyError, TypeError, SafetensorError):
        return None  # whoever goes on from it will say what is wrong


def _under(prefix: str, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    return {name.removeprefix(prefix): value for name, value in tensors.items() if name.startswith(prefix)}
