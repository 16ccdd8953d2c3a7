"""Inputs behind a window: they see the window and the inputs in front, and the window does not see them."""

from typing import Any

import pytest
import torch
from torch import Tensor

from recurrify import UserError, add_recurrence
from recurrify.mechanisms.base import Past, WindowContext
from recurrify.mechanisms.compress import CompressConfig
from support.checks import (
    MEMORIES,
    WINDOW,
    assert_close,
    config,
    recurrent,
)
from support.models import text, tiny


def watch(layer: Any, outputs: bool) -> list[Tensor]:
    """A list that gets the inputs or the outputs of a layer in later calls."""
    caught: list[Tensor] = []
    if outputs:
        layer.register_forward_hook(lambda *call: caught.append(call[2] if isinstance(call[2], Tensor) else call[2][0]))
    else:
        layer.register_forward_pre_hook(
            lambda _, args, kwargs: caught.append(args[0] if args else kwargs["hidden_states"]), with_kwargs=True
        )
    return caught


@torch.no_grad()
@pytest.mark.parametrize("family", ["llama", "gpt_neox", "smollm3"])
def test_their_position_is_that_of_the_last_token(family: str) -> None:
    """The second window equals the base over one longer input: memory, tokens, and memory again."""
    model, ids = recurrent(family, mechanism="memory_tokens"), text(2, 2 * WINDOW)
    memory, found, base = model(ids[:, :WINDOW]).state.memory, model(ids), model.base.base_model
    embedded, outputs = watch(base.layers[0], outputs=False), watch(base.layers[-1], outputs=True)
    base(ids[:, WINDOW:])
    inputs = torch.cat([memory, embedded[0], memory], 1)
    places = torch.tensor([0] * 3 + list(range(WINDOW)) + [WINDOW - 1] * 3)[None].expand(2, -1)
    mask = torch.ones(2, 1, inputs.shape[1], inputs.shape[1], dtype=torch.bool).tril()
    hidden = base(inputs_embeds=inputs, position_ids=places, attention_mask=mask, use_cache=False).last_hidden_state
    assert_close(found.logits[:, WINDOW:], model.family.head(model.base, hidden[:, 3:-3]))
    assert_close(found.state.memory, model.mechanism.norm(outputs[-1][:, -3:]))


@torch.no_grad()
@pytest.mark.parametrize("attention", ["sdpa", "eager"])
def test_in_an_encoder_they_see_everything_and_are_not_seen(attention: str) -> None:
    model, ids = recurrent("bert", mechanism="memory_tokens"), text(2, 2 * WINDOW)
    model.base.set_attn_implementation(attention)
    memory, found, bert = model(ids[:, :WINDOW]).state.memory, model(ids), model.base.bert
    embedded = watch(bert.encoder.layer[0], outputs=False)
    bert(ids[:, WINDOW:])
    x, queries = torch.cat([memory, embedded[0], memory], 1), 3 + WINDOW
    seen = torch.ones(queries + 3, queries + 3, dtype=torch.bool)
    seen[:queries, queries:] = False
    mask = torch.zeros(seen.shape).masked_fill(~seen, -1e9)[None, None] if attention == "eager" else seen[None, None]
    for layer in bert.encoder.layer:
        output = layer(x, attention_mask=mask)
        x = output if isinstance(output, Tensor) else output[0]
    assert_close(found.logits[:, WINDOW:], model.base.cls(x[:, 3:queries]))
    assert_close(found.state.memory, model.mechanism.norm(x[:, queries:]))


@torch.no_grad()
@pytest.mark.parametrize("variant", MEMORIES)
def test_only_full_windows_have_them(variant: str) -> None:
    model = recurrent("gpt2", **MEMORIES[variant])
    front, behind = model.mechanism.slots().get(0, 0), model.mechanism.inputs_behind
    lengths: list[int] = []
    model.base.transformer.h[0].ln_1.register_forward_hook(lambda *call: lengths.append(call[1][0].shape[1]))
    state = model(text(1, WINDOW)).state
    model(text(1, WINDOW - model.recurrence.overlap - 1), state=state)
    assert lengths == [WINDOW + behind, front + WINDOW - 1]


@torch.no_grad()
def test_oldest_summary_is_dropped() -> None:
    """Also in a batch whose rows have seen different numbers of windows."""
    model, ids = recurrent("gpt2", mechanism="summary"), text(2, 5 * WINDOW)
    mask = torch.ones_like(ids)
    mask[1, 2 * WINDOW :] = 0
    memory = model(ids, attention_mask=mask).state.memory.unflatten(1, (3, 2))
    empty = model.mechanism.empty
    assert_close(memory[1, 0], empty)
    assert not torch.isclose(memory[0], empty).any()
    before = model(ids[:1, : 4 * WINDOW]).state.memory.unflatten(1, (3, 2))
    assert torch.equal(memory[0, :2], before[0, 1:])


def associative(fade: float) -> Any:
    torch.manual_seed(0)
    return CompressConfig(fade=fade).build(layers=1, width=48)


def written(mechanism: Any, behind: Tensor, memory: Tensor | None) -> Tensor:
    recorder = mechanism.recorder(WINDOW)
    recorder.see_behind(0, behind)
    return mechanism.write(recorder, Past(memory, None), ())


def read(mechanism: Any, memory: Tensor, query: Tensor, base: Any) -> Tensor:
    window = WindowContext(Past(memory, None))
    mechanism.open(window, base, {})
    assert window.change_inputs is not None
    return window.change_inputs(0, query) - query


@torch.no_grad()
@pytest.mark.parametrize("fade", [CompressConfig.fade, 0.0])
def test_memory_that_does_not_fade_grows(fade: float) -> None:
    """Tokens behind the windows of one text are similar but never equal."""
    mechanism, mean, memory, norms = associative(fade), 4 * torch.randn(48), None, []
    query = mean + torch.randn(1, 100, 48)
    base = tiny("gpt2")
    for _ in range(500):
        memory = written(mechanism, mean + torch.randn(1, 8, 48), memory)
        norms.append(read(mechanism, memory, query, base).norm())
    growth = sum(norms[-10:]) / sum(norms[5:15])
    assert growth < 1.5 if fade else growth > 2


@torch.no_grad()
def test_window_that_writes_nothing_does_not_fade() -> None:
    mechanism, behind = associative(fade=0.5), torch.randn(1, 8, 48)
    memory = written(mechanism, torch.randn(1, 8, 48), None)
    normed = behind[0] - behind[0].mean(-1, keepdim=True)
    mechanism.strength[0] = normed.pinverse() @ torch.full((8, 1), -1000.0)
    assert_close(written(mechanism, behind, memory), memory)


def test_they_count_against_a_sliding_window() -> None:
    base = tiny("mistral", sliding_window=WINDOW + 6)
    with pytest.raises(UserError, match=f"window={WINDOW - 2} or less"):
        add_recurrence(base, config("memory_tokens", tokens=4))
    add_recurrence(base, config("memory_tokens", tokens=3))
