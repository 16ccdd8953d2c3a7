"""Recomputing windows in the backward pass changes memory use and nothing else, also with dropout and ragged rows."""

from typing import Any

import pytest
import torch
from torch import Tensor

from recurrify.modeling import model as model_code
from support.checks import (
    EVERYWHERE,
    WINDOW,
    assert_close,
    assert_same_gradients,
    assert_same_state,
    gradients,
    recurrent,
)
from support.models import WIDTH, text

DROPOUT = {
    "gpt2": {"resid_pdrop": 0.3, "embd_pdrop": 0.3, "attn_pdrop": 0.3},
    "bert": {"hidden_dropout_prob": 0.3, "attention_probs_dropout_prob": 0.3},
}


def train_step(model: Any, ids: Tensor, **inputs: Any) -> tuple[Tensor, dict[str, Tensor], Any]:
    torch.manual_seed(5)
    output = model(ids, labels=ids, **inputs)
    output.loss.backward()
    return output.loss.detach(), gradients(model), output.state


def check_same(plain: Any, checkpointed: Any, ids: Tensor, **inputs: Any) -> None:
    checkpointed.gradient_checkpointing_enable()
    assert checkpointed.is_gradient_checkpointing
    assert not plain.is_gradient_checkpointing
    loss, grads, state = train_step(plain.train(), ids, **inputs)
    loss_again, grads_again, state_again = train_step(checkpointed.train(), ids, **inputs)
    assert_close(loss_again, loss, 1e-9)
    assert_same_gradients(grads_again, grads, 1e-9)
    assert_same_state(state_again.detach(), state.detach(), 1e-9)
    for (name, ours), (_, theirs) in zip(checkpointed.named_buffers(), plain.named_buffers(), strict=True):
        assert torch.equal(ours, theirs), f"{name} moved differently"


@pytest.mark.parametrize("family", DROPOUT)
def test_with_dropout(family: str) -> None:
    base = {"dtype": torch.double, **DROPOUT[family]}
    model = recurrent(family, base=base, standardize=True)
    losses = []
    for seed in (5, 6):
        torch.manual_seed(seed)
        losses.append(model.train()(text(2, 28), labels=text(2, 28)).loss.item())
    assert losses[0] != losses[1], "there is no dropout to test"
    check_same(*[recurrent(family, base=base, standardize=True) for _ in range(2)], text(2, 28))


@pytest.mark.parametrize(("family", "setting"), [("gpt2", "tail"), ("bert", "overlap")])
def test_rows_at_different_places(family: str, setting: str) -> None:
    """One row continues, one begins a new document, and one is in the middle of its first window."""
    models = [recurrent(family, base={"dtype": torch.double}, **EVERYWHERE[setting]) for _ in range(2)]
    mask = torch.arange(12)[None] < torch.tensor([12, 12, 5])[:, None]
    with torch.no_grad():
        state = models[0](text(3, 12, seed=3), attention_mask=mask).state.reset([1])
    assert state.live.tolist() == [True, False, False]
    check_same(*models, text(3, 20), state=state)


def test_gradients_reach_the_given_state() -> None:
    grads = []
    for checkpoint in (False, True):
        model = recurrent("gpt2", base={"dtype": torch.double}, checkpoint=checkpoint).train()
        state = model(text(2, 10, seed=3)).state
        state.memory.retain_grad()
        model(text(2, 20), labels=text(2, 20), state=state).loss.backward()
        grads.append(state.memory.grad)
    assert grads[0].abs().min() > 0
    assert_close(grads[1], grads[0], 1e-9)


def kept_bytes(model: Any, windows: int) -> int:
    """What the forward pass keeps for the backward pass."""
    kept = 0

    def count(value: Tensor) -> Tensor:
        nonlocal kept
        kept += 0 if isinstance(value, torch.nn.Parameter) else value.nbytes
        return value

    ids = text(1, windows * WINDOW)
    with torch.autograd.graph.saved_tensors_hooks(count, lambda value: value):
        model(ids, labels=ids)
    return kept


def test_little_is_kept_for_each_window() -> None:
    model = recurrent("gpt2").train()
    plain = kept_bytes(model, 12) - kept_bytes(model, 4)
    model.gradient_checkpointing_enable()
    checkpointed = kept_bytes(model, 12) - kept_bytes(model, 4)
    one_layer = 8 * WINDOW * WIDTH * 4
    assert plain > 10 * one_layer
    assert checkpointed < one_layer


def test_can_be_disabled() -> None:
    model = recurrent("gpt2")
    model.gradient_checkpointing_enable()
    model.gradient_checkpointing_disable()
    assert not model.is_gradient_checkpointing
    assert model.config.recurrence["checkpoint"] is False


def test_many_logits_are_recomputed_window_by_window(monkeypatch: pytest.MonkeyPatch) -> None:
    """Few logits are computed once for all windows and kept; losses and gradients are the same."""
    ids, mask = text(3, 30), torch.ones(3, 30).long()
    mask[1, 19:], mask[2, 4:] = 0, 0
    found, heads = [], []
    for few in (model_code.FEW_LOGITS, 0):
        monkeypatch.setattr(model_code, "FEW_LOGITS", few)
        model = recurrent("gpt2", base={"dtype": torch.double}, overlap=3).train()
        # As with a head that is more than a linear map.
        monkeypatch.setattr(model, "makes_gradients_at_once", lambda hidden: False)
        calls: list[int] = []
        model.base.lm_head.register_forward_hook(lambda *_, calls=calls: calls.append(1))
        loss = model(ids, attention_mask=mask, labels=ids.masked_fill(mask == 0, -100)).loss
        loss.backward()
        found.append((loss.detach(), gradients(model)))
        heads.append(len(calls))
    assert heads[0] == 1
    assert heads[1] >= 2 * 30 // WINDOW  # in the forward pass and again in the backward pass
    assert_close(found[1][0], found[0][0], 1e-9)
    assert_same_gradients(found[1][1], found[0][1], 1e-9)
