"""The plain decoder and the RSA transformer compared with a naive implementation, and the carried recurrence."""

import math
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from recurrify.attention import RSAConfig, rem_matrix
from recurrify_papers.models.transformer import Transformer, TransformerConfig
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
        update, seen = naive_attention(layer.attention, layer.norm(hidden), values)
        after.append(seen)
        hidden = hidden + update
        forward = layer.feed_forward
        inner = (forward.norm(hidden) @ forward.inner.weight.T + forward.inner.bias).clamp(min=0)
        hidden = hidden + inner @ forward.output.weight.T + forward.output.bias
    return model.norm(hidden) @ model.embedding.weight.T + model.output_bias, after


@BOTH
def test_logits_and_gradients_equal_the_naive_implementation(config):
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
def test_recurrence_continues_between_segments_and_attention_does_not(truncation):
    model = make(replace(RECURRENT, rsa=replace(RSA, truncation=truncation)))
    tokens = ids(14, batch=1)
    state, past = model.first_state(1), [[torch.zeros(0, 3, dtype=torch.float64)] * 2] * 2
    for segment in torch.tensor_split(tokens, (5, 6, 11), dim=1):
        output = model(segment, state)
        slow, past = naive_logits(model, segment[0], past)
        torch.testing.assert_close(output.logits[0], slow)
        state = output.state
    assert not torch.allclose(model(tokens[:, 11:]).logits, output.logits)


def test_segments_are_independent_without_a_recurrence():
    model = make(PLAIN)
    state = model(ids(6)).state
    assert all(part.shape[0] == 0 for part in state)
    torch.testing.assert_close(model(ids(5), state).logits, model(ids(5)).logits, rtol=0, atol=0)
