"""Block-Recurrent Transformer and RSA-BRT compared with a naive implementation, and what the states remember."""

import math
from dataclasses import replace

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from recurrify.attention import RSAConfig
from recurrify_papers.models.block_recurrent import (
    BIAS_SCALE,
    BlockRecurrentConfig,
    BlockRecurrentState,
    BlockRecurrentTransformer,
    distance_bucket,
)
from support.language import ids, stirred

RSA = RSAConfig(heads=2, counts=(0, 0, 0, 0, 1, 1), dilations=(2, 3))
BRT = BlockRecurrentConfig(
    vocabulary=11,
    layers=3,
    width=8,
    heads=2,
    head_width=3,
    inner=12,
    dropout=0.0,
    target_length=8,
    window=6,
    block=4,
    states=3,
)
RSA_BRT = replace(BRT, rsa=RSA)
BOTH = pytest.mark.parametrize("config", [BRT, RSA_BRT], ids=["brt", "rsa-brt"])


def make(config: BlockRecurrentConfig) -> BlockRecurrentTransformer:
    model: BlockRecurrentTransformer = stirred(BlockRecurrentTransformer, config)
    with torch.no_grad():
        for layer in model.layers:
            layer.attention.bias.table /= BIAS_SCALE  # or biases would leave nothing to other scores
    return model


def random_state(memory: int, pending: int, batch: int = 2) -> BlockRecurrentState:
    def draw(*shape: int) -> Tensor:
        return torch.randn(*shape, dtype=torch.float64)

    return BlockRecurrentState(draw(3, 2, batch, 2, memory, 3), draw(batch, 3, 8), draw(2, batch, 2, pending, 3))


def linear(module: torch.nn.Linear, vector: Tensor) -> Tensor:
    return module.weight @ vector + (0 if module.bias is None else module.bias)


def look(query: Tensor, keys: list[Tensor], values: list[Tensor], biases: list[Tensor] | None = None) -> Tensor:
    """One query of one head over some keys."""
    scores = [query @ key / math.sqrt(len(query)) for key in keys]
    if biases is not None:
        scores = [score + bias for score, bias in zip(scores, biases, strict=True)]
    weights = torch.softmax(torch.stack(scores), dim=0)
    return sum(weight * value for weight, value in zip(weights, values, strict=True))


def naive_recurrence(encoding: torch.nn.Module, head: int, values: list[Tensor]) -> Tensor:
    """What comes of the values of the window by the recurrence; the query's own value is the last."""
    dilation = RSA.dilations[head]
    result = torch.zeros_like(values[0])
    for distance in range(dilation, len(values), dilation):
        steps = distance // dilation
        angle = encoding.theta[0] * steps
        wave = torch.cos(angle) if head == 0 else torch.sin(angle)
        result = result + torch.sigmoid(encoding.nu[0]) ** steps * wave * values[-1 - distance]
    return result


def naive_window(model: BlockRecurrentTransformer, attention: torch.nn.Module, normed: list[Tensor], past: Tensor):
    """For each position the joined heads; and keys and values of all positions by head. `past` is (2, H, M, D)."""
    config = model.config
    keys = [list(past[0, head]) for head in range(config.heads)]
    values = [list(past[1, head]) for head in range(config.heads)]
    joined = []
    for vector in normed:
        query, key, value = linear(attention.projection, vector).view(3, config.heads, config.head_width)
        heads = []
        for head in range(config.heads):
            keys[head].append(key[head])
            values[head].append(value[head])
            seen = len(keys[head][-config.window :])
            table = BIAS_SCALE * attention.bias.table[head]
            biases = [table[distance_bucket(distance)] for distance in range(seen)][::-1]
            result = look(query[head], keys[head][-seen:], values[head][-seen:], biases)
            if attention.encoding is not None:
                gate = torch.sigmoid(attention.encoding.mu)
                result = (1 - gate) * result
                result = result + gate * naive_recurrence(attention.encoding, head, values[head][-seen:])
            heads.append(result)
        joined.append(torch.cat(heads))
    return joined, keys, values


def naive_gate(gate: torch.nn.Module, state: Tensor, inputs: Tensor) -> Tensor:
    keep = torch.sigmoid(gate.logit)
    return keep * state + (1 - keep) * linear(gate.candidate, inputs)


def naive_cell(cell: torch.nn.Module, states: list[Tensor], keys: list, values: list) -> list[Tensor]:
    """The next states; `keys` and `values` are those of a block, by head."""
    named = [cell.norm(state) + own for state, own in zip(states, cell.ids, strict=True)]
    projected = [linear(cell.key_value, state).view(2, 2, 3) for state in named]
    after = []
    for state, name in zip(states, named, strict=True):
        own_query, block_query = linear(cell.queries, name).view(2, 2, 3)
        seen = [
            look(own_query[head], [one[0, head] for one in projected], [one[1, head] for one in projected])
            for head in range(2)
        ]
        seen += [look(block_query[head], keys[head], values[head]) for head in range(2)]
        after.append(naive_gate(cell.gate, state, torch.cat(seen)))
    return after


def naive_states(model: BlockRecurrentTransformer, layer, normed, keys, values, states, pending):
    """What each position reads of the states, and states and unfinished block after the last one."""
    cell, block = layer.cell, [[list(part) for part in side] for side in pending]
    read = []
    for place, vector in enumerate(normed):
        named = [cell.norm(state) + own for state, own in zip(states, cell.ids, strict=True)]
        projected = [linear(cell.key_value, state).view(2, 2, 3) for state in named]
        query = linear(layer.state_query, vector).view(2, 3)
        heads = [
            look(query[head], [one[0, head] for one in projected], [one[1, head] for one in projected])
            for head in range(2)
        ]
        read.append(torch.cat(heads))
        for head in range(2):
            block[0][head].append(keys[head][len(keys[head]) - len(normed) + place])
            block[1][head].append(values[head][len(values[head]) - len(normed) + place])
        if len(block[0][0]) == model.config.block:
            states = naive_cell(cell, states, *block)
            block = [[[], []], [[], []]]
    return read, states, block


def naive(model: BlockRecurrentTransformer, tokens: Tensor, state: BlockRecurrentState, row: int):
    """Logits, memory, states and unfinished block of one row, position by position."""
    hidden = [model.embedding.weight[token] for token in tokens]
    states, kept, block = list(state.states[row]), [], None
    for index, layer in enumerate(model.layers):
        normed = [layer.norm(vector) for vector in hidden]
        joined, keys, values = naive_window(model, layer.attention, normed, state.memory[index, :, row])
        if index == 1:
            read, states, block = naive_states(model, layer, normed, keys, values, states, state.pending[:, row])
            joined = [torch.cat(pair) for pair in zip(joined, read, strict=True)]
        kept.append(torch.stack([torch.stack([torch.stack(part[-6:]) for part in side]) for side in (keys, values)]))
        hidden = [vector + linear(layer.output, seen) for vector, seen in zip(hidden, joined, strict=True)]
        forward = layer.feed_forward
        hidden = [
            vector + linear(forward.output, linear(forward.inner, forward.norm(vector)).clamp(min=0))
            for vector in hidden
        ]
    logits = [model.embedding.weight @ model.norm(vector) + model.output_bias for vector in hidden]
    unfinished = [[[one.tolist() for one in part] for part in side] for side in block]
    pending = torch.tensor(unfinished, dtype=torch.float64).view(2, 2, -1, 3)
    return torch.stack(logits), torch.stack(kept), torch.stack(states), pending


@pytest.mark.parametrize(("memory", "pending", "length"), [(0, 0, 9), (6, 0, 8), (4, 3, 7)], ids=str)
@BOTH
def test_logits_state_and_gradients_equal_the_naive_implementation(config, memory, pending, length):
    model = make(config)
    tokens, state = ids(length), random_state(memory, pending)
    output = model(tokens, state)
    rows = [naive(model, tokens[row], state, row) for row in range(2)]
    slow = torch.stack([row[0] for row in rows])
    weights = torch.randn_like(slow)
    # η is empty in this mix of heads.
    parameters = [parameter for parameter in model.parameters() if parameter.numel() > 0]
    fast_gradients = torch.autograd.grad((output.logits * weights).sum(), parameters)
    slow_gradients = torch.autograd.grad((slow * weights).sum(), parameters)
    torch.testing.assert_close([output.logits, *fast_gradients], [slow, *slow_gradients])
    torch.testing.assert_close(output.state.memory, torch.stack([row[1] for row in rows], dim=2).detach())
    torch.testing.assert_close(output.state.states, torch.stack([row[2] for row in rows]).detach())
    torch.testing.assert_close(output.state.pending, torch.stack([row[3] for row in rows], dim=1))


@BOTH
def test_only_the_states_remember_what_is_beyond_all_windows(config):
    model = make(replace(config, layers=2))
    tokens = ids(30)
    changed = tokens.clone()
    changed[:, 0] = (changed[:, 0] + 1) % 11
    with torch.no_grad():
        assert not torch.equal(model(tokens).logits[:, -1], model(changed).logits[:, -1])
        model.layers[1].output.weight[:, 6:] = 0
        torch.testing.assert_close(model(tokens).logits[:, -1], model(changed).logits[:, -1], rtol=0, atol=0)
        assert not torch.equal(model(tokens).logits[:, 5], model(changed).logits[:, 5])


def test_distances_share_biases_as_in_t5():
    buckets = [
        distance_bucket(distance) for distance in (0, 1, 15, 16, 18, 19, 20, 26, 27, 64, 112, 113, 127, 128, 999)
    ]
    assert buckets == [0, 1, 15, 16, 16, 17, 17, 19, 20, 26, 30, 31, 31, 31, 31]


def test_positions_are_learned_at_the_published_learning_rate():
    """The symbol before the last comes next: in random text only its place tells which that is."""
    torch.manual_seed(0)
    config = BlockRecurrentConfig(
        vocabulary=8, layers=2, width=32, heads=2, head_width=16, inner=64, dropout=0.0, window=64, block=16, states=4,
        target_length=32,
    )  # fmt: skip
    model = BlockRecurrentTransformer(config)
    optimizer = torch.optim.Adam(model.parameters(), lr=2.5e-4)
    for _ in range(120):
        text = torch.randint(8, (8, 33))
        loss = functional.cross_entropy(model(text[:, :-1]).logits[:, 2:].flatten(0, 1), text[:, 1:-2].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    assert loss < 1.5  # chance is 2.08


def test_autocast_keeps_the_states_in_full_precision():
    model = BlockRecurrentTransformer(RSA_BRT)
    state = model(ids(6)).state
    full = model(ids(5), state).logits
    with torch.autocast("cpu", dtype=torch.bfloat16):
        half = model(ids(5), model(ids(6)).state)
    torch.testing.assert_close(half.logits.float(), full, rtol=0.05, atol=0.05)
    assert (half.state.memory.dtype, half.state.states.dtype) == (torch.bfloat16, torch.float32)
