"""Transformer-XL and RSA-XL compared with a naive implementation, and their memory."""

import math
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from recurrify.attention import RSAConfig, rem_matrix
from recurrify_papers.models.transformer_xl import TransformerXL, TransformerXLConfig, TransformerXLState
from support.language import ids, stirred

RSA = RSAConfig(heads=2, counts=(0, 0, 0, 0, 1, 1), dilations=(2, 3))
XL = TransformerXLConfig(
    vocabulary=11, layers=2, width=8, heads=2, head_width=3, inner=12, dropout=0.0, target_length=5, memory_length=20
)
RSA_XL = replace(XL, rsa=RSA)
BOTH = pytest.mark.parametrize("config", [XL, RSA_XL], ids=["xl", "rsa-xl"])


def make(config: TransformerXLConfig) -> TransformerXL:
    model: TransformerXL = stirred(TransformerXL, config)
    return model


def naive_waves(distance: int, config: TransformerXLConfig) -> Tensor:
    distance = distance if config.clamp is None else min(distance, config.clamp)
    angles = [distance / 10_000 ** (2 * n / config.width) for n in range(config.width // 2)]
    return torch.tensor([math.sin(a) for a in angles] + [math.cos(a) for a in angles], dtype=torch.float64)


def naive_head(model: TransformerXL, attention: torch.nn.Module, head: int, hidden: Tensor, seen: Tensor) -> Tensor:
    """One head of one batch row, (Q, D), with a loop over each query and key."""
    config = model.config
    width = config.head_width
    part = slice(head * width, (head + 1) * width)
    query, key = hidden @ attention.query.weight[part].T, seen @ attention.key.weight[part].T
    value = seen @ attention.value.weight[part].T
    memory = len(seen) - len(hidden)
    rows = []
    for i in range(len(hidden)):
        scores, visible = [], []
        for j in range(len(seen)):
            distance = memory + i - j
            if distance < 0 or (config.same_length and distance >= config.memory_length):
                continue
            position_key = attention.position_key.weight[part] @ naive_waves(distance, config)
            content = (query[i] + model.content_bias[head]) @ key[j]
            position = (query[i] + model.position_bias[head]) @ position_key
            scores.append((content + position) / math.sqrt(width))
            visible.append(j)
        rows.append(torch.softmax(torch.stack(scores), dim=0) @ value[visible])
    attended = torch.stack(rows)
    if attention.encoding is not None and head < attention.encoding.rem_heads:
        gate = attention.encoding.gate()
        recurrent = rem_matrix(attention.encoding, len(hidden), memory)[head] @ value
        attended = (1 - gate) * attended + gate * recurrent
    return attended


def naive_logits(model: TransformerXL, tokens: Tensor, memory: Tensor) -> Tensor:
    """The model on one row of tokens; `memory` is (L, M, W)."""
    hidden = model.embedding.weight[tokens] * math.sqrt(model.config.width)
    for layer, past in zip(model.layers, memory, strict=True):
        attention, feed_forward = layer.attention, layer.feed_forward
        seen = torch.cat([past, hidden])
        heads = [naive_head(model, attention, head, hidden, seen) for head in range(model.config.heads)]
        hidden = attention.norm(hidden + torch.cat(heads, dim=1) @ attention.output.weight.T)
        inner = (hidden @ feed_forward.inner.weight.T + feed_forward.inner.bias).clamp(min=0)
        hidden = feed_forward.norm(hidden + inner @ feed_forward.output.weight.T + feed_forward.output.bias)
    return hidden @ model.embedding.weight.T + model.output_bias


@pytest.mark.parametrize("options", [{}, {"clamp": 3}, {"same_length": True, "memory_length": 4}], ids=str)
@pytest.mark.parametrize("memory_length", [0, 6])
@BOTH
def test_logits_and_gradients_equal_the_naive_implementation(config, memory_length, options):
    model = make(replace(config, **options))
    tokens = ids(5)
    memory = torch.randn(2, 2, memory_length, 8, dtype=torch.float64)
    fast = model(tokens, TransformerXLState(memory)).logits
    slow = torch.stack([naive_logits(model, tokens[row], memory[:, row]) for row in range(2)])
    weights = torch.randn_like(slow)
    # η is empty in this mix of heads.
    parameters = [parameter for parameter in model.parameters() if parameter.numel() > 0]
    fast_gradients = torch.autograd.grad((fast * weights).sum(), parameters)
    slow_gradients = torch.autograd.grad((slow * weights).sum(), parameters)
    torch.testing.assert_close([fast, *fast_gradients], [slow, *slow_gradients])


@BOTH
def test_same_length_with_a_short_memory_is_independent_of_the_segments(config):
    model = make(replace(config, same_length=True, memory_length=4))
    tokens = ids(15)
    state, logits = None, []
    for segment in torch.tensor_split(tokens, (3, 8, 9), dim=1):
        output = model(segment, state)
        logits.append(output.logits)
        state = output.state
    torch.testing.assert_close(torch.cat(logits, dim=1), model(tokens).logits)


def test_memory_keeps_the_last_positions():
    model = make(replace(XL, memory_length=4))
    state = model(ids(3)).state
    assert state.memory.shape[2] == 3
    longer = model(ids(2), state).state
    torch.testing.assert_close(longer.memory[:, :, :2], state.memory[:, :, 1:])
    assert longer.memory.shape[2] == 4
    assert make(replace(XL, memory_length=0))(ids(3)).state.memory.shape[2] == 0


def test_autocast_is_close_to_full_precision():
    model = TransformerXL(RSA_XL)
    state = model(ids(6)).state
    full = model(ids(5), state).logits
    with torch.autocast("cpu", dtype=torch.bfloat16):
        half = model(ids(5), state).logits
    torch.testing.assert_close(half.float(), full, rtol=0.05, atol=0.05)
