"""The head of captured training steps, separate from the windows below it.

If all losses have the same weight, gradients are computed together with the losses: the gradient of the head's weights
is summed over all windows and multiplied by that weight once. The windows below then compile to the same code with and
without checkpointing.
"""

from typing import Any, NamedTuple

import torch
import torch.nn.functional as F  # noqa: N812 - everyone's name for it
from torch import Tensor

from recurrify.speed.head_loss import ALIGNED, turn_into_errors
from recurrify.speed.parameter_aliases import ParameterAliases, add_half

LOGITS_AT_ONCE = 2**29
"""More rows are computed in parts; larger products are not faster."""


class Workspace(NamedTuple):
    """Memory of a head, allocated before the windows run: otherwise what windows save for the backward pass would
    occupy it between two calls, and each call would allocate again."""

    weight: Tensor
    """(V, K), the vocabulary padded."""
    logits: Tensor
    """(R, V) logits, later overwritten by their gradients."""
    gradient: Tensor | None
    """(V, K), if the weights are trained."""


class Head:
    """A linear head; products in `half` precision, or in that of its weights."""

    def __init__(self, model: Any, weights: ParameterAliases, half: torch.dtype | None) -> None:
        """Create it while the parameter aliases are in place."""
        self.head_weight, self.half = model.head_weight, half
        place = weights.places.get(id(self._weight()))
        self.sum: Tensor | None = None if place is None else weights.sums[place]
        """Sum of the gradients of its weights, if they are trained."""
        self.reached: set[int] = set() if place is None else {place}

    def _weight(self) -> Tensor:
        """The head's weight, or its alias during a capture."""
        weight: Tensor | None = self.head_weight()
        assert weight is not None
        return weight

    @torch.no_grad()
    def workspace(self, rows: int) -> Workspace:
        weight = self._weight().detach()
        weight = F.pad(weight.to(self.half or weight.dtype), (0, 0, 0, -len(weight) % ALIGNED))
        parts = -(-rows * len(weight) // LOGITS_AT_ONCE)
        logits = weight.new_empty(-(-rows // parts), len(weight))
        return Workspace(weight, logits, None if self.sum is None else torch.empty_like(weight))

    @torch.no_grad()
    def score(self, hidden: Tensor, targets: Tensor, workspace: Workspace | None = None) -> tuple[Tensor, Tensor]:
        """Losses (B, N) of hidden states (B, N, K), and the gradient of their sum with respect to the hidden states.
        The gradient of the weights is added to its sum."""
        workspace = workspace or self.workspace(targets.numel())
        rows = hidden.flatten(0, 1).to(workspace.weight.dtype)
        losses, hidden_gradient = [], torch.empty_like(rows)
        at_once = len(workspace.logits)
        for some, wanted, gradient in zip(
            rows.split(at_once), targets.flatten().split(at_once), hidden_gradient.split(at_once), strict=True
        ):
            errors = torch.mm(some, workspace.weight.T, out=workspace.logits[: len(some)])
            losses.append(turn_into_errors(errors, wanted, len(self._weight())))
            torch.mm(errors, workspace.weight, out=gradient)
            if self.sum is not None and workspace.gradient is not None:
                torch.mm(errors.T, some, out=workspace.gradient)
                add_half(self.sum, workspace.gradient[: len(self.sum)])
        return torch.cat(losses).view_as(targets), hidden_gradient.view_as(hidden)
