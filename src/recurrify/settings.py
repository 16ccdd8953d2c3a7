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
from pathlib import Path
from types import NoneType
from typing import Any, get_args, get_type_hints

from recurrify.errors import UserError

__all__ = ["Setting", "check_choice", "check_settings", "converted", "declaration", "setting", "setting_docs"]

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


def check_settings(settings: Any) -> None:
    """Raise `UserError` for the first value of a dataclass that its declaration does not allow."""
    for entry in fields(settings):
        value, allowed = getattr(settings, entry.name), declaration(entry)
        if value is None:
            continue
        if isinstance(value, str) and "\0" in value:
            raise UserError(f"`{entry.name}` contains a NUL character: leave it out.")
        if allowed.choices:
            check_choice(entry.name, value, *allowed.choices)
        if allowed.positive and not (math.isfinite(value) and value > 0):
            raise UserError(f"`{entry.name}` must be a positive number: got {value}.")
        if allowed.at_least is not None and not (math.isfinite(value) and value >= allowed.at_least):
            raise UserError(f"`{entry.name}` must be at least {allowed.at_least}: got {value}.")
        if allowed.at_most is not None and not value <= allowed.at_most:
            raise UserError(f"`{entry.name}` must be at most {allowed.at_most}: got {value}.")


def check_choice(name: str, value: Any, *known: str) -> None:
    """Raise `UserError` unless `value` is one of `known`."""
    if value not in known:
        raise UserError(f"`{name}` must be {', '.join(known[:-1])} or {known[-1]}: got {value!r}.")


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
    file = getattr(sys.modules.get(module), "__file__", None)
    if file is None:
        return {}
    return {name: docs for name, (docs, _) in class_fields(Path(file)).items()}


def class_fields(file: Path) -> dict[str, tuple[dict[str, str], dict[str, str]]]:
    """Of every class in a source file, without importing it: docstrings and defaults (as source) of its fields.

    Class variables are left out, apart from the name of a mechanism.
    """
    found = {}
    for node in ast.parse(file.read_text(encoding="utf-8")).body:
        if not isinstance(node, ast.ClassDef):
            continue
        docs: dict[str, str] = {}
        defaults: dict[str, str] = {}
        for line, after in zip(node.body, [*node.body[1:], None], strict=True):
            if not (isinstance(line, ast.AnnAssign) and isinstance(line.target, ast.Name)):
                continue
            if line.target.id != "mechanism" and ast.unparse(line.annotation).startswith("ClassVar"):
                continue
            if line.value is not None:
                defaults[line.target.id] = ast.unparse(line.value)
            if isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant):
                docs[line.target.id] = " ".join(str(after.value.value).split())
        found[node.name] = (docs, defaults)
    return found
