"""GPU kernels in Triton. Importing this package does not import Triton; its modules do, when they are needed."""

from importlib.util import find_spec
from typing import TYPE_CHECKING

import torch

from recurrify.lazy import lazily

if TYPE_CHECKING:
    from recurrify.attention.kernels.rsa import unit_stride
    from recurrify.attention.kernels.rsa_parts import rows_of_head

TRITON_INSTALLED = find_spec("triton") is not None
KERNEL_TYPES = (torch.float32, torch.bfloat16, torch.float16)
"""Types of numbers that kernels support."""
KERNEL_WIDTHS = (16, 32, 64, 128)
"""Head sizes of kernels that multiply whole rows on matrix units."""

__all__ = ["KERNEL_TYPES", "KERNEL_WIDTHS", "TRITON_INSTALLED", "rows_of_head", "unit_stride"]
if not TYPE_CHECKING:  # or every name would seem to exist
    __getattr__ = lazily(__name__)
