"""How far back gradients travel: exactly the windows of one group, measured at the embeddings of marked tokens."""

import pytest
import torch

from recurrify import State
from support.checks import recurrent
from support.models import text

WINDOW, WINDOWS = 4, 6
MARKS = list(range(54, 60))
"""Token MARKS[v] occurs only in window v, so the gradient of its embedding is what reaches window v."""


def marked(windows: int = WINDOWS) -> torch.Tensor:
    ids = text(1, WINDOW * windows) % 50
    for window in range(windows):
        ids[0, window * WINDOW + 1] = MARKS[window]
    return ids


def reach(model: torch.nn.Module, ids: torch.Tensor, state: State | None = None) -> list[list[bool]]:
    """reach[w][v]: whether the loss of window w has a gradient at the inputs of window v."""
    reached = []
    for window in range(ids.shape[1] // WINDOW):
        labels = torch.full_like(ids, -100)
        labels[0, window * WINDOW + 2 : (window + 1) * WINDOW] = 7
        model.zero_grad()
        model(ids, labels=labels, state=state).loss.backward()
        rows = model.get_input_embeddings().weight.grad[MARKS[: ids.shape[1] // WINDOW]]
        reached.append((rows != 0).any(1).tolist())
    return reached


@pytest.mark.parametrize(
    ("family", "horizon", "checkpoint"),
    [("gpt2", 1, False), ("gpt2", 2, True), ("llama", 3, False), ("gpt2", 4, False), ("llama", None, True)],
)
def test_horizon(family: str, horizon: int | None, checkpoint: bool) -> None:
    model = recurrent(
        family,
        base={"tie_word_embeddings": False, "dtype": torch.double},
        window=WINDOW,
        bptt_windows=horizon,
        checkpoint=checkpoint,
    ).train()
    group = horizon or WINDOWS
    expected = [[v <= w and v // group == w // group for v in range(WINDOWS)] for w in range(WINDOWS)]
    assert reach(model, marked()) == expected


def test_groups_are_counted_from_the_start_of_the_call() -> None:
    model = recurrent(
        "gpt2", base={"tie_word_embeddings": False, "dtype": torch.double}, window=WINDOW, bptt_windows=2
    ).train()
    with torch.no_grad():
        state = model(text(1, WINDOW, seed=3) % 50).state
    assert reach(model, marked(4), state) == [
        [True, False, False, False],
        [True, True, False, False],
        [False, False, True, False],
        [False, False, True, True],
    ]


@pytest.mark.parametrize("cut", [False, True])
def test_detach_cuts_gradients_through_the_state(cut: bool) -> None:
    model = recurrent("gpt2", base={"tie_word_embeddings": False, "dtype": torch.double}, window=WINDOW).train()
    state = model(marked()[:, :WINDOW]).state
    later = marked()[:, WINDOW:]
    model(later, labels=later, state=state.detach() if cut else state).loss.backward()
    reached = model.get_input_embeddings().weight.grad[MARKS[0]].any()
    assert bool(reached) is not cut
