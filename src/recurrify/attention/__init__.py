"""Self-attention with recurrence (RSA) and its recurrence encoding matrices (REMs)."""

from recurrify.attention.config import HeadPlan, RSAConfig
from recurrify.attention.encoding import Kernel, RecurrenceEncoding, recurrence_parameters
from recurrify.attention.kernels import KERNEL_TYPES, KERNEL_WIDTHS, TRITON_INSTALLED
from recurrify.attention.reference import rem_matrix, rsa_matrix_form
from recurrify.attention.rsa import RSAResult, mix_recurrence, rsa_attention
from recurrify.attention.scan import ScanResult, ScanState, scan

__all__ = [
    "KERNEL_TYPES",
    "KERNEL_WIDTHS",
    "TRITON_INSTALLED",
    "HeadPlan",
    "Kernel",
    "RSAConfig",
    "RSAResult",
    "RecurrenceEncoding",
    "ScanResult",
    "ScanState",
    "mix_recurrence",
    "recurrence_parameters",
    "rem_matrix",
    "rsa_attention",
    "rsa_matrix_form",
    "scan",
]
