"""GPU kernels in Triton. Importing this package does not import Triton; its modules do, when they are needed."""

from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from recurrify.attention.kernels.rsa import unit_stride
    from recurrify.attention.kernels.rsa_parts import rows_of_head

TRITON_INSTALLED = find_spec("triton") is not None
KERNEL_TYPES = (torch.float32, torch.bfloat16, torch.float16)
"""Types of numbers that kernels support."""
KERNEL_WIDTHS = (16, 32, 64, 128)
"""Head sizes of kernels that multiply whole rows on matrix units."""

__all__ = ["KERNEL_TYPES", "KERNEL_WIDTHS", "TRITON_INSTALLED", "rows_of_head", "unit_stride"]
_HOMES = {"rows_of_head": "rsa_parts", "unit_stride": "rsa"}


def _load(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)


if not TYPE_CHECKING:  # or every name would seem to exist
    __getattr__ = _load
