"""What tests of captured steps share: a stand-in for a GPU, and updates of two models that must be alike."""

from typing import Any

import torch

from recurrify.recurrence.graphed import GraphedSteps
from recurrify.state import State


class AnyDevice(GraphedSteps):
    """Takes steps on the CPU too."""

    def takes(self, packed: Any, state: State, summed: bool = False) -> bool:
        return super().takes(packed._replace(tokens=_OnCuda(packed.tokens)), state, summed)


class _OnCuda:
    is_cuda = True

    def __init__(self, tokens: torch.Tensor) -> None:
        self.shape, self.device = tokens.shape, tokens.device


def update_alike(model: torch.nn.Module, twin: torch.nn.Module, optimizers: list[torch.optim.Optimizer]) -> None:
    """One update of each, from gradients that are the same."""
    for (name, mine), theirs in zip(model.named_parameters(), twin.parameters(), strict=True):
        torch.testing.assert_close(theirs.grad, mine.grad, rtol=1e-3, atol=1e-5, msg=name)
    for optimizer in optimizers:
        optimizer.step()
        optimizer.zero_grad()
