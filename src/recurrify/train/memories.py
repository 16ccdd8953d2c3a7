"""What settings and commands ask about mechanisms: names without importing torch, and class attributes."""

import re
from importlib import import_module
from pathlib import Path
from typing import Any

BEST = "best"
"""In place of a mechanism's name: the memory that works best for models of this kind."""
FOLDER = Path(__file__).parent.parent / "mechanisms"


def _registry() -> Any:
    """The registry of mechanisms, which imports no torch; None until it is a module of its own."""
    try:
        return import_module("recurrify.mechanisms.registry")
    except ImportError:
        return None


def mechanism_names() -> list[str]:
    """The names of all mechanisms."""
    registry = _registry()
    if registry is not None:
        return list(registry.mechanism_names())
    declared = re.compile(r'^    mechanism: ClassVar\[str\] = "(\w+)"', re.MULTILINE)
    return sorted(name for file in FOLDER.glob("*.py") for name in declared.findall(file.read_text("utf-8")))


def config_class(mechanism: str | None) -> Any:
    """The config class of a mechanism; raises `UserError` for an unknown name."""
    registry = _registry()
    if registry is not None:
        return registry.mechanism_config(mechanism)
    from recurrify.modeling import recurrence_config

    return type(recurrence_config({"mechanism": mechanism}))


def learns(mechanism: str | None) -> bool:
    """Whether a mechanism adds parameters to train."""
    return bool(getattr(config_class(mechanism), "learns", mechanism not in ("none", "kv")))


def encoder_mechanisms() -> list[str]:
    """The names of the mechanisms that an encoder can have."""
    default = {"kv": True, "lookback": True, "rsa": True}
    return [
        name for name in mechanism_names() if not getattr(config_class(name), "decoders_only", default.get(name, False))
    ]
