"""One update of the weights over lanes of symbols: eager, compiled, or captured with everything as one CUDA graph.

The host never waits for a step: the symbols lie on the device and batches are cut there, the learning rate is a number
on the device, and the loss stays there until somebody asks for it.
"""

import math
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from recurrify.attention.encoding import recurrence_parameters
from recurrify.errors import UserError
from recurrify.speed.capturing import capturable_optimizer, capture, on_side_stream, set_rate
from recurrify.speed.compiling import compiled
from recurrify.train.running import uses_bf16
from recurrify_papers.scratch.lanes import Lanes
from recurrify_papers.scratch.settings import ScratchSettings

STEPS_BEFORE_CAPTURE = 3
"""Ordinary steps that let compiler, libraries and allocator settle before a CUDA graph is captured."""
MOST_SEGMENTS = 64
"""A state that still changes its shape after so many segments, of a model that does not say how far it remembers, is
taken to change it for ever."""
CUDNN_MODELS = ("lstm", "gru")

State = Any
"""A NamedTuple of tensors without gradient: what a model carries from segment to segment."""
Loss = Callable[[Tensor, State], tuple[Tensor, State]]


def chosen_speed(settings: ScratchSettings, device: torch.device) -> str:
    if settings.speed == "graph" and device.type != "cuda":
        raise UserError("`speed` is graph, but there is no usable CUDA GPU to capture on: use auto, eager or compile.")
    if settings.speed != "auto":
        return settings.speed
    return "graph" if device.type == "cuda" and settings.arch not in CUDNN_MODELS else "eager"


def uses_half(precision: str, device: torch.device) -> bool:
    return uses_bf16(precision) and device.type == "cuda"


def precision_context(half: bool, device: torch.device) -> AbstractContextManager[Any]:
    # Without the cache: a captured graph must not reuse casts made outside of it.
    return torch.autocast(device.type, dtype=torch.bfloat16, enabled=half, cache_enabled=False)


def matmul_precision(precision: str, device: torch.device) -> str:
    """What multiplies matrices of 32 bits, in PyTorch's words: high is TF32."""
    return "high" if device.type == "cuda" and precision != "fp32" else torch.get_float32_matmul_precision()


@contextmanager
def matmul_context(precision: str, device: torch.device) -> Iterator[None]:
    """The same, meanwhile: whoever else computes in this process keeps the precision he had."""
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision(matmul_precision(precision, device))
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)


def remembered(model: nn.Module) -> int | None:
    """How many positions before a segment its model keeps; None where no number of its configuration says so."""
    config: Any = getattr(model, "config", None)
    lengths = [getattr(config, name, None) for name in ("memory_length", "window")]
    carried = getattr(config, "carried", None)
    known = [length for length in (*lengths, getattr(carried, "truncation", None)) if length is not None]
    return max(known, default=None)


class Stepper:
    """Takes the steps of a run, in order or from any of them on, and keeps the state between them."""

    def __init__(self, model: nn.Module, lanes: Lanes, settings: ScratchSettings) -> None:
        self.model: Any = model
        self.lanes, self.settings = lanes, settings
        self.device = lanes.ids_BT.device
        self.speed, self.half = chosen_speed(settings, self.device), uses_half(settings.precision, self.device)
        self.parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
        self.optimizer = capturable_optimizer(
            self.parameters,
            settings.learning_rate,
            settings.weight_decay,
            self.device,
            apart=recurrence_parameters(model),
            apart_rate=settings.recurrence_learning_rate,
        )
        self.state = self._first_state()
        self.settled = None if self.speed == "eager" else self._settled_layout()
        if self.settled is None:
            self.speed = "eager"
        self.quick: Loss = self._loss if self.speed == "eager" else self._compiled_loss()
        self.replay: Callable[[], None] | None = None
        self.ordinary_steps = 0

    def __call__(self, step: int) -> Tensor:
        """The loss, still on the device; the next step may overwrite it."""
        segment = step % self.lanes.segments
        if segment == 0:
            self.state = self._first_state()
        set_rate(self.optimizer, self.settings.rate(step))
        tokens_BN = self.lanes.segment(segment)
        # While a memory still fills up, its shapes are another compilation and another graph: these few steps are
        # not worth them.
        if _layout(self.state) != self.settled:
            return self._update(self._loss, tokens_BN.long())
        if self.speed == "compile":
            return self._update(self.quick, tokens_BN.long())
        return self._in_place(tokens_BN)

    def _compiled_loss(self) -> Loss:
        # A process that trains several models would else reach the compiler's limit and go on uncompiled.
        torch.compiler.reset()
        return compiled(self._loss, dynamic=False)

    def _first_state(self) -> State:
        return self.model.first_state(self.settings.batch)

    def _loss(self, tokens_BN: Tensor, state: State) -> tuple[Tensor, State]:
        with precision_context(self.half, self.device):
            logits_BNV, after = self.model(tokens_BN[:, :-1], state)
        return functional.cross_entropy(logits_BNV.float().flatten(0, 1), tokens_BN[:, 1:].flatten()), after

    def _update(self, loss_of: Loss, tokens_BN: Tensor) -> Tensor:
        self.optimizer.zero_grad(set_to_none=True)
        loss, self.state = self._learn(loss_of, tokens_BN, self.state)
        return loss

    def _learn(self, loss_of: Loss, tokens_BN: Tensor, state: State) -> tuple[Tensor, State]:
        loss, after = loss_of(tokens_BN, state)
        loss.backward()
        if self.settings.clip:
            nn.utils.clip_grad_norm_(self.parameters, self.settings.clip)
        self.optimizer.step()
        return loss.detach(), after

    # ---- CUDA graphs -------------------------------------------------------------------------------------

    def _in_place(self, tokens_BN: Tensor) -> Tensor:
        """A step whose tensors stay where they are: an ordinary one at first, then what was captured of it."""
        if self.ordinary_steps == 0:
            self.tokens_BN = torch.empty(tokens_BN.shape, dtype=torch.int64, device=self.device)
            self.kept = type(self.state)(
                *(torch.empty(one.shape, dtype=one.dtype, device=one.device) for one in self.state)
            )
            self.loss = torch.zeros((), device=self.device)
        self.tokens_BN.copy_(tokens_BN)
        if self.state is not self.kept:
            _copy(self.state, self.kept)
        if self.ordinary_steps < STEPS_BEFORE_CAPTURE:
            self.ordinary_steps += 1
            on_side_stream(self._learn_in_place)
        else:
            if self.replay is None:
                # Without gradients left over, those made while capturing lie in the graph's own memory, and each
                # replay overwrites them.
                self.optimizer.zero_grad(set_to_none=True)
                self.replay = capture(self._learn_in_place)
            self.replay()
        self.state = self.kept
        return self.loss

    def _learn_in_place(self) -> None:
        """The same tensors before the capture as in it: for others the compiler might begin anew, in the middle."""
        self.optimizer.zero_grad(set_to_none=True)
        loss, after = self._learn(self.quick, self.tokens_BN, self.kept)
        self.loss.copy_(loss)
        _copy(after, self.kept)

    @torch.no_grad()
    def _settled_layout(self) -> Any:
        """The shapes that the state has once it no longer changes them; None where it changes them all epoch long."""
        tokens_BN = self.lanes.segment(0)[:, :-1].long()
        was_training = self.model.training
        self.model.eval()
        state = self._first_state()
        settled = None
        kept = remembered(self.model)
        # Beyond what fills it, one for a type that changes with the first segment and one that changes nothing.
        most = MOST_SEGMENTS if kept is None else math.ceil(kept / self.lanes.length) + 2
        # A state that settles only where the epoch ends, and all begins anew, is never met settled.
        for _ in range(min(most, self.lanes.segments)):
            before = _layout(state)
            with precision_context(self.half, self.device):
                state = self.model(tokens_BN, state).state
            if _layout(state) == before:
                settled = before
                break
        self.model.train(was_training)
        return settled


def _layout(state: State) -> list[tuple[torch.Size, torch.dtype]]:
    return [(tensor.shape, tensor.dtype) for tensor in state]


def _copy(source: State, target: State) -> None:
    for old, new in zip(target, source, strict=True):
        old.copy_(new)
