"""`recurrify classify`: texts of any length into classes."""

from pathlib import Path
from typing import Annotated, Any

import typer

from recurrify.cli import options
from recurrify.cli.recurrence_options import asked_recurrence
from recurrify.console import is_first, say, show_table
from recurrify.results import check_overwrites_nothing, save_result

app = typer.Typer(
    help="Texts of any length into classes: by a decoder's last token, or by the first token of an encoder's windows.",
    no_args_is_help=True,
    rich_markup_mode="markdown",
)
DATA_HELP = (
    "a .csv (with a header) or .jsonl file, also .gz or .xz, or a Hugging Face data set (hf:owner/name[:config])"
)
MOST_CLASSES = 12
"""Of how many classes a terminal still shows a table."""
Base = Annotated[str, typer.Option(help="A decoder or an encoder: a Hugging Face name, a folder, or shipped:base.")]
Labelled = Annotated[str, typer.Option(help=f"Texts with their classes: {DATA_HELP}.")]
Unlabelled = Annotated[str, typer.Option(help=f"Texts, whose classes need not be told: {DATA_HELP}.")]
Test = Annotated[
    str | None, typer.Option(help="Texts to score once training is over; default: a tenth of the data, held out.")
]
TextField = Annotated[str, typer.Option(help="The column or field that holds the text.")]
LabelField = Annotated[str, typer.Option(help="The column or field that holds the class: a word or a whole number.")]
Trained = Annotated[str, typer.Argument(help="The folder of a trained classifier, or of its run.")]
AllTrained = Annotated[
    list[str], typer.Argument(help="Folders of trained classifiers, or of their runs; the others against the first.")
]
LanguageWeight = Annotated[
    float,
    typer.Option(
        help="Decoders: add so many times the loss of predicting each next token, as GPT was fine-tuned (with 0.5).",
        rich_help_panel="Training",
    ),
]
FreezeBase = Annotated[
    bool, typer.Option(help="Train only the head and the weights that were added.", rich_help_panel="Training")
]
Epochs = Annotated[float, typer.Option(help="Passes over the texts.", rich_help_panel="Budget and validation")]
TrainBatch = Annotated[int, typer.Option("--batch", help="Texts in a step, per device.", rich_help_panel="Training")]
Batch = Annotated[int, typer.Option(min=1, help="Texts read side by side.")]
Predictions = Annotated[Path, typer.Option(help="File for the predictions: .csv or .jsonl.")]


@app.command(name="train")
def train_command(
    model: Base,
    data: Labelled,
    out: options.RunFolder,
    test: Test = None,
    text_field: TextField = "text",
    label_field: LabelField = "label",
    mechanism: options.Mechanism = "carry",
    window: options.TaskWindow = None,
    overlap: options.Overlap = 0,
    bptt_windows: options.BpttWindows = None,
    checkpoint: options.Checkpoint = True,
    pooling: options.Pooling = None,
    insert_layer: options.InsertLayer = None,
    slots: options.Slots = None,
    standardize: options.Standardize = None,
    neutral_start: options.NeutralStart = None,
    tail: options.Tail = None,
    pooled_slots: options.PooledSlots = None,
    until_layer: options.UntilLayer = None,
    settings: options.MechanismSet = None,
    epochs: Epochs = 3.0,
    max_minutes: options.MaxMinutes = None,
    batch: TrainBatch = 8,
    accumulate: options.Accumulate = 1,
    learning_rate: options.LearningRate = 5e-5,
    added_learning_rate: options.AddedLearningRate = None,
    language_weight: LanguageWeight = 0.0,
    warmup_steps: options.WarmupSteps = 100,
    schedule: options.Schedule = "linear",
    freeze_base: FreezeBase = False,
    precision: options.Precision = "auto",
    seed: options.Seed = 0,
) -> None:
    """Train a model to tell classes of texts apart, with a memory or, with `--mechanism none`, without.

    The classes are those of the training texts. The trained `model/`, `run.json` with every setting and `result.json`
    with the scores land in the output folder.
    """
    given = locals()
    recurrence = asked_recurrence(given)
    from recurrify.mechanisms.base import recurrence_config
    from recurrify.train.classifying import ClassifySettings
    from recurrify.train.classifying_run import classify_train

    recurrence_config(recurrence)  # refuses what cannot be, before anything is loaded
    run = ClassifySettings.from_options(given, out=str(out), recurrence=recurrence)
    result = classify_train(run, say)
    if not result["finished"]:
        raise typer.Exit(130 if result["interrupted"] else 0)
    if is_first():
        _show_scores(
            [
                {"model": str(out), "mechanism": result["provenance"]["config"]["recurrence"]["mechanism"]}
                | result["test"]
            ]
        )
        typer.echo(f"model: {out / 'model'}")


@app.command()
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

    With several, each is compared with the first, with an interval over texts.
    """
    check_overwrites_nothing(out, data, *models)
    from recurrify.data.texts import pick_device
    from recurrify.train.classifying_run import classify_evaluate

    result = classify_evaluate(models, data, say, pick_device(device), text_field, label_field, batch)
    _show_scores(result["rows"])
    for gain in result["gains"]:
        typer.echo(_told_gain(gain))
    if out is not None:
        save_result(out, result)
        say(f"saved {out}")


@app.command()
def predict(
    model: Trained,
    data: Unlabelled,
    out: Predictions,
    text_field: TextField = "text",
    batch: Batch = 8,
    device: options.Device = "auto",
) -> None:
    """Write each text's class and the probability of every class, one row for each text, in their order."""
    from recurrify.data.texts import pick_device
    from recurrify.train.classifying_run import classify_predict

    count = classify_predict(model, data, out, say, pick_device(device), text_field, batch)
    typer.echo(f"{count:,} predictions: {out}")


def _show_scores(rows: list[dict[str, Any]]) -> None:
    header = ["model", "accuracy", "95 %", "precision", "recall", "F1", "AUC-ROC", "loss"]
    table = []
    for row in rows:
        span = row["accuracy_interval"]
        told = f"{span[0]:.3f}–{span[1]:.3f}"
        numbers = [row[name] for name in ("precision", "recall", "f1", "roc_auc", "loss")]
        rest = ["–" if number is None else f"{number:.3f}" for number in numbers]
        table.append([row["model"], f"{row['accuracy']:.3f}", told, *rest])
    windows = ", ".join(dict.fromkeys(f"{row['windows_per_text']:.1f}" for row in rows))
    show_table(f"{rows[0]['texts']:,} texts, {windows} windows each", header, table, 1)
    names = rows[0]["confusion"]["classes"]
    whose = f"those of the class {names[1]!r}" if len(names) == 2 else "means over the classes"
    typer.echo(f"precision, recall and F1 are {whose}")
    for row in rows:
        name, classes = f"{row['model']} ({row['mechanism']})", row["confusion"]["classes"]
        if len(classes) > MOST_CLASSES:
            typer.echo(f"{name}: {len(classes)} classes; which was taken for which is in the JSON file")
            continue
        counts = [
            [true, *map(str, [*taken_for, sum(taken_for)])]
            for true, taken_for in zip(classes, row["confusion"]["true_by_predicted"], strict=True)
        ]
        show_table(f"{name}: texts of each class, by what they were taken for", ["class", *classes, "all"], counts, 1)


def _told_gain(gain: dict[str, Any]) -> str:
    change, span = gain["accuracy_gain"], gain["interval"]
    told = "one text: no interval"
    if span is not None:
        told = f"95 % interval of the gain {100 * span[0]:+.2f} to {100 * span[1]:+.2f} points"
        told += ", within noise" if gain["within_noise"] else ""
    way = "higher" if change >= 0 else "lower"
    return f"{gain['model']} against {gain['against']}: accuracy {100 * abs(change):.2f} points {way} ({told})"
