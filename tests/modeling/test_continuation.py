"""State in, state out: text in several calls gives the same as in one; `test_families.py` splits it everywhere."""

from itertools import pairwise

import pytest
import torch

from recurrify import NoRecurrence, State, UserError, add_recurrence
from support.checks import WINDOW, assert_close, assert_same_state, recurrent
from support.models import text, tiny

LENGTH = 3 * WINDOW


@torch.no_grad()
def test_plain_windows_in_two_calls() -> None:
    model, ids = add_recurrence(tiny("gpt2"), NoRecurrence(window=WINDOW, overlap=3)), text(2, LENGTH)
    whole = model(ids)
    for split in (5, 8, 13, 17):
        first = model(ids[:, :split])
        second = model(ids[:, split:], state=first.state)
        assert_close(torch.cat([first.logits, second.logits], 1), whole.logits)
        assert_same_state(second.state, whole.state)


def test_losses_add_up() -> None:
    """With `targets`, which name the next tokens, no prediction is lost between two calls."""
    model, ids = recurrent("gpt2", overlap=3), text(2, LENGTH + 1)
    inputs, following = ids[:, :-1], ids[:, 1:]
    whole = model(inputs, targets=following, return_losses=True)
    first = model(inputs[:, :11], targets=following[:, :11], return_losses=True)
    second = model(inputs[:, 11:], targets=following[:, 11:], return_losses=True, state=first.state)
    assert_close(torch.cat([first.token_losses, second.token_losses], 1), whole.token_losses)
    assert_close(whole.token_losses.mean(), whole.loss)
    assert_close(model(ids, labels=ids).loss, whole.loss)


def test_gradients_through_two_calls_equal_those_of_one() -> None:
    grads = []
    for split in (None, 11):
        model, ids = recurrent("llama", base={"dtype": torch.double}, overlap=3), text(2, LENGTH + 1)
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
def test_state_can_be_used_twice() -> None:
    model = recurrent("gpt2", overlap=3)
    state = model(text(2, 13)).state
    kept = State(*[value.clone() for value in state[:4]])
    first = model(text(2, 20, seed=1), state=state)
    again = model(text(2, 20, seed=1), state=state)
    assert torch.equal(first.logits, again.logits)
    for ours, theirs in zip(state[:4], kept[:4], strict=True):
        assert torch.equal(ours, theirs), "a call changed the state it was given"


def test_state_with_other_rows_raises() -> None:
    model = recurrent("gpt2")
    with pytest.raises(UserError, match=r"`state` has 2 rows, but `input_ids` has 3: .*state\.select"):
        model(text(3, 4), state=model(text(2, 4)).state)


def test_an_output_is_no_state() -> None:
    model = recurrent("gpt2")
    with pytest.raises(UserError, match="`state` must be the `state` of an earlier output, or None: got Recurrent"):
        model(text(2, 4), state=model(text(2, 4)))


def test_a_state_of_another_mechanism_is_rejected_even_if_it_fits() -> None:
    state = recurrent("gpt2")(text(2, 20)).state
    other = recurrent("gpt2", mechanism="tail", tail=1)
    with pytest.raises(UserError, match=r"written with mechanism='carry', but this model has mechanism='tail'"):
        other(text(2, 4), state=state)


def test_a_state_of_other_settings_is_rejected_but_windows_may_change() -> None:
    state = recurrent("gpt2", insert_layer=1)(text(2, 20)).state
    with pytest.raises(UserError, match=r"written with insert_layer=1, but this model has insert_layer=2"):
        recurrent("gpt2", insert_layer=2)(text(2, 4), state=state)
    assert recurrent("gpt2", insert_layer=1, window=7, bptt_windows=2)(text(2, 4), state=state).state is not None


@pytest.mark.parametrize("known", [True, False])
def test_a_memory_of_another_size_is_rejected(known: bool) -> None:
    """Of another base with the same settings, or of one that wrote no settings."""
    state = recurrent("gpt2", slots=1)(text(2, 20)).state
    other = recurrent("gpt2", slots=2)
    assert state.memory is not None
    size = state.memory[0].numel()
    state = state._replace(settings=other.recurrence.memory_settings if known else None)
    with pytest.raises(
        UserError, match=f"`state` has {size} numbers of memory per text, but this model has {2 * size}:"
    ):
        other(text(2, 4), state=state)
