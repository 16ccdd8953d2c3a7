"""`recurrify inspect`: where a memory helps on a text, as a page."""

from pathlib import Path
from typing import Annotated

import typer

from recurrify.cli import options
from recurrify.console import busy, say
from recurrify.records import check_takes_results
from recurrify.results import set_earlier_aside


def inspect_command(
    model: options.ModelArgument,
    data: options.Data,
    plain: Annotated[
        str | None, typer.Option(help="Model without memory to compare with (default: the base in plain windows).")
    ] = None,
    compare: Annotated[
        list[str] | None, typer.Option(help="Another model to compare token by token; may be repeated.")
    ] = None,
    out: Annotated[Path, typer.Option(help="Folder for the page and its numbers.")] = Path("runs/inspect"),
    split: Annotated[
        str | None, typer.Option(help="train, valid, test or all (default: all of a file or folder, else test).")
    ] = None,
    text_field: options.TextField = "text",
    document: Annotated[int, typer.Option(min=1, help="Document of the text, counted from 1.")] = 1,
    tokens: Annotated[int, typer.Option(min=2, help="Tokens to read at most.")] = 3000,
    reach: Annotated[int, typer.Option(min=1, help="Windows to follow gradients back.")] = 8,
    device: options.Device = "auto",
) -> None:
    """Show where a memory helps on a text, and what it is used for, as one HTML page.

    The page has the loss of each token with and without memory, attention to the memory, gradients to earlier windows,
    and how the memory changes. A JSON file contains the numbers.
    """
    check_takes_results(out)
    options.check_device(device)
    options.load_libraries(model, plain, *(compare or ()), texts=[data], split=split or "all")
    options.check_charts()
    from recurrify.evaluate import TextChoice, inspect_text
    from recurrify.pages.inspect import NUMBERS_FILE, inspect_lines, write_inspection

    choice = TextChoice(data, split, text_field, document, tokens)
    with busy(f"inspecting {model}"):
        result = inspect_text(model, choice, say, plain, reach, device, compare or ())
    if aside := set_earlier_aside(out / NUMBERS_FILE, result):
        typer.echo(f"{out / NUMBERS_FILE} had other settings and was renamed to {aside}")
    page = write_inspection(result, out)
    for line in inspect_lines(result):
        typer.echo(line)
    typer.echo(f"page: {page}, its numbers: {out / NUMBERS_FILE}")
