"""Kept keys and values: against the base model over the whole text, against a loop that keeps keys unturned, and
refused where positions are absolute."""

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy, silu
from transformers.models.llama.modeling_llama import LlamaRMSNorm

from recurrify import UserError, add_recurrence
from recurrify.evaluate.flops import memory_cost
from support.checks import (
    KEPT,
    ROTARY,
    WINDOW,
    assert_close,
    assert_same_gradients,
    config,
    gradients,
    recurrent,
)
from support.models import ENCODERS, text, tiny
from support.reference import attend


@torch.no_grad()
@pytest.mark.parametrize("settings", [{"keep": WINDOW, "sinks": 0}, {"keep": WINDOW - 2, "sinks": 2}], ids=str)
@pytest.mark.parametrize("family", ROTARY)
def test_with_everything_kept_the_second_window_is_the_bases_own(family: str, settings: dict[str, int]) -> None:
    """A causal model's keys do not depend on what follows: two windows are then one text."""
    model, ids = recurrent(family, mechanism="kv", **settings), text(2, 2 * WINDOW)
    assert_close(model(ids).logits, model.base(ids).logits)


@torch.no_grad()
@pytest.mark.parametrize("family", ROTARY)
def test_windows_look_back_as_far_as_they_should(family: str) -> None:
    """Later windows are what the base makes of the whole text with a mask: distances are all that matters."""
    model, ids = recurrent(family, mechanism="kv", keep=3, sinks=0), text(2, 3 * WINDOW)
    places = torch.arange(3 * WINDOW)
    window, within = places // WINDOW, places % WINDOW
    same = window[:, None] == window[None]
    before = (window[:, None] == window[None] + 1) & (within[None] >= WINDOW - 3)
    mask = ((same | before) & (places[:, None] >= places[None])).expand(2, 1, -1, -1)
    if model.base.config._attn_implementation == "eager":
        mask = torch.zeros(mask.shape).masked_fill(~mask, torch.finfo(torch.float32).min)
    assert_close(model(ids).logits, model.base(ids, attention_mask=mask).logits)


@torch.no_grad()
@pytest.mark.parametrize("keep", [WINDOW - 1, WINDOW])
@pytest.mark.parametrize("family", ROTARY)
def test_a_band_is_sliding_window_attention_over_the_whole_text(family: str, keep: int) -> None:
    """The base over the whole text, each position with the eight last ones; three windows and a part of a fourth."""
    model, ids = recurrent(family, mechanism="kv", keep=keep, sinks=0, sliding=True), text(2, 3 * WINDOW + 5)
    expected = model.base(ids, attention_mask=sliding_mask(model, ids.shape[1])).logits
    assert_close(model(ids).logits, expected)
    # In two calls, the first of which ends inside a window.
    first = model(ids[:, :13])
    assert_close(model(ids[:, 13:], state=first.state).logits, expected[:, 13:])


@torch.no_grad()
def test_a_band_in_windows_that_were_changed() -> None:
    model = recurrent("llama", mechanism="kv", window=2 * WINDOW, keep=WINDOW - 1, sinks=0, sliding=True)
    ids = text(2, 3 * WINDOW + 5)
    wide = model(ids).logits
    model.set_recurrence(window=WINDOW)
    narrow = model(ids).logits
    assert_close(narrow, model.base(ids, attention_mask=sliding_mask(model, ids.shape[1])).logits)
    model.set_recurrence(window=2 * WINDOW)
    assert torch.equal(model(ids).logits, wide)


@torch.no_grad()
@pytest.mark.parametrize("sliding", [False, True])
@pytest.mark.parametrize("changes", [{"window": 12}, {"window": 20}, {"window": 20, "overlap": 3}], ids=str)
def test_changed_windows_are_those_of_a_new_model(changes: dict[str, int], sliding: bool) -> None:
    settings: dict[str, Any] = {"keep": 10, "sinks": 2, "sliding": sliding}
    model, ids = recurrent("llama", mechanism="kv", window=16, **settings), text(2, 50)
    counted_ahead = memory_cost(model, **changes)
    model.set_recurrence(**changes)
    new = add_recurrence(model.base, config("kv", **settings | changes)).eval()
    assert_close(model(ids).logits, new(ids).logits)
    assert counted_ahead == memory_cost(model) == memory_cost(new)


def sliding_mask(model: Any, length: int) -> Tensor:
    back = torch.arange(length)[:, None] - torch.arange(length)[None]
    allowed = ((back >= 0) & (back < WINDOW)).expand(2, 1, -1, -1)
    if model.base.config._attn_implementation == "eager":
        return torch.zeros(allowed.shape).masked_fill(~allowed, torch.finfo(torch.float32).min)
    return allowed


@torch.no_grad()
def test_a_band_while_writing() -> None:
    """Token by token, against the base over all that was written so far."""
    model, ids = recurrent("llama", mechanism="kv", keep=WINDOW, sinks=0, sliding=True), text(2, 5)
    written = model.generate(ids, max_new_tokens=3 * WINDOW, min_new_tokens=3 * WINDOW, do_sample=False, pad_token_id=0)
    for _ in range(3 * WINDOW):
        logits = model.base(ids, attention_mask=sliding_mask(model, ids.shape[1])).logits[:, -1]
        logits[:, model.generation_config.eos_token_id or 0] = -torch.inf
        ids = torch.cat([ids, logits.argmax(-1, keepdim=True)], dim=1)
    assert (written == ids).all()


class Kept:
    """One layer's keys, before they are turned, and values: of the first positions and of the last."""

    def __init__(self) -> None:
        self.first: list[Tensor] | None = None
        self.last: list[Tensor] | None = None


def run(w: dict[str, Tensor], s: Any, c: Any, ids: Tensor) -> Tensor:
    """Logits of the whole text."""
    layers, start, done, logits = [Kept() for _ in range(c.num_hidden_layers)], 0, 0, []
    while done < ids.shape[1]:
        piece = ids[:, start : start + s.window]
        x = w["base.model.embed_tokens.weight"][piece]
        for number, kept in enumerate(layers):
            x = block(w, s, c, f"base.model.layers.{number}", x, kept)
        final = norm(w, c, "base.model.norm", x)
        logits.append(final[:, done - start :] @ w["base.lm_head.weight"].T)
        done, start = start + piece.shape[1], start + s.window - s.overlap
    return torch.cat(logits, 1)


def block(w: dict[str, Tensor], s: Any, c: Any, name: str, x: Tensor, kept: Kept) -> Tensor:
    def heads(part: str, count: int) -> Tensor:
        product = norm(w, c, f"{name}.input_layernorm", x) @ w[f"{name}.self_attn.{part}_proj.weight"].T
        return product.unflatten(-1, (count, -1)).transpose(1, 2)

    q, k, v = heads("q", 2), heads("k", 1), heads("v", 1)
    own, length, room = [k, v], x.shape[1], s.sinks + s.keep
    if kept.first is not None:
        k, v = (torch.cat(parts, 2) for parts in zip(kept.first, kept.last, own, strict=True))
    keys = turn(c, k, torch.arange(room + length)[-k.shape[2] :])
    places = torch.arange(room, room + length)
    back = places[:, None] - torch.arange(room + length)[None, -k.shape[2] :]
    unseen = (back >= s.window) & (torch.arange(k.shape[2]) >= s.sinks) if s.sliding else None
    mixed = attend(turn(c, q, places), keys, v, unseen)
    if length == s.window:
        stride = s.window - s.overlap
        kept.first = kept.first or [part[:, :, : s.sinks] for part in own]
        kept.last = [part[:, :, stride - s.keep : stride] for part in own]
    x = x + mixed @ w[f"{name}.self_attn.o_proj.weight"].T
    inner = norm(w, c, f"{name}.post_attention_layernorm", x)
    gate, up, down = (w[f"{name}.mlp.{part}_proj.weight"].T for part in ("gate", "up", "down"))
    return x + (silu(inner @ gate) * (inner @ up)) @ down


def norm(w: dict[str, Tensor], c: Any, name: str, x: Tensor) -> Tensor:
    return w[f"{name}.weight"] * x / (x.square().mean(-1, keepdim=True) + c.rms_norm_eps).sqrt()


def turn(c: Any, x: Tensor, places: Tensor) -> Tensor:
    half = x.shape[-1] // 2
    rates = 1.0 / (c.rope_parameters["rope_theta"] ** (torch.arange(half) * 2 / x.shape[-1]))
    angles = (places[:, None] * rates).repeat(1, 2)
    turned = torch.cat([-x[..., half:], x[..., :half]], -1)
    return x * angles.cos() + turned * angles.sin()


@pytest.mark.parametrize("checkpoint", [False, True])
@pytest.mark.parametrize("variant", KEPT)
def test_equals_the_description(variant: str, checkpoint: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    # transformers' own norm and angles are in single precision, whatever the model is in.
    monkeypatch.setattr(
        LlamaRMSNorm,
        "forward",
        lambda self, x: self.weight * x / (x.square().mean(-1, keepdim=True) + self.variance_epsilon).sqrt(),
    )
    base = {"dtype": torch.double, "tie_word_embeddings": False}
    model = recurrent("llama", base=base, **KEPT[variant], checkpoint=checkpoint).train()
    ids = text(2, 36)
    logits = run(dict(model.named_parameters()), model.recurrence, model.base.config, ids)
    loss = cross_entropy(logits[:, :-1].flatten(0, 1), ids[:, 1:].flatten())
    loss.backward()
    expected = gradients(model)
    ours = model(ids, labels=ids, return_logits=True)
    ours.loss.backward()
    assert_close(ours.logits, logits, 1e-6)
    assert_close(ours.loss, loss, 1e-6)
    assert_same_gradients(gradients(model), expected, 1e-6)


@torch.no_grad()
def test_scaled_angles_are_turned_all_the_same() -> None:
    """Some models stretch their positions and scale what they turn."""
    rope = {"rope_type": "yarn", "rope_theta": 1e4, "factor": 4.0, "original_max_position_embeddings": 32}
    base = {"rope_parameters": rope, "max_position_embeddings": 128}
    model, ids = recurrent("llama", base=base, mechanism="kv", keep=WINDOW, sinks=0), text(2, 2 * WINDOW)
    assert_close(model(ids).logits, model.base(ids).logits)


def test_nothing_is_added(tmp_path: Any) -> None:
    model = recurrent("llama", mechanism="kv")
    assert not model.added_parameters()
    model.config.base_name_or_path = "somewhere"
    with pytest.raises(UserError, match="'kv' added no weights"):
        model.save_pretrained(tmp_path, added_only=True)


class TestRefusals:
    @pytest.mark.parametrize("family", ["gpt2", "opt", *ENCODERS])
    def test_absolute_positions(self, family: str) -> None:
        with pytest.raises(UserError, match=r"'kv' needs a model with rotary positions, .*'tail'\."):
            add_recurrence(tiny(family), config("kv"))

    @pytest.mark.parametrize(
        ("settings", "sentence"),
        [
            ({"keep": 0}, "keep=0"),
            ({"sinks": -1}, "sinks=-1"),
            ({"keep": 8, "sinks": 1}, "`keep` is 8 and `sinks` 1, .* only 8 positions .*keep=7 or less"),
            ({"overlap": 5}, "`keep` is 3 and `sinks` 1, .* only 3 positions .*overlap=5.*keep=2 or less"),
        ],
        ids=str,
    )
    def test_bad_settings(self, settings: dict[str, Any], sentence: str) -> None:
        with pytest.raises(UserError, match=sentence) as caught:
            config("kv", **settings)
        assert str(caught.value).endswith(".")

    def test_more_positions_than_there_are(self) -> None:
        base = tiny("llama", max_position_embeddings=11)
        with pytest.raises(
            UserError, match=r"`window` is 8 behind 4 positions for kept keys, .* only 11 positions: .*window=7"
        ):
            add_recurrence(base, config("kv"))
