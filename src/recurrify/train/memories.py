"""What settings and commands ask about mechanisms: names without importing torch, and class attributes."""

import re
from pathlib import Path
from typing import Any

BEST = "best"
"""In place of a mechanism's name: the memory that works best for models of this kind."""
FOLDER = Path(__file__).parent.parent / "mechanisms"


def mechanism_names() -> list[str]:
    """The names of all mechanisms."""
    try:
        from recurrify.mechanisms.registry import mechanism_names as registered
    except ImportError:  # until the registry is a module of its own: the names in the source
        declared = re.compile(r'^    mechanism: ClassVar\[str\] = "(\w+)"', re.MULTILINE)
        return sorted(name for file in FOLDER.glob("*.py") for name in declared.findall(file.read_text("utf-8")))
    return list(registered())


def config_class(mechanism: str | None) -> Any:
    """The config class of a mechanism; raises `UserError` for an unknown name."""
    try:
        from recurrify.mechanisms.registry import mechanism_config
    except ImportError:
        from recurrify.modeling import recurrence_config

        return type(recurrence_config({"mechanism": mechanism}))
    return mechanism_config(mechanism)


def learns(mechanism: str | None) -> bool:
    """Whether a mechanism adds parameters to train."""
    return bool(getattr(config_class(mechanism), "learns", mechanism not in ("none", "kv")))


def encoder_mechanisms() -> list[str]:
    """The names of the mechanisms that an encoder can have."""
    default = {"kv": True, "lookback": True, "rsa": True}
    return [
        name for name in mechanism_names() if not getattr(config_class(name), "decoders_only", default.get(name, False))
    ]
