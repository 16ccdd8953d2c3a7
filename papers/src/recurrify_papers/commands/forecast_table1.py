"""`recurrify forecast table1`: the published table of RSA-Informer, ours beside it."""

import time
from dataclasses import fields
from pathlib import Path
from typing import Annotated, Any

import typer

from recurrify.console import say
from recurrify.errors import UserError
from recurrify.known_names import TABLE_1_FORECASTERS
from recurrify.results import check_overwrites_nothing, load_result

app = typer.Typer(
    help="Table 1 of the RSA paper: sixteen settings, authors, students and ours.",
    no_args_is_help=True,
    rich_markup_mode="markdown",
)
ROOT = Path("runs/table1")
HALVE_EVERY = 4
Root = Annotated[Path, typer.Option(help="Folder of the runs and of the table.")]


@app.command()
def run(
    data: Annotated[Path, typer.Option(help="Folder with ETTh1.csv, ETTh2.csv, ETTm1.csv and WTH.csv.")],
    root: Root = ROOT,
    only: Annotated[list[str] | None, typer.Option(help="Settings (ETTh1-24) or data sets; may be repeated.")] = None,
    models: Annotated[
        str, typer.Option(help=f"With commas between, of {', '.join(TABLE_1_FORECASTERS)}.", show_default="all")
    ] = ",".join(TABLE_1_FORECASTERS),
    seeds: Annotated[int, typer.Option(min=1, help="Runs of each model with its rate.")] = 3,
    jobs: Annotated[int, typer.Option(min=1, help="Trainings side by side on one device.")] = 1,
    learning_rates: Annotated[
        str, typer.Option(help="With commas between; chosen for each model on validation.")
    ] = "3e-05,0.0001,0.0003",
    width: Annotated[int, typer.Option(help="Of the hidden states.")] = 512,
    inner: Annotated[int, typer.Option(help="Width of the feed-forward part.")] = 2048,
    dropout: Annotated[float, typer.Option(help="Share of activations left out.")] = 0.05,
    epochs: Annotated[int, typer.Option(help="At most.")] = 24,
    patience: Annotated[int, typer.Option(help="Epochs without a better one before stopping; 0: never.")] = 4,
    batch: Annotated[int, typer.Option(help="Windows in a step.")] = 32,
    schedule: Annotated[
        str, typer.Option(help="halve, published (the first halving comes one later), cosine or constant.")
    ] = "halve",
    halve_every: Annotated[
        int | None, typer.Option(min=1, help=f"Epochs from one halving to the next; default: {HALVE_EVERY}.")
    ] = None,
    order: Annotated[str, typer.Option(help="shuffled or sequential.")] = "shuffled",
    epoch_windows: Annotated[int | None, typer.Option(help="Windows in an epoch, drawn anew for each; 0: all.")] = 2125,
    valid_windows: Annotated[
        int | None, typer.Option(help="Validate on so many, spread evenly over the part; 0: all.")
    ] = 1000,
    distil: Annotated[bool, typer.Option("--distil", help="Halve the sequence between encoder layers.")] = False,
    mix: Annotated[
        bool,
        typer.Option("--mix", help="Exchange rows and heads behind the decoder's self-attention, as Informer does."),
    ] = False,
    recurrence_rows: Annotated[str, typer.Option(help="all or selected.")] = "all",
    gate_start: Annotated[float | None, typer.Option(help="Logit of the gates; default: drawn.")] = None,
    recurrence_learning_rate: Annotated[float, typer.Option(help="Of gates, decays and angles of RSA.")] = 3e-2,
    precision: Annotated[str, typer.Option(help="auto (tf32 on CUDA), bf16 or fp32.")] = "auto",
    speed: Annotated[str, typer.Option(help="auto (graph on CUDA), plain, graph or compile.")] = "auto",
    max_minutes: Annotated[
        float | None,
        typer.Option(min=0.1, help="Stop, saved also within an epoch, after so many minutes."),
    ] = None,
    device: Annotated[str, typer.Option(help="auto, cpu, cuda or cuda:N.")] = "auto",
) -> None:
    """Train and score every model of the table. Finished runs are skipped, so the same command goes on."""
    given, rates = locals(), _rates(learning_rates)
    from recurrify.data.texts import pick_device
    from recurrify_papers.forecast.published import chosen_settings
    from recurrify_papers.forecast.settings import HALVING, recurrence_rate
    from recurrify_papers.forecast.table1 import Plan, Recipe, run_table1
    from recurrify_papers.report.forecast_table1 import table1_lines

    changed: dict[str, Any] = {
        "learning_rates": rates,
        "halve_every": halve_every or (HALVE_EVERY if schedule in HALVING else 1),
        "epoch_windows": epoch_windows or None,
        "valid_windows": valid_windows or None,
        "recurrence_learning_rate": recurrence_rate(recurrence_learning_rate, rates),
    }
    recipe = Recipe(**{entry.name: given[entry.name] for entry in fields(Recipe)} | changed)
    plan = Plan(
        folder=str(data),
        root=str(root),
        settings=chosen_settings(only),
        models=tuple(dict.fromkeys(name.strip() for name in models.split(","))),
        seeds=seeds,
        recipe=recipe,
        jobs=jobs,
        device=str(pick_device(device)),
    )
    result = run_table1(plan, say, None if max_minutes is None else time.time() + 60 * max_minutes)
    for line in table1_lines(result):
        typer.echo(line)
    typer.echo(f"result: {root / 'table1.json'}")
    if result["to_go"]:
        say(f"The time is up with {result['to_go']} runs to go: the same command goes on from here.")


def _rates(text: str) -> tuple[float, ...]:
    try:
        return tuple(dict.fromkeys(float(part) for part in text.split(",")))
    except ValueError:
        raise UserError(f"`learning_rates` must be numbers with commas between: got {text!r}.") from None


@app.command()
def report(
    root: Root = ROOT,
    out: Annotated[Path | None, typer.Option(help="The page; default: table1.html beside the result.")] = None,
) -> None:
    """The table of all runs that lie in the folder, finished or not, as a page and as lines on the terminal."""
    check_overwrites_nothing(out, content=b"<")
    from recurrify_papers.forecast.table1_rows import assembled
    from recurrify_papers.report.forecast_table1 import table1_lines, write_table1_page

    result = assembled(root) or load_result(root / "table1.json")
    path = out or root / "table1.html"
    write_table1_page(result, path)
    for line in table1_lines(result):
        typer.echo(line)
    typer.echo(f"The page: {path}")
