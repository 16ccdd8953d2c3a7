"""The plain decoder and the RSA transformer: a naive double, and a recurrence that runs on between segments."""

import math
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from recurrify.attention.config import RSAConfig
from recurrify.attention.reference import rem_matrix
from recurrify.errors import UserError
from recurrify_papers.models.language import count_parameters
from recurrify_papers.models.transformer import Transformer, TransformerConfig, TransformerState
from support.language import ids, stirred

RSA = RSAConfig(heads=2, counts=(0, 0, 0, 0, 1, 1), dilations=(2, 3))
PLAIN = TransformerConfig(vocabulary=11, layers=2, width=8, heads=2, head_width=3, inner=12, dropout=0.0)
RECURRENT = replace(PLAIN, rsa=RSA)
BOTH = pytest.mark.parametrize("config", [PLAIN, RECURRENT], ids=["transformer", "rsa"])


def make(config: TransformerConfig) -> Transformer:
    model: Transformer = stirred(Transformer, config)
    return model


def naive_attention(attention: torch.nn.Module, normed: Tensor, past: list[Tensor]) -> tuple[Tensor, list[Tensor]]:
    """One row; `past` are the values of earlier segments by head, which the recurrence alone can see."""
    heads, values = [], []
    for head in range(2):
        query, key, value = (
            normed @ attention.projection.weight[start + 3 * head : start + 3 * head + 3].T for start in (0, 6, 12)
        )
        rows = []
        for i in range(len(normed)):
            scores = torch.stack([query[i] @ key[j] / math.sqrt(3) for j in range(i + 1)])
            rows.append(torch.softmax(scores, dim=0) @ value[: i + 1])
        attended = torch.stack(rows)
        values.append(torch.cat([past[head], value]))
        if attention.encoding is not None:
            gate = attention.encoding.gate()
            recurrent = rem_matrix(attention.encoding, len(normed), len(past[head]))[head] @ values[head]
            attended = (1 - gate) * attended + gate * recurrent
        heads.append(attended)
    return torch.cat(heads, dim=1) @ attention.output.weight.T, values


def naive_logits(model: Transformer, tokens: Tensor, past: list[list[Tensor]]) -> tuple[Tensor, list[list[Tensor]]]:
    """One row of one segment, and all values so far by layer and head."""
    waves = [[place / 10_000 ** (2 * n / 8) for n in range(4)] for place in range(len(tokens))]
    angles = torch.tensor(waves, dtype=torch.float64)
    hidden = model.embedding.weight[tokens] * math.sqrt(8) + torch.cat([angles.sin(), angles.cos()], dim=1)
    after = []
    for layer, values in zip(model.layers, past, strict=True):
        update, seen = naive_attention(layer.attention, layer.attention_norm(hidden), values)
        after.append(seen)
        hidden = hidden + update
        inner = (layer.norm(hidden) @ layer.inner.weight.T + layer.inner.bias).clamp(min=0)
        hidden = hidden + inner @ layer.output.weight.T + layer.output.bias
    return model.norm(hidden) @ model.embedding.weight.T + model.output_bias, after


@BOTH
def test_values_and_every_gradient_equal_the_naive_double(config):
    model = make(config)
    tokens = ids(7)
    nothing = [[torch.zeros(0, 3, dtype=torch.float64)] * 2] * 2
    fast = model(tokens).logits
    slow = torch.stack([naive_logits(model, row, nothing)[0] for row in tokens])
    weights = torch.randn_like(slow)
    # η is empty in this mix of heads.
    parameters = [parameter for parameter in model.parameters() if parameter.numel() > 0]
    fast_gradients = torch.autograd.grad((fast * weights).sum(), parameters)
    slow_gradients = torch.autograd.grad((slow * weights).sum(), parameters)
    assert all((gradient != 0).any() for gradient in fast_gradients)
    torch.testing.assert_close([fast, *fast_gradients], [slow, *slow_gradients])


@pytest.mark.parametrize("truncation", [None, 4])
def test_the_recurrence_runs_on_while_attention_starts_anew(truncation):
    model = make(replace(RECURRENT, rsa=replace(RSA, truncation=truncation)))
    tokens = ids(14, batch=1)
    state, past = model.first_state(1), [[torch.zeros(0, 3, dtype=torch.float64)] * 2] * 2
    for segment in torch.tensor_split(tokens, (5, 6, 11), dim=1):
        output = model(segment, state)
        slow, past = naive_logits(model, segment[0], past)
        torch.testing.assert_close(output.logits[0], slow)
        state = output.state
    assert not torch.allclose(model(tokens[:, 11:]).logits, output.logits)


def test_without_carrying_each_segment_stands_alone():
    for config in (PLAIN, replace(RECURRENT, carry_recurrence=False)):
        model = make(config)
        state = model(ids(6)).state
        assert all(part.shape[0] == 0 for part in state)
        torch.testing.assert_close(model(ids(5), state).logits, model(ids(5)).logits, rtol=0, atol=0)


def test_the_state_keeps_its_shape_and_carries_no_gradient():
    model = make(RECURRENT)
    first = model.first_state(2)
    state = model(ids(6), first).state
    assert [part.shape for part in state] == [part.shape for part in first]
    assert not any(part.requires_grad for part in state)
    leaves = TransformerState(*(part.clone().requires_grad_() for part in state))
    model(ids(5), leaves).logits.sum().backward()
    assert all(part.grad is None for part in leaves)


@BOTH
def test_no_future_leaks_in(config):
    model = make(config)
    state = model(ids(6)).state
    tokens = ids(9)
    changed = tokens.clone()
    changed[:, 5] = (changed[:, 5] + 1) % 11
    before, after = model(tokens, state).logits, model(changed, state).logits
    torch.testing.assert_close(before[:, :5], after[:, :5], rtol=0, atol=0)
    assert not torch.allclose(before[:, 5:], after[:, 5:])


def test_recurrence_adds_five_numbers_a_layer():
    rsa = RSAConfig(heads=8, counts=(0, 0, 0, 0, 2, 2), dilations=(3, 6, 9, 12))
    with torch.device("meta"):
        plain, recurrent = (Transformer(TransformerConfig(vocabulary=204, rsa=choice)) for choice in (None, rsa))
    assert count_parameters(recurrent) - count_parameters(plain) == 5 * 14


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"heads": 0}, "`heads`"),
        ({"dropout": -0.1}, "`dropout`"),
        ({"width": 7}, "even"),
        ({"heads": 4, "rsa": RSA}, "rsa.heads=2, heads=4"),
    ],
)
def test_bad_settings_are_refused_with_a_sentence(changes, words):
    with pytest.raises(UserError, match=words):
        replace(PLAIN, **changes)


@BOTH
def test_a_state_of_another_batch_is_refused_with_a_sentence(config):
    model = make(config)
    with pytest.raises(UserError, match="batch of 3"):
        model(ids(4, batch=3), model(ids(4)).state)
