"""Names of options: earlier ones are accepted, a mistyped one is answered with the closest, missing ones are listed."""

from collections.abc import Callable, Mapping, Sequence
from difflib import get_close_matches
from typing import Any, TypeVar

from typer.core import TyperGroup

from recurrify.errors import UserError

__all__ = ["Commands", "closest", "formerly", "missing"]

OF_PAPERS = ("bench", "experiment", "forecast", "pretrain", "scratch", "table3")
"""Commands of the package recurrify-papers."""
Function = TypeVar("Function", bound=Callable[..., Any])


def formerly(**names: str) -> Callable[[Function], Function]:
    """The options of a command that had other names: `formerly(rows="batch")` takes `--rows` for `--batch`."""

    def mark(function: Function) -> Function:
        function.formerly = {_option(old): _option(new) for old, new in names.items()}  # type: ignore[attr-defined]
        return function

    return mark


class Commands(TyperGroup):
    """The commands, which accept earlier names of their options."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        return super().parse_args(ctx, with_present_names(self, args))

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        if args and args[0] in OF_PAPERS and args[0] not in self.commands:
            raise UserError(f"`recurrify {args[0]}` comes with the package recurrify-papers: install it first.")
        return super().resolve_command(ctx, args)


def with_present_names(group: Any, arguments: Sequence[str]) -> list[str]:
    """The arguments of a command, with present names in place of earlier ones."""
    command, found = group, []
    rest = list(arguments)
    while hasattr(command, "commands") and rest:
        word = rest[0]
        if word in command.commands:
            command = command.commands[word]
        elif not word.startswith("-"):  # a group may have a command that is not named
            command = command.commands.get(getattr(command, "unnamed", None))
            break
        found.append(rest.pop(0))
    names: Mapping[str, str] = getattr(getattr(command, "callback", None), "formerly", {})
    given = {word.partition("=")[0] for word in rest}
    for old, new in names.items():
        if {old, new} <= given:
            raise UserError(f"`{old}` is the earlier name of `{new}`: give one of them.")
    for number, word in enumerate(rest):
        if word == "--":
            return [*found, *rest[number:]]
        option, equals, value = word.partition("=")
        found.append(names.get(option, option) + equals + value)
    return found


def closest(error: Any) -> str:
    """What a mistyped option or command may have meant, the most similar first."""
    near = list(getattr(error, "possibilities", None) or ())
    near = get_close_matches(str(error.option_name), near, n=3, cutoff=0.7) if near else []
    return f" (did you mean {' or '.join(near)}?)" if near else ""


def missing(error: Any) -> str:
    """All required arguments and options that were not given, if the error reports the first of them; else nothing."""
    if not hasattr(error, "param_type"):
        return ""
    given = {*error.ctx.params, *(error.ctx.default_map or ())}
    names = [
        f"{one.param_type_name} '{one.opts[0] if one.param_type_name == 'option' else one.name.upper()}'"
        for one in error.ctx.command.params
        if one.name not in given and one.required
    ]
    return f"Missing {' and '.join(filter(None, [', '.join(names[:-1]), names[-1]]))}."


def rejected(error: Any) -> str:
    """The value that an error is about, if its message does not have it."""
    problems = getattr(error.__cause__, "errors", None)  # of pydantic, which typer checks values with
    return f": got {problems()[0]['input']!r}" if problems else ""


def _option(name: str) -> str:
    return f"--{name.replace('_', '-')}"
