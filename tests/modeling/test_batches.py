"""Losses of padded batches, wherever padding lies; `check_batches` of the contract compares logits and states."""

from typing import NamedTuple

import pytest
import torch
from torch import Tensor

from support.checks import assert_close, assert_same_state, recurrent
from support.models import DECODERS, PAD, text

LENGTHS = (21, 5, 16, 13)


class Batch(NamedTuple):
    ids: Tensor
    mask: Tensor
    rows: list[Tensor]
    """Each row's real tokens."""

    @property
    def labels(self) -> Tensor:
        return self.ids.masked_fill(self.mask == 0, -100)


def ragged(seed: int = 0, lengths: tuple[int, ...] = LENGTHS) -> Batch:
    """Rows with padding in front, between and behind the tokens."""
    width = max(lengths) + 2
    ids, mask, rows = torch.full((len(lengths), width), PAD), torch.zeros(len(lengths), width).long(), []
    for index, length in enumerate(lengths):
        generator = torch.Generator().manual_seed(seed + index)
        places = torch.randperm(width, generator=generator)[:length].sort().values
        row = text(1, length, seed=100 * seed + index)
        ids[index, places], mask[index, places] = row[0], 1
        rows.append(row)
    return Batch(ids, mask, rows)


@torch.no_grad()
def test_row_without_new_tokens_keeps_its_state() -> None:
    model = recurrent("gpt2", overlap=3)
    state = model(text(3, 13)).state
    batch = ragged(lengths=(10, 0, 3))
    after = model(batch.ids, attention_mask=batch.mask, state=state).state
    assert_same_state(after.select([1]), state.select([1]))


@pytest.mark.parametrize(("family", "training"), [("gpt2", True), ("gpt2", False), ("bert", True)])
def test_loss_of_a_padded_batch_is_that_of_its_rows(family: str, training: bool) -> None:
    model, batch = recurrent(family, overlap=3).train(training), ragged()
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


def test_loss_with_targets() -> None:
    model, batch = recurrent("gpt2", overlap=3).train(), ragged()
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


def test_padding_gets_no_gradient() -> None:
    model, batch = recurrent("gpt2", base={"tie_word_embeddings": False}, overlap=3).train(), ragged()
    model(batch.ids, attention_mask=batch.mask, labels=batch.labels).loss.backward()
    gradient = model.get_input_embeddings().weight.grad
    used = torch.cat([row[0] for row in batch.rows]).unique()
    # All but each row's last token, which predicts nothing.
    assert gradient[used].any(1).sum() >= len(used) - len(batch.rows)
    unused = torch.ones(len(gradient), dtype=torch.bool).index_fill(0, used, False)
    assert not gradient[unused].any()
