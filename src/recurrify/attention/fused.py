"""The scan and the mix by Triton kernels, and when these can run.

Shapes: B batch, H heads, R heads that carry a REM, Q queries, K keys, D head width.
"""

from collections.abc import Iterator
from contextlib import contextmanager

from torch import Tensor

from recurrify.attention.encoding import Kernel, RecurrenceEncoding
from recurrify.attention.kernels import KERNEL_TYPES, TRITON_INSTALLED

_allowed = True


@contextmanager
def without_kernels() -> Iterator[None]:
    """Everything is computed by torch's own operations, which can be counted."""
    global _allowed
    before, _allowed = _allowed, False
    try:
        yield
    finally:
        _allowed = before


def kernels_run(*tensors: Tensor) -> bool:
    """Whether the kernels take such tensors: on a GPU, at most 32 bits, none empty."""
    return (
        _allowed
        and TRITON_INSTALLED
        and all(tensor.is_cuda and tensor.dtype in KERNEL_TYPES for tensor in tensors)
        and tensors[0].numel() > 0
    )


def fused_scan(
    values_BRTD: Tensor, kernel: Kernel, *, causal: bool, memory: int, carry: Tensor | None
) -> tuple[Tensor, Tensor]:
    """P·V and the next carry, which is empty unless causal."""
    from recurrify.attention.kernels.rsa import recur  # imports Triton, which takes a while, or is not there

    return recur(
        values_BRTD,
        kernel.decay,
        kernel.sign,
        kernel.angle,
        sine=kernel.sine,
        dilation=kernel.dilation,
        dilations=kernel.dilations,
        causal=causal,
        memory=memory,
        carry=carry,
    )


def fused_mix(
    attended_BHQD: Tensor,
    value_BHKD: Tensor,
    encoding: RecurrenceEncoding,
    *,
    causal: bool,
    memory: int,
    carry: Tensor | None,
) -> tuple[Tensor, Tensor]:
    """(1 − g) · attended + g · P·V for all heads in one go, and the next carry."""
    from recurrify.attention.kernels.rsa import recur  # imports Triton, which takes a while, or is not there

    return recur(
        value_BHKD,
        encoding.eta,
        encoding.nu,
        encoding.theta,
        sine=encoding.sine,
        dilation=encoding.dilation,
        dilations=encoding.dilations,
        causal=causal,
        memory=memory,
        carry=carry,
        attended=attended_BHQD,
        gate=encoding.mu,
        select=encoding.select,
    )
