"""`recurrify inspect`: what a recurrent model makes of a text."""

from pathlib import Path
from typing import Annotated

import typer

from recurrify.cli import options
from recurrify.console import say
from recurrify.records import check_takes_results
from recurrify.results import set_earlier_aside

TextArgument = Annotated[str, typer.Argument(metavar="TEXT", help=options.DATA_HELP)]
Plain = Annotated[
    str | None, typer.Option(help="A model without memory to hold it against; default: the same base, plain windows.")
]
Split = Annotated[
    str | None, typer.Option(help="train, valid, test or all; default: all of a file or folder, else test.")
]


def inspect_command(
    model: options.ModelArgument,
    text: TextArgument,
    plain: Plain = None,
    out: Annotated[Path, typer.Option(help="Folder for the page and its numbers.")] = Path("runs/inspect"),
    split: Split = None,
    text_field: options.TextField = "text",
    document: Annotated[int, typer.Option(min=1, help="Which document of the text, counted from 1.")] = 1,
    tokens: Annotated[int, typer.Option(min=2, help="Read at most so many tokens.")] = 3000,
    reach: Annotated[int, typer.Option(min=1, help="How many windows back to follow gradients.")] = 8,
    device: options.Device = "auto",
) -> None:
    """Show what a recurrent model makes of a text, as one HTML page: where memory helps, and what is used of it.

    Loss of each token beside the plain model's, attention on what was carried, gradients to earlier windows, and how
    the memory changes. The numbers land beside the page, as JSON with provenance.
    """
    from recurrify.evaluate.inspection_run import TextChoice, inspect_text
    from recurrify.pages.inspect import NUMBERS_FILE, inspect_lines, write_inspection

    check_takes_results(out)
    choice = TextChoice(text, split, text_field, document, tokens)
    result = inspect_text(model, choice, say, plain, reach, device)
    if aside := set_earlier_aside(out / NUMBERS_FILE, result):
        typer.echo(f"{out / NUMBERS_FILE} was of other settings, and is {aside} now")
    page = write_inspection(result, out)
    for line in inspect_lines(result):
        typer.echo(line)
    typer.echo(f"page: {page}, its numbers: {out / NUMBERS_FILE}")
