"""Options that several commands share. Commands that train take theirs from a settings dataclass (`settings.py`)."""

import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any

import typer

from recurrify.console import busy, say
from recurrify.errors import UserError, did_you_mean
from recurrify.hub_access import hub_is_reachable
from recurrify.mechanisms.registry import BUILT_IN, check_names, check_value, setting_names, unknown_mechanism
from recurrify.model_names import PREFIX, check_model
from recurrify.results import check_overwrites_nothing
from recurrify.train.memories import BEST, NO_MEMORY, mechanism_names

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
Batch = Annotated[int, typer.Option(min=1, help="Texts per batch.")]
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
    names = [BEST, *(name for name in mechanism_names() if none or name != NO_MEMORY)]
    return f"Memory: {', '.join(names)}."


def check_mechanism(name: str, none: bool = True) -> None:
    """Raise `UserError` for an unknown mechanism."""
    known = [BEST, *(one for one in mechanism_names() if none or one != NO_MEMORY)]
    if name not in known:
        raise unknown_mechanism(name, known)


def check_memory(given: Mapping[str, Any], none: bool = True) -> None:
    """Raise `UserError` for an unknown mechanism, and for settings or values that it does not have."""
    mechanism = given.get("mechanism", BEST)
    check_mechanism(mechanism, none)
    names = [name for name in given if name != "mechanism"]
    if mechanism != BEST:
        check_names(mechanism, setting_names(mechanism), names)
        for name in names:
            check_value([mechanism], name, given[name])
    elif set(mechanism_names()) == set(BUILT_IN):  # the model may have a mechanism of another package
        known = {name for one in BUILT_IN for name in setting_names(one)}
        for name in names:
            if name not in known:
                meant = did_you_mean(name, known)
                raise UserError(
                    f"No mechanism has a setting {name!r}{meant}: `recurrify train --help-all` lists those of each."
                )
            check_value(BUILT_IN, name, given[name])


def check_device(name: str) -> None:
    """Raise `UserError` for what is no name of a device."""
    if not re.fullmatch(r"auto|(cpu|cuda|mps|xpu|npu|hpu)(:\d+)?", name):
        raise UserError(f"There is no device {name!r}: use auto, cpu, cuda or cuda:N.")


def load_libraries(
    *models: str | None, texts: Iterable[str | None] = (), tables: Iterable[str | None] = (), split: str = "all"
) -> None:
    """Import torch and transformers, which takes seconds, and report it.

    Before that: raise `UserError` if there is no such model, text, table of examples or split; and if something may be
    on the hub, report whether the hub answers.
    """
    from recurrify.data.documents import check_source
    from recurrify.data.splits import canonical_split
    from recurrify.data.tables import HUB_PREFIX, check_table

    canonical_split(split)
    named, texts, tables = (list(filter(None, given)) for given in (models, texts, tables))
    for table in tables:
        check_table(table)
    for text in texts:
        check_source(text)
    on_hub = any(map(_may_be_on_the_hub, named)) or any(one.startswith(HUB_PREFIX) for one in (*texts, *tables))
    for model in named:
        check_model(model)
    if on_hub and not hub_is_reachable():
        say("The Hugging Face hub does not answer: only what was downloaded before is used.")
    if "recurrify.modeling" not in sys.modules:
        with busy("loading PyTorch and transformers"):
            import_module("recurrify.modeling")


def _may_be_on_the_hub(model: str) -> bool:
    return not model.startswith((".", "/", "~", PREFIX)) and not Path(model).exists()


def check_page(page: Path | None, *read: str | Path | None) -> None:
    """Before long work: raise `UserError` if the page cannot be written there, or charts cannot be drawn."""
    if page is not None:
        check_overwrites_nothing(page, *read, content=b"<")
        check_charts()


def check_charts() -> None:
    """Before long work: raise `UserError` if charts cannot be drawn."""
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
