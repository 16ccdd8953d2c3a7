"""The memories, one file each. Names are loaded when they are used: listing mechanisms does not import torch."""

from typing import TYPE_CHECKING

from recurrify.lazy import lazily
from recurrify.mechanisms.config import MechanismConfig, NoRecurrence
from recurrify.mechanisms.registry import (
    mechanism_config,
    mechanism_names,
    recurrence_config,
    register_mechanism,
)

if TYPE_CHECKING:
    from recurrify.mechanisms.base import (
        CacheMechanism,
        CacheRecorder,
        Mechanism,
        Past,
        Recorder,
        SlotMechanism,
        WindowContext,
    )
    from recurrify.mechanisms.carry import CarryConfig
    from recurrify.mechanisms.choose import best_settings, default_window
    from recurrify.mechanisms.compress import CompressConfig
    from recurrify.mechanisms.far import FarConfig
    from recurrify.mechanisms.kv import KVConfig
    from recurrify.mechanisms.lookback import LookbackConfig
    from recurrify.mechanisms.memory_tokens import MemoryTokensConfig
    from recurrify.mechanisms.rsa import RSARecurrenceConfig
    from recurrify.mechanisms.summary import SummaryConfig
    from recurrify.mechanisms.tail import TailConfig

__all__ = [
    "CacheMechanism",
    "CacheRecorder",
    "CarryConfig",
    "CompressConfig",
    "FarConfig",
    "KVConfig",
    "LookbackConfig",
    "Mechanism",
    "MechanismConfig",
    "MemoryTokensConfig",
    "NoRecurrence",
    "Past",
    "RSARecurrenceConfig",
    "Recorder",
    "SlotMechanism",
    "SummaryConfig",
    "TailConfig",
    "WindowContext",
    "best_settings",
    "default_window",
    "mechanism_config",
    "mechanism_names",
    "recurrence_config",
    "register_mechanism",
]
if not TYPE_CHECKING:  # or every name would seem to exist
    __getattr__ = lazily(__name__)
