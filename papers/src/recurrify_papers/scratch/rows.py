"""A stream of symbols as batch rows: row b reads the b-th part of the stream, one segment in each batch.

B rows, N symbols of a segment, T symbols of the stream, V vocabulary.
"""

import math
from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor, nn
from torch.nn import functional

from recurrify import UserError


class Batches(Protocol):
    """Training batches of one shape, on their device."""

    device: torch.device
    segments: int
    """Batches of an epoch."""

    def segment(self, number: int) -> Tensor:
        """The batch of this number."""


class BatchRows:
    """A stream in batches. Symbols at the end that do not fill a segment in every row are left out."""

    def __init__(self, ids_T: Tensor, batch: int, length: int) -> None:
        per_row = (len(ids_T) - 1) // batch
        self.length, self.device = length, ids_T.device
        self.segments = per_row // length
        if self.segments < 1:
            raise UserError(
                f"The training part has {len(ids_T):,} symbols, too few for {batch} rows of {length} and the symbol "
                "after each: lower --batch or --length, or use more text."
            )
        # The last target of a row is the first input of the next, so the rows overlap by one symbol.
        self.ids_BT = ids_T.as_strided((batch, per_row + 1), (per_row, 1))

    def segment(self, number: int) -> Tensor:
        """The inputs of a batch and, shifted by one, its targets: (B, N + 1)."""
        start = number * self.length
        return self.ids_BT[:, start : start + self.length + 1]


class Score(NamedTuple):
    """How well a stream was predicted."""

    nats: float
    """Sum of −ln p over all symbols."""
    symbols: int

    @property
    def loss(self) -> float:
        return self.nats / self.symbols

    @property
    def bits_per_symbol(self) -> float:
        return self.loss / math.log(2)

    @property
    def perplexity(self) -> float:
        return math.exp(min(self.loss, 700.0))


@torch.no_grad()
def score_rows(
    model: nn.Module,
    ids_T: Tensor,
    batch: int,
    length: int,
    precision: Callable[[], Any],
    tick: Callable[[int], None] = lambda symbols: None,
) -> Score:
    """Score every symbol of a stream but the first, each once, with the state carried along each row.

    Args:
        model: The model, in evaluation mode.
        ids_T: The stream.
        batch: Rows.
        length: Symbols of a segment.
        precision: Makes the context in which the model runs.
        tick: Receives the number of symbols scored by each batch.
    """
    targets = len(ids_T) - 1
    if targets < 1:
        raise UserError("A stream of fewer than two symbols cannot be scored: use more text.")
    batch = min(batch, targets)
    per_row = math.ceil(targets / batch)
    padded = functional.pad(ids_T, (0, per_row * batch + 1 - len(ids_T)))
    ids_BT = padded.as_strided((batch, per_row + 1), (per_row, 1))
    is_target_BT = torch.arange(per_row * batch, device=ids_T.device).view(batch, per_row) < targets
    total = torch.zeros((), dtype=torch.float64, device=ids_T.device)
    state, reported = None, 0
    for start in range(0, per_row, length):
        stop = min(start + length, per_row)
        tokens_BN = ids_BT[:, start : stop + 1].long()
        with precision():
            logits_BNV, state = model(tokens_BN[:, :-1], state)
        losses_BN = functional.cross_entropy(logits_BNV.float().transpose(1, 2), tokens_BN[:, 1:], reduction="none")
        total += torch.where(is_target_BT[:, start:stop], losses_BN, 0.0).sum(dtype=torch.float64)
        scored = min(losses_BN.numel(), targets - reported)
        tick(scored)
        reported += scored
    return Score(total.item(), targets)
