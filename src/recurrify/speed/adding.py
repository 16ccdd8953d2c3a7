# mypy: disallow-untyped-defs=False
"""16-bit numbers added to 32-bit ones where they lie, in Triton: torch's own sum of two types is far from bandwidth.

Imports Triton where it is installed, so import it where it is needed only. Nothing here waits for the device or asks
for memory.
"""

import torch
from torch import Tensor

from recurrify.attention.kernels import TRITON_INSTALLED

BLOCK, WARPS = 512, 4
"""Numbers that a program adds, and its warps."""
HALVES = (torch.bfloat16, torch.float16)

if TRITON_INSTALLED:
    import triton
    import triton.language as tl

    NEIGHBOURS = tl.constexpr(4)
    """Numbers that a thread takes at once: 16 bytes of the total. With as many bytes of the part it would take twice as
    many, and the two had to be brought together across threads."""

    # Sizes differ from weight to weight; compiling a kernel for each kind would stall training.
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
    """total += part, of the same shape; autograd does not get to know."""
    if not kernel_runs(total, part):
        total.add_(part)
    elif total.numel() > 0:
        with torch.cuda.device_of(total):
            _launch(total, part)


def kernel_runs(total: Tensor, part: Tensor) -> bool:
    """Whether the kernel takes them: 16 bits into 32, on one GPU, in the same order in memory and without gaps."""
    return (
        TRITON_INSTALLED
        and total.is_cuda
        and total.device == part.device
        and total.dtype == torch.float32
        and part.dtype in HALVES
        and in_same_order(total, part)
    )


def in_same_order(one: Tensor, other: Tensor) -> bool:
    """Whether both fill their memory without gaps, neighbours of one where the neighbours of the other are."""
    if one.shape != other.shape:
        return False
    # Of a single number no stride is ever taken.
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
