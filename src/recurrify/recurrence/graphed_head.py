"""The head of captured training steps, apart from the windows below it.

Where all losses weigh alike, its gradients are made with them: that of its weights is added up over all windows before
anybody knows the losses' weight, and is multiplied by it once. Windows with and without checkpointing then have the
same rest, which is compiled once for both.
"""

from typing import Any

import torch
from torch import Tensor

from recurrify.recurrence.families import plain_head
from recurrify.recurrence.head_loss import ALIGNED
from recurrify.recurrence.model import RecurrentPreTrainedModel
from recurrify.recurrence.stand_ins import StandIns, add_half


class Head:
    """For a model whose head is a linear map; products in `half` precision, or as its weights are."""

    def __init__(self, model: RecurrentPreTrainedModel, weights: StandIns, half: torch.dtype | None) -> None:
        """To be made while the weights are in their place."""
        self.base, self.family, self.half = model.base, model.family, half
        self.run: Any = model.compiled_window.head
        place = weights.places.get(id(plain_head(self.base, self.family)))
        self.sum: Tensor | None = None if place is None else weights.sums[place]
        """Where the gradient of its weights is added up, if they are trained."""
        self.reached: set[int] = set() if place is None else {place}

    @torch.no_grad()
    def score(self, hidden: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        """From hidden states (B, N, K) and targets (B, N): the losses, and the gradient of their sum by the hidden
        states. That by the weights is added to its sum."""
        weight = plain_head(self.base, self.family)  # by now its stand-in
        assert weight is not None
        rows, half = hidden.flatten(0, 1), self.half or hidden.dtype
        losses, hidden_gradient, weight_gradient = self.run(
            rows, weight.detach(), targets.flatten(), half, len(rows), ALIGNED, self.sum is not None
        )
        if self.sum is not None:
            add_half(self.sum, weight_gradient)
        return losses.view_as(targets), hidden_gradient.view_as(hidden)
