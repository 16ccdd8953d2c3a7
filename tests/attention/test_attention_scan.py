"""The linear scan against the matrix form: values, every gradient, pieces, streaming, long sequences."""

import pytest
import torch
from torch import Tensor

from recurrify.attention import scan
from recurrify.attention.config import RSAConfig
from recurrify.attention.encoding import RecurrenceEncoding
from recurrify.attention.reference import rem_matrix
from recurrify.errors import UserError

MIXED = {"counts": (1, 1, 1, 2, 1, 1), "dilations": (2, 5, 3, 7)}
KINDS = {
    "regular": {"counts": (2, 0, 0, 0, 0, 0)},
    "cosine": {"counts": (0, 2, 0, 0, 0, 0), "sharing": "none"},
    "sine": {"counts": (0, 0, 2, 0, 0, 0), "sharing": "none"},
    "dilated regular": {"counts": (0, 0, 0, 2, 0, 0), "dilations": (2, 3)},
    "dilated cosine": {"counts": (0, 0, 0, 0, 2, 0), "dilations": (4, 1), "sharing": "none"},
    "dilated sine": {"counts": (0, 0, 0, 0, 0, 2), "dilations": (3, 2), "sharing": "none"},
    "mixed": MIXED,
    "mixed, nothing shared": {**MIXED, "sharing": "none"},
    "truncated": {**MIXED, "truncation": 6},
}


def make(settings: dict) -> RecurrenceEncoding:
    encoding = RecurrenceEncoding(RSAConfig(heads=8, **settings)).double()
    with torch.no_grad():
        # Both signs, whatever the random values are.
        encoding.eta.copy_(encoding.eta.abs() * (-1.0) ** torch.arange(len(encoding.eta)))
    return encoding


def values_for(encoding: RecurrenceEncoding, positions: int, batch: int = 2, width: int = 2) -> Tensor:
    return torch.randn(batch, encoding.rem_heads, positions, width, dtype=torch.float64, requires_grad=True)


def with_gradients(output: Tensor, encoding: RecurrenceEncoding, values: Tensor) -> list[Tensor]:
    inputs = [values, encoding.eta, encoding.nu, encoding.theta]
    weights = torch.cos(torch.arange(output.numel(), dtype=output.dtype)).view_as(output)
    # A kind without heads has an empty parameter that nothing uses.
    gradients = torch.autograd.grad((output * weights).sum(), inputs, allow_unused=True, materialize_grads=True)
    return [output, *gradients]


def assert_scan_is_matrix(encoding: RecurrenceEncoding, positions: int, memory: int, causal: bool, chunk: int) -> None:
    values = values_for(encoding, memory + positions)
    result = scan(values, encoding.kernel(), causal=causal, memory=memory, chunk=chunk)
    expected = rem_matrix(encoding, positions, memory, causal) @ values
    torch.testing.assert_close(
        with_gradients(result.output, encoding, values), with_gradients(expected, encoding, values)
    )


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_equals_the_matrix_form(kind, causal):
    assert_scan_is_matrix(make(KINDS[kind]), positions=13, memory=0, causal=causal, chunk=4)


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize(
    ("positions", "memory", "truncation"), [(1, 0, None), (1, 6, 4), (8, 0, 1), (5, 4, None), (5, 4, 9), (4, 11, 50)]
)
def test_every_length_memory_and_truncation_equals_the_matrix_form(positions, memory, truncation, causal):
    assert_scan_is_matrix(make({**MIXED, "truncation": truncation}), positions, memory, causal, chunk=4)


@pytest.mark.parametrize("chunk", [1, 7, 64])
def test_result_does_not_depend_on_the_chunk_length(chunk):
    assert_scan_is_matrix(make(MIXED), positions=20, memory=3, causal=True, chunk=chunk)


@pytest.mark.parametrize(("causal", "truncation"), [(True, None), (True, 4), (False, None)])
def test_matrix_form_equals_its_definition(causal, truncation):
    """The weight of a distance n that the head's dilation d divides is z^(n / d), its real or imaginary part."""
    encoding = make({"counts": (2, 1, 1, 1, 1, 1), "dilations": (3, 2, 4), "truncation": truncation})
    weights = rem_matrix(encoding, queries=9, memory=2, causal=causal)
    real = torch.tanh(encoding.eta).tolist()
    turning = (torch.sigmoid(encoding.nu) * torch.exp(1j * encoding.theta)).tolist()
    heads = [
        *((real[0], 1, "real"), (real[1], 1, "real"), (turning[0], 1, "real"), (turning[0], 1, "imag")),
        *((real[2], 3, "real"), (turning[1], 2, "real"), (turning[1], 4, "imag")),
    ]
    for i in range(9):
        for j in range(11):
            distance = 2 + i - j if causal else abs(2 + i - j)
            reached = 0 < distance <= (truncation or 100)
            expected = [
                getattr(complex(z ** (distance // dilation)), part) if reached and distance % dilation == 0 else 0.0
                for z, dilation, part in heads
            ]
            assert weights[:, i, j].tolist() == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize("truncation", [None, 5])
def test_one_token_at_a_time_equals_the_whole_and_ends_in_the_same_state(truncation):
    encoding = make({**MIXED, "truncation": truncation})
    values = values_for(encoding, 17)
    whole = scan(values, encoding.kernel(), chunk=4)
    outputs, state = [], None
    for t in range(17):
        result = scan(values[:, :, t : t + 1], encoding.kernel(), state=state)
        outputs.append(result.output)
        state = result.state
    torch.testing.assert_close(
        with_gradients(torch.cat(outputs, dim=2), encoding, values), with_gradients(whole.output, encoding, values)
    )
    torch.testing.assert_close(tuple(state), tuple(whole.state))


@pytest.mark.parametrize("truncation", [None, 5])
def test_state_replaces_earlier_values(truncation):
    encoding = make({**MIXED, "truncation": truncation})
    values = values_for(encoding, 19)
    whole = scan(values, encoding.kernel(), memory=12, chunk=4)
    past = scan(values[:, :, :7], encoding.kernel(), chunk=3).state
    rest = scan(values[:, :, 7:], encoding.kernel(), memory=5, state=past, chunk=5)
    torch.testing.assert_close(
        with_gradients(rest.output, encoding, values), with_gradients(whole.output, encoding, values)
    )
    torch.testing.assert_close(tuple(rest.state), tuple(whole.state))


def test_the_state_does_not_grow():
    encoding = make(MIXED)
    state = scan(values_for(encoding, 3), encoding.kernel()).state
    later = scan(values_for(encoding, 40), encoding.kernel(), state=state).state
    assert later.carry.shape == state.carry.shape == (2, 7, 2 * 7, 2)
    assert later.history.numel() == 0


def test_scan_in_both_directions_has_no_state():
    encoding = make(MIXED)
    values = values_for(encoding, 4)
    assert scan(values, encoding.kernel(), causal=False).state is None
    state = scan(values, encoding.kernel()).state
    with pytest.raises(UserError, match="causal"):
        scan(values, encoding.kernel(), causal=False, state=state)


@pytest.mark.parametrize(("level", "truncation"), [(-12.0, None), (9.0, None), (9.0, 500)])
def test_long_sequences_are_exact_in_float32(level, truncation):
    """Eigenvalues near 0 and near 1, over 4,000 positions, against a convolution in float64."""
    settings = {"counts": (1, 1, 1, 1, 1, 1), "dilations": (2, 3, 5), "truncation": truncation}
    encoding = RecurrenceEncoding(RSAConfig(heads=8, **settings))
    with torch.no_grad():
        decay = torch.sigmoid(torch.tensor(level))
        encoding.nu.fill_(level)
        encoding.eta.copy_(torch.atanh(decay) * torch.tensor([1.0, -1.0]))
    values = torch.randn(1, 6, 4000, 1, requires_grad=True)
    output = scan(values, encoding.kernel()).output
    (output**2).mean().backward()
    gradients = [parameter.grad for parameter in (encoding.eta, encoding.nu, encoding.theta, values)]

    exact = RecurrenceEncoding(RSAConfig(heads=8, **settings)).double()
    exact.load_state_dict(encoding.state_dict())
    exact_values = values.detach().double().requires_grad_()
    weights = rem_matrix(exact, queries=1, memory=3999).flip(2).transpose(1, 2)
    spectrum = torch.fft.rfft(weights, 8192, dim=1) * torch.fft.rfft(exact_values, 8192, dim=2)
    expected = torch.fft.irfft(spectrum, 8192, dim=2)[:, :, :4000]
    (expected**2).mean().backward()
    expected_gradients = [parameter.grad for parameter in (exact.eta, exact.nu, exact.theta, exact_values)]
    for ours, true in zip([output, *gradients], [expected, *expected_gradients], strict=True):
        assert torch.isfinite(ours).all()
        assert (ours - true).abs().max() <= 2e-3 * true.abs().max() + 1e-12


def test_16_bit_values_are_computed_in_32_bits():
    encoding = RecurrenceEncoding(RSAConfig(heads=8, **MIXED))
    values = values_for(encoding, 300).to(torch.bfloat16)
    expected = scan(values.float(), encoding.kernel()).output
    output = scan(values, encoding.kernel()).output
    assert output.dtype == torch.bfloat16
    torch.testing.assert_close(output, expected.to(torch.bfloat16))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        torch.testing.assert_close(scan(values.float(), encoding.kernel()).output, expected)


@pytest.mark.parametrize(
    ("shape", "settings", "words"),
    [
        ((1, 3, 5, 2), {}, "7 heads"),
        ((1, 7, 5, 2), {"memory": 5}, "got 5"),
        ((1, 7, 5, 2), {"chunk": 0}, "got 0"),
    ],
)
def test_invalid_calls_raise(shape, settings, words):
    with pytest.raises(UserError, match=words):
        scan(torch.zeros(shape), make(MIXED).kernel(), **settings)
