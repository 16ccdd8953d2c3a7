"""What one window brings to the layers of a base model, and what is recorded of it.

`recurrify.families` runs a base with it, mechanisms fill it in: see `recurrify.mechanisms.base`.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

__all__ = ["NOTHING", "Attend", "Past", "Recorder", "WindowContext", "WindowJob"]


class Attend(Protocol):
    """Attention of a layer's queries."""

    def __call__(self, keys: Tensor, values: Tensor, seen: Tensor | None = None) -> Tensor:
        """(rows, heads, positions, size). `seen` (rows, count) says which of so many keys in front, added to the
        layer's own, a row sees."""


class Past(NamedTuple):
    """The memory that earlier windows left to each row."""

    memory: Tensor | None
    """(rows, …): None if no row has one."""
    live: Tensor | None
    """(rows,) bool on the device: the rows that have a memory; None means all."""

    def otherwise(self, fresh: Tensor) -> Tensor:
        """The memory in the dtype of `fresh`, with `fresh` in rows that have none."""
        if self.memory is None:
            return fresh
        memory = self.memory.to(fresh.dtype)
        if self.live is None:
            return memory
        return torch.where(self.live.view(-1, *[1] * (memory.ndim - 1)), memory, fresh)


NOTHING = Past(None, None)


class Recorder:
    """Collects what `Mechanism.write` needs from the layers of one window as they run."""

    windows: int = 1
    """How many neighbouring windows of each text the rows are, text by text, if they are read in parallel."""

    def see(self, layer: int, hidden: Tensor) -> None:
        """`hidden` (rows, positions, width) is the output of `layer`, counted from 0, without extra inputs and before
        the base's final norm."""

    def see_behind(self, layer: int, hidden: Tensor) -> None:
        """`hidden` (rows, count, width) is the output of `layer` for the inputs behind the window."""

    def summary(self) -> Tensor | None:
        """(rows, width): the window in one vector, for `Mechanism.learn_statistics`; None by default."""
        return None


@dataclass
class WindowContext:
    """One window, or one generated token of it, on its way through the layers. Discarded after the call."""

    past: Past = NOTHING
    places: Tensor | None = None
    """(rows,): for one generated token per row, its place in the window; None for a whole window."""
    front: dict[int, Tensor | None] = field(default_factory=dict)
    """Extra inputs (rows, count, width) in front of a layer's own; None: the previous layer's outputs of its own."""
    behind: Tensor | None = None
    """Extra inputs (rows, count, width) behind the window. They enter the first layer and pass through all layers;
    they see everything before them, and the window does not see them."""
    seen_slots: Tensor | None = None
    """(rows, count): which slots in front a generated token sees; None means all."""
    change_inputs: Callable[[int, Tensor], Tensor] | None = None
    """Called with each layer's index and inputs, extra ones included; returns the inputs to use."""
    change_attention: dict[int, Callable[["Attend", Tensor, Tensor], Tensor]] = field(default_factory=dict)
    """{layer: change}, called with the layer's attention, and its keys and values (rows, key heads, positions, size);
    returns the output (rows, heads, positions, size) before the output projection. Needs `families.open_attention`."""
    recorder: Recorder | None = None
    """Of a window that is written to memory."""


class WindowJob(NamedTuple):
    """One window to run, or several neighbouring ones in parallel: then their rows follow each other, text by text."""

    tokens: Tensor
    """(B, up to window)."""
    targets: Tensor | None
    """(B, scored): what the tokens from `first` on should predict; None returns hidden states instead of losses."""
    first: int
    """Tokens before it are scored by the previous window."""
    writes: bool
    """Whether a row fills it, so that its memory is computed."""
    summed: bool
    """Whether only the sum of the losses matters."""
    mask: Tensor | None = None
    """(B, tokens) of real tokens, for attention in both directions."""
    token_types: Tensor | None = None
    windows: int = 1
    """How many windows of each text."""
    chosen: int | Tensor | None = None
    """For all texts or (texts,): the window of each text whose memory is wanted, if there are several; None: all of
    them, as (texts, windows, …)."""
