"""Without a memory the model computes exactly what its base does; up to rounding if inputs are added behind the window
or the window begins at another position. The gate of `rsa`, which also acts inside a window, is closed here."""

from typing import Any

import pytest
import torch

from recurrify import NoRecurrence, add_recurrence
from support.checks import (
    CLOSED,
    MECHANISMS,
    MEMORIES,
    VARIANTS,
    VARIED,
    WINDOW,
    answer,
    config,
    fits,
    recurrent,
)
from support.models import DECODERS, KINDS, text, tiny

ATTENTION = ("sdpa", "eager")


def assert_same(model: Any, ours: torch.Tensor, expected: torch.Tensor, same_rows: bool = True) -> None:
    """Bit for bit, unless matrix products have another number of rows: some CPUs then add in another order."""
    exact = model.mechanism.inputs_behind == model.mechanism.first_position == 0
    rounding = (0.0 if same_rows else 1e-6) if exact else 1e-5
    torch.testing.assert_close(ours, expected, rtol=rounding, atol=rounding)


def with_attention(kind: tuple[str, str], attention: str) -> torch.nn.Module:
    model = tiny(*kind)
    model.set_attn_implementation("eager" if kind[0] == "gemma2" else attention)
    return model


@torch.no_grad()
@pytest.mark.parametrize(
    ("kind", "attention"),
    [*((kind, "sdpa") for kind in KINDS), (("gpt2", "causal"), "eager"), (("bert", "masked"), "eager")],
)
def test_plain_windows_equal_the_base(kind: tuple[str, str], attention: str) -> None:
    base = with_attention(kind, attention)
    expected = answer_of_base(base, text(2, WINDOW))
    model = add_recurrence(base, NoRecurrence(window=WINDOW))
    assert base.config._attn_implementation == ("eager" if kind[0] == "gemma2" else attention)
    assert torch.equal(answer(model(text(2, WINDOW))), expected)


@torch.no_grad()
@pytest.mark.parametrize(
    ("kind", "mechanism"),
    [
        *((kind, "memory_tokens") for kind in KINDS),
        *(
            ((family, "causal" if family in DECODERS else "masked"), mechanism)
            for family in ("gpt2", "llama", "bert")
            for mechanism in MECHANISMS
            if fits(family, mechanism) and mechanism != "memory_tokens"
        ),
    ],
)
def test_first_window_equals_the_base(kind: tuple[str, str], mechanism: str) -> None:
    base = with_attention(kind, "sdpa")
    ids = text(2, 3 * WINDOW)
    expected = answer_of_base(base, ids[:, :WINDOW])
    model = add_recurrence(base, config(mechanism, **CLOSED.get(mechanism, {})))
    assert_same(model, answer(model(ids[:, :WINDOW])), expected)
    # The head's matrix product covers all windows.
    assert_same(model, answer(model(ids))[:, :WINDOW], expected, same_rows=False)


@torch.no_grad()
@pytest.mark.parametrize("kind", KINDS, ids="-".join)
def test_plain_windows_are_independent(kind: tuple[str, str]) -> None:
    base, overlap = tiny(*kind), 3
    ids = text(2, 20)
    parts, first = [], 0
    for start in range(0, 20 - overlap, WINDOW - overlap):
        parts.append(answer_of_base(base, ids[:, start : start + WINDOW])[:, first - start :])
        first = min(start + WINDOW, 20)
    model = add_recurrence(base, NoRecurrence(window=WINDOW, overlap=overlap))
    torch.testing.assert_close(answer(model(ids)), torch.cat(parts, 1), rtol=1e-5, atol=5e-6)


@torch.no_grad()
@pytest.mark.parametrize("variant", ["tail_pooled", *MEMORIES])
@pytest.mark.parametrize("family", [*VARIED, "bert"])
def test_eager_and_fused_attention_agree(family: str, variant: str) -> None:
    answers = []
    for attention in ATTENTION:
        model = recurrent(family, **VARIANTS[variant])
        model.base.set_attn_implementation(attention)
        answers.append(model(text(2, 28)).logits)
    torch.testing.assert_close(*answers, rtol=1e-5, atol=1e-5)


def answer_of_base(base: torch.nn.Module, ids: torch.Tensor) -> torch.Tensor:
    output = base(ids)
    return output.logits if "logits" in output else output.last_hidden_state


def test_token_types_reach_the_base() -> None:
    """The token types of a BERT tokenizer are passed on; in one window the base gives the same."""
    model = recurrent("bert", "masked")
    ids = text(2, WINDOW)
    types = (torch.arange(WINDOW) >= 3).long().expand(2, -1)
    with torch.no_grad():
        ours = model(ids, token_type_ids=types).logits
        assert torch.equal(ours, model.base(ids, token_type_ids=types).logits)
        assert not torch.allclose(ours, model(ids).logits)
        twice = model(torch.cat([ids, ids], 1), token_type_ids=torch.cat([types, types], 1)).logits
        assert torch.equal(twice[:, :WINDOW], ours)
        assert not torch.allclose(
            twice[:, WINDOW:],
            model(torch.cat([ids, ids], 1), token_type_ids=torch.cat([types, 0 * types], 1)).logits[:, WINDOW:],
        )


def test_gelu_is_replaced_only_in_training() -> None:
    base = tiny("gpt2")
    written_out = base.transformer.h[0].mlp.act
    model = add_recurrence(base, NoRecurrence(window=WINDOW))
    activation = base.transformer.h[0].mlp.act
    hidden = torch.linspace(-6, 6, 101, dtype=torch.float64, requires_grad=True)
    expected = written_out(hidden)
    (slope,) = torch.autograd.grad(expected.sum(), hidden)
    assert torch.equal(activation(hidden), expected)
    model.train()
    found = activation(hidden)
    assert found.grad_fn is not None
    assert "Gelu" in found.grad_fn.name()
    torch.testing.assert_close(found, expected)
    torch.testing.assert_close(torch.autograd.grad(found.sum(), hidden)[0], slope)
    assert not any("act" in name for name in model.state_dict())
    # In float32 on a CPU it is computed with a sigmoid, compiled or not.
    single = hidden.detach().float().requires_grad_()
    for quick in (activation, torch.compile(activation, backend="eager", fullgraph=True)):
        by_sigmoid = quick(single)
        assert "Gelu" not in by_sigmoid.grad_fn.name()
        torch.testing.assert_close(by_sigmoid, expected.float())
        torch.testing.assert_close(torch.autograd.grad(by_sigmoid.sum(), single)[0], slope.float())
    assert not activation(single.detach()).requires_grad
