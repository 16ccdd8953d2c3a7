"""`recurrify forecast`: train, evaluate and predict on any CSV with dates; and Table 1 of the RSA paper."""

import sys
import time
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from recurrify import UserError
from recurrify.cli import examples, formerly, options, parse_settings, settings_command
from recurrify.console import busy, say, show_table
from recurrify.records import LOCK_FILE, MODEL_FOLDER, RESULT_FILE, RUN_FILE, check_has_model, check_takes_results
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
    from recurrify_papers.forecast.forecaster import Fitted, Trained
    from recurrify_papers.forecast.reading import Series

app = typer.Typer(
    help="Forecast time series from a CSV of your own: train, evaluate, predict.",
    no_args_is_help=True,
    rich_markup_mode="markdown",
)
EVALUATION_FILE, PAGE_FILE = "evaluation.json", "forecast.html"
OUT = Path("runs/forecast")
Run = Annotated[Path, typer.Argument(help="The --out folder of `recurrify forecast train`.")]
OtherData = Annotated[Path | None, typer.Option(help="Another file with the same columns and step.")]
EXAMPLES = (
    "recurrify forecast train --data load.csv --horizon 24",
    "recurrify forecast train --data load.csv --model rsa-informer --set gate_start=-2 --out runs/load",
)


@settings_command(app, "train", ForecastSettings, epilog=EXAMPLES)
def train(given: dict[str, Any]) -> None:
    """Train on a CSV, choose on validation, score on the last part, and write a page.

    `recurrify forecast train --data visits.csv` is all you need. The folder gets the model, `result.json`,
    `evaluation.json` and the page `forecast.html`. Run the same command again to resume.
    """
    folder = Path(given["out"] or OUT / Path(given["data"]).name.split(".")[0])
    settings = ForecastSettings(**given | {"out": str(folder)})
    _check_file(Path(settings.data))
    options.check_device(settings.device)
    check_overwrites_nothing(folder / RUN_FILE)
    from recurrify.run_lock import run_lock

    with run_lock(folder), full_disk_explained(str(folder)):
        _train(settings, folder)


def _train(settings: ForecastSettings, folder: Path) -> None:
    started, series = time.time(), _read(settings)
    settings = replace(settings, data_checksum=series.checksum)
    if _is_finished(settings, folder):
        say(f"{str(folder)!r} is finished: nothing is left to do")
        return
    _load_torch()
    from recurrify_papers.forecast.candidates import resolved
    from recurrify_papers.forecast.forecaster import date_words, fit_series, save_trained, windows_of

    lengths = resolved(settings, series)
    data = windows_of(lengths, series)  # rejects invalid lengths before anything is written
    settings.write()
    say(
        f"{series.name}: {len(series.dates):,} rows, step {series.frequency}; forecasts of {lengths.horizon} rows, "
        f"season {lengths.season}; test from {date_words(series.dates[data.split.valid_end])} on"
    )
    fitted = fit_series(settings, series, say, folder, _say_epoch, shows_bar=True)
    save_trained(fitted.trained, folder / MODEL_FOLDER)
    chosen = fitted.chosen
    result = {
        "finished": chosen.is_finished or settings.model == "auto",
        "model": fitted.trained.name,
        "candidates": [
            {
                "model": one.name,
                "valid_mse": one.valid.mse,
                "valid_mae": one.valid.mae,
                "seconds": round(one.seconds, 2),
            }
            for one in fitted.candidates
        ],
        "parameters": sum(parameter.numel() for parameter in fitted.trained.model.parameters()),
        "history": chosen.progress.history if chosen.progress else [],
        "repairs": series.repairs,
        "provenance": _origin(settings, series, started),
    }
    _evaluate(fitted.trained, settings, series, folder / EVALUATION_FILE, fitted, started=started)
    save_result(folder / RESULT_FILE, result)  # last: it marks the run as finished
    if not result["finished"]:
        reached = (
            "the best weights so far are" if result["history"] else "less than an epoch was trained; its weights are"
        )
        say(f"The time is up: {reached} saved. Run the same command to resume.")
    say(f"next: recurrify forecast predict {folder} --out next.csv")


def _load_torch() -> None:
    if "torch" not in sys.modules:
        with busy("loading PyTorch"):
            import_module("torch")


def _check_file(path: Path) -> None:
    if not path.is_file():
        raise UserError(f"{path} {'is no file' if path.exists() else 'does not exist'}: pass the file with --data.")


def _read(settings: ForecastSettings, **changed: Any) -> "Series":
    from recurrify_papers.forecast.reading import read_series

    series = read_series(settings.data, **settings.layout | changed)
    for repair in series.repairs:
        say(f"{series.name}: {repair}")
    return series


def _origin(settings: ForecastSettings, series: "Series", started: float) -> dict[str, Any]:
    return provenance(settings.to_dict(), seed=settings.seed, data_checksum=series.checksum, started=started)


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


def _evaluate(
    trained: "Trained",
    settings: ForecastSettings,
    series: "Series",
    path: Path,
    fitted: "Fitted | None" = None,
    unseen: bool = True,
    started: float | None = None,
) -> None:
    """Score a model and others on the test part; print a table, write the result and the page."""
    from recurrify_papers.forecast.forecaster import evaluation
    from recurrify_papers.forecast.page import SCORES, coverage, verdict, write_page

    started = started or time.time()
    result = evaluation(trained, series, settings, fitted, unseen)
    result["provenance"] = _origin(settings, series, started)
    save_result(path, result)
    shown = {name: title for name, title in SCORES.items() if name != "crps"}
    rows = [[one["model"], *(f"{one[name]:,.4g}" for name in shown), f"{one['windows']:,}"] for one in result["scores"]]
    dates = f"{result['first_date']} to {result['last_date']}"
    show_table(f"{result['data']}, test part, {dates}", ["model", *shown.values(), "windows"], rows, 1)
    typer.echo(verdict(result))
    typer.echo(coverage(result))
    page = path.with_suffix(".html") if path.name != EVALUATION_FILE else path.with_name(PAGE_FILE)
    write_page(result, page)
    typer.echo(f"result: {path}, page: {page}")


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
    device: options.Device = "auto",
) -> None:
    """Score every window of the test part (a rolling-origin backtest), with naive forecasts for comparison."""
    options.check_device(device)
    trained, settings, series = _run_data(run, data, out)
    name = EVALUATION_FILE if data is None else f"evaluation-{series.name}.json"
    settings = replace(settings, device=device)
    _evaluate(trained, settings, series, out or run / name, unseen=not other_series)


def _run_data(
    run: Path, data: Path | None, out: Path | None, content: bytes = b"{"
) -> tuple["Trained", ForecastSettings, "Series"]:
    """What a command reads; `out`, which begins with `content`, is what it will write."""
    settings = ForecastSettings.read(run)
    if settings is None:
        raise UserError(f"There is no forecaster in {str(run)!r}: pass the --out folder of `recurrify forecast train`.")
    path = data or Path(settings.data)
    _check_file(path)
    check_has_model(run)
    check_overwrites_nothing(out, data, run, settings.data, content=content)
    _load_torch()
    from recurrify_papers.forecast.forecaster import load_trained

    trained = load_trained(run)
    columns = None if settings.id_column or settings.columns is None else trained.columns
    return trained, settings, _read(replace(settings, data=str(path)), columns=columns)


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
    """Forecast after the end of a file, with intervals, in original units; long or wide as the file."""
    trained, settings, series = _run_data(run, data, out, content=b"")
    from recurrify_papers.forecast.forecaster import forecast_after

    table = forecast_after(trained, series, replace(settings, device="cpu"), level)
    write_whole(out, table.to_csv(index=False, lineterminator="\n").encode("utf-8"))
    dates = table[series.date_column]
    typer.echo(f"{len(table)} rows from {dates.iloc[0]} to {dates.iloc[-1]}: {out}")


@app.command(
    epilog=examples(
        "recurrify forecast table1",
        "recurrify forecast table1 --data ETT/ --only ETTh1-24 --seeds 1",
    )
)
@formerly(recipe="set", rates="learning_rates")
def table1(
    data: Annotated[Path | None, typer.Option(help="Folder with ETTh1.csv, ETTh2.csv, ETTm1.csv and WTH.csv.")] = None,
    out: Annotated[Path, typer.Option(help="Folder of the runs.")] = Path("runs/table1"),
    only: Annotated[list[str] | None, typer.Option(help="Settings (ETTh1-24) or data sets; repeatable.")] = None,
    models: Annotated[str, typer.Option(help="Comma-separated.")] = ",".join(
        ("informer", "rsa-informer", "linear", *NAIVE)
    ),
    seeds: Annotated[int, typer.Option(min=1, help="Runs per model.")] = 3,
    learning_rates: Annotated[
        str, typer.Option(help="Comma-separated; each model's is chosen on validation.")
    ] = "3e-5,1e-4,3e-4",
    settings: Annotated[
        list[str] | None, typer.Option("--set", help="Other settings, like mix=true; repeatable.")
    ] = None,
    device: options.Device = "auto",
) -> None:
    """Table 1 of the RSA paper: print the published and our committed results, or run it with --data."""
    from recurrify_papers.forecast import table1 as reproduction

    if data is None:
        rows = reproduction.committed_rows()
    else:
        planned = reproduction.chosen_settings(only)
        reproduction.check_files(data, planned)
        check_takes_results(out)
        options.check_device(device)
        _load_torch()
        from recurrify.data import pick_device

        chosen = reproduction.Recipe(
            models=tuple(name.strip() for name in models.split(",")),
            seeds=seeds,
            rates=options.numbers("--learning-rates", learning_rates, float),
            changed=parse_settings(settings),
            device=str(pick_device(device)),
        )
        rows = reproduction.run_table(data, out, planned, chosen, say)
    for line in reproduction.markdown(rows):
        typer.echo(line)
