"""Options of a command from the fields of a settings dataclass: names, types, defaults, and docstrings as help."""

import ast
import inspect
import textwrap
from collections.abc import Callable, Mapping
from dataclasses import MISSING, fields
from itertools import pairwise
from typing import Annotated, Any, get_type_hints

import typer

HIDDEN = ("data_checksum",)
"""Fields that the run fills in."""


def settings_options(
    settings: type, *, repeated: Mapping[str, str] | None = None
) -> Callable[[Callable[[dict[str, Any]], None]], Callable[..., None]]:
    """Make a function of settings by name into a command with an option for each field.

    Args:
        settings: The dataclass.
        repeated: Fields whose option is given several times, with the option's name. Their value is a list of texts.
    """

    def decorate(function: Callable[[dict[str, Any]], None]) -> Callable[..., None]:
        def command(**given: Any) -> None:
            function({name: [] if name in (repeated or {}) and not value else value for name, value in given.items()})

        command.__signature__ = inspect.Signature(_parameters(settings, repeated or {}))  # type: ignore[attr-defined]
        command.__name__, command.__doc__ = function.__name__, function.__doc__
        return command

    return decorate


def _parameters(settings: type, repeated: Mapping[str, str]) -> list[inspect.Parameter]:
    hints, docs = get_type_hints(settings), _docs(settings)
    shown = [entry for entry in fields(settings) if entry.name not in HIDDEN]
    found = []
    for entry in sorted(shown, key=lambda entry: entry.default is not MISSING or entry.name in repeated):
        many = entry.name in repeated
        flags = [repeated[entry.name]] if many else []
        kind = list[str] | None if many else hints[entry.name]
        default = {} if entry.default is MISSING and not many else {"default": None if many else entry.default}
        annotation = Annotated[kind, typer.Option(*flags, help=docs.get(entry.name))]
        found.append(inspect.Parameter(entry.name, inspect.Parameter.KEYWORD_ONLY, annotation=annotation, **default))
    return found


def _docs(settings: type) -> dict[str, str]:
    """The docstrings of the fields, those of base classes included."""
    found: dict[str, str] = {}
    for one in reversed(settings.__mro__[:-1]):
        (node,) = ast.parse(textwrap.dedent(inspect.getsource(one))).body
        body = node.body if isinstance(node, ast.ClassDef) else []
        for line, after in pairwise(body):
            if isinstance(line, ast.AnnAssign) and isinstance(line.target, ast.Name) and isinstance(after, ast.Expr):
                found[line.target.id] = " ".join(str(ast.literal_eval(after.value)).split())
    return found
