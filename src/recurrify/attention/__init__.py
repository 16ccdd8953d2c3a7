"""Self-attention with recurrence (RSA) and its recurrence encoding matrices (REMs)."""

from recurrify.attention.config import HeadPlan, RSAConfig
from recurrify.attention.encoding import Kernel, RecurrenceEncoding
from recurrify.attention.rsa import RSAResult, mix_recurrence, rsa_attention
from recurrify.attention.scan import ScanResult, ScanState, scan

__all__ = [
    "HeadPlan",
    "Kernel",
    "RSAConfig",
    "RSAResult",
    "RecurrenceEncoding",
    "ScanResult",
    "ScanState",
    "mix_recurrence",
    "rsa_attention",
    "scan",
]
