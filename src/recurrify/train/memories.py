"""Facts about mechanisms for settings and commands; torch is imported only once a mechanism is named."""

from recurrify.console import say
from recurrify.errors import UserError
from recurrify.mechanisms.config import BEST, NO_MEMORY, MechanismConfig
from recurrify.mechanisms.registry import mechanism_config, mechanism_names

__all__ = ["BEST", "NO_MEMORY", "learns", "loadable_mechanisms", "mechanism_names"]


def learns(mechanism: str) -> bool:
    """Whether a mechanism adds parameters to train; models of other packages, which name their own, do."""
    return mechanism not in mechanism_names() or mechanism_config(mechanism).learns


def loadable_mechanisms() -> dict[str, type[MechanismConfig]]:
    """The config classes by name; a line reports each package whose mechanism cannot be loaded."""
    found = {}
    for name in mechanism_names():
        try:
            found[name] = mechanism_config(name)
        except UserError as error:
            say(f"Left out: {error}")
    return found
