"""Training steps of transformers' own model and of ours, in every way in which they can run."""

import warnings
from typing import Any

import torch
from torch import Tensor, nn

from recurrify.evaluate.flops import full_flops_per_token
from recurrify.modeling.model import IGNORE
from recurrify.speed.backends import with_cudnn
from recurrify.speed.compiled import compile_windows
from recurrify.speed.graphed import NOT_CAPTURED, graph_steps
from recurrify.speed.products import quick_products
from recurrify_papers.bench.models import base_model, half, recurrent_model
from recurrify_papers.bench.sizes import Size
from recurrify_papers.bench.timing import NotMeasuredError

LEARNING_RATE = 1e-5
PASSES_BEFORE_GRAPHS = 4
"""Passes of one shape after which a model has captured it."""
BACKWARD = 2
"""A backward pass computes two matrix products for each one of the forward pass."""


class Stepper:
    """A model and its optimiser; `prepare` chooses how its steps run."""

    ways: tuple[str, ...] = ("eager", "compiled")

    def __init__(self, kind: str, model: nn.Module, device: torch.device, flops_per_token: float) -> None:
        self.kind, self.model, self.device = kind, model.train(), device
        self.flops_per_token = (1 + BACKWARD) * flops_per_token
        """Of training; what checkpointing computes a second time is not counted, for it is no progress."""
        self.optimizer = torch.optim.AdamW(model.parameters(), lr=LEARNING_RATE, fused=True)

    def prepare(self, way: str, checkpoint: bool, rows: int, memory_budget: float = 1.0) -> None:
        raise NotImplementedError

    def loss(self, ids: Tensor, inside_windows: bool = False) -> Tensor:
        """The mean over all predictions; `inside_windows` leaves out those of a next window's first token."""
        raise NotImplementedError

    def rows_of(self, ids: Tensor) -> Tensor:
        """The sequences as rows of a batch."""
        return ids

    def step(self, ids: Tensor, rows: int) -> None:
        """One update, over so many rows at once."""
        self.optimizer.zero_grad(set_to_none=True)
        for part in self.rows_of(ids).split(rows):
            self.backward(part, part.numel() / ids.numel())
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)

    def backward(self, rows: Tensor, share: float = 1.0, inside_windows: bool = False) -> Tensor:
        with half(self.device):
            loss = self.loss(rows, inside_windows)
        (loss * share).backward()
        return loss.detach()

    def rest(self) -> None:
        """Lets go of graphs, whose memory nobody else can use."""

    def is_ready(self) -> bool:
        """Whether its steps run in the way that was asked for."""
        return True

    def own_bytes(self) -> int:
        """Weights and what the optimiser keeps of them."""
        state = [value for entry in self.optimizer.state.values() for value in entry.values()]
        own = [*self.model.parameters(), *self.model.buffers(), *state]
        return sum(value.numel() * value.element_size() for value in own if isinstance(value, Tensor))


class Theirs(Stepper):
    """transformers' own GPT-2: every window is a row, and no row knows of another.

    With a `length`, its context has so many tokens, and they are its only window.
    """

    def __init__(self, size: Size, device: torch.device, length: int | None = None) -> None:
        model = base_model(size, device, positions=length)
        self.window = length or size.window
        super().__init__("transformers", model, device, full_flops_per_token(model, self.window, 0))
        self.compiled: Any = None
        self.chosen: Any = model

    def prepare(self, way: str, checkpoint: bool, rows: int, memory_budget: float = 1.0) -> None:
        if way == "compiled" and self.compiled is None:
            self.compiled = torch.compile(self.model, dynamic=False)
        self.chosen = self.compiled if way == "compiled" else self.model

    def rows_of(self, ids: Tensor) -> Tensor:
        return ids.reshape(-1, self.window)

    def loss(self, ids: Tensor, inside_windows: bool = False) -> Tensor:
        with with_cudnn():  # what torch chooses by default is what its users have
            loss: Tensor = self.chosen(ids, labels=ids, use_cache=False).loss
        return loss


class Ours(Stepper):
    """Plain windows or a memory, through this library."""

    def __init__(self, size: Size, kind: str, device: torch.device) -> None:
        self.recurrent = recurrent_model(base_model(size, device), size, kind)
        super().__init__(kind, self.recurrent, device, full_flops_per_token(self.recurrent))
        self.window = size.window
        self.way = "eager"
        if device.type == "cuda":
            self.ways = ("eager", "compiled", "graphs")

    def prepare(self, way: str, checkpoint: bool, rows: int, memory_budget: float = 1.0) -> None:
        self.way = way
        self.recurrent.set_recurrence(checkpoint=checkpoint)
        self.recurrent.compiled_window = self.recurrent.graphed_steps = None
        if way == "compiled":
            compile_windows(self.recurrent, rows, memory_budget)
        elif way == "graphs":
            graph_steps(self.recurrent, rows, memory_budget)

    def loss(self, ids: Tensor, inside_windows: bool = False) -> Tensor:
        targets = ids.roll(-1, 1)
        if inside_windows:
            targets[:, self.window - 1 :: self.window] = IGNORE
        loss: Tensor = self.recurrent(ids, targets=targets, return_state=False).loss
        return loss

    def backward(self, rows: Tensor, share: float = 1.0, inside_windows: bool = False) -> Tensor:
        with quick_products():  # as `recurrify train` does
            return super().backward(rows, share, inside_windows)

    def rest(self) -> None:
        self.recurrent.graphed_steps = None

    def is_ready(self) -> bool:
        return self.way != "graphs" or bool(self.recurrent.graphed_steps and self.recurrent.graphed_steps.steps)


def warm(stepper: Stepper, rows: Tensor) -> None:
    """Pass until graphs are captured; the weights stay as they are."""
    with warnings.catch_warnings():
        # Steps that fit no graph would be compiled anew for a minute, only to find that they do not fit at all.
        warnings.filterwarnings("error", f"{NOT_CAPTURED}.*out of memory", RuntimeWarning)
        try:
            for _ in range(PASSES_BEFORE_GRAPHS):
                stepper.backward(rows)
        except RuntimeWarning as warning:
            raise torch.OutOfMemoryError(str(warning)) from None
    stepper.optimizer.zero_grad(set_to_none=True)
    if not stepper.is_ready():
        raise NotMeasuredError("not captured: such steps run as they do when compiled")
