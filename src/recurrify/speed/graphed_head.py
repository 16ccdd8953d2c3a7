"""The head of captured training steps, apart from the windows below it.

Where all losses weigh alike, its gradients are made with them: that of its weights is added up over all windows before
anybody knows the losses' weight, and is multiplied by it once. Windows with and without checkpointing then have the
same rest, which is compiled once for both.
"""

from typing import Any, NamedTuple

import torch
import torch.nn.functional as F  # noqa: N812 - everyone's name for it
from torch import Tensor

from recurrify.speed.head_loss import ALIGNED, turn_into_errors
from recurrify.speed.parameter_aliases import ParameterAliases, add_half

LOGITS_AT_ONCE = 2**29
"""More rows go in parts: products have long been as quick as they get."""


class Room(NamedTuple):
    """Memory that a head works in: taken before the windows run, or what these leave for the backward pass would settle
    in it between two of its visits, and each visit would take new memory."""

    weight: Tensor
    """(V, K), the vocabulary filled up."""
    logits: Tensor
    """(R, V), and later their errors."""
    gradient: Tensor | None
    """(V, K), where the weights learn."""


class Head:
    """For a model whose head is a linear map; products in `half` precision, or as its weights are."""

    def __init__(self, model: Any, weights: ParameterAliases, half: torch.dtype | None) -> None:
        """To be made while the weights are in their place."""
        self.head_weight, self.half = model.head_weight, half
        place = weights.places.get(id(self._weight()))
        self.sum: Tensor | None = None if place is None else weights.sums[place]
        """Where the gradient of its weights is added up, if they are trained."""
        self.reached: set[int] = set() if place is None else {place}

    def _weight(self) -> Tensor:
        """Its alias, while weights are captured."""
        weight: Tensor | None = self.head_weight()
        assert weight is not None
        return weight

    @torch.no_grad()
    def room(self, rows: int) -> Room:
        weight = self._weight().detach()
        weight = F.pad(weight.to(self.half or weight.dtype), (0, 0, 0, -len(weight) % ALIGNED))
        parts = -(-rows * len(weight) // LOGITS_AT_ONCE)
        logits = weight.new_empty(-(-rows // parts), len(weight))
        return Room(weight, logits, None if self.sum is None else torch.empty_like(weight))

    @torch.no_grad()
    def score(self, hidden: Tensor, targets: Tensor, room: Room | None = None) -> tuple[Tensor, Tensor]:
        """From hidden states (B, N, K) and targets (B, N): the losses, and the gradient of their sum by the hidden
        states. That by the weights is added to its sum."""
        room = room or self.room(targets.numel())
        rows = hidden.flatten(0, 1).to(room.weight.dtype)
        losses, hidden_gradient = [], torch.empty_like(rows)
        at_once = len(room.logits)
        for some, wanted, gradient in zip(
            rows.split(at_once), targets.flatten().split(at_once), hidden_gradient.split(at_once), strict=True
        ):
            errors = torch.mm(some, room.weight.T, out=room.logits[: len(some)])
            losses.append(turn_into_errors(errors, wanted, len(self._weight())))
            torch.mm(errors, room.weight, out=gradient)
            if self.sum is not None and room.gradient is not None:
                torch.mm(errors.T, some, out=room.gradient)
                add_half(self.sum, room.gradient[: len(self.sum)])
        return torch.cat(losses).view_as(targets), hidden_gradient.view_as(hidden)
