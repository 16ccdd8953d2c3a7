"""RSA in a decoder: close to the base at first, in every family and attention, token by token, and errors."""

from typing import Any

import pytest
import torch

from recurrify import CarryConfig, UserError, add_recurrence
from recurrify.attention.config import RSAConfig
from recurrify.attention.encoding import RecurrenceEncoding
from recurrify.attention.rsa import mix_recurrence
from recurrify.attention.scan import ScanState
from recurrify.data.texts import read_text
from recurrify.evaluate.flops import memory_cost
from recurrify.evaluate.perplexity import evaluate_documents
from recurrify.mechanisms.rsa import mix_one
from recurrify.modeling.loading import load_model
from support.checks import WINDOW, assert_close, config, recurrent
from support.models import DECODERS, text, tiny


def test_new_model_is_close_to_its_base() -> None:
    tokenizer = load_model("shipped:base")[1]
    documents = read_text("stdlib", "valid", tokenizer, lambda text: None, tokens_per_document=400)[0][:3]

    def loss(**recurrence: Any) -> float:
        torch.manual_seed(0)
        found = evaluate_documents(load_model("shipped:base", {**recurrence, "window": 64})[0], documents)
        return found.total_nll / int(found.tokens.sum())

    plain = loss(mechanism="none")
    assert loss(mechanism="rsa") < plain + 0.05
    assert loss(mechanism="rsa", gate_start=0.0) > plain + 0.05


@torch.no_grad()
@pytest.mark.parametrize("family", DECODERS)
def test_windows_reach_back_through_the_recurrence_alone(family: str) -> None:
    """The first token changes the second window, unless the gate is closed."""
    ids = text(2, 2 * WINDOW)
    other = ids.clone()
    other[0, 0] += 1
    for gate, reaches in ((0.0, True), (-1000.0, False)):
        model = recurrent(family, mechanism="rsa", gate_start=gate)
        ours, theirs = (model(given).logits[:, WINDOW:] for given in (ids, other))
        assert torch.equal(ours[0], theirs[0]) is not reaches
        assert_close(ours[1], theirs[1])


@torch.no_grad()
@pytest.mark.parametrize("family", ["gpt2", "llama"])
def test_attention_can_be_changed(family: str) -> None:
    model, ids, answers = recurrent(family, mechanism="rsa", overlap=3), text(2, 21), []
    for attention in ("sdpa", "eager", "sdpa"):
        model.base.set_attn_implementation(attention)
        whole = model(ids).logits
        cache = model(ids[:, :16], use_cache=True).past_key_values
        steps = [model(one, past_key_values=cache).logits for one in ids[:, 16:].split(1, dim=1)]
        answers += [whole, torch.cat([whole[:, :16], *steps], dim=1)]
    for answer in answers[1:]:
        assert_close(answer, answers[0])


@torch.no_grad()
def test_base_still_runs_alone_and_in_another_model() -> None:
    base, ids = tiny("llama"), text(2, 20)
    before, carrying = base(ids).logits, add_recurrence(tiny("llama"), CarryConfig(window=WINDOW))
    for _ in range(2):
        model = add_recurrence(base, config("rsa"))
        assert not torch.allclose(model(ids).logits, carrying(ids).logits)
        assert torch.equal(base(ids).logits, before)
        assert base.config._attn_implementation == "sdpa"
    again = add_recurrence(base, CarryConfig(window=WINDOW))
    again.mechanism.load_state_dict(carrying.mechanism.state_dict())
    assert torch.equal(again(ids).logits, carrying(ids).logits)


@torch.no_grad()
@pytest.mark.parametrize("continues", [False, True])
def test_one_query_is_a_row_of_the_window(continues: bool) -> None:
    """Batch rows at different places of a window whose later values do not exist yet."""
    settings: dict[str, Any] = {"counts": (1, 1, 0, 1, 1, 2), "dilations": (2, 4, 3, 5), "sharing": "none"}
    torch.manual_seed(0)
    encoding = RecurrenceEncoding(RSAConfig(heads=7, gate_start=0.5, **settings)).double()
    attended, values = (torch.randn(5, 7, WINDOW, 4, dtype=torch.double) for _ in range(2))
    carry = None
    if continues:
        before = torch.randn(5, 7, 13, 4, dtype=torch.double)
        state = mix_recurrence(before, before, encoding, causal=True).state
        assert state is not None
        carry = state.carry
    state = None if carry is None else ScanState(carry, carry[:, :, :0])
    whole = mix_recurrence(attended, values, encoding, causal=True, state=state).output
    places, rows = torch.tensor([0, 7, 3, 5, 6]), torch.arange(5)
    for row, place in enumerate(places.tolist()):
        values[row, :, place + 1 :] = 1e3
    found = mix_one(attended[rows, :, places][:, :, None], values, encoding, places, carry)
    assert_close(found[:, :, 0], whole[rows, :, places], 1e-12)


def test_the_state_does_not_grow() -> None:
    model = recurrent("llama", mechanism="rsa", layers=[1, 3])
    for length in (WINDOW, 5 * WINDOW):
        # 2 layers, 2 heads, real and imaginary part of 3 slots, 8 wide
        assert model(text(2, length)).state.memory.shape == (2, 2, 2, 6, 8)
    assert memory_cost(model)[1:3] == (2 * 4, 2 * 2 * 6 * 8)


def test_encoder_raises() -> None:
    with pytest.raises(UserError, match="needs a decoder"):
        add_recurrence(tiny("bert"), config("rsa"))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"counts": (2, 1, 1, 0, 0, 0), "dilations": ()}, r"sum 4\), heads=2"),
        ({"counts": (0, 0, 0, 0, 0, 0), "dilations": ()}, "at least one head"),
        ({"counts": (1, 0, 0)}, "six numbers"),
        ({"dilations": (1, 2)}, "one number for each of the 1 dilated heads"),
        ({"sharing": "pair"}, "as many sine as cosine heads"),
        ({"layers": (2, 4)}, "names layer 4, but the model has only 3 layers"),
        ({"layers": (2, 2)}, "different numbers of layers"),
        ({"layers": ()}, "different numbers of layers"),
        ({"layers": (0,)}, "a list, and each entry a whole number of at least 1 or 'all'"),
        ({"counts": 3}, "`counts` must be a list"),
    ],
    ids=str,
)
def test_invalid_settings_raise(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        add_recurrence(tiny("gpt2"), config("rsa", **settings))
