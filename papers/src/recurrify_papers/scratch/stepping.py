"""One update of the weights over a batch: eager, compiled, or captured as one CUDA graph.

The program never waits for a step: the batches and the learning rate are on the device, and the loss stays there.
"""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from recurrify import UserError
from recurrify.speed import compile_function, verify_step
from recurrify_papers.graphs import CapturedStep, capturable_optimizer, set_rate
from recurrify_papers.scratch.rows import Batches
from recurrify_papers.scratch.settings import ScratchSettings

CUDNN_MODELS = ("lstm", "gru")

State = Any
"""A NamedTuple of tensors without gradient: what a model carries from segment to segment."""
Loss = Callable[[Any, Tensor, State], tuple[Tensor, State]]
"""From a model, a batch and the state before it to the loss and the state after it."""
LossFunction = Callable[[Tensor, State], tuple[Tensor, State]]


def chosen_speed(settings: ScratchSettings, device: torch.device) -> str:
    """eager, compile or graph."""
    if settings.speed == "graph" and device.type != "cuda":
        raise UserError("`speed` is graph, but there is no usable CUDA GPU to capture on: use auto, eager or compile.")
    if settings.speed != "auto":
        return settings.speed
    return "graph" if device.type == "cuda" and settings.arch not in CUDNN_MODELS else "eager"


def uses_half(precision: str, device: torch.device) -> bool:
    from recurrify.train import uses_bf16  # imports transformers, which forecasts do without

    return uses_bf16(precision) and device.type == "cuda"


def precision_context(half: bool, device: torch.device) -> AbstractContextManager[Any]:
    # Without the cache: a captured graph must not reuse casts made outside of it.
    return torch.autocast(device.type, dtype=torch.bfloat16, enabled=half, cache_enabled=False)


@contextmanager
def matmul_context(precision: str, device: torch.device) -> Iterator[None]:
    """TF32 for float32 products on CUDA, unless the precision is fp32; the earlier setting returns at the end."""
    before = torch.get_float32_matmul_precision()
    if device.type == "cuda" and precision != "fp32":
        torch.set_float32_matmul_precision("high")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)


def next_symbol_loss(model: Any, tokens_BN: Tensor, state: State) -> tuple[Tensor, State]:
    """The loss of predicting each symbol of a segment from those before it."""
    logits_BNV, after = model(tokens_BN[:, :-1], state)
    return functional.cross_entropy(logits_BNV.float().flatten(0, 1), tokens_BN[:, 1:].flatten()), after


class Stepper:
    """Runs the steps of a training run in order, and keeps the state between them."""

    def __init__(
        self, model: nn.Module, rows: Batches, settings: ScratchSettings, loss: Loss = next_symbol_loss
    ) -> None:
        self.model: Any = model
        self.rows, self.settings, self.loss_of = rows, settings, loss
        self.device = rows.device
        self.speed, self.half = chosen_speed(settings, self.device), uses_half(settings.precision, self.device)
        self.parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
        self.optimizer = capturable_optimizer(
            model, settings.learning_rate, settings.weight_decay, self.device, settings.recurrence_learning_rate
        )
        self.state = self._first_state()
        self.settled = False
        """Whether the state has the same shapes as before the last step, so that compiled code can be reused."""
        self.quick: LossFunction | None = None
        self.captured: CapturedStep | None = None

    @property
    def used_speed(self) -> str:
        """The speed of the steps so far: eager where the state never settled."""
        return self.speed if self.quick is not None else "eager"

    def __call__(self, step: int) -> Tensor:
        """The loss, still on the device; the next step may overwrite it."""
        segment = step % self.rows.segments
        if segment == 0:
            self.state, self.settled = self._first_state(), False
        set_rate(self.optimizer, self.settings.rate(step))
        tokens_BN = self.rows.segment(segment)
        # While a memory fills up, each shape would be compiled and captured separately.
        if self.speed == "eager" or not self.settled:
            before = _layout(self.state)
            loss = self._update(self._loss, tokens_BN.long())
            self.settled = _layout(self.state) == before
            return loss
        if self.quick is None:
            # Without a reset, a process that trains several models would reach the compiler's limit.
            torch.compiler.reset()
            self.quick = compile_function(self._loss, dynamic=False)
            if not self._agrees(self.quick, tokens_BN.long()):
                self.speed, self.quick = "eager", None
                return self._update(self._loss, tokens_BN.long())
        return self._update(self.quick, tokens_BN.long()) if self.speed == "compile" else self._captured(tokens_BN)

    def _first_state(self) -> State:
        return self.model.first_state(self.settings.batch)

    def _loss(self, tokens_BN: Tensor, state: State) -> tuple[Tensor, State]:
        return self.loss_of(self.model, tokens_BN, state)

    def _agrees(self, quick: LossFunction, tokens_BN: Tensor) -> bool:
        state = self.state
        return verify_step(
            self.model,
            lambda: quick(tokens_BN, state)[0],
            lambda: self._loss(tokens_BN, state)[0],
            lambda: precision_context(self.half, self.device),
        )

    def _update(self, loss_of: LossFunction, tokens_BN: Tensor) -> Tensor:
        loss, self.state = self._learn(loss_of, tokens_BN, self.state)
        return loss

    def _learn(self, loss_of: LossFunction, tokens_BN: Tensor, state: State) -> tuple[Tensor, State]:
        self.optimizer.zero_grad(set_to_none=True)
        with precision_context(self.half, self.device):
            loss, after = loss_of(tokens_BN, state)
        loss.backward()
        if self.settings.max_grad_norm:
            nn.utils.clip_grad_norm_(self.parameters, self.settings.max_grad_norm)
        self.optimizer.step()
        return loss.detach(), after

    def _captured(self, tokens_BN: Tensor) -> Tensor:
        if self.captured is None:
            self.tokens_BN = torch.empty(tokens_BN.shape, dtype=torch.int64, device=self.device)
            self.kept = type(self.state)(*(torch.empty_like(one).contiguous() for one in self.state))
            dtype = torch.bfloat16 if self.half else torch.float32
            self.captured = CapturedStep(self.model, self._learn_in_place, self.optimizer, self.kept, dtype)
        self.tokens_BN.copy_(tokens_BN)
        if self.state is not self.kept:
            _copy(self.state, self.kept)
        loss = self.captured()
        self.state = self.kept
        return loss

    def _learn_in_place(self) -> Tensor:
        assert self.quick is not None
        loss, after = self._learn(self.quick, self.tokens_BN, self.kept)
        _copy(after, self.kept)
        return loss


def _layout(state: State) -> list[tuple[torch.Size, torch.dtype]]:
    return [(tensor.shape, tensor.dtype) for tensor in state]


def _copy(source: State, target: State) -> None:
    for old, new in zip(target, source, strict=True):
        old.copy_(new)
