"""GPU kernels in Triton. Importing this package never imports Triton; its modules do, and are imported where needed."""

from importlib.util import find_spec

import torch

TRITON_INSTALLED = find_spec("triton") is not None
KERNEL_TYPES = (torch.float32, torch.bfloat16, torch.float16)
"""What kernels take."""
KERNEL_WIDTHS = (16, 32, 64, 128)
"""Of heads, for kernels that multiply whole rows on matrix units."""
