"""Matrix products: in which precision they are computed, and on ARM processors by which library.

On ARM torch hands a product with a transposed matrix, one in three of a training step, to oneDNN, which first brings it
into an order of its own: half a millisecond, whatever the size. On a Neoverse-N1, with torch 2.13, 256 × 96 by 96 × 96
takes 0.73 ms instead of 0.15; large ones take the same. Convolutions are the other way round, and no part of this.
"""

import platform
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

ON_ARM = platform.machine().lower() in ("aarch64", "arm64")


@contextmanager
def quick_products() -> Iterator[None]:
    """On ARM, use torch's BLAS instead of oneDNN for the whole process inside the context."""
    onednn: Any = torch.backends.mkldnn
    before = onednn.enabled
    onednn.enabled = before and not ON_ARM
    try:
        yield
    finally:
        onednn.enabled = before


def product_dtype(factor: Tensor) -> torch.dtype:
    """The dtype in which matrix products of `factor` are computed."""
    kind = factor.device.type
    return torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else factor.dtype
