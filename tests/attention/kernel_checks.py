"""Checks of the Triton kernels against the matrix form, on a GPU or in Triton's interpreter.

Each kind of REM, plain and dilated, is in one of the two sets of heads.
"""

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from unittest import mock

import torch
from torch import Tensor

from recurrify.attention.config import RSAConfig
from recurrify.attention.encoding import RecurrenceEncoding
from recurrify.attention.fused import fused_mix, fused_scan
from recurrify.attention.reference import rem_matrix
from recurrify.attention.scan import ScanState, chunked_scan

HEADS = {
    "regular, dilated cosine and sine": {"counts": (1, 0, 0, 0, 1, 1), "dilations": (2, 3)},
    "cosine, sine, dilated regular": {"counts": (0, 1, 1, 1, 0, 0), "dilations": (3,), "sharing": "none"},
}
FIRST, SECOND = HEADS
ON_CPU = {"device": "cpu", "dtype": torch.float32, "tolerance": 1e-5}


def encodings(heads: str, device: str, truncation: int | None = None) -> tuple[RecurrenceEncoding, RecurrenceEncoding]:
    """One for the kernels, and the same in float64 for the expected values."""
    config = RSAConfig(heads=4, gate_start=0.3, truncation=truncation, **HEADS[heads])
    ours = RecurrenceEncoding(config).to(device)
    with torch.no_grad():
        ours.eta.neg_()
    true = RecurrenceEncoding(config).double().to(device)
    true.load_state_dict(ours.state_dict())
    return ours, true


def drawn(*shape: int, device: str, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """A leaf for the kernels, and the same in float64 for the expected values."""
    ours = torch.randn(*shape, device=device).to(dtype).requires_grad_()
    return ours, ours.detach().double().requires_grad_()


def parameters(encoding: RecurrenceEncoding) -> list[Tensor]:
    return [encoding.eta, encoding.nu, encoding.theta, encoding.mu]


def assert_same(ours: list[Tensor], true: list[Tensor], tolerance: float) -> None:
    for place, (mine, exact) in enumerate(zip(ours, true, strict=True)):
        assert mine.shape == exact.shape
        assert torch.isfinite(mine).all(), f"{place}: not finite"
        if exact.numel() > 0:
            worst = (mine.double() - exact).abs().max().item()
            assert worst <= tolerance * max(exact.abs().max().item(), 1.0), f"{place}: differs by {worst}"


def gradients(loss: Tensor, leaves: list[Tensor], weights: Tensor | None = None) -> list[Tensor]:
    return list(torch.autograd.grad(loss, leaves, weights, allow_unused=True, materialize_grads=True))


def assert_mix_is_matrix(
    heads: str, causal: bool, queries: int, memory: int, width: int, device: str, dtype: torch.dtype, tolerance: float
) -> None:
    """Output and every gradient of the mix; only the first three of four heads have a REM."""
    ours, true = encodings(heads, device)
    value, true_value = drawn(2, 4, memory + queries, width, device=device, dtype=dtype)
    attended, true_attended = drawn(2, queries, 4, width, device=device, dtype=dtype)
    output, _ = fused_mix(attended.transpose(1, 2), value, ours, causal=causal, memory=memory, carry=None)
    gate, plain = true.gate(), true_attended.transpose(1, 2)
    recurrent = rem_matrix(true, queries, memory, causal) @ true_value[:, :3]
    expected = torch.cat([(1 - gate) * plain[:, :3] + gate * recurrent, plain[:, 3:]], dim=1)
    weights = torch.randn_like(output)
    found = gradients((output * weights).sum(), [value, attended, *parameters(ours)])
    wanted = gradients((expected * weights).sum(), [true_value, true_attended, *parameters(true)])
    assert output.dtype == dtype
    assert_same([output, *found], [expected, *wanted], tolerance)


def assert_pieces_are_the_whole(
    heads: str, pieces: list[int], memory: int, width: int, device: str, dtype: torch.dtype, tolerance: float
) -> None:
    """Outputs, last state and every gradient of a text in pieces; the first piece has `memory`."""
    ours, true = encodings(heads, device)
    total = sum(pieces)
    values, true_values = drawn(1, 3, total, width, device=device, dtype=dtype)
    outputs, carry, kernel = [], None, ours.kernel()
    for piece in values.split(pieces, dim=2):
        own_memory = memory if carry is None else 0
        output, carry = fused_scan(piece, kernel, causal=True, memory=own_memory, carry=carry)
        outputs.append(output)
    output = torch.cat(outputs, dim=2)
    expected = rem_matrix(true, total - memory, memory) @ true_values
    last = chunked_scan(true_values, true.kernel(), causal=True, memory=0, state=None).state
    assert last is not None
    weights, state_weights = torch.randn_like(output), torch.randn_like(carry)
    found = gradients((output * weights).sum() + (carry * state_weights).sum(), [values, *parameters(ours)])
    loss = (expected * weights).sum() + (last.carry * state_weights).sum()
    assert_same(
        [output, carry, *found], [expected, last.carry, *gradients(loss, [true_values, *parameters(true)])], tolerance
    )


def assert_truncated_is_matrix(
    heads: str,
    causal: bool,
    queries: int,
    memory: int,
    truncation: int,
    device: str,
    dtype: torch.dtype,
    tolerance: float,
) -> None:
    """Output and every gradient of a truncated scan, which is two scans in one launch."""
    ours, true = encodings(heads, device, truncation)
    values, true_values = drawn(2, 3, memory + queries, 3, device=device, dtype=dtype)
    output = chunked_scan(values, ours.kernel(), causal=causal, memory=memory, state=None, fused=True).output
    expected = rem_matrix(true, queries, memory, causal) @ true_values
    weights = torch.randn_like(output)
    found = gradients((output * weights).sum(), [values, ours.eta, ours.nu, ours.theta])
    wanted = gradients((expected * weights).sum(), [true_values, true.eta, true.nu, true.theta])
    assert_same([output, *found], [expected, *wanted], tolerance)


def assert_any_state_is_taken(device: str, dtype: torch.dtype, tolerance: float) -> None:
    """Any state, and its gradient, including slots that a head does not use."""
    ours, true = encodings(FIRST, device)
    values, true_values = drawn(1, 3, 2, 3, device=device, dtype=dtype)
    carry, true_carry = drawn(1, 3, 6, 3, device=device, dtype=torch.float32)
    output, _ = fused_scan(values, ours.kernel(), causal=True, memory=0, carry=carry)
    state = ScanState(true_carry, true_carry[:, :, :0])
    expected = chunked_scan(true_values, true.kernel(), causal=True, memory=0, state=state).output
    found = gradients(output.square().sum(), [carry, values, *parameters(ours)])
    wanted = gradients(expected.square().sum(), [true_carry, true_values, *parameters(true)])
    assert_same([output, *found], [expected, *wanted], tolerance)


def assert_states_keep_32_bits(positions: int, width: int, device: str, dtype: torch.dtype) -> None:
    """States and their gradients are in 32 bits although values and outputs are in 16."""
    ours, true = encodings(FIRST, device)
    values, true_values = drawn(1, 3, positions, width, device=device, dtype=dtype)
    carry, true_carry = drawn(1, 3, 6, width, device=device, dtype=torch.float32)
    output, last = fused_scan(values, ours.kernel(), causal=True, memory=0, carry=carry)
    state = ScanState(true_carry, true_carry[:, :, :0])
    expected = chunked_scan(true_values, true.kernel(), causal=True, memory=0, state=state)
    weights = torch.randn_like(output)
    found, wanted = gradients(output, [carry], weights), gradients(expected.output, [true_carry], weights.double())
    assert_same([last, *found], [expected.state.carry, *wanted], tolerance=3e-5)


@contextmanager
def new_memory_holding(filling: float) -> Iterator[None]:
    def filled(make: Callable[..., Tensor]) -> Callable[..., Tensor]:
        def fill(*arguments: object, **options: object) -> Tensor:
            made = make(*arguments, **options)
            return made.fill_(filling) if made.is_floating_point() else made

        return fill

    new_empty, empty_like = filled(Tensor.new_empty), filled(torch.empty_like)
    with mock.patch.object(Tensor, "new_empty", new_empty), mock.patch.object(torch, "empty_like", empty_like):
        yield


def assert_memory_is_not_trusted(device: str) -> None:
    """Every number of the results is written: two runs with different contents of new memory agree."""
    from recurrify.attention.kernels import rsa

    ours, _ = encodings(FIRST, device)
    value, attended = (torch.randn(2, 4, length, 3, device=device) for length in (9, 7))
    carry = torch.randn(2, 3, 6, 3, device=device)
    parts = [part.detach() for part in (*parameters(ours), ours.select, ours.sine, ours.dilation)]
    given = (value, attended, *parts, carry, ours.dilations, True, 2)
    results = []
    for filling in (math.nan, 7.0):
        with new_memory_holding(filling):
            output, next_carry, *kept = rsa._launch_forward(*given)
            results.append([output, next_carry, *rsa._launch_backward(output.cos(), next_carry.sin(), *kept, *given)])
    torch.testing.assert_close(*results, rtol=0, atol=0)


def assert_compiled_is_eager(device: str, backend: str) -> None:
    """One graph, forward and backward, with the same results."""
    from torch._functorch import config as gradient_config
    from torch._inductor import config as code_config

    ours, _ = encodings(FIRST, device)
    value, _ = drawn(1, 4, 3, 3, device=device, dtype=torch.float32)
    attended, _ = drawn(1, 4, 2, 3, device=device, dtype=torch.float32)

    def mixed(attended: Tensor, value: Tensor) -> Tensor:
        return fused_mix(2 * attended, value, ours, causal=True, memory=1, carry=None)[0].sin()

    results = []
    torch.compiler.reset()
    # Nothing that an earlier process cached.
    with gradient_config.patch(enable_autograd_cache=False), code_config.patch(fx_graph_cache=False):
        for function in (mixed, torch.compile(mixed, backend=backend, fullgraph=True)):
            output = function(attended, value)
            results.append([output, *gradients(output.square().sum(), [value, attended, *parameters(ours)])])
    torch.testing.assert_close(*results)


def assert_operator_is_sound(device: str) -> None:
    """`opcheck`: among other things, traced shapes are those of the results."""
    from recurrify.attention.kernels import rsa

    # All heads with the same number of lanes: lanes that a head does not have are not written.
    ours = RecurrenceEncoding(RSAConfig(heads=3, counts=(0, 0, 0, 0, 1, 1), dilations=(2, 2))).to(device)
    value, attended = (drawn(1, 3, length, 3, device=device, dtype=torch.float32)[0] for length in (3, 2))
    given = (value, attended, *parameters(ours), ours.select, ours.sine, ours.dilation, None, ours.dilations, True, 1)
    torch.library.opcheck(rsa._forward_op, given)


def check_on_cpu() -> None:
    from recurrify.attention.kernels import rsa

    torch.manual_seed(0)
    # Small blocks, so that few positions fill several, and both sequences are in one program.
    rsa.BLOCK_LENGTHS, rsa.FEWEST_PROGRAMS = (16,), 1
    assert_mix_is_matrix(FIRST, causal=False, queries=14, memory=4, width=2, **ON_CPU)
    assert_truncated_is_matrix(SECOND, causal=True, queries=13, memory=4, truncation=5, **ON_CPU)
    assert_pieces_are_the_whole(SECOND, [2, 17], memory=1, width=2, **ON_CPU)
    assert_any_state_is_taken(**ON_CPU)
    assert_states_keep_32_bits(17, 2, "cpu", torch.float16)
    assert_memory_is_not_trusted("cpu")
    assert_compiled_is_eager("cpu", backend="aot_eager")
    assert_operator_is_sound("cpu")
