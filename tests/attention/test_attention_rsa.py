"""RSA against its matrix form; `test_attention_scan.py` tests the matrix form and the scan."""

import pytest
import torch
from torch import Tensor

from recurrify.attention.config import RSAConfig
from recurrify.attention.encoding import RecurrenceEncoding
from recurrify.attention.reference import rsa_matrix_form
from recurrify.attention.rsa import mix_recurrence, rsa_attention
from recurrify.errors import UserError

ALL_KINDS = {"counts": (1, 1, 1, 1, 1, 1), "dilations": (2, 4, 3)}


def make(heads: int = 8, **settings) -> RecurrenceEncoding:
    return RecurrenceEncoding(RSAConfig(heads=heads, **(settings or ALL_KINDS))).double()


def inputs_for(encoding: RecurrenceEncoding, queries: int, memory: int = 0) -> list[Tensor]:
    heads = encoding.config.heads
    lengths = (queries, memory + queries, memory + queries)
    return [torch.randn(2, heads, length, 3, dtype=torch.float64, requires_grad=True) for length in lengths]


@pytest.mark.parametrize(
    ("queries", "memory", "causal", "truncation"),
    [(7, 0, True, None), (5, 4, False, None), (5, 4, True, 4), (1, 6, False, 4)],
)
def test_rsa_equals_its_matrix_form_with_every_gradient(queries, memory, causal, truncation):
    encoding = make(**ALL_KINDS, truncation=truncation)
    tensors = inputs_for(encoding, queries, memory)
    fast = rsa_attention(*tensors, encoding, causal=causal).output
    slow = rsa_matrix_form(*tensors, encoding, causal)
    weights = torch.randn_like(slow)
    wanted = [*tensors, *encoding.parameters()]
    fast_gradients = torch.autograd.grad((fast * weights).sum(), wanted)
    slow_gradients = torch.autograd.grad((slow * weights).sum(), wanted)
    torch.testing.assert_close([fast, *fast_gradients], [slow, *slow_gradients])


def test_streaming_with_cached_keys_equals_the_whole():
    encoding = make()
    query, key, value = inputs_for(encoding, 9)
    whole = rsa_attention(query, key, value, encoding)
    outputs, state = [], None
    for t in range(9):
        step = rsa_attention(query[:, :, t : t + 1], key[:, :, : t + 1], value[:, :, : t + 1], encoding, state=state)
        outputs.append(step.output)
        state = step.state
    torch.testing.assert_close(torch.cat(outputs, dim=2), whole.output)
    torch.testing.assert_close(tuple(state), tuple(whole.state))


def test_heads_without_a_rem_are_plain_attention():
    encoding = make(heads=4, counts=(1, 0, 0, 0, 0, 0), gate_start=2.0)
    query, key, value = inputs_for(encoding, 6)
    plain = torch.nn.functional.scaled_dot_product_attention(query, key, value, is_causal=True)
    output = rsa_attention(query, key, value, encoding).output
    torch.testing.assert_close(output[:, 1:], plain[:, 1:])
    assert not torch.allclose(output[:, 0], plain[:, 0])


def test_every_parameter_is_registered_and_gets_a_gradient():
    encoding = make(heads=12, counts=(2, 1, 1, 1, 1, 1), dilations=(2, 3, 4))
    assert {name for name, _ in encoding.named_parameters()} == {"mu", "eta", "nu", "theta"}
    rsa_attention(*inputs_for(encoding, 12), encoding).output.square().sum().backward()
    for parameter in encoding.parameters():
        assert (parameter.grad != 0).all()


@pytest.mark.parametrize(
    ("attended", "value", "words"),
    [((1, 4, 3, 2), (1, 8, 3, 2), "the same heads"), ((1, 8, 3, 2), (1, 8, 2, 2), "got 2 keys, 3 queries")],
)
def test_tensors_of_other_shapes_raise(attended, value, words):
    with pytest.raises(UserError, match=words):
        mix_recurrence(torch.zeros(attended), torch.zeros(value), make(), causal=True)
