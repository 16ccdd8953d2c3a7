"""`recurrify train`: add a memory to a model and fine-tune it on text."""

import math
import shlex
from pathlib import Path
from typing import Any

import typer

from recurrify.cli.options import check_memory, load_libraries
from recurrify.cli.settings import settings_command
from recurrify.console import is_first, perplexity_level, say
from recurrify.records import MODEL_FOLDER
from recurrify.run_lock import run_lock
from recurrify.train.memories import BEST
from recurrify.train.settings import TrainSettings

EXAMPLES = (
    "recurrify train --model gpt2 --data novels/ --out runs/novels",
    "recurrify train --model gpt2 --data novels/ --out runs/lookback --mechanism lookback --set keep=128",
    "torchrun --nproc-per-node 4 -m recurrify train --config settings.yaml --out runs/large",
)

FEW_STEPS = 20
"""Updates after which a model can hardly have learnt anything."""


def add_train_command(app: typer.Typer) -> None:
    """Register the command."""
    settings_command(app, "train", TrainSettings, rest="recurrence", epilog=EXAMPLES)(train_command)


def train_command(given: dict[str, Any]) -> None:
    """Add a memory to a model and fine-tune it on your text.

    The output folder gets the trained `model/`, `run.json` with all settings, `result.json` and TensorBoard logs.
    `--mechanism none` trains the plain model in the same way, for comparison.
    """
    asked = given["recurrence"]
    check_memory(asked)
    TrainSettings(**given | {"recurrence": {}})  # reports invalid settings before anything is loaded
    load_libraries(given["model"], texts=[given["data"], given["valid"]])
    from recurrify.modeling import recurrence_config
    from recurrify.modeling.loading import own_memory
    from recurrify.train.finetune import train_run

    own = own_memory(given["model"])
    recurrence = {"mechanism": own.get("mechanism", BEST), "checkpoint": True, **asked}
    if recurrence["mechanism"] != BEST:  # reports invalid settings before anything is loaded
        recurrence_config((own if own.get("mechanism") == recurrence["mechanism"] else {}) | recurrence)
    settings = TrainSettings(**given | {"recurrence": recurrence})
    with run_lock(settings.out):
        result = train_run(settings, say)
    best = min((e for e in result["history"] if "eval_loss" in e), key=lambda e: e["eval_loss"], default=None)
    if best is not None and is_first():
        typer.echo(
            f"best validation: perplexity {perplexity_level(math.exp(best['eval_loss']), 3)} per token, "
            f"{perplexity_level(best['eval_perplexity_per_word'], 2)} per word, at step {best['step']}, "
            "the checkpoint with the lowest validation loss"
        )
    end_of_run(result, settings.out)
    if is_first() and result["steps"] < FEW_STEPS:
        say(f"{result['steps']} updates are too few to learn from: use more text, more --epochs or a smaller --batch")
    if is_first():
        command = ["recurrify", "evaluate", settings.out, "--data", settings.data]
        command += [] if settings.text_field == "text" else ["--text-field", settings.text_field]
        typer.echo(f"next: {shlex.join(command)}")


def end_of_run(result: dict[str, Any], out: str) -> None:
    """Exit if a run is not finished, else say where its model is."""
    if not result["finished"]:
        raise typer.Exit(130 if result["interrupted"] else 0)
    if is_first():
        typer.echo(f"model: {Path(out) / MODEL_FOLDER}")
