"""Transformer-XL and RSA-XL: published sizes, a naive double, memory, and the past that never sees the future."""

import math
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from recurrify.attention.config import RSAConfig
from recurrify.attention.reference import rem_matrix
from recurrify.errors import UserError
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


@pytest.mark.parametrize(
    ("vocabulary", "dilations", "xl", "rsa_xl"),
    [(204, (3, 6, 9, 12), 47_880_396, 47_880_466), (27, (6, 6, 12, 12), 47_789_595, 47_789_665)],
    ids=["enwik8", "text8"],
)
def test_the_published_sizes_come_out(vocabulary, dilations, xl, rsa_xl):
    rsa = RSAConfig(heads=8, counts=(0, 0, 0, 0, 2, 2), dilations=dilations)
    for config, size in (
        (TransformerXLConfig(vocabulary=vocabulary), xl),
        (TransformerXLConfig(vocabulary=vocabulary, rsa=rsa), rsa_xl),
    ):
        with torch.device("meta"):
            model = TransformerXL(config)
        assert sum(parameter.numel() for parameter in model.parameters()) == size


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
def test_values_and_every_gradient_equal_the_naive_double(config, memory_length, options):
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
def test_every_parameter_gets_a_gradient(config):
    model = make(config)
    model(ids(9)).logits.square().sum().backward()
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.numel() == 0 or (parameter.grad != 0).any(), name


@pytest.mark.parametrize("cuts", [(7,), (1, 2, 12), tuple(range(1, 15))])
@BOTH
def test_segments_with_memory_equal_one_segment_when_all_of_the_past_is_kept(config, cuts):
    model = make(config)
    tokens = ids(15)
    whole = model(tokens)
    state, logits = None, []
    for segment in torch.tensor_split(tokens, cuts, dim=1):
        output = model(segment, state)
        logits.append(output.logits)
        state = output.state
    torch.testing.assert_close(torch.cat(logits, dim=1), whole.logits)
    torch.testing.assert_close(state.memory, whole.state.memory)


@BOTH
def test_with_same_length_the_cut_into_segments_does_not_matter_even_with_a_short_memory(config):
    model = make(replace(config, same_length=True, memory_length=4))
    tokens = ids(15)
    state, logits = None, []
    for segment in torch.tensor_split(tokens, (3, 8, 9), dim=1):
        output = model(segment, state)
        logits.append(output.logits)
        state = output.state
    torch.testing.assert_close(torch.cat(logits, dim=1), model(tokens).logits)


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


@BOTH
def test_memory_reaches_the_result_but_carries_no_gradient(config):
    model = make(config)
    output = model(ids(6))
    assert output.state.memory.shape == (2, 2, 6, 8)
    assert not output.state.memory.requires_grad
    memory = output.state.memory.clone().requires_grad_()
    later = model(ids(5), TransformerXLState(memory))
    assert not torch.allclose(later.logits, model(ids(5)).logits)
    later.logits.sum().backward()
    assert memory.grad is None


def test_memory_keeps_the_last_positions_only():
    model = make(replace(XL, memory_length=4))
    state = model(ids(3)).state
    assert state.memory.shape[2] == 3
    longer = model(ids(2), state).state
    torch.testing.assert_close(longer.memory[:, :, :2], state.memory[:, :, 1:])
    assert longer.memory.shape[2] == 4
    assert make(replace(XL, memory_length=0))(ids(3)).state.memory.shape[2] == 0


def test_rsa_xl_with_a_closed_gate_is_xl_and_with_an_open_one_is_not():
    plain, recurrent = make(XL), make(RSA_XL)
    recurrent.load_state_dict(plain.state_dict(), strict=False)
    state = plain(ids(6)).state
    assert not torch.allclose(recurrent(ids(5), state).logits, plain(ids(5), state).logits)
    with torch.no_grad():
        for layer in recurrent.layers:
            layer.attention.encoding.mu.fill_(-math.inf)
    torch.testing.assert_close(recurrent(ids(5), state).logits, plain(ids(5), state).logits)


def test_dropout_acts_in_training_only():
    model = make(replace(RSA_XL, dropout=0.5, attention_dropout=0.5))
    assert not torch.allclose(model(ids(5)).logits, model(ids(5)).logits)
    model.eval()
    torch.testing.assert_close(model(ids(5)).logits, model(ids(5)).logits, rtol=0, atol=0)


def test_autocast_is_near_full_precision():
    model = TransformerXL(RSA_XL)
    state = model(ids(6)).state
    full = model(ids(5), state).logits
    with torch.autocast("cpu", dtype=torch.bfloat16):
        half = model(ids(5), state).logits
    torch.testing.assert_close(half.float(), full, rtol=0.05, atol=0.05)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"layers": 0}, "`layers`"),
        ({"dropout": 1.0}, "`dropout`"),
        ({"width": 7}, "even"),
        ({"memory_length": -1}, "got -1"),
        ({"same_length": True, "memory_length": 1}, "at least 2"),
        ({"clamp": 0}, "`clamp`"),
        ({"heads": 4, "rsa": RSA}, "rsa.heads=2, heads=4"),
    ],
)
def test_bad_settings_are_refused_with_a_sentence(changes, words):
    with pytest.raises(UserError, match=words):
        replace(XL, **changes)


def test_a_state_of_another_batch_is_refused_with_a_sentence():
    model = make(XL)
    with pytest.raises(UserError, match="batch of 3"):
        model(ids(4, batch=3), model(ids(4)).state)
