"""The memories, one file each. Names are loaded when they are used: listing mechanisms does not import torch."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from recurrify.mechanisms.config import MechanismConfig, NoRecurrence
from recurrify.mechanisms.registry import (
    BUILT_IN,
    mechanism_config,
    mechanism_names,
    recurrence_config,
    register_mechanism,
)

if TYPE_CHECKING:
    from recurrify.mechanisms.base import CacheMechanism, Mechanism, Past, Recorder, SlotMechanism, WindowContext
    from recurrify.mechanisms.carry import CarryConfig
    from recurrify.mechanisms.choose import best_settings, default_window
    from recurrify.mechanisms.compress import CompressConfig
    from recurrify.mechanisms.kv import KVConfig
    from recurrify.mechanisms.lookback import LookbackConfig
    from recurrify.mechanisms.memory_tokens import MemoryTokensConfig
    from recurrify.mechanisms.rsa import RSARecurrenceConfig
    from recurrify.mechanisms.summary import SummaryConfig
    from recurrify.mechanisms.tail import TailConfig

__all__ = [
    "CacheMechanism",
    "CarryConfig",
    "CompressConfig",
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
_CONFIGS = {where.rpartition(":")[2]: where.partition(":")[0] for where in BUILT_IN.values()}
_CHOOSE = dict.fromkeys(("best_settings", "default_window"), "recurrify.mechanisms.choose")


def _load(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    home = (_CONFIGS | _CHOOSE).get(name, "recurrify.mechanisms.base")
    value = globals()[name] = getattr(import_module(home), name)
    return value


if not TYPE_CHECKING:  # or every name would seem to exist
    __getattr__ = _load
