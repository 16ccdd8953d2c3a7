"""`recurrify experiment`: published results by name, ours beside them."""

import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table

from recurrify.cli.options import MODEL_HELP
from recurrify.console import out_console, say
from recurrify.errors import UserError
from recurrify.known_names import BEYOND, EXPERIMENT_SIZES

if TYPE_CHECKING:
    from recurrify_papers.experiments.sizes import Size

app = typer.Typer(
    help="Published results by name: run ours, and show both side by side.",
    no_args_is_help=True,
    rich_markup_mode="markdown",
)
ROOT = Path("runs/experiments")
Root = Annotated[Path, typer.Option(help="Folder of all experiments: runs, scores and results, by size.")]
NAMES_HELP = (
    "Names from `recurrify experiment list`; all: everything that was published; beyond: what is ours, "
    f"{', '.join(BEYOND)}."
)
WIKI_HELP = (
    "Encyclopaedia text, instead of the size's own source. enwik8:FILE is also what experiments on enwik8 read; else "
    "they look into the folder that the variable RECURRIFY_DATA names, or ask the hub."
)
NARROWED = ("mechanisms", "frozen", "starts")
ONLY_HELP = (
    f"Of {', '.join(NARROWED)}: compare this mechanism alone, by its name in the rows of `mechanisms` at this size, "
    "such as carry-1; can be given several times. Plain windows and the paper's mechanism stay, and the best found "
    "here, but in `frozen`. The result file then has these rows only, until it is run without."
)
SIZE_HELP = "; ".join(f"**{name}**: {purpose}" for name, purpose in EXPERIMENT_SIZES.items())


@app.command(name="list")
def list_command() -> None:
    """Every published result that can be run, and where it was published."""
    from recurrify_papers.experiments.catalogue import EXPERIMENTS
    from recurrify_papers.experiments.sizes import SIZES

    table = Table(box=None, pad_edge=False)
    for header in ("name", "what", "published in"):
        table.add_column(header, overflow="fold")
    for experiment in EXPERIMENTS.values():
        later = f" ({experiment.later})" if experiment.later else ""
        table.add_row(experiment.name, experiment.title + later, experiment.source)
    out_console.print(table)
    for size in SIZES.values():
        out_console.print(f"--size {size.name}: {size.purpose}", markup=False, highlight=False, soft_wrap=True)


@app.command()
def run(
    names: Annotated[list[str], typer.Argument(help=NAMES_HELP)],
    size: Annotated[str, typer.Option(help=SIZE_HELP)] = "tiny",
    root: Root = ROOT,
    books: Annotated[str | None, typer.Option(help="Long documents, instead of the size's own source.")] = None,
    wiki: Annotated[str | None, typer.Option(help=WIKI_HELP)] = None,
    model: Annotated[
        str | None, typer.Option(help=f"The model of `rotary`, instead of the size's own. {MODEL_HELP}")
    ] = None,
    only: Annotated[list[str] | None, typer.Option(help=ONLY_HELP)] = None,
    jobs: Annotated[int, typer.Option(min=1, help="Fine-tunings side by side on one device.")] = 1,
    max_minutes: Annotated[float | None, typer.Option(min=0.1, help="Stop, saved, after so many minutes.")] = None,
) -> None:
    """Run experiments: the base model and learning rates first where they are missing, then every row.

    Finished runs are skipped and killed ones go on where they stopped, so the same command can be given again at any
    time. Rows that several experiments share are run once.
    """
    from recurrify_papers.experiments.lab import Lab
    from recurrify_papers.experiments.running import run_experiments

    deadline = None if max_minutes is None else time.monotonic() + 60 * max_minutes
    chosen = _chosen(names)
    known = _narrowed(_size(size, model), only or [], chosen)
    lab = Lab(known, root, say, books=books, wiki=wiki, jobs=jobs, deadline=deadline)
    for path in run_experiments(chosen, lab):
        typer.echo(str(path))


def _chosen(names: Sequence[str]) -> list[str]:
    """The names, with those that stand for several spelled out, each once."""
    from recurrify_papers.experiments.catalogue import EXPERIMENTS

    published = [name for name, one in EXPERIMENTS.items() if one.later is None and name not in BEYOND]
    groups = {"all": published, "beyond": list(BEYOND)}
    return list(dict.fromkeys(one for name in names for one in groups.get(name, [name])))


def _size(name: str, rotary_model: str | None) -> "Size":
    from recurrify_papers.experiments.sizes import size_named

    size = size_named(name)
    if rotary_model is None:
        return size
    return replace(size, beyond=replace(size.beyond, rotary_model=rotary_model))


def _narrowed(size: "Size", only: Sequence[str], experiments: Sequence[str]) -> "Size":
    if not only:
        return size
    other = next((name for name in experiments if name not in NARROWED), None)
    if other is not None:
        raise UserError(f"--only says nothing to {other!r}: it narrows {', '.join(NARROWED)}. Leave one of them out.")
    beyond = size.beyond.narrowed(only)
    if "mechanisms" not in experiments:
        known = {"frozen": beyond.frozen, "starts": (beyond.slots, *beyond.always)}
        names = dict.fromkeys(name for one in experiments for name in known[one])
        inert = next((name for name in only if name not in names), None)
        if inert is not None:
            told = " and ".join(experiments)
            raise UserError(f"--only {inert} changes nothing in {told}: choose from {', '.join(names)}.")
    return replace(size, beyond=beyond)


@app.command()
def report(
    root: Root = ROOT,
    out: Annotated[Path | None, typer.Option(help="Folder of the page; default: the folder of experiments.")] = None,
    picture: Annotated[
        Path | None,
        typer.Option(
            help="Also draw a PNG for a README, of size `small`: the comparison on books or, where none is, every "
            "mechanism against its FLOPs."
        ),
    ] = None,
) -> None:
    """One page, HTML and Markdown: ours beside published, with intervals, pictures and links to every result file."""
    if not root.is_dir():
        raise UserError(f"There is no folder {str(root)!r}: run `recurrify experiment run` first, or choose --root.")
    from recurrify_papers.report.experiments_page import write_experiments_page, write_experiments_picture

    folder = out or root
    for line in write_experiments_page(root, folder):
        typer.echo(line)
    typer.echo(f"The page: {folder / 'index.html'}")
    if picture is not None:
        write_experiments_picture(root, "small", picture)
        typer.echo(f"The picture: {picture}")
