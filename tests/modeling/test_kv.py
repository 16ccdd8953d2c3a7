"""Kept keys and values: against the base over the whole text, and against a description without rotated keys."""

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy
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
from support.models import text, tiny
from support.reference import Weights, attend, llama_block, rms_norm, rotate, run


@torch.no_grad()
@pytest.mark.parametrize("family", ROTARY)
def test_windows_equal_the_base_with_a_mask(family: str) -> None:
    """Three windows equal the base over the whole text with a mask: only distances matter."""
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
@pytest.mark.parametrize(("family", "keep"), [("llama", WINDOW - 1), ("gemma2", WINDOW), ("smollm3", WINDOW)])
def test_sliding_equals_sliding_window_attention_over_the_whole_text(family: str, keep: int) -> None:
    """Each position sees the last eight; three full windows and a part of a fourth."""
    model, ids = recurrent(family, mechanism="kv", keep=keep, sinks=0, sliding=True), text(2, 3 * WINDOW + 5)
    expected = model.base(ids, attention_mask=sliding_mask(model, ids.shape[1])).logits
    assert_close(model(ids).logits, expected)
    # In two calls, with a split inside a window.
    first = model(ids[:, :13])
    assert_close(model(ids[:, 13:], state=first.state).logits, expected[:, 13:])


@torch.no_grad()
def test_sliding_after_the_window_changed() -> None:
    model = recurrent("llama", mechanism="kv", window=2 * WINDOW, keep=WINDOW - 1, sinks=0, sliding=True)
    ids = text(2, 3 * WINDOW + 5)
    wide = model(ids).logits
    model.set_recurrence(window=WINDOW)
    narrow = model(ids).logits
    assert_close(narrow, model.base(ids, attention_mask=sliding_mask(model, ids.shape[1])).logits)
    model.set_recurrence(window=2 * WINDOW)
    assert torch.equal(model(ids).logits, wide)


@torch.no_grad()
@pytest.mark.parametrize(
    ("changes", "sliding"), [({"window": 12}, True), ({"window": 20, "overlap": 3}, False)], ids=str
)
def test_changed_windows_equal_those_of_a_new_model(changes: dict[str, int], sliding: bool) -> None:
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
def test_sliding_while_generating() -> None:
    """Token by token, against the base over the whole text so far."""
    model, ids = recurrent("llama", mechanism="kv", keep=WINDOW, sinks=0, sliding=True), text(2, 5)
    written = model.generate(ids, max_new_tokens=3 * WINDOW, min_new_tokens=3 * WINDOW, do_sample=False, pad_token_id=0)
    for _ in range(3 * WINDOW):
        logits = model.base(ids, attention_mask=sliding_mask(model, ids.shape[1])).logits[:, -1]
        logits[:, model.generation_config.eos_token_id or 0] = -torch.inf
        ids = torch.cat([ids, logits.argmax(-1, keepdim=True)], dim=1)
    assert (written == ids).all()


Keys = tuple[list[Tensor], list[Tensor]]
"""Keys without positions, and values: of the first positions of the text, and of the last ones of a window."""


def window(w: Weights, s: Any, c: Any, ids: Tensor, memory: list[Keys] | None) -> tuple[Tensor, list[Keys] | None]:
    """The memory is the kept keys of each layer."""
    x, left, length, room = w["base.model.embed_tokens.weight"][ids], [], ids.shape[1], s.sinks + s.keep
    places = torch.arange(room, room + length)
    for layer in range(c.num_hidden_layers):

        def attention(q: Tensor, k: Tensor, v: Tensor, layer: int = layer) -> Tensor:
            own, stride = [k, v], s.window - s.overlap
            first, last = memory[layer] if memory else ([part[:, :, : s.sinks] for part in own], None)
            if last is not None:
                k, v = (torch.cat(parts, 2) for parts in zip(first, last, own, strict=True))
            left.append((first, [part[:, :, stride - s.keep : stride] for part in own]))
            at = torch.arange(room + length)[-k.shape[2] :]
            back = places[:, None] - at[None]
            unseen = (back >= s.window) & (torch.arange(k.shape[2]) >= s.sinks) if s.sliding else None
            return attend(rotate(c, q, places), rotate(c, k, at), v, unseen)

        x = llama_block(w, c, layer, x, attention)
    return rms_norm(w, c, "base.model.norm", x), left if length == s.window else memory


@pytest.mark.parametrize("checkpoint", [False, True])
@pytest.mark.parametrize("variant", KEPT)
def test_equals_the_description(variant: str, checkpoint: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    # transformers' own norm and angles are in float32 for models of any type.
    monkeypatch.setattr(
        LlamaRMSNorm,
        "forward",
        lambda self, x: self.weight * x / (x.square().mean(-1, keepdim=True) + self.variance_epsilon).sqrt(),
    )
    base = {"dtype": torch.double, "tie_word_embeddings": False}
    model = recurrent("llama", base=base, **KEPT[variant], checkpoint=checkpoint).train()
    ids = text(2, 36)
    logits, _ = run(window, dict(model.named_parameters()), model.recurrence, model.base.config, ids)
    loss = cross_entropy(logits[:, :-1].flatten(0, 1), ids[:, 1:].flatten())
    loss.backward()
    expected = gradients(model)
    ours = model(ids, labels=ids, return_logits=True)
    ours.loss.backward()
    assert_close(ours.logits, logits, 1e-6)
    assert_close(ours.loss, loss, 1e-6)
    assert_same_gradients(gradients(model), expected, 1e-6)


@torch.no_grad()
def test_scaled_angles() -> None:
    """Some models interpolate their positions and scale rotated keys."""
    rope = {"rope_type": "yarn", "rope_theta": 1e4, "factor": 4.0, "original_max_position_embeddings": 32}
    base = {"rope_parameters": rope, "max_position_embeddings": 128}
    model, ids = recurrent("llama", base=base, mechanism="kv", keep=WINDOW, sinks=0), text(2, 2 * WINDOW)
    assert_close(model(ids).logits, model.base(ids).logits)


def test_no_parameters_are_added(tmp_path: Any) -> None:
    model = recurrent("llama", mechanism="kv")
    assert not model.added_parameters()
    model.config.base_name_or_path = "somewhere"
    with pytest.raises(UserError, match="'kv' added no weights"):
        model.save_pretrained(tmp_path, added_only=True)


class TestErrors:
    @pytest.mark.parametrize("family", ["gpt2", "opt", "bert"])
    def test_absolute_positions(self, family: str) -> None:
        with pytest.raises(UserError, match=r"'kv' needs a model with rotary positions, .*'tail'\."):
            add_recurrence(tiny(family), config("kv"))
