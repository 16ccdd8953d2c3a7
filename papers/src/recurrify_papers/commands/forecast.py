"""`recurrify forecast`: train, evaluate, predict and plot on any CSV with dates; and Table 1 of the RSA paper."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table

from recurrify.cli import options
from recurrify.console import out_console, say
from recurrify.errors import UserError
from recurrify.known_names import FORECASTERS
from recurrify.results import check_overwrites_nothing, load_result, save_result, write_whole
from recurrify_papers.commands import forecast_table1

if TYPE_CHECKING:
    import pandas as pd

app = typer.Typer(
    help="Forecast time series from a CSV of your own: train, evaluate, predict, plot.",
    no_args_is_help=True,
    rich_markup_mode="markdown",
)
app.add_typer(forecast_table1.app, name="table1")


def _data(text: str, **more: Any) -> Any:
    return typer.Option(help=text, rich_help_panel="Data", **more)


def _model(text: str, **more: Any) -> Any:
    return typer.Option(help=text, rich_help_panel="Model", **more)


def _training(text: str, **more: Any) -> Any:
    return typer.Option(help=text, rich_help_panel="Training", **more)


OF_RECURRENCE = ("counts", "dilations", "recurrence_rows", "recurrence_learning_rate")
OF_PROB_SPARSE = ("factor",)
OF_TRANSFORMERS = (*OF_PROB_SPARSE, "label", "heads", "inner", "decoder_layers", "distil", "mix")
OF_NETWORKS = (*OF_TRANSFORMERS, "width", "encoder_layers", "dropout")
OF_TRAINING = (
    "epochs", "patience", "batch", "learning_rate", "schedule", "halve_every", "order", "epoch_windows",
    "valid_windows", "precision", "speed", "max_minutes", "seed",
)  # fmt: skip
UNUSED = {
    "transformer": OF_PROB_SPARSE,
    "rsa-transformer": OF_PROB_SPARSE,
    "lstm": OF_TRANSFORMERS,
    "gru": OF_TRANSFORMERS,
    "linear": OF_NETWORKS,
    "last-value": (*OF_NETWORKS, *OF_TRAINING),
    "seasonal": (*OF_NETWORKS, *OF_TRAINING),
}
"""By model, the options that mean nothing to it."""

CSV_HELP = "A CSV file: one column of dates, the others numbers."
Run = Annotated[Path, typer.Argument(help="The --out folder of `recurrify forecast train`.")]
Device = Annotated[str, typer.Option(help="auto, cpu, cuda or cuda:N.")]


Data = Annotated[Path, _data(CSV_HELP)]
Out = Annotated[Path, typer.Option(help="Folder of this run. The same command goes on with what is there.")]
Model = Annotated[str, _model(f"One of {', '.join(FORECASTERS)}.")]
Horizon = Annotated[int, _data("Rows to forecast.")]
Past = Annotated[int, _data("Rows to read.")]
Label = Annotated[int | None, _model("Rows of the past that the decoder starts from; default: half of them.")]
DateColumn = Annotated[str | None, _data("The column of dates; default: found by name or place.")]
Columns = Annotated[str | None, _data("Columns to read, with commas between; default: all with numbers.")]
Target = Annotated[
    str | None, _data("Column to plot, and to forecast with --univariate; default: the last not constant.")
]
Univariate = Annotated[bool, _data("Read and forecast the target alone.")]
Split = Annotated[str, _data("auto (as published), '12/4/4 months' (of 30 days), or shares like 0.7/0.1/0.2.")]
Width = Annotated[int, _model("Width of the hidden states.")]
Heads = Annotated[int, _model("Attention heads.")]
Inner = Annotated[int | None, _model("Width of the feed-forward part; default: four times the width.")]
EncoderLayers = Annotated[int, _model("Layers of the encoder, or of an LSTM or GRU.")]
DecoderLayers = Annotated[int, _model("Layers of the decoder.")]
Dropout = Annotated[float, _model("Share of activations left out.")]
Factor = Annotated[int, _model("informer: ProbSparse attention looks at so many times ⌈ln T⌉ of T rows.")]
Distil = Annotated[bool, _model("Halve the sequence between encoder layers.")]
Mix = Annotated[bool, _model("Exchange rows and heads behind the decoder's self-attention, as Informer's code does.")]
Counts = Annotated[
    str | None, _model("rsa: heads that are regular, cosine, sine, and each of them dilated; default: 0,2,2,0,2,2.")
]
Dilations = Annotated[str | None, _model("rsa: one for each dilated head; default: 3, 6, 12, … in each kind.")]
RecurrenceRows = Annotated[
    str | None, _model("rsa-informer: recurrence on all rows, or on the selected ones; default: all.")
]
Season = Annotated[
    int | None,
    _model("Steps of a season, of the seasonal forecast to compare with, too; default: a day, week or year."),
]
Epochs = Annotated[int, _training("Passes over the training part, at most.")]
Patience = Annotated[int, _training("Epochs without a better one before stopping; 0 never stops early.")]
Batch = Annotated[int, _training("Windows in a step.")]
LearningRate = Annotated[float, _training("Of the first epoch.")]
RecurrenceLearningRate = Annotated[
    float,
    _training("rsa: of gates, decays and angles, which hardly move at a small one; that of --learning-rate: as all."),
]
Schedule = Annotated[
    str, _training("Then: halve (after each epoch), published (halve from the third on), cosine or constant.")
]
HalveEvery = Annotated[int, _training("Epochs from one halving to the next: more than one where they are short.")]
Order = Annotated[str, _training("Of the training windows: shuffled or sequential.")]
EpochWindows = Annotated[int | None, _training("Windows in an epoch; default: all.")]
ValidWindows = Annotated[
    int | None, _training("Validate on so many windows, spread evenly over the validation part; default: all.")
]
Precision = Annotated[str, _training("auto (tf32 on CUDA), bf16 or fp32.")]
Speed = Annotated[str, _training("auto (graph on CUDA), plain, graph or compile.")]
MaxMinutes = Annotated[float | None, _training("Stop, saved also within an epoch, after so many minutes.")]
Seed = Annotated[int, _training("Seed of the weights and of the shuffling.")]


@app.command()
def train(
    context: typer.Context,
    data: Data,
    out: Out,
    model: Model = "rsa-informer",
    horizon: Horizon = 24,
    past: Past = 96,
    label: Label = None,
    date_column: DateColumn = None,
    columns: Columns = None,
    target: Target = None,
    univariate: Univariate = False,
    split: Split = "auto",
    width: Width = 512,
    heads: Heads = 8,
    inner: Inner = None,
    encoder_layers: EncoderLayers = 2,
    decoder_layers: DecoderLayers = 1,
    dropout: Dropout = 0.05,
    factor: Factor = 5,
    distil: Distil = False,
    mix: Mix = False,
    counts: Counts = None,
    dilations: Dilations = None,
    recurrence_rows: RecurrenceRows = None,
    season: Season = None,
    epochs: Epochs = 6,
    patience: Patience = 3,
    batch: Batch = 32,
    learning_rate: LearningRate = 1e-4,
    recurrence_learning_rate: RecurrenceLearningRate = 3e-2,
    schedule: Schedule = "halve",
    halve_every: HalveEvery = 1,
    order: Order = "shuffled",
    epoch_windows: EpochWindows = None,
    valid_windows: ValidWindows = None,
    precision: Precision = "auto",
    speed: Speed = "auto",
    max_minutes: MaxMinutes = None,
    seed: Seed = 0,
    device: Device = "auto",
) -> None:
    """Train a forecaster on a CSV: most of it for training, then a validation and a test part, in the order of time.

    The output folder gets `model/`, which `predict` loads, `run.json` with every setting and `result.json`.
    """
    given = locals()
    _check_used(model, [name for name in given if _is_given(context, name)])
    from recurrify.data.texts import pick_device
    from recurrify.side_by_side import held_alone
    from recurrify_papers.forecast.running import train_run
    from recurrify_papers.forecast.settings import ForecastSettings, recurrence_rate

    changed: dict[str, Any] = {
        "data": str(data),
        "out": str(out),
        "columns": None if columns is None else tuple(name.strip() for name in columns.split(",")),
        "label": past // 2 if label is None else label,
        "inner": 4 * width if inner is None else inner,
        "counts": ForecastSettings.counts if counts is None else options.numbers("counts", counts),
        "dilations": None if dilations is None else options.numbers("dilations", dilations),
        "recurrence_rows": ForecastSettings.recurrence_rows if recurrence_rows is None else recurrence_rows,
        "recurrence_learning_rate": recurrence_rate(recurrence_learning_rate, [learning_rate])
        if model.startswith("rsa-")
        else None,
        "device": str(pick_device(device)),
    }
    settings = ForecastSettings.from_options(given, **changed)
    with held_alone(out):
        result = train_run(settings, say, _say_epoch)
    _tell_training(result, epochs, out)


def _tell_training(result: dict[str, Any], epochs: int, out: Path) -> None:
    if not result["finished"]:
        say(
            f"The time is up {result['stopped']}: all is saved, and the same command goes on from here; there is "
            "something to evaluate when it has come to its end."
        )
        return
    found, done = result["validation"], len(result["history"])
    if 0 < done < epochs:
        say(f"stopped early: none of the last {done - result['best_epoch']} epochs was better than the one before them")
    elif done and result["best_epoch"] == done:
        say("the last epoch was the best on validation: more --epochs, or a higher --learning-rate, may do better")
    best = f", best epoch {result['best_epoch']}" if done else ""
    typer.echo(f"validation, all windows: MSE {found['mse']:.4f}, MAE {found['mae']:.4f} (scaled){best}")
    typer.echo(f"model: {out / 'model'}")


def _is_given(context: typer.Context, name: str) -> bool:
    source = context.get_parameter_source(name)
    return source is not None and source.name == "COMMANDLINE"


def _check_used(model: str, given: list[str]) -> None:
    """Refuse options that mean nothing to a model: who gives them expects that they do something."""
    unused = {}
    if not model.startswith("rsa-"):
        unused = dict.fromkeys(OF_RECURRENCE, f"belongs to the rsa- models, and {model} has no recurrence")
    if model == "rsa-transformer":
        unused["recurrence_rows"] = f"belongs to rsa-informer, and {model} selects no rows"
    unused |= dict.fromkeys(UNUSED.get(model, ()), f"means nothing to {model}")
    named = [name for name in given if name in unused]
    if named and model in FORECASTERS:
        raise UserError(f"`{named[0]}` {unused[named[0]]}: leave it out.")


def _say_epoch(epoch: dict[str, Any]) -> None:
    say(
        f"epoch {epoch['epoch']}: training MSE {epoch['train_mse']:.4f}, validation MSE {epoch['valid_mse']:.4f}, "
        f"{epoch['seconds']:.1f} s"
    )


@app.command()
def evaluate(
    run: Run,
    data: Annotated[Path | None, typer.Option(help="Another file of the same columns and step.")] = None,
    as_published: Annotated[
        bool, typer.Option(help="Leave out the last windows that do not fill a batch of 32, as Informer's code does.")
    ] = False,
    other_series: Annotated[
        bool, typer.Option(help="The file is of another place or thing: score it at dates of the training, too.")
    ] = False,
    windows: Annotated[
        str | None, typer.Option(help="Dates, with commas between, from which forecasts are shown; default: some.")
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(help="The result as JSON; default: evaluation.json of the run, with --data or --as-published "
                     "in the name."),
    ] = None,
    device: Device = "auto",
) -> None:  # fmt: skip
    """Score every window of the test part once, beside the naive forecasts, and check the intervals."""
    if other_series and data is None:
        raise UserError("`other_series` says what --data is: give a file with it, or leave it out.")
    from recurrify.data.texts import pick_device
    from recurrify_papers.forecast.scoring import evaluate_run
    from recurrify_papers.forecast.settings import UNTRAINED

    check_overwrites_nothing(out, data, run, _trained_on(run))
    result = evaluate_run(
        run,
        say,
        None if data is None else str(data),
        as_published,
        str(pick_device(device)),
        other_series,
        _dates(windows),
    )
    path = out or run / _evaluation_file(result, is_other=data is not None and not result["own_data"])
    save_result(path, result)
    table = Table(box=None, pad_edge=False)
    for header in ("model", "MSE", "MAE", "MSE, original", "MAE, original", "windows"):
        table.add_column(header, justify="left" if header == "model" else "right", no_wrap=True)
    for row in result["scores"]:
        numbers = [f"{row[name]:,.4g}" for name in ("mse", "mae", "mse_original", "mae_original")]
        table.add_row(row["model"], *numbers, f"{row['windows']:,}")
    out_console.print(table, soft_wrap=True)
    own, *naive = result["scores"]
    held = ", ".join(f"{one['level']:.0%} interval {one['held']:.1%}" for one in own["coverage"])
    typer.echo(f"truth held by the intervals: {held}")
    if len(result["columns"]) > 1:
        of_target = ", ".join(f"{one['level']:.0%} {one['by_column'][result['target']]:.1%}" for one in own["coverage"])
        typer.echo(f"of that of {result['target']}: {of_target}")
    better = [row["model"] for row in naive if row["mse"] <= own["mse"]]
    if better and own["model"] not in UNTRAINED:
        typer.echo(f"By MSE, {own['model']} is no better here than {' and '.join(better)}, which learned nothing.")
    typer.echo(f"result: {path}")


def _trained_on(run: Path) -> Path | None:
    """The file, where it still is."""
    from recurrify_papers.forecast.settings import ForecastSettings

    settings = ForecastSettings.read(run)
    return None if settings is None else Path(settings.data)


def _dates(text: str | None) -> "list[pd.Timestamp]":
    if text is None:
        return []
    import pandas as pd

    try:
        return [pd.Timestamp(part.strip()) for part in text.split(",")]
    except ValueError:
        raise UserError(f"`windows` must be dates like 2018-03-01 or '2018-03-01 06:00': got {text!r}.") from None


def _evaluation_file(result: dict[str, Any], is_other: bool) -> str:
    """Numbers of another file, or of fewer windows, do not take the place of the run's own."""
    from recurrify_papers.forecast.scoring import EVALUATION_FILE

    stem, _, ending = EVALUATION_FILE.rpartition(".")
    if is_other:
        stem += f"-{result['data']}"
    if result["as_published"]:
        stem += "-as-published"
    return f"{stem}.{ending}"


@app.command()
def predict(
    run: Run,
    out: Annotated[Path, typer.Option(help="The forecast as a CSV file.")],
    data: Annotated[Path | None, typer.Option(help=f"{CSV_HELP} Default: the file the model was trained on.")] = None,
    level: Annotated[float, typer.Option(help="Of the intervals: 0.5, 0.8, 0.9 or 0.95.")] = 0.9,
    date_column: Annotated[str | None, typer.Option(help="The column of dates; default: as in training.")] = None,
) -> None:
    """Forecast beyond the end of a file, with intervals, in original units."""
    from recurrify_papers.forecast.prediction import forecast_beyond, interval_endings
    from recurrify_papers.forecast.reading import read_series
    from recurrify_papers.forecast.saving import load_forecaster
    from recurrify_papers.forecast.scoring import file_of
    from recurrify_papers.forecast.settings import ForecastSettings

    forecaster, settings = load_forecaster(run), ForecastSettings.read(run)
    if data is None and settings is None:
        raise UserError("Give the file to forecast from with --data.")
    source = data if data is not None else file_of(settings)  # type: ignore[arg-type]
    check_overwrites_nothing(out, source, run, _trained_on(run), content=b"")
    dates = date_column or (settings.date_column if settings is not None else None)
    series = read_series(source, dates, forecaster.columns)
    for repair in series.repairs:
        say(f"{series.name}: {repair}")
    table = forecast_beyond(forecaster, series, level)
    if level in forecaster.intervals.unreached():
        say(f"{series.name}: {forecaster.intervals.told_unreached()}")
    endings = interval_endings(forecaster.columns)
    if endings != ("_low", "_high"):
        say(f"{series.name}: it has columns named like intervals, so these end in {endings[0]} and {endings[1]}")
    write_whole(out, table.to_csv(lineterminator="\n").encode("utf-8"))
    typer.echo(f"{len(table)} {'row' if len(table) == 1 else 'rows'} from {table.index[0]} to {table.index[-1]}: {out}")


@app.command()
def plot(
    runs: Annotated[list[Path], typer.Argument(help="Runs that were evaluated, or results of `evaluate`.")],
    out: Annotated[Path | None, typer.Option(help="The page; default: in the first run's folder.")] = None,
) -> None:
    """One page: forecasts over the truth, error by horizon, and what the recurrence learned."""
    from recurrify_papers.forecast.saving import load_forecaster
    from recurrify_papers.forecast.scoring import EVALUATION_FILE
    from recurrify_papers.report.forecast_page import write_forecast_page

    check_overwrites_nothing(out, *runs, *(_trained_on(run) for run in runs if run.is_dir()), content=b"<")
    results = []
    for run in runs:
        path = run / EVALUATION_FILE if run.is_dir() else run
        if not path.is_file():
            load_forecaster(run)  # refuses where there is none: to evaluate it would be no way out
            raise UserError(f"There is no result at {path}: run `recurrify forecast evaluate {run}` first.")
        result = load_result(path)
        if not isinstance(result.get("scores"), list):
            raise UserError(f"{path} is not a result of `recurrify forecast evaluate`.")
        results.append(result)
    named = [result | {"name": name} for result, name in zip(results, _names(runs), strict=True)]
    first = runs[0] if runs[0].is_dir() else runs[0].parent
    page = first / "forecast.html" if out is None else out
    write_forecast_page(named, page)
    typer.echo(f"The page: {page}")


def _names(runs: list[Path]) -> list[str]:
    """As much of the end of each path as tells it from the others; a result in a run's folder is called by that."""
    from recurrify_papers.forecast.scoring import EVALUATION_FILE

    places = []
    for run in runs:
        path = run.resolve()
        own = path.is_file() and path.name == EVALUATION_FILE
        places.append((path.parent if own else path if path.is_dir() else path.with_suffix("")).parts)
    for length in range(1, max(map(len, places)) + 1):
        names = ["/".join(parts[-length:]) for parts in places]
        if len(set(names)) == len(set(places)):
            break
    return names
