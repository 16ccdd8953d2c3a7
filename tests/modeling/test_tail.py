"""Tails: the positions and layers of their slots, how far gradients reach, gates, and errors."""

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.functional import layer_norm

from recurrify import TailConfig, UserError, add_recurrence
from recurrify.evaluate.flops import full_flops_per_token, paper_flops_per_token
from support.checks import (
    WINDOW,
    assert_close,
    config,
    recurrent,
)
from support.models import text, tiny


def tail(**settings: Any) -> TailConfig:
    made = config("tail", **settings)
    assert isinstance(made, TailConfig)
    return made


@torch.no_grad()
@pytest.mark.parametrize("family", ["llama", "gpt_neox", "smollm3"])
def test_slots_have_the_position_of_the_first_token(family: str) -> None:
    """Above the first layer, the second window equals the base over slots and tokens as one longer input."""
    model, ids = recurrent(family, mechanism="tail", pooled_slots=2), text(2, 2 * WINDOW)
    memory = model(ids[:, :WINDOW]).state.memory
    base, found = model.base.base_model, model(ids).logits[:, WINDOW:]
    caught: list[Tensor] = []
    base.layers[0].register_forward_hook(lambda *call: caught.append(call[2]))
    base(ids[:, WINDOW:])
    base.layers = base.layers[1:]
    base.config.num_hidden_layers -= 1
    places = torch.cat([torch.zeros(memory.shape[1]), torch.arange(WINDOW)]).long()[None].expand(2, -1)
    inputs = torch.cat([memory, caught[0] if isinstance(caught[0], Tensor) else caught[0][0]], 1)
    # Without a mask, transformers takes positions that begin again for separate texts.
    mask = torch.ones(2, 1, inputs.shape[1], inputs.shape[1], dtype=torch.bool).tril()
    hidden = base(inputs_embeds=inputs, position_ids=places, attention_mask=mask, use_cache=False).last_hidden_state
    assert_close(found, model.get_output_embeddings()(hidden[:, memory.shape[1] :]))


@torch.no_grad()
def test_an_encoders_slots_see_the_window_but_not_its_padding() -> None:
    model, ids = recurrent("bert", mechanism="tail", pooled_slots=2), text(1, WINDOW + 5)
    memory = model(ids[:, :WINDOW]).state.memory
    bert, caught = model.base.bert, []
    bert.encoder.layer[0].register_forward_hook(lambda *call: caught.append(call[2]))
    bert(ids[:, WINDOW:])
    hidden = torch.cat([memory, caught[0] if isinstance(caught[0], Tensor) else caught[0][0]], 1)
    for layer in bert.encoder.layer[1:]:
        output = layer(hidden)
        hidden = output if isinstance(output, Tensor) else output[0]
    longer = torch.cat([ids, text(1, WINDOW - 5, seed=1)], 1)
    mask = (torch.arange(longer.shape[1]) < ids.shape[1]).long()[None]
    expected = model.base.cls(hidden[:, memory.shape[1] :])
    assert_close(model(ids).logits[:, WINDOW:], expected)
    both = torch.cat([longer, text(1, longer.shape[1], seed=2)])
    padded = model(both, attention_mask=torch.cat([mask, torch.ones_like(mask)]))
    assert_close(padded.logits[:1, WINDOW : ids.shape[1]], expected)


@torch.no_grad()
@pytest.mark.parametrize(("family", "attention"), [("gpt2", "sdpa"), ("llama", "eager"), ("bert", "sdpa")])
def test_one_token_in_a_batch_with_a_new_document(family: str, attention: str) -> None:
    """A mask for a single query looks like one for all queries."""
    model = recurrent(family, mechanism="tail")
    model.base.set_attn_implementation(attention)
    state, token = model(text(2, WINDOW)).state.reset([1]), text(2, 1, seed=3)
    together = model(token, state=state).logits
    assert_close(together[:1], model(token[:1], state=state.select([0])).logits)
    assert_close(together[1:], model(token[1:]).logits)


@pytest.mark.parametrize(
    ("settings", "reached"),
    [
        ({}, [3, 4]),
        ({"gated": True}, [0, 1, 2, 3, 4]),
        ({"pooled_slots": 1, "bptt_windows": 3, "checkpoint": True}, [3, 4]),
    ],
    ids=str,
)
def test_windows_that_the_last_loss_reaches(settings: dict[str, Any], reached: list[int]) -> None:
    base = {"tie_word_embeddings": False, "dtype": torch.double}
    model = recurrent("gpt2", base=base, mechanism="tail", **settings).train()
    ids = text(1, 5 * WINDOW) % 50
    marks = [50 + window for window in range(5)]
    ids[0, 5::WINDOW] = torch.tensor(marks)
    labels = torch.full_like(ids, -100)
    labels[0, -2:] = 7
    model(ids, labels=labels).loss.backward()
    gradient = model.get_input_embeddings().weight.grad[marks]
    assert (gradient != 0).any(1).nonzero()[:, 0].tolist() == reached


@torch.no_grad()
def test_new_slots_are_close_to_their_inputs() -> None:
    model, ids, inputs = add_recurrence(tiny("gpt2"), tail(neutral_start=False)), text(2, WINDOW), []
    model.base.transformer.h[1].register_forward_pre_hook(lambda _, args: inputs.append(args[0]))
    memory = model(ids).state.memory
    assert_close(memory, layer_norm(inputs[0][:, -4:], (16,)), 0.1)


@torch.no_grad()
def test_new_gate_keeps_almost_nothing_and_an_open_one_everything() -> None:
    models = [add_recurrence(tiny("gpt2"), tail(gated=gated, neutral_start=False)) for gated in (False, True)]
    models[1].mechanism.load_state_dict(models[0].mechanism.state_dict(), strict=False)
    ids = text(2, 3 * WINDOW)
    plain, gated = (model(ids) for model in models)
    assert_close(gated.state.memory, plain.state.memory, 0.1)
    assert not torch.allclose(gated.state.memory, plain.state.memory)
    half = add_recurrence(tiny("gpt2"), tail(gated=True, gate_start=0.0, neutral_start=False)).mechanism.gate
    assert torch.equal(half.sigmoid(), torch.full_like(half, 0.5))
    models[1].mechanism.gate.fill_(50.0)
    first = models[1](ids[:, :WINDOW]).state
    assert_close(models[1](ids[:, WINDOW:], state=first).state.memory, first.memory)
    # A row that begins a new document keeps nothing.
    assert_close(models[1](ids[:, WINDOW:], state=first.reset([1])).state.memory[:1], first.memory[:1])
    alone = models[1](ids[1:, WINDOW:]).state.memory
    assert_close(models[1](ids[:, WINDOW:], state=first.reset([1])).state.memory[1:], alone)


def test_pooled_slots_learn_their_statistics() -> None:
    model = add_recurrence(tiny("gpt2"), tail(pooled_slots=2)).train()
    ids = text(2, 3 * WINDOW)
    model(ids, labels=ids)
    pool = model.mechanism.pool
    assert pool.windows_seen.item() == 6
    assert pool.running_mean.abs().min() > 0
    half = model.to(torch.bfloat16).mechanism.pool
    assert {half.running_mean.dtype, half.running_variance.dtype} == {torch.float32}


def test_flops_count_every_layer_with_slots() -> None:
    counts = {}
    for until in (2, "top"):
        model = add_recurrence(tiny("gpt2"), tail(until_layer=until))
        counts[until] = full_flops_per_token(model) * WINDOW
        assert paper_flops_per_token(model) == paper_flops_per_token(model.base, WINDOW, 0)
    weights = sum(value.numel() for value in model.base.transformer.h[2].parameters() if value.ndim == 2)
    attention = 2 * 16 * ((WINDOW + 4) ** 2 - WINDOW**2)
    assert counts["top"] - counts[2] == pytest.approx(2 * weights * 4 + attention)


class TestErrors:
    @pytest.mark.parametrize("settings", [{"insert_layer": 4}, {"until_layer": 4}], ids=str)
    def test_layers_that_the_model_does_not_have(self, settings: dict[str, Any]) -> None:
        (name,) = settings
        with pytest.raises(UserError, match=f"`{name}` is 4, but the model has only 3 layers: choose at most 3"):
            add_recurrence(tiny("gpt2"), tail(**settings))

    @pytest.mark.parametrize("family", ["mistral", "gemma2"])
    def test_slots_count_against_a_sliding_window(self, family: str) -> None:
        base = tiny(family, sliding_window=WINDOW + 5)
        with pytest.raises(UserError, match=f"window={WINDOW - 1} or less"):
            add_recurrence(base, tail(pooled_slots=2))
        add_recurrence(base, tail(pooled_slots=1))

    def test_changed_windows_must_hold_the_tail(self) -> None:
        model = recurrent("gpt2", mechanism="tail")
        with pytest.raises(UserError, match=r"`tail` is 4, .* only 3 positions"):
            model.set_recurrence(overlap=5)
        model.set_recurrence(overlap=4)
