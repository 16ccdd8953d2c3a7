"""Rows and padding do not touch each other; the past reaches the future and never the other way round."""

from itertools import product
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor

from recurrify import NoRecurrence, State, add_recurrence
from support.checks import EVERYWHERE, VARIANTS, WINDOW, answer, assert_close, assert_same_state, recurrent, variants_of
from support.models import DECODERS, ENCODERS, KINDS, PAD, text, tiny

LENGTHS = (21, 5, 16, 13)
SIDES = ("right", "left", "holes")
FAMILIES = [*DECODERS, *ENCODERS]
PADDED = [
    *product(FAMILIES, ["overlap", "tail"], ["holes"]),
    *product(["gpt2", "opt", "llama", "bert", "roberta"], ["overlap"], ["right", "left"]),
]
"""Holes are padding on both sides and between; the others for each way to count positions."""


class Batch(NamedTuple):
    ids: Tensor
    mask: Tensor
    rows: list[Tensor]
    """Each row's real tokens, alone."""

    @property
    def labels(self) -> Tensor:
        return self.ids.masked_fill(self.mask == 0, -100)


def ragged(side: str, seed: int = 0, lengths: tuple[int, ...] = LENGTHS) -> Batch:
    width = max(lengths) + 2
    ids, mask, rows = torch.full((len(lengths), width), PAD), torch.zeros(len(lengths), width).long(), []
    for index, length in enumerate(lengths):
        if side == "holes":
            generator = torch.Generator().manual_seed(seed + index)
            places = torch.randperm(width, generator=generator)[:length].sort().values
        else:
            places = torch.arange(length) + (width - length if side == "left" else 0)
        row = text(1, length, seed=100 * seed + index)
        ids[index, places], mask[index, places] = row[0], 1
        rows.append(row)
    return Batch(ids, mask, rows)


def check_rows(model: Any, batch: Batch, state: State | None = None) -> State:
    """Every row of the batch gives what it gives alone; returns the batch's state."""
    output = model(batch.ids, attention_mask=batch.mask, state=state)
    for index, row in enumerate(batch.rows):
        alone = model(row, state=None if state is None else state.select([index]))
        assert_close(answer(output)[index][batch.mask[index].bool()], answer(alone)[0])
        assert_same_state(output.state.select([index]), alone.state)
    return output.state


@torch.no_grad()
@pytest.mark.parametrize(("family", "setting", "side"), PADDED)
def test_padded_rows_equal_rows_alone(family: str, setting: str, side: str) -> None:
    model = recurrent(family, **EVERYWHERE[setting])
    state = check_rows(model, ragged(side))
    assert state.live.tolist() == [True, False, True, True]
    state = check_rows(model, ragged(side, seed=1, lengths=(4, 12, 1, 9)), state)
    check_rows(model, ragged(side, seed=2, lengths=(3, 20, 11, 7)), state.reset([2]))


@torch.no_grad()
@pytest.mark.parametrize("setting", ["overlap", "tail"])
@pytest.mark.parametrize("family", ["gpt2", "llama", "bert"])
def test_padded_rows_equal_rows_alone_in_eager_attention(family: str, setting: str) -> None:
    model = recurrent(family, **EVERYWHERE[setting])
    model.base.set_attn_implementation("eager")
    state = check_rows(model, ragged("holes"))
    check_rows(model, ragged("left", seed=1, lengths=(4, 12, 1, 9)), state)


@torch.no_grad()
@pytest.mark.parametrize("side", SIDES)
@pytest.mark.parametrize("family", ["gpt2", "bert"])
def test_a_row_without_new_tokens_stays_where_it_is(family: str, side: str) -> None:
    model = recurrent(family, overlap=3)
    state = model(text(3, 13)).state
    batch = ragged(side, lengths=(10, 0, 3))
    after = model(batch.ids, attention_mask=batch.mask, state=state).state
    assert_same_state(after.select([1]), state.select([1]))


@torch.no_grad()
@pytest.mark.parametrize("side", SIDES)
@pytest.mark.parametrize("task", ["causal", "bare"])
def test_padding_of_bare_and_switched_off_models(task: str, side: str) -> None:
    check_rows(recurrent("gpt2", "bare", overlap=3), ragged(side))
    check_rows(add_recurrence(tiny("gpt2", task), NoRecurrence(window=WINDOW, overlap=3)), ragged(side))


@pytest.mark.parametrize("training", [False, True], ids=["eval", "train"])
@pytest.mark.parametrize("side", SIDES)
@pytest.mark.parametrize("family", ["gpt2", "llama", "bert", "roberta"])
def test_loss_of_a_padded_batch_is_that_of_its_rows(family: str, side: str, training: bool) -> None:
    model, batch = recurrent(family, overlap=3).train(training), ragged(side)
    state = model(text(4, 10, seed=9)).state.reset([0, 2]).detach()
    for begin in (None, state):
        output = model(batch.ids, attention_mask=batch.mask, labels=batch.labels, state=begin, return_losses=True)
        scored, total = 0, torch.zeros(())
        for index, row in enumerate(batch.rows):
            own = None if begin is None else begin.select([index])
            alone = model(row, labels=row, state=own, return_losses=True)
            total += alone.token_losses.sum()
            scored += row.shape[1] - (family in DECODERS)
            assert_close(output.token_losses[index].sum(), alone.token_losses.sum())
        assert_close(output.loss, total / scored)


@pytest.mark.parametrize("training", [False, True], ids=["eval", "train"])
@pytest.mark.parametrize("side", SIDES)
def test_loss_with_the_next_token_named(side: str, training: bool) -> None:
    model, batch = recurrent("gpt2", overlap=3).train(training), ragged(side)
    following = torch.full_like(batch.ids, -100)
    losses = []
    for index, row in enumerate(batch.rows):
        named = text(1, row.shape[1], seed=50 + index)
        following[index, batch.mask[index].bool()] = named[0]
        losses.append(model(row, targets=named, return_losses=True).token_losses[0])
    output = model(batch.ids, attention_mask=batch.mask, targets=following, return_losses=True)
    assert_close(output.token_losses[batch.mask.bool()], torch.cat(losses))
    assert not output.token_losses[batch.mask == 0].any(), "padding has a loss"
    assert_close(output.loss, torch.cat(losses).mean())


@pytest.mark.parametrize("training", [False, True], ids=["eval", "train"])
def test_padding_gets_no_gradient(training: bool) -> None:
    model, batch = (
        recurrent("gpt2", base={"tie_word_embeddings": False}, overlap=3).train(training),
        ragged("left"),
    )
    model(batch.ids, attention_mask=batch.mask, labels=batch.labels).loss.backward()
    gradient = model.get_input_embeddings().weight.grad
    used = torch.cat([row[0] for row in batch.rows]).unique()
    # All but each row's last token, which predicts nothing.
    assert gradient[used].any(1).sum() >= len(used) - len(batch.rows)
    unused = torch.ones(len(gradient), dtype=torch.bool).index_fill(0, used, False)
    assert not gradient[unused].any()


@torch.no_grad()
@pytest.mark.parametrize("setting", EVERYWHERE)
@pytest.mark.parametrize("family", DECODERS)
def test_the_future_never_changes_the_past(family: str, setting: str) -> None:
    model, ids = recurrent(family, **EVERYWHERE[setting]), text(1, 20)
    before = model(ids).logits[0]
    places = torch.arange(1, 20)
    others = ids.repeat(19, 1)
    others[places - 1, places] = (ids[0, 1:] - 3) % 50 + 5
    for changed, after in zip(places.tolist(), model(others).logits, strict=True):
        assert_close(after[:changed], before[:changed])
        assert (after[changed] - before[changed]).abs().max() > 1e-4


@torch.no_grad()
@pytest.mark.parametrize("kind", KINDS, ids="-".join)
def test_the_past_reaches_later_windows(kind: tuple[str, str]) -> None:
    ids = text(1, 4 * WINDOW)
    other = ids.clone()
    other[0, 2] = (ids[0, 2] - 3) % 50 + 5
    model = recurrent(*kind)
    moved = (answer(model(other)) - answer(model(ids))).abs().unflatten(1, (4, WINDOW)).amax((0, 2, 3))
    assert (moved > 1e-6).all(), f"largest change in each window: {moved.tolist()}"
    plain = add_recurrence(tiny(*kind), NoRecurrence(window=WINDOW))
    moved = (answer(plain(other)) - answer(plain(ids))).abs().unflatten(1, (4, WINDOW)).amax((0, 2, 3))
    assert moved[0] > 1e-6
    assert not moved[1:].any()


@torch.no_grad()
@pytest.mark.parametrize(("family", "variant"), variants_of("gpt2", "llama", "bert"))
def test_the_past_reaches_later_windows_in_every_variant(family: str, variant: str) -> None:
    model, ids = recurrent(family, **VARIANTS[variant]), text(1, 20)
    other = ids.clone()
    other[0, :4] = text(1, 4, seed=8)
    second = slice(WINDOW, 2 * WINDOW - model.recurrence.overlap)
    assert (model(other).logits - model(ids).logits)[:, second].abs().max() > 1e-4
