"""The arguments of the RSA kernels, and how lanes are divided into blocks."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
import triton
from torch import Tensor


class Given(NamedTuple):
    """The operator's arguments; `rsa.recur` says what they are."""

    values: Tensor
    attended: Tensor | None
    first: Tensor
    second: Tensor
    angles: Tensor
    gate: Tensor | None
    select: Tensor | None
    sine: Tensor
    dilation: Tensor
    carry: Tensor | None
    dilations: Sequence[int]
    causal: bool
    memory: int

    @property
    def heads(self) -> int:
        return len(self.dilations) if self.attended is None else self.attended.shape[1]

    @property
    def dtype(self) -> torch.dtype:
        """Of the output."""
        own = self.values.dtype
        return own if self.attended is None else torch.promote_types(self.attended.dtype, own)


class Blocks(NamedTuple):
    """How the lanes are divided into blocks. Lengths may be symbolic under torch.compile: only comparisons work."""

    length: int
    """Steps of a lane in one block."""
    number: int
    """Blocks of one head of one sequence: those of the head that has the most."""
    several: bool
    """Whether a lane has more than one block, so that blocks need each other's sums."""

    @classmethod
    def of(cls, positions: int, dilations: Sequence[int], lengths: Sequence[int]) -> "Blocks":
        longest = ceil(positions, min(dilations))
        length = next((size for size in lengths if longest <= size), lengths[-1])
        number = max(dilation * ceil(ceil(positions, dilation), length) for dilation in dilations)
        return cls(length, number, longest > length)


def ceil(number: int, divisor: int) -> int:
    return -(-number // divisor)


def width_block(width: int, largest: int) -> int:
    """Columns in one program."""
    return min(max(triton.next_power_of_2(width), 16), largest)


def with_strides(tensor: Tensor | None) -> tuple[Any, ...]:
    return (None, 0, 0, 0) if tensor is None else (tensor, *tensor.stride()[:3])
