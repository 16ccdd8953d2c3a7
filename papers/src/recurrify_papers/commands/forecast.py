"""`recurrify forecast`: train, evaluate and predict on any CSV with dates; and Table 1 of the RSA paper."""

import inspect
import time
from dataclasses import MISSING, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from recurrify import UserError
from recurrify.cli import examples
from recurrify.console import say, show_table
from recurrify.records import LOCK_FILE
from recurrify.results import (
    check_overwrites_nothing,
    full_disk_explained,
    load_result,
    provenance,
    save_result,
    write_whole,
)
from recurrify_papers.forecast.settings import NAIVE, ForecastSettings

if TYPE_CHECKING:
    from recurrify_papers.forecast.reading import Series

app = typer.Typer(
    help="Forecast time series from a CSV of your own: train, evaluate, predict.",
    no_args_is_help=True,
    rich_markup_mode="markdown",
)
RESULT_FILE, EVALUATION_FILE, PAGE_FILE = "result.json", "evaluation.json", "forecast.html"
OUT = Path("runs/forecast")
Run = Annotated[Path, typer.Argument(help="The --out folder of `recurrify forecast train`.")]
Device = Annotated[str, typer.Option(help="auto, cpu, cuda or cuda:N.")]
Data = Annotated[Path, typer.Option(help="CSV or Parquet file with a column of dates and columns of numbers.")]
OtherData = Annotated[Path | None, typer.Option(help="Another file with the same columns and step.")]
OutFolder = Annotated[Path | None, typer.Option(help="Folder of this run [default: runs/forecast/NAME].")]
Minutes = Annotated[float | None, typer.Option(help="Time budget; auto uses 1 minute by default.")]


def with_settings(command: Any) -> Any:
    """Give a command one option for each field of `ForecastSettings` with a help text; they arrive as `**options`."""
    own = [one for one in inspect.signature(command).parameters.values() if one.kind is not one.VAR_KEYWORD]
    added = []
    for entry in fields(ForecastSettings):
        if "help" not in entry.metadata:
            continue
        default = None if entry.default is MISSING else entry.default
        kind: Any = entry.type
        if "tuple" in str(entry.type):
            kind, default = str | None, ",".join(map(str, default)) if default else None
        shown = {"help": entry.metadata["help"], "rich_help_panel": entry.metadata["panel"]}
        declared = Annotated[kind, typer.Option(**shown)]
        added.append(
            inspect.Parameter(entry.name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=declared)
        )
    command.__signature__ = inspect.Signature([*own, *added])
    command.__annotations__ = {one.name: one.annotation for one in (*own, *added)} | {"return": None}
    return command


@app.command(
    epilog=examples(
        "recurrify forecast train --data load.csv --horizon 24",
        "recurrify forecast train --data load.csv --model rsa-informer --out runs/load",
    )
)
@with_settings
def train(
    data: Data, out: OutFolder = None, max_minutes: Minutes = None, device: Device = "auto", **options: Any
) -> None:
    """Train on a CSV, choose on validation, score on the last part, and write a page.

    `recurrify forecast train --data visits.csv` is all you need. The folder gets the model, `result.json`,
    `evaluation.json` and the page `forecast.html`. Run the same command again to resume.
    """
    folder = out or OUT / data.name.split(".")[0]
    given = {name: value for name, value in options.items() if value is not None}
    settings = ForecastSettings(data=str(data), out=str(folder), max_minutes=max_minutes, device=device, **given)
    from recurrify.data import pick_device
    from recurrify.run_lock import run_lock

    with run_lock(folder), full_disk_explained(str(folder)):
        _train(replace(settings, device=str(pick_device(device))), folder)


def _train(settings: ForecastSettings, folder: Path) -> None:
    from recurrify_papers.forecast.candidates import resolved
    from recurrify_papers.forecast.forecaster import MODEL_FOLDER, fit_series, layout_of, save_trained, windows_of
    from recurrify_papers.forecast.reading import read_series

    started = time.time()
    series = read_series(settings.data, layout_of(settings))
    for repair in series.repairs:
        say(f"{series.name}: {repair}")
    settings = replace(settings, data_checksum=series.checksum)
    if _is_finished(settings, folder):
        say(f"{str(folder)!r} is finished: nothing is left to do")
        return
    windows_of(resolved(settings, series), series)  # rejects invalid lengths before anything is written
    settings.write()
    fitted = fit_series(settings, series, say, folder, _say_epoch, shows_bar=True)
    save_trained(fitted.trained, folder / MODEL_FOLDER)
    progress = fitted.chosen.progress
    is_finished = settings.model == "auto" or fitted.chosen.is_finished
    origin = provenance(settings.to_dict(), seed=settings.seed, data_checksum=series.checksum, started=started)
    result = {
        "finished": is_finished,
        "model": fitted.trained.name,
        "candidates": [
            {"model": one.name, "valid_mse": one.valid_mse, "seconds": round(one.seconds, 2)}
            for one in fitted.candidates
        ],
        "parameters": sum(parameter.numel() for parameter in fitted.trained.model.parameters()),
        "history": progress.history if progress else [],
        "repairs": series.repairs,
        "provenance": origin,
    }
    models = {one.name: one.model for one in fitted.candidates}
    _evaluated(folder, settings, series, folder / EVALUATION_FILE, models)
    save_result(folder / RESULT_FILE, result)  # last: it marks the run as finished
    if not is_finished:
        say("The time is up: the best weights so far are saved. Run the same command to resume.")


def _is_finished(settings: ForecastSettings, folder: Path) -> bool:
    earlier = ForecastSettings.read(folder)
    if earlier is None:
        if folder.is_dir() and any(path.name != LOCK_FILE for path in folder.iterdir()):
            raise UserError(f"{settings.out!r} holds other files: choose a new output folder.")
        return False
    settings.check_same_run(earlier)
    path = folder / RESULT_FILE
    return path.is_file() and load_result(path).get("finished") is True


def _say_epoch(epoch: dict[str, Any]) -> None:
    say(
        f"epoch {epoch['epoch']}: training MSE {epoch['train_mse']:.4f}, validation MSE {epoch['valid_mse']:.4f}, "
        f"{epoch['seconds']:.1f} s"
    )


def _evaluated(
    run: Path, settings: ForecastSettings, series: "Series", path: Path, models: dict[str, Any], unseen: bool = True
) -> None:
    """Score the run's model and the others on the test part; print a table, write the result and the page."""
    from recurrify_papers.forecast.evaluation import evaluate_run
    from recurrify_papers.forecast.page import verdict, write_page

    result = evaluate_run(run, settings, series, models, unseen)
    save_result(path, result)
    header = ["model", "MSE", "MAE", "MASE", "sMAPE", "MAE, original units", "windows"]
    names = ("mse", "mae", "mase", "smape", "mae_original")
    rows = [[row["model"], *(f"{row[name]:,.4g}" for name in names), f"{row['windows']:,}"] for row in result["scores"]]
    show_table(f"{result['data']}, test part", header, rows, 1)
    own = result["scores"][0]
    typer.echo(verdict(result))
    held = ", ".join(f"{one['level']:.0%} interval {one['held']:.1%}" for one in own["coverage"])
    typer.echo(f"coverage: {held}")
    page = path.with_suffix(".html") if path.name != EVALUATION_FILE else path.with_name(PAGE_FILE)
    write_page(result, page)
    typer.echo(f"model: {run / 'model'}, result: {path}, page: {page}")


@app.command(
    epilog=examples(
        "recurrify forecast evaluate runs/load",
        "recurrify forecast evaluate runs/load --data later.csv --out later.json",
    )
)
def evaluate(
    run: Run,
    data: OtherData = None,
    other_series: Annotated[
        bool, typer.Option(help="The file is of another place: score it on the dates of the training, too.")
    ] = False,
    out: Annotated[Path | None, typer.Option(help="Result file [default: evaluation.json in the run].")] = None,
    device: Device = "auto",
) -> None:
    """Score every window of the test part (a rolling-origin backtest), with naive forecasts for comparison."""
    from recurrify.data import pick_device

    settings, series = _run_data(run, data)
    check_overwrites_nothing(out, data, run, settings.data)
    name = EVALUATION_FILE if data is None else f"evaluation-{series.name}.json"
    settings = replace(settings, device=str(pick_device(device)), speed="auto")
    _evaluated(run, settings, series, out or run / name, {}, unseen=not other_series)


def _run_data(run: Path, data: Path | None) -> tuple[ForecastSettings, "Series"]:
    from recurrify_papers.forecast.forecaster import layout_of, load_trained
    from recurrify_papers.forecast.reading import read_series

    trained, settings = load_trained(run), ForecastSettings.read(run)
    if settings is None:
        raise UserError(f"There is no run in {str(run)!r}: pass the --out folder of `recurrify forecast train`.")
    path = data or Path(settings.data)
    if not path.is_file():
        raise UserError(f"{path} does not exist: pass the file with --data.")
    columns = None if settings.id_column or settings.columns is None else trained.columns
    series = read_series(path, replace(layout_of(settings), columns=columns))
    for repair in series.repairs:
        say(f"{series.name}: {repair}")
    return settings, series


@app.command(
    epilog=examples(
        "recurrify forecast predict runs/load --out next.csv",
        "recurrify forecast predict runs/load --data later.csv --out next.csv --level 0.8",
    )
)
def predict(
    run: Run,
    out: Annotated[Path, typer.Option(help="The forecast as a CSV file.")],
    data: OtherData = None,
    level: Annotated[float, typer.Option(help="Of the intervals: 0.5, 0.8, 0.9 or 0.95.")] = 0.9,
) -> None:
    """Forecast after the end of a file, with intervals, in original units and in the file's format."""
    from recurrify_papers.forecast.forecaster import forecast_after, load_trained

    settings, series = _run_data(run, data)
    check_overwrites_nothing(out, data, run, settings.data, content=b"")
    table = forecast_after(load_trained(run), series, level)
    write_whole(out, table.to_csv(index=False, lineterminator="\n").encode("utf-8"))
    dates = table[series.date_column]
    typer.echo(f"{len(table)} rows from {dates.iloc[0]} to {dates.iloc[-1]}: {out}")


@app.command(
    epilog=examples(
        "recurrify forecast table1",
        "recurrify forecast table1 --data ETT/ --only ETTh1-24 --seeds 1",
    )
)
def table1(
    data: Annotated[Path | None, typer.Option(help="Folder with ETTh1.csv, ETTh2.csv, ETTm1.csv and WTH.csv.")] = None,
    out: Annotated[Path, typer.Option(help="Folder of the runs.")] = Path("runs/table1"),
    only: Annotated[list[str] | None, typer.Option(help="Settings (ETTh1-24) or data sets; repeatable.")] = None,
    models: Annotated[str, typer.Option(help="Comma-separated.")] = ",".join(
        ("informer", "rsa-informer", "linear", *NAIVE)
    ),
    seeds: Annotated[int, typer.Option(min=1, help="Runs per model.")] = 3,
    rates: Annotated[
        str, typer.Option(help="Learning rates; each model's is chosen on validation.")
    ] = "3e-5,1e-4,3e-4",
    recipe: Annotated[list[str] | None, typer.Option(help="Other settings, like mix=true; repeatable.")] = None,
    device: Device = "auto",
) -> None:
    """Table 1 of the RSA paper: print the published and our committed results, or run it with --data."""
    from recurrify.data import pick_device
    from recurrify_papers.forecast import table1 as reproduction

    if data is None:
        rows = reproduction.committed_rows()
    else:
        chosen = reproduction.Recipe(
            models=tuple(name.strip() for name in models.split(",")),
            seeds=seeds,
            rates=reproduction.numbers("rates", rates),
            changed=reproduction.parsed(recipe or []),
            device=str(pick_device(device)),
        )
        rows = reproduction.run_table(data, out, reproduction.chosen_settings(only), chosen, say)
    for line in reproduction.markdown(rows):
        typer.echo(line)
