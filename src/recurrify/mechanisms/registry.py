"""Which mechanisms there are. A mechanism is loaded when it is used: names alone cost no import of torch.

To add one to recurrify, write its file and add one line to `BUILT_IN`. A package adds its own by an entry point:

    [project.entry-points."recurrify.mechanisms"]
    mine = "my_package.mine:MyConfig"
"""

import ast
import sys
from collections.abc import Iterable, Sequence
from dataclasses import fields
from functools import cache
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import Any, Literal

from recurrify.errors import UserError, did_you_mean
from recurrify.mechanisms.config import MechanismConfig
from recurrify.settings import SettingType, check_type, setting_types

GROUP = "recurrify.mechanisms"
BUILT_IN = {
    "carry": "recurrify.mechanisms.carry:CarryConfig",
    "compress": "recurrify.mechanisms.compress:CompressConfig",
    "far": "recurrify.mechanisms.far:FarConfig",
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
    """Register a mechanism for this process by its config class, whose `mechanism` is the name.

    Raises:
        UserError: The class is not a dataclass, so that its settings are none.
    """
    if "__dataclass_fields__" not in vars(config):
        raise UserError(f"{config.__name__} is not a dataclass: add @dataclass(frozen=True, kw_only=True) to it.")
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
            raise unknown_mechanism(name, mechanism_names())
    return _registered[name]


def unknown_mechanism(name: str, known: Sequence[str]) -> UserError:
    return UserError(
        f"Unknown mechanism {name!r}{did_you_mean(name, known)}: known are {', '.join(known)}; install or import the "
        "package of any other."
    )


def ensure_registered(config: MechanismConfig) -> None:
    """Register the class of a config that is used for the first time, or that was defined again, as in a notebook.

    Raises:
        UserError: Its name belongs to another mechanism.
    """
    name, kind = config.mechanism, type(config)
    known = mechanism_config(name) if name in mechanism_names() else kind
    if (known.__module__, known.__qualname__) != (kind.__module__, kind.__qualname__):
        raise UserError(
            f"{kind.__name__} has the name {name!r} of another mechanism, {known.__name__}: choose another `mechanism`."
        )
    register_mechanism(kind)


def recurrence_config(values: dict[str, Any]) -> MechanismConfig:
    """The config that `MechanismConfig.to_dict` wrote.

    Raises:
        UserError: The mechanism or one of its settings is unknown, or a value is invalid.
    """
    values = dict(values)
    name = values.pop("mechanism", None)
    config = mechanism_config(name)
    check_names(name, [field.name for field in fields(config)], values)
    return config(**config.completed(values))


def setting_names(mechanism: str) -> list[str]:
    """The settings of a mechanism.

    Raises:
        UserError: There is no such mechanism, or its package cannot be loaded.
    """
    return list(declared_settings(mechanism))


def declared_settings(mechanism: str) -> dict[str, SettingType]:
    """The settings of a mechanism and their types. Those of built-in ones are read from their source, which takes no
    import of torch.

    Raises:
        UserError: There is no such mechanism, or its package cannot be loaded.
    """
    if mechanism in _registered or mechanism not in BUILT_IN:
        return setting_types(mechanism_config(mechanism))
    module, _, name = BUILT_IN[mechanism].partition(":")
    source = Path(__file__).with_name(f"{module.rpartition('.')[2]}.py").read_text(encoding="utf-8")
    found = next(node for node in ast.parse(source).body if isinstance(node, ast.ClassDef) and node.name == name)
    parents = {f":{ast.unparse(base)}" for base in found.bases}
    inherited = (declared_settings(other) for other, place in BUILT_IN.items() if place.endswith(tuple(parents)))
    own = {
        node.target.id: (_type_of(node.annotation), _at_least(node.value))
        for node in found.body
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name)
        if not ast.unparse(node.annotation).startswith("ClassVar")
    }
    return next(inherited, setting_types(MechanismConfig)) | own


def _type_of(annotation: ast.expr) -> Any:
    """The type that a file of this package names."""
    return eval(ast.unparse(annotation), {"Literal": Literal})


def _at_least(default: ast.expr | None) -> float | None:
    """The `at_least` of a field that is declared with `setting`."""
    named = default.keywords if isinstance(default, ast.Call) else []
    return next((ast.literal_eval(one.value) for one in named if one.arg == "at_least"), None)


def check_value(mechanisms: Iterable[str], name: str, value: Any) -> None:
    """Raise `UserError` for a value of a setting that none of the mechanisms takes."""
    declared = [known[name] for one in mechanisms if name in (known := declared_settings(one))]
    check_type(name, tuple(value) if isinstance(value, list) else value, *declared)  # JSON has lists only


def check_names(mechanism: str, known: Sequence[str], given: Iterable[str], chosen: str = "") -> None:
    """Raise `UserError` for names that are no settings of a mechanism, which is `chosen` for some reason."""
    unknown = sorted(set(given) - set(known))
    if unknown:
        others = [other for other in BUILT_IN if unknown[0] in setting_names(other)]
        meant = did_you_mean(unknown[0], known)
        if others:
            meant = f" (with `mechanism` {' or '.join(map(repr, others))} there is one)"
        raise UserError(
            f"The mechanism {mechanism!r}{chosen} has no setting {', '.join(map(repr, unknown))}{meant}: its settings "
            f"are {', '.join(sorted(known))}; a newer recurrify may have more."
        )


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
