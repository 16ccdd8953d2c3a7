"""Kept keys that are moved: against a description in plain tensor operations, against the base over the whole text
where positions say nothing, and of use before anything is trained."""

from pathlib import Path
from types import SimpleNamespace as Settings
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.functional import gelu, layer_norm
from transformers.models.gpt2.modeling_gpt2 import GPT2Attention

from recurrify import RecurrentForCausalLM, UserError, add_recurrence
from recurrify.data.texts import read_text
from recurrify.evaluate.flops import full_flops_per_token, memory_cost
from recurrify.evaluate.perplexity import evaluate_documents
from recurrify.mechanisms.neutral import mean_keys_and_values
from recurrify.modeling.loading import load_model
from support.checks import (
    ABSOLUTE,
    LOOKBACKS,
    ROTARY,
    WINDOW,
    assert_close,
    assert_equals_reference,
    config,
    recurrent,
)
from support.models import ENCODERS, text, tiny
from support.reference import attend


def run(w: dict[str, Tensor], s: Settings, c: Any, ids: Tensor) -> tuple[Tensor, Tensor]:
    """Logits of the whole text and the memory left behind."""
    start, done, memory, logits = 0, 0, None, []
    while done < ids.shape[1]:
        piece = ids[:, start : start + s.window]
        x, keys, values = window(w, s, c, piece, memory)
        logits.append(norm(w, "base.transformer.ln_f", x)[:, done - start :] @ w["base.transformer.wte.weight"].T)
        if piece.shape[1] == s.window:
            span = slice(s.window - s.overlap - s.keep, s.window - s.overlap)
            which = 0 if memory is None else 1
            kept = []
            for layer, (k, v, maps) in enumerate(zip(keys, values, w["mechanism.maps"], strict=True)):
                k = k[:, :, span] @ maps[0] + w["mechanism.shifts"][which, layer]
                v = v[:, :, span] @ maps[1] + w["mechanism.value_shifts"][which, layer]
                kept.append(torch.stack([k, v], 1))
            memory = torch.stack(kept, 1)
        done, start = start + piece.shape[1], start + s.window - s.overlap
    assert memory is not None
    return torch.cat(logits, 1), memory


def window(w: dict[str, Tensor], s: Settings, c: Any, ids: Tensor, memory: Tensor | None) -> tuple[Tensor, list, list]:
    """What the last layer makes of a window, and the window's own keys and values in each layer."""
    first, keys, values = 0 if memory is None else s.room, [], []
    x = w["base.transformer.wte.weight"][ids] + w["base.transformer.wpe.weight"][first : first + ids.shape[1]]
    for number in range(c.n_layer):
        block = f"base.transformer.h.{number}"
        q, k, v = linear(w, f"{block}.attn.c_attn", norm(w, f"{block}.ln_1", x)).split(c.n_embd, -1)
        q, k, v = (part.unflatten(-1, (c.n_head, -1)).transpose(1, 2) for part in (q, k, v))
        keys.append(k)
        values.append(v)
        if memory is not None:
            sinks = (
                w["mechanism.sink"][number][:, None].expand(-1, len(ids), -1, -1, -1) if s.sink else (k[:, :, :0],) * 2
            )
            k, v = (torch.cat([sinks[i], memory[:, number, i], own], 2) for i, own in enumerate((k, v)))
        x = x + linear(w, f"{block}.attn.c_proj", attend(q, k, v))
        inner = gelu(linear(w, f"{block}.mlp.c_fc", norm(w, f"{block}.ln_2", x)), approximate="tanh")
        x = x + linear(w, f"{block}.mlp.c_proj", inner)
    return x, keys, values


def norm(w: dict[str, Tensor], name: str, x: Tensor) -> Tensor:
    return layer_norm(x, x.shape[-1:], w[f"{name}.weight"], w[f"{name}.bias"], 1e-5)


def linear(w: dict[str, Tensor], name: str, x: Tensor) -> Tensor:
    return x @ w[f"{name}.weight"] + w[f"{name}.bias"]


@pytest.mark.parametrize("training", [False, True], ids=["eval", "train"])
@pytest.mark.parametrize("variant", LOOKBACKS)
def test_equals_the_description(variant: str, training: bool) -> None:
    model = recurrent("gpt2", base={"dtype": torch.double}, **LOOKBACKS[variant]).train(training)
    settings = Settings(**vars(model.recurrence) | {"room": model.mechanism.first_position})
    ids = text(2, 28)
    logits, memory = run(dict(model.named_parameters()), settings, model.base.config, ids)
    assert_equals_reference(model, ids, logits, memory)


@torch.no_grad()
@pytest.mark.parametrize("family", ABSOLUTE)
def test_where_positions_say_nothing_two_windows_are_one_text(family: str) -> None:
    """A causal model's keys do not depend on what follows; unmoved and all kept, they are the base's own."""
    base = tiny(family)
    (table,) = (module for name, module in base.named_modules() if name.endswith(("wpe", "embed_positions")))
    table.weight.zero_()
    model = add_recurrence(base, config("lookback", keep=WINDOW, sink=False, moved_start=False)).eval()
    ids = text(2, 2 * WINDOW)
    assert_close(model(ids).logits, model.base(ids).logits)


@torch.no_grad()
def test_keys_that_only_tell_their_place_are_moved_to_where_they_are_taken_to_stand() -> None:
    """Of a text that is the same token throughout, in the first layer, a key is its token's part and its place's."""
    base = tiny("gpt2")
    base.transformer.wte.weight.zero_()
    model = add_recurrence(base, config("lookback", keep=4, room=5)).eval()
    keys, values = mean_keys_and_values(base, WINDOW + 5)[0]
    for windows in (1, 2, 3):
        found_keys, found_values = model(text(1, windows * WINDOW)).state.memory[0, 0]
        assert_close(found_keys, keys[:, 1:5])
        assert_close(found_values.mean(1), values[:, 1:5].mean(1))
    assert_close(model.mechanism.sink[0], mean_keys_and_values(base, WINDOW + 5)[0][:, :, :1])


@pytest.fixture(scope="module")
def loss_of() -> Any:
    tokenizer = load_model("shipped:base")[1]
    documents = read_text("stdlib", "valid", tokenizer, lambda text: None, tokens_per_document=400)[0][:8]

    def loss(**make_up: Any) -> tuple[float, float]:
        model = load_model("shipped:base", {**make_up, "window": 64})[0]
        found = evaluate_documents(model, documents)
        return found.total_nll / int(found.tokens.sum()), full_flops_per_token(model)

    return loss


def test_it_remembers_before_anything_is_trained(loss_of: Any) -> None:
    """With two kept positions at each place in front, which suits this base, better than plain windows that share half
    of their tokens, which take far more operations; with one, than those that share a quarter."""
    plain, _ = loss_of(mechanism="none")
    shared, dear = loss_of(mechanism="none", overlap=32)
    a_quarter, _ = loss_of(mechanism="none", overlap=16)
    ours, cheap = loss_of(mechanism="lookback", keep=64, room=32)
    usual, _ = loss_of(mechanism="lookback", keep=64)
    unmoved, _ = loss_of(mechanism="lookback", keep=64, moved_start=False)
    assert plain > shared > ours
    assert a_quarter > usual
    assert ours < plain - 0.1
    assert unmoved > plain
    assert cheap < 0.7 * dear


def test_room_is_for_all_that_is_kept_or_what_the_base_has_left() -> None:
    base = {"max_position_embeddings": 12}
    assert recurrent("gpt2", mechanism="lookback", keep=6).mechanism.first_position == 7
    assert recurrent("gpt2", base=base, mechanism="lookback", keep=6, window=10).mechanism.first_position == 2
    assert recurrent("gpt2", base=base, mechanism="lookback", keep=6, window=12).mechanism.first_position == 0
    assert recurrent("gpt2", mechanism="lookback", keep=6, room=0).mechanism.first_position == 0
    assert recurrent("gpt2", mechanism="lookback", keep=1).mechanism.first_position == 2


@pytest.mark.parametrize("added_only", [False, True])
def test_room_is_saved_and_not_decided_anew(added_only: bool, tmp_path: Path) -> None:
    base = tiny("gpt2", max_position_embeddings=12)
    base.save_pretrained(tmp_path / "base")
    base.config._name_or_path = str(tmp_path / "base")
    model = add_recurrence(base, config("lookback", keep=6, window=10)).eval()
    model.set_recurrence(window=8)
    model.save_pretrained(tmp_path / "saved", added_only=added_only)
    loaded = RecurrentForCausalLM.from_pretrained(tmp_path / "saved")
    assert loaded.mechanism.first_position == loaded.recurrence.room == model.recurrence.room == 2
    ids = text(2, 28)
    with torch.no_grad():
        assert_close(loaded(ids).logits, model(ids).logits)


def test_the_default_window_leaves_room() -> None:
    """The shipped base has 256 positions, fewer than the usual window."""
    model, _ = load_model("shipped:base", {"mechanism": "lookback", "keep": 64})
    assert (model.recurrence.window, model.mechanism.first_position) == (224, 32)
    assert load_model("shipped:base", {"mechanism": "lookback", "keep": 64, "room": 6})[0].recurrence.window == 250
    assert load_model("shipped:base", {"mechanism": "lookback", "keep": 250})[0].recurrence.window == 250
    assert load_model("shipped:base", {"mechanism": "tail"})[0].recurrence.window == 224


def test_what_it_takes() -> None:
    """Pairs of a token and a key, and the maps; a tail of as many takes its way through the layers besides."""
    model = recurrent("gpt2", mechanism="lookback", keep=6)
    cost, layers, width, size = memory_cost(model), 3, 16, 8
    pairs, maps = 4 * WINDOW * (6 + 1) * layers * width, 2 * 2 * layers * 6 * width * size
    assert cost.extra_flops_per_token == pytest.approx((pairs + maps) / WINDOW)
    assert cost.state_floats == model(text(1, WINDOW)).state.memory.numel()
    shifts, sink = 2 * layers * width * (6 + 1), 2 * layers * width
    assert cost.added_parameters == 2 * layers * width * size + shifts + sink


def test_a_base_that_scales_its_attention_by_itself_goes_on_doing_so(monkeypatch: pytest.MonkeyPatch) -> None:
    """GPT-2 does in float32, where it is set to, only what nobody has opened."""
    base = tiny("gpt2", attn_implementation="eager", reorder_and_upcast_attn=True)
    model, calls = add_recurrence(base, config("lookback")), []
    upcast = GPT2Attention._upcast_and_reordered_attn
    watched = lambda *inputs, **more: calls.append(None) or upcast(*inputs, **more)  # noqa: E731
    monkeypatch.setattr(GPT2Attention, "_upcast_and_reordered_attn", watched)
    model(text(2, 2 * WINDOW))
    assert len(calls) == 2 * base.config.n_layer


class TestRefusals:
    @pytest.mark.parametrize("family", [*ROTARY, *ENCODERS])
    def test_other_models(self, family: str) -> None:
        instead = "'kv'" if family in ROTARY else "another, such as 'tail'"
        with pytest.raises(UserError, match=rf"'lookback' is for decoders with absolute positions.*choose {instead}"):
            add_recurrence(tiny(family), config("lookback"))

    @pytest.mark.parametrize(
        ("settings", "sentence"),
        [
            ({"keep": 0}, "keep=0"),
            ({"room": -1}, "room=-1"),
            ({"sink": 1}, "`sink` must be True or False"),
            ({"moved_start": 1}, "`moved_start` must be True or False"),
            ({"keep": 9}, "`keep` is 9, .* only 8 positions .*keep=8 or less"),
            ({"overlap": 6}, "`keep` is 3, .* only 2 positions .*overlap=6.*keep=2 or less.* less overlap"),
        ],
        ids=str,
    )
    def test_bad_settings(self, settings: dict[str, Any], sentence: str) -> None:
        with pytest.raises(UserError, match=sentence) as caught:
            config("lookback", **settings)
        assert str(caught.value).endswith(".")

    def test_longer_windows_than_it_was_made_for(self) -> None:
        model = recurrent("gpt2", mechanism="lookback")
        with pytest.raises(UserError, match=r"made for windows of 8 .*: choose window=8 or less, or add a new one"):
            model.set_recurrence(window=9)
        assert model.recurrence.window == 8
        model.set_recurrence(window=6, overlap=2)

    @pytest.mark.parametrize(("family", "mechanism"), [("gpt2", "lookback"), ("llama", "kv")])
    def test_a_base_that_checkpoints_its_own_layers(self, family: str, mechanism: str) -> None:
        """Of these transformers takes the cache away, and kept keys with it."""
        model = recurrent(family, mechanism=mechanism)
        ids, more = text(1, WINDOW), text(1, 5)
        state = model(ids).state
        model.base.gradient_checkpointing_enable()
        with torch.no_grad():
            model.eval()(more, state=state)
        with pytest.raises(UserError, match=r"model\.base\.gradient_checkpointing_disable\(\)"):
            model.train()(more, labels=more, state=state)
        model.base.gradient_checkpointing_disable()
        model.gradient_checkpointing_enable()
        model(more, labels=more, state=state).loss.backward()

    def test_more_positions_than_there_are(self) -> None:
        base = tiny("gpt2", max_position_embeddings=11)
        with pytest.raises(
            UserError, match=r"`window` is 8 behind 4 positions for kept keys, .* only 11 positions: .*window=7"
        ):
            add_recurrence(base, config("lookback", room=4))
