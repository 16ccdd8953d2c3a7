"""Sampled contexts, and continuations compared with a token-by-token loop."""

from collections import Counter
from typing import Any

import numpy as np
import pytest
import torch

from recurrify import NoRecurrence, UserError, add_recurrence
from recurrify.data import TokenizedDocument
from recurrify_papers.yoshida2020.continuations import Context, continue_contexts, sample_contexts
from support.checks import WINDOW, recurrent
from support.models import EOS, FIRST_WORD, PAD, VOCABULARY, tiny

NEW = WINDOW + 3
"""Past the end of the window that the continuation begins in."""


def document(name: str, length: int) -> TokenizedDocument:
    """Every token is its own place."""
    return TokenizedDocument(name, np.arange(length, dtype=np.int32), words=1, characters=1, bytes=1)


def contexts(count: int = 5, next_token: int | None = None) -> list[Context]:
    ids = np.random.default_rng(3).integers(FIRST_WORD, VOCABULARY, (count, WINDOW + 1))
    # A real token may happen to be the one used for padding.
    ids[0, 2] = PAD
    return [Context("book", 0, row[:-1], int(row[-1]) if next_token is None else next_token) for row in ids]


@torch.no_grad()
def greedy(model: Any, first: int, state: Any = None, banned: int = EOS) -> list[int]:
    tokens = [first]
    for _ in range(NEW):
        arguments = {} if state is None else {"state": state}
        logits = model(torch.tensor([tokens]), **arguments).logits[0, -1]
        logits[banned] = -torch.inf
        tokens.append(int(logits.argmax()))
    return tokens[1:]


def test_contexts_share_no_token() -> None:
    documents = [document("a", 100), document("b", 57)]
    found = sample_contexts(documents, 12, window=8, seed=1)
    seen = set()
    for context in found:
        assert context.ids.tolist() == list(range(context.start, context.start + 8))
        assert context.next_token == context.start + 8
        tokens = {(context.document, token) for token in [*context.ids.tolist(), context.next_token]}
        assert not seen & tokens
        seen |= tokens
    assert [context.document for context in found] != sorted(context.document for context in found)


def test_contexts_come_from_every_document_that_is_long_enough() -> None:
    documents = [document("short", 8), document("one", 17), document("a", 100), document("b", 100)]
    found = sample_contexts(documents, 23, window=8)
    assert Counter(context.document for context in found) == {"one": 1, "a": 11, "b": 11}
    starts = {sample_contexts(documents[1:2], 1, window=8, seed=seed)[0].start for seed in range(100)}
    assert starts == set(range(9))
    with pytest.raises(UserError, match=r"at most 23 contexts of 8 \+ 1 tokens: got count=24"):
        sample_contexts(documents, 24, window=8)


@pytest.mark.parametrize("wrapped", [False, True], ids=["bare", "wrapped"])
def test_plain_model_continues_from_one_token(wrapped: bool) -> None:
    base = tiny("gpt2")
    model = add_recurrence(base, NoRecurrence(window=WINDOW, overlap=3)) if wrapped else base
    found = continue_contexts(model, contexts(next_token=7), NEW)
    assert (found == found[0]).all()
    # The window holds seven more; the naive loop knows no windows.
    assert found[0, : WINDOW - 1].tolist() == greedy(base, 7)[: WINDOW - 1]
    other = continue_contexts(model, contexts(next_token=9), NEW)
    assert other[0].tolist() != found[0].tolist()


@pytest.mark.parametrize("settings", [{}, {"overlap": 3, "pooling": "attention", "slots": 2}], ids=["paper", "overlap"])
@pytest.mark.parametrize("family", ["gpt2", "llama"])
def test_recurrent_model_continues_with_its_memory(family: str, settings: dict[str, Any]) -> None:
    model = recurrent(family, **settings)
    found = continue_contexts(model, contexts(next_token=7), NEW, batch=2)
    assert len({tuple(row) for row in found.tolist()}) > 1
    model.set_recurrence(overlap=0)
    for context, row in zip(contexts(), found, strict=True):
        with torch.no_grad():
            state = model(torch.tensor(context.ids)[None]).state
        # Nothing is left open: the new window sees the context through memory alone.
        assert state.lengths.tolist() == [0]
        assert state.live.all()
        assert row.tolist() == greedy(model, 7, state)


def test_end_of_text_is_never_written() -> None:
    model = recurrent("gpt2")
    given = contexts()
    ending = int(continue_contexts(model, given, NEW)[0, 2])
    model.generation_config.eos_token_id = ending
    found = continue_contexts(model, given, NEW)
    assert found.shape == (len(given), NEW)
    with torch.no_grad():
        state = model(torch.tensor(given[0].ids)[None]).state
    assert found[0].tolist() == greedy(model, given[0].next_token, state, banned=ending)


def test_batch_size_changes_nothing() -> None:
    model = recurrent("gpt2", overlap=3, base={"resid_pdrop": 0.5}).train()
    found = continue_contexts(model, contexts(), NEW, batch=2)
    np.testing.assert_array_equal(found, continue_contexts(model, contexts(), NEW))
    assert model.training
    assert (model.recurrence.window, model.recurrence.overlap) == (WINDOW, 3)
