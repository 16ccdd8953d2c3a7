"""`recurrify train --arch`: a language model from scratch; `recurrify train-report`: several of them on one page."""

from dataclasses import fields
from pathlib import Path
from typing import Annotated, Any

import typer

from recurrify.console import say, show_table
from recurrify.errors import UserError
from recurrify.jobs.scratch import train_scratch
from recurrify.models.language import ARCHITECTURES, parse_settings
from recurrify.report.scratch_page import PAGE, TEXT, write_training_page
from recurrify.train.scratch_settings import ScratchSettings

SETTINGS = {entry.name for entry in fields(ScratchSettings)}
ONLY_HERE = ("symbols", "steps", "length", "clip", "weight_decay", "eval_batch", "eval_settings", "speed")
OPTION_OF = {"settings": "--set", "eval_settings": "--eval-set"}
INSTEAD = {"compile": "--speed", "epochs": "--steps", "max_tokens": "--steps", "windows": "--length"}
"""What does the same here as an option of fine-tuning."""


def is_from_scratch(context: typer.Context) -> bool:
    """Whether `train` was asked for an architecture; options of the other kind of training are refused."""
    model, arch = context.params["model"], context.params["arch"]
    if model is not None and arch is not None:
        raise UserError(
            f"`--model` {model} fine-tunes what is trained already and `--arch` {arch} begins from scratch: give one."
        )
    if model is None and arch is None:
        raise UserError(
            "Say what to train: a pretrained model with --model, or one from scratch with "
            f"--arch {' | '.join(ARCHITECTURES)}."
        )
    for name in _named(context):
        if arch is None and name in ONLY_HERE:
            raise UserError(f"`{_option(name)}` is for models from scratch: name one with --arch, or leave it out.")
        if arch is not None and name not in SETTINGS:
            way_out = f"use {INSTEAD[name]}" if name in INSTEAD else "leave it out"
            raise UserError(f"`{_option(name)}` is for fine-tuning, not for `--arch` {arch}: {way_out}.")
    return arch is not None


def train_architecture(context: typer.Context) -> None:
    given = _named(context)
    arch = given["arch"]
    if arch not in ARCHITECTURES:
        raise UserError(f"`--arch` must be one of {', '.join(ARCHITECTURES)}: got {arch!r}.")
    for name in ("settings", "eval_settings"):
        given[name] = parse_settings(arch, given.get(name) or [])
    out = Path(given["out"])
    settings = ScratchSettings.from_options(given, out=str(out))
    result = train_scratch(settings, say)
    if not result["finished"]:
        raise typer.Exit(130 if result["interrupted"] else 0)
    for part in ("validation", "test"):
        found = result[part]
        typer.echo(
            f"{part}: {found['bits_per_symbol']:.4f} bits per {result['unit']}{_in_bytes(found, result['unit'])}, "
            f"perplexity {found['perplexity_per_symbol']:.3f}, {found['symbols']:,} scored"
        )
    typer.echo(f"model: {out / 'model'}")


def _in_bytes(found: dict[str, Any], unit: str) -> str:
    return "" if unit == "byte" or found["bits_per_byte"] is None else f" ({found['bits_per_byte']:.4f} per byte)"


def _named(context: typer.Context) -> dict[str, Any]:
    """The options that were given; the defaults of fine-tuning are not those of training from scratch."""
    return {
        name: value
        for name, value in context.params.items()
        # By its name, for typer may bring a click of its own.
        if getattr(context.get_parameter_source(name), "name", "") == "COMMANDLINE"
    }


def _option(name: str) -> str:
    return OPTION_OF.get(name, f"--{name.replace('_', '-')}")


def report_command(
    runs: Annotated[
        list[Path], typer.Argument(help="Folders of `train --arch` (their --out), or folders that hold several.")
    ],
    out: Annotated[Path, typer.Option(help="Folder of the page.")] = Path("runs/train-report"),
) -> None:
    """Runs from scratch on one page: curves against steps and time, the final scores beside the published.

    Runs with other data, symbols or budgets are kept apart; those that differ in their seed become one row.
    """
    for content in write_training_page(runs, out):
        show_table(content.caption, content.header, content.rows, content.text_columns)
    typer.echo(f"page: {out / PAGE}, text: {out / TEXT}")
