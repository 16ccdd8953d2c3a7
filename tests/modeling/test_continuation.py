"""State in, state out: text in several calls is the same as text in one."""

from itertools import pairwise
from typing import Any

import pytest
import torch
from torch import Tensor

from recurrify import NoRecurrence, State, UserError, add_recurrence
from support.checks import (
    EVERY_FAMILY,
    EVERYWHERE,
    OVERLAPS,
    VARIED,
    WINDOW,
    answer,
    assert_close,
    assert_same_state,
    recurrent,
)
from support.models import ENCODERS, text, tiny

LENGTH = 3 * WINDOW
BESIDE_BORDERS = (1, 5, 7, 8, 9, 12, 13, 14, 17, 18, 19, 23)
"""Of windows that overlap by three, and of those that do not."""


def in_calls(model: Any, ids: Tensor, splits: list[int]) -> tuple[Tensor, State]:
    answers, state = [], None
    for start, stop in pairwise([0, *splits, ids.shape[1]]):
        output = model(ids[:, start:stop], state=state)
        answers.append(answer(output))
        state = output.state
    return torch.cat(answers, 1), state


def check_split(model: Any, splits: list[int], whole: Any = None) -> None:
    ids = text(2, LENGTH)
    whole = whole or model(ids)
    answers, state = in_calls(model, ids, splits)
    assert_close(answers, answer(whole))
    assert_same_state(state, whole.state)


@torch.no_grad()
@pytest.mark.parametrize(("family", "setting"), EVERY_FAMILY)
def test_two_calls_at_every_split(family: str, setting: str) -> None:
    model = recurrent(family, **EVERYWHERE[setting])
    whole = model(text(2, LENGTH))
    for split in range(1, LENGTH) if family in VARIED else BESIDE_BORDERS:
        check_split(model, [split], whole)


@torch.no_grad()
@pytest.mark.parametrize("task", ["masked", "bare"])
@pytest.mark.parametrize(
    ("family", "setting"), [("bert", "disjoint"), ("bert", "overlap"), *((family, "tail") for family in ENCODERS)]
)
def test_encoders_at_every_border(family: str, setting: str, task: str) -> None:
    """Attention that looks both ways sees less of a window that is cut short: borders alone are the same."""
    model = recurrent(family, task, **EVERYWHERE[setting])
    whole = model(text(2, LENGTH))
    borders = list(range(WINDOW, LENGTH, model.recurrence.stride))
    for split in borders:
        check_split(model, [split], whole)
    check_split(model, borders, whole)
    for split in range(1, LENGTH):
        assert_same_state(in_calls(model, text(2, LENGTH), [split])[1], whole.state)


@torch.no_grad()
@pytest.mark.parametrize("overlap", OVERLAPS)
def test_switched_off(overlap: int) -> None:
    model = add_recurrence(tiny("gpt2"), NoRecurrence(window=WINDOW, overlap=overlap))
    for split in range(1, LENGTH):
        check_split(model, [split])


def test_losses_add_up() -> None:
    """With the next token named by `targets` no prediction is lost between two calls."""
    model, ids = recurrent("gpt2", overlap=3), text(2, LENGTH + 1)
    inputs, following = ids[:, :-1], ids[:, 1:]
    whole = model(inputs, targets=following, return_losses=True)
    first = model(inputs[:, :11], targets=following[:, :11], return_losses=True)
    second = model(inputs[:, 11:], targets=following[:, 11:], return_losses=True, state=first.state)
    assert_close(torch.cat([first.token_losses, second.token_losses], 1), whole.token_losses)
    assert_close(whole.token_losses.mean(), whole.loss)
    assert_close(model(ids, labels=ids).loss, whole.loss)


@pytest.mark.parametrize("family", VARIED)
def test_gradients_through_two_calls_equal_those_of_one(family: str) -> None:
    grads = []
    for split in (None, 11):
        model, ids = recurrent(family, base={"dtype": torch.double}, overlap=3), text(2, LENGTH + 1)
        state, total = None, torch.zeros((), dtype=torch.double)
        for start, stop in pairwise([0, *([split] if split else []), LENGTH]):
            output = model(ids[:, start:stop], state=state)
            losses = torch.nn.functional.cross_entropy(output.logits.mT, ids[:, start + 1 : stop + 1], reduction="sum")
            total, state = total + losses, output.state
        total.backward()
        grads.append({name: value.grad for name, value in model.named_parameters()})
    for name, value in grads[0].items():
        torch.testing.assert_close(grads[1][name], value, rtol=1e-6, atol=1e-6, msg=name)


@torch.no_grad()
def test_rows_chosen_from_a_state_go_on_as_they_would() -> None:
    model = recurrent("gpt2", overlap=3)
    state = model(text(3, 13, seed=1)).state
    after = text(3, 20, seed=2)
    whole = model(after, state=state)
    order = [2, 0, 2]
    chosen = model(after[order], state=state.select(order))
    assert_close(chosen.logits, whole.logits[order])
    assert_same_state(chosen.state, whole.state.select(order))


@torch.no_grad()
def test_a_state_can_be_used_twice() -> None:
    model = recurrent("gpt2", overlap=3)
    state = model(text(2, 13)).state
    kept = State(*[value.clone() for value in state[:4]])
    first = model(text(2, 20, seed=1), state=state)
    again = model(text(2, 20, seed=1), state=state)
    assert torch.equal(first.logits, again.logits)
    for ours, theirs in zip(state[:4], kept[:4], strict=True):
        assert torch.equal(ours, theirs), "a call changed the state it was given"


def test_a_state_of_other_rows_is_refused() -> None:
    model = recurrent("gpt2")
    with pytest.raises(UserError, match=r"`state` has 2 rows, but `input_ids` has 3: .*state\.select"):
        model(text(3, 4), state=model(text(2, 4)).state)


def test_a_state_of_another_mechanism_is_rejected_even_if_it_fits() -> None:
    state = recurrent("gpt2")(text(2, 20)).state
    other = recurrent("gpt2", mechanism="tail", tail=1)
    with pytest.raises(UserError, match=r"written by the mechanism 'carry', but this model has 'tail'"):
        other(text(2, 4), state=state)
