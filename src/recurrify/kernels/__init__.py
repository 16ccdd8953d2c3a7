"""GPU kernels in Triton. Importing this package never imports Triton; its modules do, and are imported where needed."""

from importlib.util import find_spec

TRITON_INSTALLED = find_spec("triton") is not None
