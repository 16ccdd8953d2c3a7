"""A stream of symbols read in lanes: several readers side by side, each over a stretch of its own.

B lanes, N symbols of a segment, T symbols of the stream.
"""

import math
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

from recurrify.errors import UserError


class Lanes:
    """Training: lanes of one length, in segments of one length, so that every batch has the same shape.

    Lane b reads the b-th stretch of the stream from left to right, a segment in each batch. What is left at the end
    and fills no segment in all lanes is not read.
    """

    def __init__(self, ids_T: Tensor, batch: int, length: int) -> None:
        stretch = (len(ids_T) - 1) // batch
        self.length = length
        self.segments = stretch // length
        """Batches of an epoch."""
        if self.segments < 1:
            raise UserError(
                f"The training part has {len(ids_T):,} symbols, too few for {batch} lanes of {length} and the symbol "
                "after each: lower --batch or --length, or give more text."
            )
        # A lane's last target is the next lane's first input, so the rows overlap by one.
        self.ids_BT = ids_T.as_strided((batch, stretch + 1), (stretch, 1))

    def segment(self, number: int) -> Tensor:
        """(B, N + 1): the inputs and, one further, the targets of a batch."""
        start = number * self.length
        return self.ids_BT[:, start : start + self.length + 1]


class Score(NamedTuple):
    """How well a stream was predicted."""

    nats: float
    """The sum over all symbols of −ln p."""
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
def score_lanes(
    model: nn.Module,
    ids_T: Tensor,
    batch: int,
    length: int,
    precision: Callable[[], Any],
    tick: Callable[[int], None] = lambda symbols: None,
) -> Score:
    """Every symbol of a stream but its very first, each exactly once, with the state carried along each lane.

    `model` has to be in evaluation mode already. `precision` makes the context to run it in. `tick` is told how many
    symbols were scored.
    """
    targets = len(ids_T) - 1
    if targets < 1:
        raise UserError("A stream of fewer than two symbols cannot be scored: give more text.")
    total = torch.zeros((), dtype=torch.float64, device=ids_T.device)
    state, told = None, 0
    for tokens_BN, counts_BN in _scored_segments(ids_T, min(batch, targets), length):
        with precision():
            logits_BNV, state = model(tokens_BN[:, :-1], state)
        losses = functional.cross_entropy(logits_BNV.float().transpose(1, 2), tokens_BN[:, 1:], reduction="none")
        total += torch.where(counts_BN, losses, 0.0).sum(dtype=torch.float64)
        # Padding is not scored; it stands in the last lanes, so that it is told as if it came last.
        scored = min(tokens_BN[:, 1:].numel(), targets - told)
        tick(scored)
        told += scored
    return Score(total.item(), targets)


def _scored_segments(ids_T: Tensor, batch: int, length: int) -> Iterator[tuple[Tensor, Tensor]]:
    """(B, N + 1) symbols, and (B, N) True at the targets that are not padding; the last segment may be shorter."""
    targets = len(ids_T) - 1
    stretch = math.ceil(targets / batch)
    # Only the last lanes can be too short, so what they lack stands at the end of the stream.
    padded = functional.pad(ids_T, (0, stretch * batch + 1 - len(ids_T)))
    ids_BT = padded.as_strided((batch, stretch + 1), (stretch, 1))
    place_BT = torch.arange(stretch * batch, device=ids_T.device).view(batch, stretch)
    for start in range(0, stretch, length):
        stop = min(start + length, stretch)
        yield ids_BT[:, start : stop + 1].long(), place_BT[:, start:stop] < targets
