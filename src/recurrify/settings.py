"""Settings declared once: a dataclass field with its docstring gives the option, its help, its check and its JSON.

    batch: int = setting(8, at_least=1, panel="Training", basic=True)
    \"\"\"Sequences per step and device.\"\"\"

Nothing here imports torch, so that command lines can show help quickly.
"""

import ast
import math
import sys
from collections.abc import Callable, Mapping
from dataclasses import MISSING, dataclass, field, fields
from functools import cache
from itertools import pairwise
from numbers import Integral
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from recurrify.errors import UserError

__all__ = [
    "Setting",
    "SettingType",
    "check_choice",
    "check_settings",
    "check_type",
    "check_types",
    "converted",
    "declaration",
    "setting",
    "setting_docs",
    "setting_types",
    "with_present_names",
]

SettingType = tuple[Any, float | None]
"""The type of a setting, and its `at_least`."""
NUMBER_NAMES = {bool: "true or false", int: "a whole number", float: "a number", str: "text"}


@dataclass(frozen=True)
class Setting:
    """How a field appears on the command line, and which values it takes."""

    panel: str | None = None
    """The panel of `--help` that shows the option."""
    basic: bool = False
    """Whether `--help` shows the option; `--help-all` shows every option."""
    option: bool = True
    """Whether the field has an option of its own; others are set with `--set name=value` or in a YAML file."""
    recorded: bool = False
    """Whether the run itself fills the field in, so that it cannot be set."""
    at_least: float | None = None
    at_most: float | None = None
    positive: bool = False
    choices: tuple[str, ...] = ()
    formerly: str = ""
    """An earlier name, which commands, files and records may still use."""


def setting(default: Any = MISSING, *, factory: Callable[[], Any] | None = None, **declared: Any) -> Any:
    """A dataclass field with a `Setting`; the keywords are those of `Setting`."""
    metadata = {"setting": Setting(**declared)}
    if factory is not None:
        return field(default_factory=factory, metadata=metadata)
    return field(default=default, metadata=metadata)


def declaration(entry: Any) -> Setting:
    """The `Setting` of a dataclass field; the default one for a plain field."""
    found: Setting = entry.metadata.get("setting", Setting())
    return found


def with_present_names(settings: type, values: Mapping[str, Any]) -> dict[str, Any]:
    """Values by name, with the present names of the settings of a dataclass in place of earlier ones."""
    earlier = {declaration(entry).formerly: entry.name for entry in fields(settings)}
    return {earlier.get(name, name): value for name, value in values.items()}


def check_settings(settings: Any) -> None:
    """Raise `UserError` for the first value of a dataclass that its declaration does not allow."""
    for entry in fields(settings):
        found = getattr(settings, entry.name)
        for value in found if isinstance(found, tuple) else (found,):
            if value is not None:
                _check_setting(entry.name, value, declaration(entry))


def _check_setting(name: str, value: Any, allowed: Setting) -> None:
    if isinstance(value, str) and "\0" in value:
        raise UserError(f"`{name}` contains a NUL character: leave it out.")
    if allowed.choices:
        check_choice(name, value, *allowed.choices)
    if isinstance(value, str):
        return
    if allowed.positive and not (math.isfinite(value) and value > 0):
        raise UserError(f"`{name}` must be a positive number: got {value}.")
    if allowed.at_least is not None and not (math.isfinite(value) and value >= allowed.at_least):
        raise UserError(f"`{name}` must be at least {allowed.at_least}: got {value}.")
    if allowed.at_most is not None and not value <= allowed.at_most:
        raise UserError(f"`{name}` must be at most {allowed.at_most}: got {value}.")


def check_choice(name: str, value: Any, *known: str) -> None:
    """Raise `UserError` unless `value` is one of `known`."""
    if value not in known:
        raise UserError(f"`{name}` must be {', '.join(known[:-1])} or {known[-1]}: got {value!r}.")


def check_types(settings: Any) -> None:
    """Raise `UserError` for the first value of a dataclass that does not have the type of its field, or is lower than
    the field's `at_least`. Checks numbers, bool, None, literals and tuples of them; other types may hold any value."""
    for name, declared in setting_types(type(settings)).items():
        check_type(name, getattr(settings, name), declared)


def setting_types(settings: type) -> dict[str, SettingType]:
    """The type of each field of a dataclass, with its `at_least`."""
    hints = get_type_hints(settings)
    return {entry.name: (hints[entry.name], declaration(entry).at_least) for entry in fields(settings)}


def check_type(name: str, value: Any, *allowed: SettingType) -> None:
    """Raise `UserError` for a value that has none of the allowed types, each with its lowest number."""
    kinds = [(kind, least) for hint, least in allowed for kind in _kinds(hint)]
    if not any(_has_type(value, kind, least) for kind, least in kinds):
        words = dict.fromkeys(_in_words(kind, least) for kind, least in kinds)
        raise UserError(f"`{name}` must be {' or '.join(words)}: got {name}={value!r}.")


def _kinds(hint: Any) -> tuple[Any, ...]:
    return get_args(hint) if isinstance(hint, UnionType) or get_origin(hint) is Union else (hint,)


def _has_type(value: Any, kind: Any, least: float | None) -> bool:
    if kind in (int, float):
        fits = isinstance(value, Integral if kind is int else int | float) and not isinstance(value, bool)
        return fits and math.isfinite(value) and (least is None or value >= least)
    if get_origin(kind) is Literal:
        return value in get_args(kind)
    if get_origin(kind) is tuple:
        return isinstance(value, tuple) and all(_has_type(one, get_args(kind)[0], least) for one in value)
    return isinstance(value, kind) if kind in (bool, NoneType) else True


def _in_words(kind: Any, least: float | None) -> str:
    limit = "" if least is None else f" of at least {least:g}"
    if get_origin(kind) is tuple:
        return f"a list, and each entry {_in_words(get_args(kind)[0], least)}"
    if get_origin(kind) is Literal:
        return " or ".join(map(repr, get_args(kind)))
    if kind in (int, float):
        return NUMBER_NAMES[kind] + limit
    return {bool: "True or False", NoneType: "None"}.get(kind, str(kind))


def converted(name: str, hint: Any, value: Any) -> Any:
    """A value from `--set` or a YAML file in the type of its field; raises `UserError` if it has another one."""
    kinds = get_args(hint) or (hint,)
    if value is None and NoneType in kinds:
        return None
    if isinstance(value, bool):
        if bool in kinds:
            return value
    elif isinstance(value, int) and int in kinds:
        return value
    elif float in kinds:
        try:
            return float(value)
        except (TypeError, ValueError):
            pass
    elif str in kinds and isinstance(value, str | int | float):
        return str(value)
    wanted = " or ".join(NUMBER_NAMES[kind] for kind in kinds if kind in NUMBER_NAMES)
    raise UserError(f"`{name}` must be {wanted or hint}: got {value!r}.")


def setting_docs(settings: type) -> dict[str, str]:
    """The docstring of each field of a dataclass, those of its base classes included, each on one line."""
    found: dict[str, str] = {}
    for one in reversed(settings.__mro__):
        found |= _docs_in_module(one.__module__).get(one.__name__, {})
    return {name: found[name] for name in get_type_hints(settings) if name in found}


@cache
def _docs_in_module(module: str) -> Mapping[str, dict[str, str]]:
    """The field docstrings of every class in a module, by class, read from its source."""
    file = getattr(sys.modules.get(module), "__file__", None)
    if file is None:
        return {}
    found = {}
    for node in ast.parse(Path(file).read_text(encoding="utf-8")).body:
        if isinstance(node, ast.ClassDef):
            found[node.name] = {
                line.target.id: " ".join(str(after.value.value).split())
                for line, after in pairwise(node.body)
                if isinstance(line, ast.AnnAssign) and isinstance(line.target, ast.Name)
                if isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant)
            }
    return found
