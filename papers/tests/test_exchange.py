"""Scores of documents that read the memories of others."""

from typing import Any

import numpy as np
import pytest
import torch

from recurrify import CarryConfig, NoRecurrence, State, SummaryConfig, UserError, add_recurrence
from recurrify.data import TokenizedDocument
from recurrify.evaluate import evaluate_documents
from recurrify_papers.exchange import Exchange
from support.models import VOCABULARY, tiny

WINDOW = 8


def document(name: str, length: int) -> TokenizedDocument:
    ids = np.random.default_rng(length).integers(0, VOCABULARY, length).astype(np.int32)
    return TokenizedDocument(name, ids, words=length // 2 + 1, characters=3 * length, bytes=4 * length)


def with_memory(mechanism: str) -> Any:
    """A model whose memory changes its losses; that of `summary` keeps what older windows wrote."""
    torch.manual_seed(1)
    carry = CarryConfig(window=WINDOW, hidden_size=8)
    model = add_recurrence(
        tiny("gpt2"), carry if mechanism == "carry" else SummaryConfig(window=WINDOW, tokens=2, limit=4)
    )
    with torch.no_grad():
        for weight in model.mechanism.parameters():
            weight.normal_(std=0.5)
    return model.eval()


def having(memory: torch.Tensor | None) -> State:
    state = State.fresh(1)
    return state if memory is None else state._replace(memory=memory, live=torch.ones(1, dtype=torch.bool))


@pytest.mark.parametrize("mechanism", ["carry", "summary"])
def test_exchanged_memories_are_those_of_other_documents(mechanism: str) -> None:
    """The longer document is read alone at the end, with the last memory of the other. Each continues with its own."""
    model = with_memory(mechanism)
    both = [document("long", 4 * WINDOW + 1), document("short", 2 * WINDOW + 1)]
    found = evaluate_documents(model, both, change_state=Exchange())
    nll, given = np.zeros(2), [None, None]
    for window in range(4):
        left: list[Any] = list(given)
        for index, one in enumerate(both):
            ids = torch.from_numpy(one.ids.astype(np.int64))[None, window * WINDOW : (window + 1) * WINDOW + 1]
            if ids.shape[1] <= WINDOW:
                continue
            with torch.no_grad():
                others, own = (
                    model(ids[:, :-1], targets=ids[:, 1:], state=having(memory), return_losses=True)
                    for memory in (given[1 - index], given[index])
                )
            nll[index] += float(others.token_losses.double().sum())
            if (window + 2) * WINDOW < len(one.ids):
                left[index] = own.state.memory
        given = left
    assert found.nll == pytest.approx(nll, rel=1e-5)
    assert abs(found.nll - evaluate_documents(model, both).nll).max() > 1e-3


def test_exchange_needs_two_documents_and_a_memory() -> None:
    with pytest.raises(UserError, match="two or more that are longer than a window"):
        evaluate_documents(with_memory("carry"), [document("alone", 30), document("short", 3)], change_state=Exchange())
    both_long = [document("one", 30), document("two", 41)]
    plain = add_recurrence(tiny("gpt2"), NoRecurrence(window=WINDOW))
    both = [evaluate_documents(plain, both_long, change_state=one).nll for one in (None, Exchange())]
    assert both[0] == pytest.approx(both[1], rel=1e-5)
