"""The way to the Triton kernels: when they can run, and the scan and the mix through them.

Shapes: B batch, H heads, R heads that carry a REM, Q queries, K keys, D head width.
"""

import torch
from torch import Tensor

from recurrify.attention.encoding import Kernel, RecurrenceEncoding
from recurrify.kernels import KERNEL_TYPES, TRITON_INSTALLED


def kernels_run(truncation: int | None, *tensors: Tensor) -> bool:
    """Whether the kernels take such tensors: on a GPU, at most 32 bits, none empty, and no truncation."""
    return (
        TRITON_INSTALLED
        and truncation is None
        and all(tensor.is_cuda and tensor.dtype in KERNEL_TYPES for tensor in tensors)
        and tensors[0].numel() > 0
    )


def fused_scan(
    values_BRTD: Tensor, kernel: Kernel, *, causal: bool, memory: int, carry: Tensor | None
) -> tuple[Tensor, Tensor]:
    """P·V and the next carry, which is empty unless causal."""
    from recurrify.kernels.rsa import recur  # imports Triton, which takes a while, or is not there

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


def fused_truncated(values_BRTD: Tensor, late_BRTD: Tensor, kernel: Kernel, steps_R: Tensor) -> Tensor:
    """h_t − z^k · h'_t, where h' comes of the late values and k is `steps_R`.

    All in one launch: each head three times, the second and third for both parts of h', which z^k mixes.
    """
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
    size = torch.where(steps_R % 2 == 1, kernel.sign, 1.0) * kernel.decay**steps_R
    a, b = (size * turned(steps_R * kernel.angle) for turned in (torch.cos, torch.sin))
    # (a + ib)(x + iy): a cosine head reads ax − by, a sine head bx + ay.
    of_real = torch.where(kernel.sine, b, a)[:, None, None]
    of_imaginary = torch.where(kernel.sine, a, -b)[:, None, None]
    return whole - of_real * late_real - of_imaginary * late_imaginary


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
    from recurrify.kernels.rsa import recur  # imports Triton, which takes a while, or is not there

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
