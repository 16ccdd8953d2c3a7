"""Facts about mechanisms for settings and commands; torch is imported only once a mechanism is named."""

from recurrify.mechanisms.config import BEST
from recurrify.mechanisms.registry import mechanism_config, mechanism_names

__all__ = ["BEST", "encoder_mechanisms", "learns", "mechanism_names"]


def learns(mechanism: str) -> bool:
    """Whether a mechanism adds parameters to train; models of other packages, which name their own, do."""
    return mechanism not in mechanism_names() or mechanism_config(mechanism).learns


def encoder_mechanisms() -> list[str]:
    """The names of the mechanisms that an encoder can have."""
    return [name for name in mechanism_names() if not mechanism_config(name).decoders_only]
