"""Inputs behind a window: they see all of it and what is in front, and the window sees nothing of them."""

from typing import Any

import pytest
import torch
from torch import Tensor

from recurrify import UserError, add_recurrence
from recurrify.mechanisms.base import Past, WindowContext, build_mechanism
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
    """What goes into a layer, or comes out of it, from now on."""
    caught: list[Tensor] = []
    if outputs:
        layer.register_forward_hook(lambda *call: caught.append(call[2] if isinstance(call[2], Tensor) else call[2][0]))
    else:
        layer.register_forward_pre_hook(
            lambda _, args, kwargs: caught.append(args[0] if args else kwargs["hidden_states"]), with_kwargs=True
        )
    return caught


@torch.no_grad()
@pytest.mark.parametrize("family", ["llama", "gpt_neox", "qwen3", "smollm3", "mistral"])
def test_they_are_tokens_at_the_last_tokens_position(family: str) -> None:
    """The second window is what the base makes of memory, tokens and memory again as one longer input."""
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
def test_summaries_stay_where_the_limit_lets_them() -> None:
    """Rows that have seen different numbers of windows lie side by side; the oldest summary goes first."""
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
    return build_mechanism(CompressConfig(fade=fade), layers=1, width=48)


def written(mechanism: Any, behind: Tensor, memory: Tensor | None) -> Tensor:
    recorder = mechanism.recorder(WINDOW)
    recorder.see_behind(0, behind)
    return mechanism.write(recorder, Past(memory, None), ())


def read(mechanism: Any, memory: Tensor, asking: Tensor) -> Tensor:
    window = WindowContext(Past(memory, None))
    mechanism.open(window, tiny("gpt2"), {})
    assert window.change_inputs is not None
    return window.change_inputs(0, asking) - asking


@torch.no_grad()
@pytest.mark.parametrize("fade", [CompressConfig.fade, 0.0])
def test_what_is_read_grows_over_hundreds_of_windows_only_where_nothing_fades(fade: float) -> None:
    """Tokens behind the windows of one text are alike, and never the same."""
    mechanism, alike, memory, loudness = associative(fade), 4 * torch.randn(48), None, []
    asking = alike + torch.randn(1, 100, 48)
    for _ in range(500):
        memory = written(mechanism, alike + torch.randn(1, 8, 48), memory)
        loudness.append(read(mechanism, memory, asking).norm())
    growth = sum(loudness[-10:]) / sum(loudness[5:15])
    assert growth < 1.5 if fade else growth > 2


@torch.no_grad()
def test_a_window_that_writes_nothing_lets_nothing_fade() -> None:
    mechanism, behind = associative(fade=0.5), torch.randn(1, 8, 48)
    memory = written(mechanism, torch.randn(1, 8, 48), None)
    normed = behind[0] - behind[0].mean(-1, keepdim=True)
    mechanism.strength[0] = normed.pinverse() @ torch.full((8, 1), -1000.0)
    assert_close(written(mechanism, behind, memory), memory)


def test_they_count_towards_a_sliding_window() -> None:
    base = tiny("mistral", sliding_window=WINDOW + 6)
    with pytest.raises(UserError, match=f"window={WINDOW - 2} or less"):
        add_recurrence(base, config("memory_tokens", tokens=4))
    add_recurrence(base, config("memory_tokens", tokens=3))


@pytest.mark.parametrize(
    ("mechanism", "settings", "sentence"),
    [
        ("memory_tokens", {"tokens": 0}, "tokens=0"),
        ("memory_tokens", {"neutral_start": "no"}, "`neutral_start` must be True or False"),
        ("summary", {"tokens": 0}, "tokens=0"),
        ("summary", {"limit": 0}, "limit=0"),
        ("summary", {"neutral_start": "no"}, "`neutral_start` must be True or False"),
        ("compress", {"tokens": 0}, "tokens=0"),
        ("compress", {"size": 0}, "size=0"),
        ("compress", {"fade": -0.1}, "fade=-0.1"),
        ("compress", {"fade": float("inf")}, "fade=inf"),
        ("compress", {"neutral_start": "no"}, "`neutral_start` must be True or False"),
    ],
    ids=str,
)
def test_bad_settings(mechanism: str, settings: dict[str, Any], sentence: str) -> None:
    with pytest.raises(UserError, match=sentence) as caught:
        config(mechanism, **settings)
    assert str(caught.value).endswith(".")
