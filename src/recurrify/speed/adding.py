# mypy: disallow-untyped-defs=False
"""Add 16-bit numbers to 32-bit numbers in place, in Triton: torch's addition of two types is far below bandwidth.

Imports Triton if it is installed, so import this module only where it is needed. Nothing here waits for the device or
allocates memory.
"""

import torch
from torch import Tensor

from recurrify.attention.kernels import TRITON_INSTALLED

BLOCK, WARPS = 512, 4
"""Numbers and warps per program."""
HALVES = (torch.bfloat16, torch.float16)

if TRITON_INSTALLED:
    import triton
    import triton.language as tl

    NEIGHBOURS = tl.constexpr(4)
    """Numbers per thread: 16 bytes of the total. With 16 bytes of the part, numbers would have to move between
    threads."""

    # Sizes differ between weights; a kernel per size would stall training.
    @triton.jit(do_not_specialize=["size"])
    def add_kernel(total, part, size, BLOCK: tl.constexpr):
        first = tl.program_id(0).to(tl.int64) * BLOCK
        total += first
        part += first
        place = tl.max_contiguous(tl.arange(0, BLOCK), NEIGHBOURS)
        left = size - first
        if left >= BLOCK:
            tl.store(total + place, tl.load(total + place) + tl.load(part + place).to(tl.float32))
        else:
            live = place < left
            both = tl.load(total + place, mask=live) + tl.load(part + place, mask=live).to(tl.float32)
            tl.store(total + place, both, mask=live)


def add_into(total: Tensor, part: Tensor) -> None:
    """total += part, of the same shape, without autograd."""
    if not kernel_runs(total, part):
        total.add_(part)
    elif total.numel() > 0:
        with torch.cuda.device_of(total):
            _launch(total, part)


def kernel_runs(total: Tensor, part: Tensor) -> bool:
    """Whether the kernel supports them: 16 bits into 32, on one GPU, same memory layout without gaps."""
    return (
        TRITON_INSTALLED
        and total.is_cuda
        and total.device == part.device
        and total.dtype == torch.float32
        and part.dtype in HALVES
        and in_same_order(total, part)
    )


def in_same_order(one: Tensor, other: Tensor) -> bool:
    """Whether both tensors have the same dense memory layout."""
    if one.shape != other.shape:
        return False
    # Strides of dimensions of size 1 do not matter.
    strides = [
        (stride, theirs, size)
        for stride, theirs, size in zip(one.stride(), other.stride(), one.shape, strict=True)
        if size > 1
    ]
    dense = 1
    for stride, theirs, size in sorted(strides):
        if not stride == theirs == dense:
            return False
        dense *= size
    return True


def _launch(total: Tensor, part: Tensor) -> None:
    size = total.numel()
    add_kernel[(triton.cdiv(size, BLOCK),)](total, part, size, BLOCK=BLOCK, num_warps=WARPS)
