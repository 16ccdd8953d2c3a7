"""`recurrify classify`: classes of texts of any length."""

from pathlib import Path
from typing import Annotated, Any

import typer

from recurrify.cli import options
from recurrify.cli.settings import examples, settings_command
from recurrify.cli.train import end_of_run
from recurrify.console import is_first, say, show_table
from recurrify.results import check_overwrites_nothing, save_result
from recurrify.run_lock import run_lock
from recurrify.train.settings import ClassifySettings

app = typer.Typer(
    help="Classify texts of any length, with a decoder or an encoder.",
    no_args_is_help=True,
    rich_markup_mode="markdown",
)
MOST_CLASSES = 12
"""The largest number of classes whose confusion table is shown."""
Labelled = Annotated[str, typer.Option(help="Texts with classes: .csv, .jsonl or hf:owner/name.")]
Unlabelled = Annotated[str, typer.Option(help="Texts: .csv, .jsonl or hf:owner/name; classes are not needed.")]
TextField = Annotated[str, typer.Option(help="Column or field with the text.")]
LabelField = Annotated[str, typer.Option(help="Column or field with the class.")]
Trained = Annotated[str, typer.Argument(help="Folder of a trained classifier, or of its run.")]
AllTrained = Annotated[list[str], typer.Argument(help="Folders of trained classifiers; compared with the first.")]
Batch = Annotated[int, typer.Option(min=1, help="Texts per batch.")]
Predictions = Annotated[Path, typer.Option(help="File for the predictions: .csv or .jsonl.")]


@settings_command(
    app,
    "train",
    ClassifySettings,
    rest="recurrence",
    epilog=[
        "recurrify classify train --model gpt2 --data reviews.csv --out runs/reviews",
        "recurrify classify train --model bert-base-uncased --data train.jsonl --test test.jsonl --out runs/bert",
    ],
)
def train_command(given: dict[str, Any]) -> None:
    """Train a model to classify texts, with a memory, or without one (`--mechanism none`).

    The classes are those of the training texts. The output folder gets the trained `model/`, `run.json` with all
    settings, and `result.json` with the scores.
    """
    asked = given["recurrence"]
    options.check_memory({"mechanism": "carry", **asked})
    ClassifySettings(**given | {"recurrence": {}})  # reports invalid settings before anything is loaded
    options.load_libraries(given["model"], tables=[given["data"], given["test"]])
    from recurrify.modeling import recurrence_config
    from recurrify.train.classify import classify_train

    recurrence = {"mechanism": "carry", "checkpoint": True, **asked}
    recurrence_config(recurrence)  # reports invalid settings before anything is loaded
    settings = ClassifySettings(**given | {"recurrence": recurrence})
    with run_lock(settings.out):
        result = classify_train(settings, say)
    if is_first() and "test" in result:
        mechanism = result["provenance"]["config"]["recurrence"]["mechanism"]
        _show_scores([{"model": settings.out, "mechanism": mechanism} | result["test"]])
    end_of_run(result, settings.out)


@app.command(
    epilog=examples(
        "recurrify classify evaluate runs/reviews --data test.csv",
        "recurrify classify evaluate runs/reviews --data test.csv --out result.json",
    )
)
def evaluate(
    models: AllTrained,
    data: Labelled,
    text_field: TextField = "text",
    label_field: LabelField = "label",
    batch: Batch = 8,
    device: options.Device = "auto",
    out: options.ResultFile = None,
) -> None:
    """Score trained classifiers on the same texts: accuracy, precision, recall, F1, area under the ROC curve, loss.

    Each model is compared with the first one, with an interval over texts.
    """
    check_overwrites_nothing(out, data, *models)
    options.check_device(device)
    options.load_libraries(*models, tables=[data])
    from recurrify.data.texts import pick_device
    from recurrify.train.classify import classify_evaluate

    result = classify_evaluate(models, data, say, pick_device(device), text_field, label_field, batch)
    _show_scores(result["rows"])
    for gain in result["gains"]:
        typer.echo(_gain_line(gain))
    if out is not None:
        save_result(out, result)
        say(f"saved {out}")


@app.command(
    epilog=examples(
        "recurrify classify predict runs/reviews --data new.csv --out classes.csv",
        "recurrify classify predict runs/reviews --data new.csv --out classes.csv --batch 32",
    )
)
def predict(
    model: Trained,
    data: Unlabelled,
    out: Predictions,
    text_field: TextField = "text",
    batch: Batch = 8,
    device: options.Device = "auto",
) -> None:
    """Write the class of each text and the probability of every class, one row per text."""
    options.check_device(device)
    options.load_libraries(model, tables=[data])
    from recurrify.data.texts import pick_device
    from recurrify.train.classify import classify_predict

    count = classify_predict(model, data, out, say, pick_device(device), text_field, batch)
    typer.echo(f"{count:,} predictions: {out}")


def _show_scores(rows: list[dict[str, Any]]) -> None:
    header = ["model", "accuracy", "95 %", "precision", "recall", "F1", "AUC-ROC", "loss"]
    table = []
    for row in rows:
        span = row["accuracy_interval"]
        interval = f"{span[0]:.3f}–{span[1]:.3f}"
        numbers = [row[name] for name in ("precision", "recall", "f1", "roc_auc", "loss")]
        rest = ["–" if number is None else f"{number:.3f}" for number in numbers]
        table.append([row["model"], f"{row['accuracy']:.3f}", interval, *rest])
    windows = ", ".join(dict.fromkeys(f"{row['windows_per_text']:.1f}" for row in rows))
    show_table(f"{rows[0]['texts']:,} texts, {windows} windows each", header, table, 1)
    names = rows[0]["confusion"]["classes"]
    whose = f"those of class {names[1]!r}" if len(names) == 2 else "means over classes"
    typer.echo(f"precision, recall and F1 are {whose}")
    for row in rows:
        name, classes = f"{row['model']} ({row['mechanism']})", row["confusion"]["classes"]
        if len(classes) > MOST_CLASSES:
            typer.echo(f"{name}: {len(classes)} classes; the confusion matrix is in the JSON file")
            continue
        counts = [
            [true, *map(str, [*predicted, sum(predicted)])]
            for true, predicted in zip(classes, row["confusion"]["true_by_predicted"], strict=True)
        ]
        show_table(f"{name}: true class by predicted class", ["class", *classes, "all"], counts, 1)


def _gain_line(gain: dict[str, Any]) -> str:
    change, span = gain["accuracy_gain"], gain["interval"]
    interval = "one text: no interval"
    if span is not None:
        interval = f"95 % interval of the gain {100 * span[0]:+.2f} to {100 * span[1]:+.2f} points"
        interval += ", within noise" if gain["within_noise"] else ""
    way = "higher" if change >= 0 else "lower"
    return f"{gain['model']} vs. {gain['against']}: accuracy {100 * abs(change):.2f} points {way} ({interval})"
