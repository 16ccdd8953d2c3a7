"""Commands whose options come from a settings dataclass.

Typer with a generated signature was chosen after trying cyclopts (as quick, but all commands would need two
frameworks) and jsonargparse (dotted names, no panels, errors of several lines).
"""

import inspect
import json
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import MISSING, fields
from pathlib import Path
from typing import Annotated, Any, get_type_hints

import typer
from rich.padding import Padding
from rich.text import Text

from recurrify.cli import options
from recurrify.cli.names import formerly
from recurrify.console import out_console
from recurrify.errors import UserError
from recurrify.mechanisms.config import MechanismConfig
from recurrify.results import check_takes_files, read_given
from recurrify.settings import converted, declaration, setting_docs, with_present_names
from recurrify.train.memories import loadable_mechanisms

__all__ = ["examples", "memory_settings", "parse_settings", "settings_command"]

CONFIG, SET = "config", "set"
MEMORY_OPTIONS = ("mechanism", "window", "overlap")


def settings_command(
    app: typer.Typer, name: str, settings: type, *, rest: str | None = None, epilog: Sequence[str] = ()
) -> Callable[[Callable[[dict[str, Any]], None]], Callable[..., None]]:
    """Register a command that is called with its settings by name.

    The options are the fields of `settings`, in the panels that they declare. `--help` shows the basic ones, and
    `--help-all` shows all of them. Fields without an option are set with `--set name=value`; `--config FILE` reads
    fields from YAML or JSON. Options on the command line take precedence over `--set`, and both over the file.

    Args:
        app: The application.
        name: The command's name.
        settings: A dataclass whose fields are declared with `recurrify.settings.setting`.
        rest: A field that holds a dict, which takes every other name of `--set`. If it is "recurrence", the command
            also gets the options `--mechanism`, `--window` and `--overlap`.
        epilog: Examples.
    """

    def register(function: Callable[[dict[str, Any]], None]) -> Callable[..., None]:
        def command(context: typer.Context, **given: Any) -> None:
            collected = _collected(settings, rest, given, context.meta.get(CONFIG, {}))
            check_takes_files(Path(collected.get("out") or "."))
            function(collected)

        own = inspect.Parameter("context", inspect.Parameter.KEYWORD_ONLY, annotation=typer.Context)
        parameters = [own, *_options(settings, rest), *_common_options(settings, rest)]
        command.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        command.__name__, command.__doc__ = function.__name__, function.__doc__
        earlier = {declaration(entry).formerly: entry.name for entry in fields(settings)}
        formerly(**{old: new for old, new in earlier.items() if old})(command)
        app.command(name=name, epilog=examples(*epilog))(command)
        return command

    return register


def examples(*lines: str) -> str | None:
    """The epilog of a command."""
    return "\n\n".join(["**Examples**", *(f"`{line}`" for line in lines)]) if lines else None


def _parameter(name: str, kind: Any, default: Any, *flags: str, **option: Any) -> inspect.Parameter:
    required = {} if default is MISSING else {"default": default}
    annotation = Annotated[kind, typer.Option(*flags, **option)]
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, annotation=annotation, **required)


def _options(settings: type, rest: str | None) -> Iterable[inspect.Parameter]:
    """An option for each field, and for the memory: required ones first, then the memory, then the basic ones."""
    docs, hints = setting_docs(settings), get_type_hints(settings)
    shown = [entry for entry in fields(settings) if declaration(entry).option and not declaration(entry).recorded]
    required = [entry for entry in shown if entry.default is MISSING]
    others = [entry for entry in shown if entry.default is not MISSING]

    def option(entry: Any) -> inspect.Parameter:
        how = declaration(entry)
        hidden = not how.basic and entry not in required
        more = {"help": docs[entry.name], "rich_help_panel": how.panel, "hidden": hidden}
        return _parameter(entry.name, hints[entry.name], entry.default, **more)

    yield from map(option, sorted(required, key=lambda entry: entry.name == "out"))
    if rest == "recurrence":
        panel = {"rich_help_panel": "Memory"}
        yield _parameter("mechanism", str | None, None, help=options.mechanism_help(), **panel)
        text = "Tokens per window (default: chosen for the model)."
        yield _parameter("window", int | None, None, help=text, **panel)
        text = "Tokens that neighbouring windows share."
        yield _parameter("overlap", int | None, None, help=text, **panel, hidden=True)
    yield from map(option, sorted(others, key=lambda entry: not declaration(entry).basic))


def _common_options(settings: type, rest: str | None) -> Iterable[inspect.Parameter]:
    def read(context: typer.Context, file: Path | None) -> Path | None:
        if file is not None:
            _apply_config(context, settings, rest, file)
        return file

    def show_all(context: typer.Context, wanted: bool) -> None:
        if wanted:
            for parameter in context.command.params:
                parameter.hidden = False  # type: ignore[attr-defined]
            typer.echo(context.get_help())
            _print_more(settings, rest)
            raise typer.Exit

    panel = "Memory" if rest == "recurrence" else "More"
    text = "Any other setting, as NAME=VALUE; may be repeated (list: --help-all)."
    yield _parameter(SET, list[str] | None, None, "--set", help=text, rich_help_panel=panel)
    text = "Read settings from a YAML file, or from the run.json of another run."
    yield _parameter(CONFIG, Path | None, None, callback=read, is_eager=True, help=text, hidden=True)
    text = "Show all options and settings, and exit."
    yield _parameter("help_all", bool, False, "--help-all", callback=show_all, is_eager=True, help=text)


def _print_more(settings: type, rest: str | None) -> None:
    """The settings of `--set`, with their defaults."""
    docs = setting_docs(settings)
    lines = [
        f"{entry.name}={json.dumps(entry.default)}  {docs[entry.name]}"
        for entry in fields(settings)
        if not declaration(entry).option and not declaration(entry).recorded and entry.name != rest
    ]
    sections = {"Settings for --set": lines}
    if rest == "recurrence":
        shared = {entry.name for entry in fields(MechanismConfig)}
        sections["Settings for --set with any memory"] = _lines(MechanismConfig, shared - set(MEMORY_OPTIONS))
        for name, config in loadable_mechanisms().items():
            own = {entry.name for entry in fields(config)} - shared
            sections[f"Settings for --set with --mechanism {name}"] = _lines(config, own)
    for title, lines in sections.items():
        if lines:
            out_console.print(f"\n[bold]{title}[/]")
        for line in lines:
            out_console.print(Padding(Text(line), (0, 0, 0, 2)))


def _lines(config: type[MechanismConfig], names: set[str]) -> list[str]:
    """One line for each of these settings: its default and what it does."""
    docs = setting_docs(config)
    return [
        f"{entry.name}={entry.default}  {docs.get(entry.name, '')}" for entry in fields(config) if entry.name in names
    ]


def _apply_config(context: typer.Context, settings: type, rest: str | None, file: Path) -> None:
    """Make the values of a file the defaults of the options; those without an option are kept for `_collected`."""
    import yaml

    try:
        values = yaml.safe_load(read_given(file)) or {}
    except (UserError, ValueError, TypeError, RecursionError, yaml.YAMLError) as error:
        raise UserError(f"`--config` cannot read {str(file)!r}: {' '.join(str(error).split()).rstrip('.')}.") from error
    if not isinstance(values, dict):
        raise UserError(f"{str(file)!r} must contain settings as `name: value`: got a {type(values).__name__}.")
    values = with_present_names(settings, values)
    known = {entry.name: declaration(entry) for entry in fields(settings)}
    if rest is not None and isinstance(values.get(rest), dict):
        values = values | values.pop(rest)
    own = {parameter.name for parameter in context.command.params}
    context.default_map = {name: value for name, value in values.items() if name in own and value is not None}
    more = {name: value for name, value in values.items() if name not in own}
    unknown = [name for name in more if name not in known]
    if unknown and rest is None:
        raise UserError(f"{str(file)!r} has an unknown setting {unknown[0]!r}: known are {', '.join(known)}.")
    recorded = [name for name in more if name in known and known[name].recorded]
    context.meta[CONFIG] = {name: value for name, value in more.items() if name not in recorded}


def _collected(settings: type, rest: str | None, given: dict[str, Any], config: dict[str, Any]) -> dict[str, Any]:
    """The settings by name, from options, `--set` and the settings of a file that have no option."""
    hints = get_type_hints(settings)
    known = {entry.name: declaration(entry) for entry in fields(settings)}
    named = with_present_names(settings, parse_settings(given.pop(SET)))
    own = [*(name for name in known if known[name].option), *(MEMORY_OPTIONS if rest == "recurrence" else ())]
    _check_no_option(named, own)
    for name in named:
        if name in known and known[name].recorded:
            raise UserError(f"`{name}` is recorded by the run and cannot be set: leave it out.")
    named = config | named
    values = {name: value for name, value in given.items() if name in known}
    inner = {name: given[name] for name in MEMORY_OPTIONS if given.get(name) is not None}
    for name, value in named.items():
        if name in known and name != rest:
            values[name] = converted(name, hints[name], value)
        elif rest is None:
            others = [other for other in known if not known[other].option and not known[other].recorded]
            raise UserError(f"There is no setting {name!r}: `--set` takes {', '.join(others) or 'nothing here'}.")
        else:
            inner[name] = value
    return values | ({} if rest is None else {rest: inner})


def memory_settings(given: Sequence[str] | None) -> dict[str, Any]:
    """The settings of a memory from `--set` of a command that has `--mechanism`, `--window` and `--overlap`."""
    named = parse_settings(given)
    _check_no_option(named, MEMORY_OPTIONS)
    return named


def _check_no_option(named: dict[str, Any], own: Sequence[str]) -> None:
    for name, value in named.items():
        if name in own:
            raise UserError(f"`--set {name}=…` has an option of its own: use --{name.replace('_', '-')} {value}.")


def parse_settings(given: Sequence[str] | None) -> dict[str, Any]:
    """The values of several settings, each named once."""
    pairs = [parse_setting(text) for text in given or []]
    for name, count in Counter(name for name, _ in pairs).items():
        if count > 1:
            raise UserError(f"The setting {name!r} is given {count} times: give it once.")
    return dict(pairs)


def parse_setting(text: str) -> tuple[str, Any]:
    """The name and the value of `name=value`: a JSON value, or else text."""
    name, equals, value = text.partition("=")
    if not (name and equals and value):
        raise UserError(f"A setting is name=value, such as tokens=16: got {text!r}.")
    try:
        return name, json.loads(value)
    except json.JSONDecodeError:
        return name, value
