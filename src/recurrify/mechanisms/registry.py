"""Which mechanisms there are. A mechanism is loaded when it is used: names alone cost no import of torch.

To add one to recurrify, write its file and add one line to `BUILT_IN`. A package adds its own by an entry point:

    [project.entry-points."recurrify.mechanisms"]
    mine = "my_package.mine:MyConfig"
"""

import sys
from dataclasses import fields
from functools import cache
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points
from typing import Any

from recurrify.errors import UserError
from recurrify.mechanisms.config import MechanismConfig

GROUP = "recurrify.mechanisms"
BUILT_IN = {
    "carry": "recurrify.mechanisms.carry:CarryConfig",
    "compress": "recurrify.mechanisms.compress:CompressConfig",
    "kv": "recurrify.mechanisms.kv:KVConfig",
    "lookback": "recurrify.mechanisms.lookback:LookbackConfig",
    "memory_tokens": "recurrify.mechanisms.memory_tokens:MemoryTokensConfig",
    "none": "recurrify.mechanisms.config:NoRecurrence",
    "rsa": "recurrify.mechanisms.rsa:RSARecurrenceConfig",
    "summary": "recurrify.mechanisms.summary:SummaryConfig",
    "tail": "recurrify.mechanisms.tail:TailConfig",
}
_registered: dict[str, type[MechanismConfig]] = {}


def register_mechanism(config: type[MechanismConfig]) -> None:
    """Register a mechanism for this process by its config class, whose `mechanism` is the name."""
    _registered[config.mechanism] = config


def mechanism_names() -> list[str]:
    """The names of all mechanisms: recurrify's own, those of installed packages, and registered ones."""
    return sorted({*BUILT_IN, *_entry_points(), *_registered})


def mechanism_config(name: str) -> type[MechanismConfig]:
    """The config class of a mechanism, with its capabilities (`learns`, `decoders_only`, `positions`).

    Raises:
        UserError: There is no such mechanism, or its package cannot be loaded.
    """
    if name not in _registered:
        points = _entry_points()
        if name in BUILT_IN:
            module, _, attribute = BUILT_IN[name].partition(":")
            register_mechanism(getattr(import_module(module), attribute))
        elif name in points:
            _load(points[name])
        else:
            raise UserError(f"Unknown recurrence mechanism {name!r}: known are {', '.join(mechanism_names())}.")
    return _registered[name]


def ensure_registered(config: MechanismConfig) -> None:
    """Register the class of a config that is used for the first time.

    Raises:
        UserError: Its name belongs to another mechanism.
    """
    name = config.mechanism
    if name not in mechanism_names():
        register_mechanism(type(config))
    elif mechanism_config(name) is not type(config):
        raise UserError(
            f"{type(config).__name__} has the name {name!r} of another mechanism, {mechanism_config(name).__name__}: "
            "choose another `mechanism`."
        )


def recurrence_config(values: dict[str, Any]) -> MechanismConfig:
    """The config that `MechanismConfig.to_dict` wrote.

    Raises:
        UserError: The mechanism or one of its settings is unknown, or a value is invalid.
    """
    values = dict(values)
    name = values.pop("mechanism", None)
    config = mechanism_config(name)
    known = {field.name for field in fields(config)}
    unknown = sorted(set(values) - known)
    if unknown:
        raise UserError(
            f"The mechanism {name!r} has no setting {', '.join(map(repr, unknown))}: "
            f"its settings are {', '.join(sorted(known))}; a newer recurrify may have more."
        )
    return config(**config.completed(values))


def _entry_points() -> dict[str, EntryPoint]:
    return _entry_points_on(tuple(sys.path))


@cache
def _entry_points_on(path: tuple[str, ...]) -> dict[str, EntryPoint]:
    """Reading the metadata of all installed packages takes 20 ms, and every model asks for it."""
    return {point.name: point for point in entry_points(group=GROUP)}


def _load(point: EntryPoint) -> None:
    package = point.dist.name if point.dist is not None else point.value
    try:
        config = point.load()
    except Exception as error:  # whatever another package raises when it is imported
        raise UserError(
            f"The mechanism {point.name!r} of the package {package!r} could not be loaded "
            f"({type(error).__name__}: {error}): repair or uninstall that package."
        ) from error
    if not (isinstance(config, type) and issubclass(config, MechanismConfig) and config.mechanism == point.name):
        raise UserError(
            f"The entry point {point.name!r} of the package {package!r} must name a MechanismConfig with "
            f"mechanism = {point.name!r}: got {point.value!r}."
        )
    register_mechanism(config)
