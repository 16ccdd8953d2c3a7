"""`recurrify experiment`: published results by name, ours compared with them."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table

from recurrify import UserError
from recurrify.cli import examples
from recurrify.console import out_console, say
from recurrify_papers.experiment import chosen_experiments, experiments, run_experiments
from recurrify_papers.runner import Resources
from recurrify_papers.sizes import SIZES, Size, size_named

app = typer.Typer(
    help="Published results by name: run ours and compare.", no_args_is_help=True, rich_markup_mode="markdown"
)
ROOT = Path("runs/experiments")
Root = Annotated[Path, typer.Option(help="Folder of runs and results, by size.")]
Names = Annotated[
    list[str], typer.Argument(help="Names from `recurrify experiment list`; all: published ones; beyond: ours.")
]
SizeName = Annotated[str, typer.Option(help="; ".join(f"**{size.name}**: {size.purpose}" for size in SIZES.values()))]
SET_HELP = (
    "A setting of one experiment as EXPERIMENT.NAME=JSON, such as rotary.model=gpt2 or "
    "mechanisms.only='[\"tail-16\"]'; can be repeated."
)
Set = Annotated[list[str] | None, typer.Option("--set", help=SET_HELP)]
Books = Annotated[str | None, typer.Option(help="Source of long documents.")]
Wiki = Annotated[str | None, typer.Option(help="Source of encyclopaedia text; enwik8:FILE also serves the thesis.")]


@app.command(name="list", epilog=examples("recurrify experiment list"))
def list_command() -> None:
    """Every experiment, and where its table was published."""
    table = Table(box=None, pad_edge=False)
    for header in ("name", "what", "published in"):
        table.add_column(header, overflow="fold")
    for experiment in experiments().values():
        table.add_row(experiment.name, experiment.title, experiment.source)
    out_console.print(table)
    for size in SIZES.values():
        out_console.print(f"--size {size.name}: {size.purpose}", markup=False, highlight=False, soft_wrap=True)


@app.command(
    epilog=examples(
        "recurrify experiment run table2 --size tiny",
        "recurrify experiment run table1 table2 --size small --books novels/ --wiki enwik8:enwik8 --jobs 4",
    )
)
def run(
    names: Names,
    size: SizeName = "tiny",
    root: Root = ROOT,
    books: Books = None,
    wiki: Wiki = None,
    settings: Set = None,
    cluster: Annotated[str, typer.Option(help="local, slurm or debug (always in this process).")] = "local",
    jobs: Annotated[int, typer.Option(min=1, help="Runs at a time.")] = 1,
    max_minutes: Annotated[float | None, typer.Option(min=0.1, help="Stop and save after so many minutes.")] = None,
    slurm: Annotated[str | None, typer.Option(help="submitit parameters as JSON, e.g. slurm_partition.")] = None,
) -> None:
    """Run experiments: the base model and learning rates first, then every row.

    Finished runs are skipped and stopped ones resume, so the same command can be run again at any time. Runs that
    several experiments share are executed once.
    """
    resources = Resources(
        cluster=cluster, jobs=jobs, max_minutes=max_minutes, slurm={} if slurm is None else _json("slurm", slurm)
    )
    for path in run_experiments(chosen_experiments(names), changed(size, books, wiki, settings), root, say, resources):
        typer.echo(str(path))


@app.command(
    epilog=examples(
        "recurrify experiment status table2 --size tiny",
        "recurrify experiment status all --size small",
    )
)
def status(
    names: Names,
    size: SizeName = "tiny",
    root: Root = ROOT,
    books: Books = None,
    wiki: Wiki = None,
    settings: Set = None,
) -> None:
    """How many runs of each experiment are finished."""
    from recurrify_papers.runner import read_result

    own = changed(size, books, wiki, settings)
    folder = root / own.name / "runs"
    for one in chosen_experiments(names):
        runs = one.runs(own)
        done = sum(read_result(folder, run) is not None for run in runs)
        typer.echo(f"{one.name}: {done} of {len(runs)} runs are finished")


@app.command(
    epilog=examples(
        "recurrify experiment report --root papers/results --out runs/report",
        "recurrify experiment report --name table2",
    )
)
def report(
    root: Root = ROOT,
    out: Annotated[Path | None, typer.Option(help="Folder of the pages; default: the folder of results.")] = None,
    picture: Annotated[Path | None, typer.Option(help="Also draw a PNG: the chart of the first experiment.")] = None,
    name: Annotated[str | None, typer.Option(help="Only this experiment.")] = None,
) -> None:
    """One page per experiment, and an index: ours compared with published values."""
    from recurrify_papers.report import write_report

    for path in write_report(root, out or root, name, picture):
        typer.echo(str(path))


def changed(name: str, books: str | None, wiki: str | None, settings: list[str] | None) -> Size:
    """The size of this name with the sources and settings of the command line."""
    size = size_named(name)
    own: dict[str, dict[str, Any]] = {key: dict(value) for key, value in size.own.items()}
    for one in settings or ():
        key, mark, value = one.partition("=")
        experiment, dot, setting = key.partition(".")
        if not (mark and dot and setting):
            raise UserError(f"--set takes EXPERIMENT.NAME=VALUE: got {one!r}.")
        own.setdefault(experiment, {})[setting] = _value(value)
    known = {*experiments(), "beyond", "beyond-wiki"}
    unknown = next((key for key in own if key not in known), None)
    if unknown is not None:
        raise UserError(f"--set names an unknown experiment {unknown!r}: choose from {', '.join(sorted(known))}.")
    return replace(size, books=books or size.books, wiki=wiki or size.wiki, own=own)


def _value(text: str) -> Any:
    """JSON, or the text itself."""
    try:
        return json.loads(text)
    except ValueError:
        return text


def _json(option: str, text: str) -> dict[str, Any]:
    value = _value(text)
    if not isinstance(value, dict):
        raise UserError(f"--{option} must be a JSON object: got {text!r}.")
    return value
