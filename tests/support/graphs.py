"""Stands in for a GPU where only the choice of what is captured is tested."""

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
