"""Kept keys that are moved to other positions: against the base over the whole text, and useful before training."""

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers.models.gpt2.modeling_gpt2 import GPT2Attention

from recurrify import RecurrentForCausalLM, UserError, add_recurrence
from recurrify.data.texts import read_text
from recurrify.evaluate.flops import full_flops_per_token, memory_cost
from recurrify.evaluate.perplexity import evaluate_documents
from recurrify.mechanisms.choose import default_window
from recurrify.mechanisms.neutral import mean_keys_and_values
from recurrify.modeling.loading import load_model
from support.checks import (
    ABSOLUTE,
    WINDOW,
    assert_close,
    config,
    recurrent,
)
from support.models import text, tiny


@torch.no_grad()
@pytest.mark.parametrize("family", ABSOLUTE)
def test_without_position_embeddings_two_windows_equal_the_base(family: str) -> None:
    """The keys of a causal model do not depend on later tokens; here all are kept, and not moved."""
    base = tiny(family)
    (table,) = (module for name, module in base.named_modules() if name.endswith(("wpe", "embed_positions")))
    table.weight.zero_()
    model = add_recurrence(base, config("lookback", keep=WINDOW, sink=False, moved_start=False)).eval()
    ids = text(2, 2 * WINDOW)
    assert_close(model(ids).logits, model.base(ids).logits)


@torch.no_grad()
def test_keys_are_moved_to_their_assumed_positions() -> None:
    """All tokens are the same here, so that keys of the first layer differ only by their position."""
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

    def loss(**recurrence: Any) -> tuple[float, float]:
        model = load_model("shipped:base", {**recurrence, "window": 64})[0]
        found = evaluate_documents(model, documents)
        return found.total_nll / int(found.tokens.sum()), full_flops_per_token(model)

    return loss


def test_it_works_before_training(loss_of: Any) -> None:
    """With two kept keys per free position, which is best for this base, it beats plain windows with half their tokens
    in overlap, at fewer FLOPs; with one, it beats those with a quarter."""
    plain, _ = loss_of(mechanism="none")
    half, cost_of_half = loss_of(mechanism="none", overlap=32)
    quarter, _ = loss_of(mechanism="none", overlap=16)
    ours, cost = loss_of(mechanism="lookback", keep=64, room=32)
    usual, _ = loss_of(mechanism="lookback", keep=64)
    unmoved, _ = loss_of(mechanism="lookback", keep=64, moved_start=False)
    assert plain > half > ours
    assert quarter > usual
    assert ours < plain - 0.1
    assert unmoved > plain
    assert cost < 0.7 * cost_of_half


def test_room_is_limited_by_the_positions_of_the_base() -> None:
    base = {"max_position_embeddings": 12}
    assert recurrent("gpt2", mechanism="lookback", keep=6).mechanism.first_position == 7
    assert recurrent("gpt2", base=base, mechanism="lookback", keep=6, window=10).mechanism.first_position == 2
    assert recurrent("gpt2", base=base, mechanism="lookback", keep=6, window=12).mechanism.first_position == 0
    assert recurrent("gpt2", mechanism="lookback", keep=6, room=0).mechanism.first_position == 0
    assert recurrent("gpt2", mechanism="lookback", keep=1).mechanism.first_position == 2


def test_room_is_saved(tmp_path: Path) -> None:
    base = tiny("gpt2", max_position_embeddings=12)
    base.save_pretrained(tmp_path / "base")
    base.config._name_or_path = str(tmp_path / "base")
    model = add_recurrence(base, config("lookback", keep=6, window=10)).eval()
    model.set_recurrence(window=8)
    model.save_pretrained(tmp_path / "saved", added_only=True)
    loaded = RecurrentForCausalLM.from_pretrained(tmp_path / "saved")
    assert loaded.mechanism.first_position == loaded.recurrence.room == model.recurrence.room == 2
    ids = text(2, 28)
    with torch.no_grad():
        assert_close(loaded(ids).logits, model(ids).logits)


def test_default_window_leaves_room() -> None:
    config = tiny("gpt2", max_position_embeddings=256).config  # fewer than the usual window
    assert default_window(config, {"mechanism": "lookback", "keep": 64}) == 224
    assert default_window(config, {"mechanism": "lookback", "keep": 64, "room": 6}) == 250
    assert default_window(config, {"mechanism": "lookback", "keep": 250}) == 250
    assert default_window(config, {"mechanism": "tail"}) == 224


def test_cost() -> None:
    """Pairs of a token and a kept key, and the maps."""
    model = recurrent("gpt2", mechanism="lookback", keep=6)
    cost, layers, width, size = memory_cost(model), 3, 16, 8
    pairs, maps = 4 * WINDOW * (6 + 1) * layers * width, 2 * 2 * layers * 6 * width * size
    assert cost.extra_flops_per_token == pytest.approx((pairs + maps) / WINDOW)
    assert cost.state_floats == model(text(1, WINDOW)).state.memory.numel()
    shifts, sink = 2 * layers * width * (6 + 1), 2 * layers * width
    assert cost.added_parameters == 2 * layers * width * size + shifts + sink


def test_attention_in_float32_is_not_opened(monkeypatch: pytest.MonkeyPatch) -> None:
    """GPT-2 with `reorder_and_upcast_attn` has attention of its own, which opened attention would replace."""
    base = tiny("gpt2", attn_implementation="eager", reorder_and_upcast_attn=True)
    model, calls = add_recurrence(base, config("lookback")), []
    upcast = GPT2Attention._upcast_and_reordered_attn
    watched = lambda *inputs, **more: calls.append(None) or upcast(*inputs, **more)  # noqa: E731
    monkeypatch.setattr(GPT2Attention, "_upcast_and_reordered_attn", watched)
    model(text(2, 2 * WINDOW))
    assert len(calls) == 2 * base.config.n_layer


class TestErrors:
    @pytest.mark.parametrize("family", ["llama", "gpt_neox", "bert"])
    def test_other_models(self, family: str) -> None:
        instead = "'kv'" if family != "bert" else "another, such as 'tail'"
        with pytest.raises(UserError, match=rf"'lookback' is for decoders with absolute positions.*choose {instead}"):
            add_recurrence(tiny(family), config("lookback"))

    def test_longer_windows_than_it_was_made_for(self) -> None:
        model = recurrent("gpt2", mechanism="lookback")
        with pytest.raises(UserError, match=r"made for windows of 8 .*: choose window=8 or less, or add a new one"):
            model.set_recurrence(window=9)
        assert model.recurrence.window == 8
        model.set_recurrence(window=6, overlap=2)

    @pytest.mark.parametrize(("family", "mechanism"), [("gpt2", "lookback"), ("llama", "kv")])
    def test_a_base_that_checkpoints_its_own_layers(self, family: str, mechanism: str) -> None:
        """transformers drops the cache of layers that are checkpointed, and the kept keys with it."""
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

    @pytest.mark.parametrize(("family", "mechanism", "more"), [("gpt2", "lookback", {"room": 4}), ("llama", "kv", {})])
    def test_more_positions_than_there_are(self, family: str, mechanism: str, more: dict[str, int]) -> None:
        base = tiny(family, max_position_embeddings=11)
        with pytest.raises(
            UserError, match=r"`window` is 8 behind 4 positions for kept keys, .* only 11 positions: .*window=7"
        ):
            add_recurrence(base, config(mechanism, **more))
