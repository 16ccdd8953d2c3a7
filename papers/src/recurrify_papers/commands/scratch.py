"""`recurrify scratch`: train, evaluate and compare language models trained from scratch."""

from pathlib import Path
from typing import Annotated, Any

import typer

from recurrify import UserError
from recurrify.cli import examples, formerly, options, settings_command
from recurrify.console import say, show_table
from recurrify.records import check_has_model
from recurrify.results import check_overwrites_nothing, provenance, save_result
from recurrify.run_lock import run_lock
from recurrify.settings import check_choice
from recurrify_papers.scratch.settings import ARCHITECTURES, ScratchSettings

app = typer.Typer(
    help="Language models trained from scratch: Transformer-XL, the Block-Recurrent Transformer, RSA, LSTM, GRU.",
    no_args_is_help=True,
    rich_markup_mode="markdown",
)


EXAMPLES = (
    "recurrify scratch train --arch xl --data enwik8 --symbols bytes-without-newlines --out runs/xl",
    "recurrify scratch train --arch rsa-xl --data book.txt --out runs/rsa --set layers=6 --set eval.memory_length=2000",
)


@settings_command(app, "train", ScratchSettings, rest="settings", epilog=EXAMPLES)
def train_command(given: dict[str, Any]) -> None:
    """Train a language model from scratch on one stream of characters, bytes or tokens.

    The state is carried from batch to batch. The defaults are those of Transformer-XL. `--set NAME=VALUE` is a setting
    of the architecture, and `--set eval.NAME=VALUE` one that differs in validation and test. A checkpoint is saved
    every five minutes; run the same command to resume. `recurrify scratch report` draws the curves.
    """
    check_choice("arch", given["arch"], *ARCHITECTURES)
    options.load_libraries(texts=[given["data"], given["valid"]])
    from recurrify_papers.scratch.run import train_scratch

    settings = ScratchSettings(**given)
    with run_lock(settings.out):
        result = train_scratch(settings, say)
    if not result["finished"]:
        raise typer.Exit(130 if result["interrupted"] else 0)
    for part in ("validation", "test"):
        typer.echo(f"{part}: {_scored(result[part], result['unit'])}")
    typer.echo(f"model: {Path(settings.out) / 'model'}")


@app.command(
    name="evaluate",
    epilog=examples(
        "recurrify scratch evaluate runs/xl --data enwik8",
        "recurrify scratch evaluate runs/xl runs/rsa --data book.txt --split all --tokens 100000",
    ),
)
@formerly(rows="batch", symbols="tokens")
def evaluate_command(
    runs: Annotated[list[str], typer.Argument(help="Folders of `scratch train`.")],
    data: options.Data,
    split: options.Split = "test",
    text_field: options.TextField = "text",
    batch: Annotated[int | None, typer.Option(min=1, help="Batch rows (default: as in training).")] = None,
    length: Annotated[int | None, typer.Option(min=1, help="Symbols of a segment (default: the run's).")] = None,
    tokens: Annotated[int | None, typer.Option(min=2, help="Score only the first this many symbols.")] = None,
    device: options.Device = "auto",
    out: options.ResultFile = None,
) -> None:
    """Bits per symbol of models from scratch on any text that has their symbols."""
    config = dict(locals()) | {"out": None}
    check_overwrites_nothing(out, data, *runs)
    for name in runs:
        if not Path(name).is_dir():
            raise UserError(
                f"{name!r} is not a folder: give the --out folder of `recurrify scratch train`; `recurrify evaluate` "
                "scores other models."
            )
        check_has_model(name)
    options.check_device(device)
    options.load_libraries(texts=[data], split=split)
    from recurrify_papers.scratch.run import is_scratch, score_run

    for name in runs:
        if not is_scratch(name):
            raise UserError(f"{name!r} was not trained from scratch: use `recurrify evaluate`.")
    how: dict[str, Any] = {
        "text_field": text_field,
        "rows": batch,
        "length": length,
        "symbols": tokens,
        "device": device,
    }
    found = [score_run(name, data, split, **how) for name in runs]
    for one in found:
        typer.echo(f"{one['model']} ({one['arch']}): {_scored(one, one['unit'])}")
    if out is not None:
        save_result(out, {"kind": "scratch-evaluation", "rows": found, "provenance": provenance(config)})
        say(f"saved {out}")


def _scored(found: dict[str, Any], unit: str) -> str:
    """A score per symbol, and per byte where symbols are not bytes."""
    known = unit != "byte" and found["bits_per_byte"] is not None
    per_byte = f" ({found['bits_per_byte']:.4f} per byte)" if known else ""
    perplexity = found["perplexity_per_symbol"]
    return (
        f"{found['bits_per_symbol']:.4f} bits per {unit}{per_byte}, perplexity {perplexity:.3f}, "
        f"{found['symbols']:,} {unit}s scored"
    )


@app.command(
    name="report",
    epilog=examples("recurrify scratch report runs/xl runs/rsa", "recurrify scratch report runs --out runs/curves"),
)
def report_command(
    runs: Annotated[list[Path], typer.Argument(help="Folders of `scratch train`, or folders that contain several.")],
    out: Annotated[Path, typer.Option(help="Folder of the page.")] = Path("runs/scratch-report"),
) -> None:
    """Compare runs on one page: curves against steps and time, and final scores.

    Runs on the same text are in one table.
    """
    from recurrify_papers.scratch.report import PAGE, write_report

    tables, unfinished = write_report(runs, out)
    for table in tables:
        show_table(table.caption, table.header, table.texts, table.text_columns)
    if unfinished:
        typer.echo(f"not finished: {', '.join(unfinished)}")
    typer.echo(f"page: {out / PAGE}")
