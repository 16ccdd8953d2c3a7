"""`recurrify experiment`: published results by name, ours compared with them."""

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table

from recurrify import UserError
from recurrify.cli import examples
from recurrify.console import out_console, say
from recurrify_papers.clusters import Resources
from recurrify_papers.experiment import chosen_experiments, experiments, run_experiments
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
        "recurrify experiment run table2 --size small --cluster slurm --partition gpu --gpus-per-run 1 --time 4:00:00",
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
    jobs: Annotated[
        int | None, typer.Option(min=1, help="Runs at a time; default: 1 locally, no limit on Slurm.")
    ] = None,
    gpus_per_run: Annotated[
        int | None, typer.Option(help="0 or 1: GPUs of each run; by default local runs share all.")
    ] = None,
    time: Annotated[
        str | None, typer.Option(help="Time limit of a Slurm job, as MINUTES or HH:MM:SS; it saves and resumes.")
    ] = None,
    partition: Annotated[str | None, typer.Option(help="Slurm partition.")] = None,
    slurm: Annotated[
        str | None, typer.Option(help='More parameters of submitit as JSON, such as \'{"slurm_account": "me"}\'.')
    ] = None,
    max_minutes: Annotated[float | None, typer.Option(min=0.1, help="Stop and save after so many minutes.")] = None,
    detach: Annotated[bool, typer.Option("--detach", help="Submit to Slurm and return.")] = False,
) -> None:
    """Run experiments: the base model and learning rates first, then every row.

    Finished runs are skipped and stopped ones resume, so the same command can be run again at any time. Runs that
    several experiments share are executed once. On Slurm each run is a job that waits for the runs it needs.
    """
    resources = Resources(
        cluster=cluster,
        jobs=jobs,
        gpus_per_run=gpus_per_run,
        time=None if time is None else minutes(time),
        partition=partition,
        slurm={} if slurm is None else _json("slurm", slurm),
        max_minutes=max_minutes,
        detach=detach,
    )
    for path in run_experiments(chosen_experiments(names), changed(size, books, wiki, settings), root, say, resources):
        typer.echo(str(path))


def minutes(text: str) -> float:
    """Minutes of MINUTES, HH:MM:SS or D-HH:MM:SS."""
    if text.isdecimal():
        return float(text)
    found = re.fullmatch(r"(?:(\d+)-)?(\d+):([0-5]?\d):([0-5]\d)", text)
    if found is None:
        raise UserError(f"--time is MINUTES or HH:MM:SS: got {text!r}.")
    days, hours, whole, seconds = (int(part or 0) for part in found.groups())
    return 24 * 60 * days + 60 * hours + whole + seconds / 60


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
    """Where the runs of experiments stand: finished, running, queued, failed, stopped or waiting for others."""
    from recurrify_papers.sweep import standings, table

    own = changed(size, books, wiki, settings)
    found: dict[str, Any] = {}
    for one in chosen_experiments(names):
        stands = standings(one.runs(own), root / own.name / "runs")
        done = sum(stand.state == "finished" for stand in stands.values())
        typer.echo(f"{one.name}: {done} of {len(stands)} runs are finished")
        found |= {name: stand for name, stand in stands.items() if stand.state not in ("finished", "waiting")}
    if found:
        out_console.print(table(found))
    if not any(stand.is_live for stand in found.values()):
        typer.echo("No run is queued or running.")


@app.command(epilog=examples("recurrify experiment cancel table2 --size small"))
def cancel(
    names: Names,
    size: SizeName = "tiny",
    root: Root = ROOT,
    books: Books = None,
    wiki: Wiki = None,
    settings: Set = None,
) -> None:
    """Stop the runs of experiments, on this machine or on Slurm. Those that train save first."""
    from recurrify_papers.sweep import cancel as cancel_runs

    own = changed(size, books, wiki, settings)
    runs = [run for one in chosen_experiments(names) for run in one.runs(own)]
    stopped = cancel_runs(list({run.name: run for run in runs}.values()), root / own.name / "runs")
    typer.echo(f"asked to stop: {', '.join(stopped)}" if stopped else "No run is queued or running.")


@app.command(epilog=examples("recurrify experiment logs table2 books-plain-w64-o0-s0"))
def logs(
    name: Annotated[str, typer.Argument(help="Name from `recurrify experiment list`.")],
    run: Annotated[str, typer.Argument(help="Name of a run from `recurrify experiment status`.")],
    size: SizeName = "tiny",
    root: Root = ROOT,
    books: Books = None,
    wiki: Wiki = None,
    settings: Set = None,
) -> None:
    """Print the log of a run's last job, and its path."""
    from recurrify_papers.sweep import log_of

    own = changed(size, books, wiki, settings)
    (experiment,) = chosen_experiments([name])
    path = log_of(run, [one.name for one in experiment.runs(own)], root / own.name / "runs")
    typer.echo(path.read_text(encoding="utf-8", errors="replace"))
    say(str(path))


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
