"""P·V in linear time: the recurrence behind every REM, run over chunks, without a T×T matrix.

For one head, (P·V)_t = Σ_{ℓ≥1} z^ℓ v_{t−ℓ} is h_t = z · (h_{t−1} + v_{t−1}); a cosine head reads the real part of h and
a sine head its imaginary part. Dilation d makes d interleaved recurrences, h_t = z · (h_{t−d} + v_{t−d}).

The carry at a position t holds what the past alone adds to the outputs t, t + 1, …, t + d − 1, one slot for each
interleaved recurrence. A chunk of C positions then needs four small matrices for each head: from its values to its
outputs, from the carry to its outputs, from its values to the next carry, and from the carry to the next carry. None of
them divides by a power of z, so nothing overflows however long the sequence or small the eigenvalue.

Shapes: B batch, R heads that carry a REM, T positions, D head width, N chunks, C chunk length, L truncation,
S = 2 · largest dilation (the real parts of the slots, then the imaginary ones).
"""

from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from recurrify.attention.encoding import Kernel
from recurrify.attention.fused import fused_scan, kernels_run
from recurrify.errors import UserError


class ScanState(NamedTuple):
    """What a scan keeps of earlier positions."""

    carry: Tensor
    """(B, R, S, D), a summand of later outputs; unused with truncation, where S is 0."""
    history: Tensor
    """(B, R, ≤ L, D), the last values, the only ones that a truncated REM reads; none without truncation."""


class ScanResult(NamedTuple):
    output: Tensor
    """(B, R, T − memory, D)."""
    state: ScanState | None
    """None for a bidirectional scan, which cannot be continued."""


class _ChunkMatrices(NamedTuple):
    """One matrix for each head, so each of them starts with R."""

    local: Tensor
    """(R, C, C), values to outputs: lower triangular, 0 on the diagonal."""
    read: Tensor
    """(R, C, S), carry to outputs."""
    write: Tensor
    """(R, S, C), values to the next carry."""
    step: Tensor
    """(R, S, S), carry to the next carry."""


def scan(
    values: Tensor,
    kernel: Kernel,
    *,
    causal: bool = True,
    memory: int = 0,
    state: ScanState | None = None,
    chunk: int = 64,
) -> ScanResult:
    """P·V of `values` (B, R, T, D), for the rows after the first `memory` ones, which are keys without queries.

    `state` continues a causal scan: one token at a time or in any other pieces, the outputs are those of the whole.
    On a GPU with Triton a kernel does the work and ignores `chunk`.
    """
    if chunk < 1:
        raise UserError(f"`chunk` must be at least 1: got {chunk}.")
    check_scan(values.shape, kernel.dilations, kernel.truncation, causal, memory, state)
    fused = kernels_run(values, kernel.decay)
    if fused and kernel.truncation is None:
        carry = None if state is None else state.carry
        output, next_carry = fused_scan(values, kernel, causal=causal, memory=memory, carry=carry)
        return ScanResult(output, carry_state(next_carry) if causal else None)
    return chunked_scan(values, kernel, causal=causal, memory=memory, state=state, chunk=chunk, fused=fused)


def carry_state(carry_BRSD: Tensor) -> ScanState:
    """A state without history, as a scan without truncation has it."""
    return ScanState(carry_BRSD, carry_BRSD[:, :, :0])


def chunked_scan(
    values: Tensor,
    kernel: Kernel,
    *,
    causal: bool,
    memory: int,
    state: ScanState | None,
    chunk: int = 64,
    fused: bool = False,
) -> ScanResult:
    """The same in plain PyTorch, on any device and in any precision; with `fused`, truncated REMs use the kernels."""
    dtype = torch.promote_types(values.dtype, kernel.decay.dtype)
    # Autocast would run the matrices in 16 bits and lose the slow decays that the recurrence is there for.
    with torch.autocast(values.device.type, enabled=False):
        work_BRTD = values.to(dtype)
        kernel = kernel._replace(decay=kernel.decay.to(dtype), angle=kernel.angle.to(dtype))
        output, final_state = _forward_scan(work_BRTD, kernel, memory, state, chunk, fused)
        if not causal:
            # The same recurrence from the other end; each direction leaves the diagonal out. The memory lies before
            # every position, so the backward direction starts at the last row and stops before the memory.
            backward, _ = _forward_scan(work_BRTD[:, :, memory:].flip(2), kernel, 0, None, chunk, fused)
            return ScanResult((output + backward.flip(2)).to(values.dtype), None)
    return ScanResult(output.to(values.dtype), final_state)


def check_scan(
    shape: tuple[int, ...],
    dilations: tuple[int, ...],
    truncation: int | None,
    causal: bool,
    memory: int,
    state: ScanState | None,
) -> None:
    """Raise UserError for values (of `shape`) and a state that do not fit: a kernel would read out of bounds."""
    heads = len(dilations)
    if len(shape) != 4 or shape[1] != heads:
        raise UserError(
            f"`values` must have shape (batch, {heads} heads with a REM, positions, width): got {tuple(shape)}."
        )
    if not 0 <= memory < shape[2]:
        raise UserError(f"`memory` must leave at least one of the {shape[2]} positions as a query: got {memory}.")
    if state is None:
        return
    if not causal:
        raise UserError("`state` continues a causal scan only: pass causal=True, or leave the state out.")
    needed = (shape[0], heads, 2 * max(dilations), shape[3])
    if truncation is None and tuple(state.carry.shape) != needed:
        raise UserError(
            f"`state` must come from a scan of the same batch, heads, dilations and width, with a carry of shape "
            f"{needed}: got {tuple(state.carry.shape)}."
        )


def _forward_scan(
    values_BRTD: Tensor, kernel: Kernel, memory: int, state: ScanState | None, chunk: int, fused: bool
) -> tuple[Tensor, ScanState]:
    if kernel.truncation is not None:
        if state is not None:
            values_BRTD = torch.cat([state.history.to(values_BRTD.dtype), values_BRTD], dim=2)
            memory += state.history.shape[2]
        output = _truncated(values_BRTD, kernel, kernel.truncation, chunk, fused)[:, :, memory:]
        return output, ScanState(_empty_carry(values_BRTD, 0), values_BRTD[:, :, -kernel.truncation :])

    if state is None:
        carry = _empty_carry(values_BRTD, 2 * max(kernel.dilations))
    else:
        carry = state.carry.to(values_BRTD.dtype)
    if memory > 0:
        carry = _absorb(values_BRTD[:, :, :memory], kernel, carry, chunk)
    output, carry = _recur(values_BRTD[:, :, memory:], kernel, carry, chunk)
    return output, ScanState(carry, values_BRTD[:, :, :0])


def _empty_carry(values_BRTD: Tensor, slots: int) -> Tensor:
    batch, heads, _, width = values_BRTD.shape
    return values_BRTD.new_zeros(batch, heads, slots, width)


def _truncated(values_BRTD: Tensor, kernel: Kernel, truncation: int, chunk: int, fused: bool) -> Tensor:
    """h_t − z^k · h_{t−kd}, where k = ⌊L/d⌋ steps of dilation d fit into the truncation L."""
    steps_R = torch.div(truncation, kernel.dilation, rounding_mode="floor")
    late_BRTD = torch.stack(
        [_delayed(values_BRTD[:, head], truncation // d * d) for head, d in enumerate(kernel.dilations)], dim=1
    )
    if fused:
        return _truncated_by_kernels(values_BRTD, late_BRTD, kernel, steps_R)
    carry = _empty_carry(values_BRTD, 2 * max(kernel.dilations))
    whole, _ = _recur(values_BRTD, kernel, carry, chunk)
    beyond, _ = _recur(late_BRTD, kernel, carry, chunk, extra_steps_R=steps_R)
    return whole - beyond


def _truncated_by_kernels(values_BRTD: Tensor, late_BRTD: Tensor, kernel: Kernel, steps_R: Tensor) -> Tensor:
    """All in one launch: each head three times, the second and third for both parts of what z^k turns and shrinks."""
    real, imaginary = torch.zeros_like(kernel.sine), torch.ones_like(kernel.sine)
    thrice = Kernel(
        sign=kernel.sign.repeat(3),
        decay=kernel.decay.repeat(3),
        angle=kernel.angle.repeat(3),
        sine=torch.cat([kernel.sine, real, imaginary]),
        dilation=kernel.dilation.repeat(3),
        dilations=3 * kernel.dilations,
        truncation=None,
    )
    all_values = torch.cat([values_BRTD, late_BRTD, late_BRTD], dim=1)
    scanned, _ = fused_scan(all_values, thrice, causal=True, memory=0, carry=None)
    whole, late_real, late_imaginary = scanned.chunk(3, dim=1)
    steps_R11, sine_R11 = steps_R[:, None, None], kernel.sine[:, None, None]
    a, b = _powers(kernel, steps_R11, torch.ones_like(sine_R11))
    # (a + ib)(x + iy): a cosine head reads ax − by, a sine head bx + ay.
    beyond = torch.where(sine_R11, b, a) * late_real + torch.where(sine_R11, a, -b) * late_imaginary
    return whole - beyond


def _delayed(values_BTD: Tensor, delay: int) -> Tensor:
    positions = values_BTD.shape[1]
    return functional.pad(values_BTD, (0, 0, min(delay, positions), 0))[:, :positions]


def _recur(
    values_BRTD: Tensor, kernel: Kernel, carry_BRSD: Tensor, chunk: int, extra_steps_R: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """The outputs, each multiplied by z^extra_steps where that is given, and the carry after the last position."""
    outputs = []
    for chunks_BRNCD in _pieces(values_BRTD, chunk):
        matrices = _chunk_matrices(kernel, chunks_BRNCD.shape[3], extra_steps_R)
        carries_BRNSD, carry_BRSD = _advance(chunks_BRNCD, matrices, carry_BRSD)
        output = torch.einsum("rij,brnjd->brnid", matrices.local, chunks_BRNCD)
        output = output + torch.einsum("ris,brnsd->brnid", matrices.read, carries_BRNSD)
        outputs.append(output.flatten(2, 3))
    return torch.cat(outputs, dim=2), carry_BRSD


def _absorb(values_BRTD: Tensor, kernel: Kernel, carry_BRSD: Tensor, chunk: int) -> Tensor:
    """The carry after the last position, without the outputs."""
    for chunks_BRNCD in _pieces(values_BRTD, chunk):
        matrices = _chunk_matrices(kernel, chunks_BRNCD.shape[3])
        _, carry_BRSD = _advance(chunks_BRNCD, matrices, carry_BRSD)
    return carry_BRSD


def _pieces(values_BRTD: Tensor, chunk: int) -> Iterator[Tensor]:
    """All whole chunks, then what is left as one shorter chunk: padding would age the carry."""
    whole = values_BRTD.shape[2] // chunk * chunk
    if whole > 0:
        yield values_BRTD[:, :, :whole].unflatten(2, (-1, chunk))
    if whole < values_BRTD.shape[2]:
        yield values_BRTD[:, :, whole:].unsqueeze(2)


def _advance(chunks_BRNCD: Tensor, matrices: _ChunkMatrices, carry_BRSD: Tensor) -> tuple[Tensor, Tensor]:
    """The carry in front of each chunk, and the one behind the last."""
    written_BRNSD = torch.einsum("rsj,brnjd->brnsd", matrices.write, chunks_BRNCD)
    # Each sum is to hold all that was written before it, aged by a step for each chunk in between. It reaches twice as
    # far back in every round, so that there are few operations however many chunks there are.
    sums = torch.cat([carry_BRSD[:, :, None], written_BRNSD], dim=2)
    aged, reach = matrices.step, 1
    while reach < sums.shape[2]:
        earlier = torch.einsum("rst,brntd->brnsd", aged, sums[:, :, :-reach])
        sums = torch.cat([sums[:, :, :reach], sums[:, :, reach:] + earlier], dim=2)
        aged, reach = aged @ aged, 2 * reach
    return sums[:, :, :-1], sums[:, :, -1]


def _chunk_matrices(kernel: Kernel, chunk: int, extra_steps_R: Tensor | None = None) -> _ChunkMatrices:
    """Rows are positions counted from the chunk's start: its own C outputs, then the slots of the next carry."""
    slots = max(kernel.dilations)
    device = kernel.decay.device
    row = torch.arange(chunk + slots, device=device)[:, None]
    dilation = kernel.dilation[:, None, None]
    slot = torch.arange(slots, device=device)
    # Heads of a smaller dilation than the largest leave their last slots empty.
    in_use = (row < chunk) | (row - chunk < dilation)

    distance = row - torch.arange(chunk, device=device)
    value_steps = torch.div(distance, dilation, rounding_mode="floor")
    carry_steps = torch.div(row, dilation, rounding_mode="floor").expand(-1, -1, slots)
    if extra_steps_R is not None:
        extra = extra_steps_R[:, None, None] * (row < chunk)
        value_steps, carry_steps = value_steps + extra, carry_steps + extra
    value_real, value_imag = _powers(kernel, value_steps, in_use & (distance > 0) & (distance % dilation == 0))
    carry_real, carry_imag = _powers(kernel, carry_steps, in_use & (row % dilation == slot))

    sine = kernel.sine[:, None, None]
    # (a + ib)(x + iy): a cosine head reads ax − by, a sine head bx + ay.
    real_rows = torch.cat([carry_real, -carry_imag], dim=2)
    imag_rows = torch.cat([carry_imag, carry_real], dim=2)
    return _ChunkMatrices(
        local=torch.where(sine, value_imag, value_real)[:, :chunk],
        read=torch.where(sine, imag_rows, real_rows)[:, :chunk],
        write=torch.cat([value_real[:, chunk:], value_imag[:, chunk:]], dim=1),
        step=torch.cat([real_rows[:, chunk:], imag_rows[:, chunk:]], dim=1),
    )


def _powers(kernel: Kernel, steps: Tensor, weighed: Tensor) -> tuple[Tensor, Tensor]:
    """Real and imaginary part of z^steps where `weighed`, else 0."""
    # Masked entries leave before the power: the gradient of a negative power is infinite, and infinity · 0 is NaN.
    steps = torch.where(weighed, steps, 0)
    sign, decay, angle = (part[:, None, None] for part in (kernel.sign, kernel.decay, kernel.angle))
    size = torch.where(steps % 2 == 1, sign, 1.0) * decay**steps
    size = torch.where(weighed, size, 0.0)
    return size * torch.cos(steps * angle), size * torch.sin(steps * angle)
