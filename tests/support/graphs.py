"""What tests of captured steps share: a stand-in for a GPU, and updates of two models that must be alike."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch

from recurrify.recurrence import graphed, graphed_windows
from recurrify.recurrence.graphed import GraphedSteps
from recurrify.state import State


def without_graphs(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Graphs need a GPU: what would be captured is run anew for each replay, and noted down in the list."""
    done: list[str] = []

    def capture(step: Any, pool: Any) -> Callable[[], None]:
        def replay() -> None:
            done.append(step.__name__)
            with step.__self__.weights.in_place():  # as they were when it was captured
                step()

        step()
        return replay

    @contextmanager
    def capturing(model: Any, tokens: torch.Tensor, *_: Any) -> Iterator[None]:
        with graphed_windows.unmoved(graphed_windows.generator_of(tokens)):
            yield

    for module in (graphed, graphed_windows):
        monkeypatch.setattr(module, "capture", capture)
    monkeypatch.setattr(graphed, "capturing", capturing)
    return done


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
