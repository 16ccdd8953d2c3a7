"""Options that several commands share. Commands that train take theirs from a settings dataclass (`settings.py`)."""

import sys
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any

import typer

from recurrify.console import busy, say
from recurrify.errors import UserError
from recurrify.hub_access import hub_is_reachable
from recurrify.results import check_overwrites_nothing
from recurrify.train.memories import BEST, mechanism_names

MODEL_HELP = "Hugging Face name, folder, run folder, .gguf file or shipped:base."
DATA_HELP = "Text: file, folder, corpus name or hf:owner/name."

Model = Annotated[str, typer.Option(help=f"Model: {MODEL_HELP}")]
ModelArgument = Annotated[str, typer.Argument(help=f"Model: {MODEL_HELP}")]
Data = Annotated[str, typer.Option(help=DATA_HELP)]
TextField = Annotated[str, typer.Option(help="Field of JSON lines or of a data set that contains the text.")]
Device = Annotated[str, typer.Option(help="auto, cpu, cuda or cuda:N.")]
Split = Annotated[str, typer.Option(help="train, valid, test or all.")]
Window = Annotated[int | None, typer.Option(help="Tokens per window (default: chosen for the model).")]
EvaluationWindow = Annotated[int | None, typer.Option(help="Tokens per window (default: the model's own).")]
Rows = Annotated[int, typer.Option(min=1, help="Texts per batch.")]
ResultFile = Annotated[Path | None, typer.Option(help="Save the result, with provenance, as this JSON file.")]
Seed = Annotated[int, typer.Option(min=0, max=2**32 - 1, help="Random seed.")]
MechanismSet = Annotated[
    list[str] | None, typer.Option("--set", help="A setting of the memory, such as keep=64; may be repeated.")
]


def numbers(name: str, text: str, kind: type[int] | type[float] = int) -> tuple[Any, ...]:
    """The numbers of an option that takes several, separated by commas; none if the text is empty."""
    try:
        return tuple(kind(part) for part in text.split(",")) if text.strip() else ()
    except ValueError:
        raise UserError(f"`{name}` must be numbers separated by commas: got {text!r}.") from None


def mechanism_help(none: bool = True) -> str:
    """The help of `--mechanism`."""
    names = [BEST, *(name for name in mechanism_names() if none or name != "none")]
    return f"Memory: {', '.join(names)}."


def check_mechanism(name: str, none: bool = True) -> None:
    """Raise `UserError` for an unknown mechanism."""
    known = [BEST, *(one for one in mechanism_names() if none or one != "none")]
    if name not in known:
        raise UserError(f"Unknown mechanism {name!r}: known are {', '.join(known)}.")


def load_libraries(*models: str | None, data: str = "") -> None:
    """Import torch and transformers, which takes seconds, and say so.

    If one of the models or the data may be on the hub, report first whether the hub answers.
    """
    on_hub = data.startswith("hf:") or any(_may_be_on_the_hub(model) for model in models if model)
    if on_hub and not hub_is_reachable():
        say("The Hugging Face hub does not answer: only what was downloaded before is used.")
    if "recurrify.modeling" not in sys.modules:
        with busy("loading PyTorch and transformers"):
            import_module("recurrify.modeling")


def _may_be_on_the_hub(model: str) -> bool:
    return not model.startswith((".", "/", "~", "shipped:")) and not Path(model).exists()


def check_page(page: Path | None, *read: str | Path | None) -> None:
    """Before long work: raise `UserError` if the page cannot be written there, or charts cannot be drawn."""
    if page is not None:
        check_overwrites_nothing(page, *read, content=b"<")
        import_module("recurrify.pages.charts")


def check_given_once(app: typer.Typer, arguments: Sequence[str], option: str) -> None:
    """Raise `UserError` if an option that takes one value is repeated: all but the last would be ignored."""
    times = sum(one == option or one.startswith(f"{option}=") for one in arguments)
    if times < 2:
        return
    command: Any = typer.main.get_command(app)
    for word in arguments:
        command = getattr(command, "commands", {}).get(word, command)
    if not any(parameter.multiple for parameter in command.params if option in parameter.opts):
        raise UserError(f"`{option}` takes one value here, but was given {times} times: put the files into one folder.")
