"""`recurrify train --arch`: a language model from scratch, its `evaluate`, and `train-report`: several on one page."""

from dataclasses import fields
from pathlib import Path
from typing import Annotated, Any

import typer

from recurrify.console import say, show_table
from recurrify.errors import UserError
from recurrify.known_names import ARCHITECTURES
from recurrify.records import check_has_model
from recurrify.results import provenance, save_result

ONLY_HERE = (
    "symbols",
    "steps",
    "length",
    "clip",
    "weight_decay",
    "recurrence_learning_rate",
    "eval_batch",
    "eval_length",
    "eval_settings",
    "test_tokens",
    "speed",
)
OPTION_OF = {"settings": "--set", "eval_settings": "--eval-set"}
INSTEAD = {"compile": "--speed", "epochs": "--steps", "max_tokens": "--steps", "windows": "--length"}
"""What does the same here as an option of fine-tuning."""
SPELT_IN: dict[str, tuple[str, ...]] = {"byte": ("character",), "character": ("byte",), "token": ("character", "byte")}
"""What a score is given by besides, for each kind of symbol."""


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
    if arch is None:
        for name in _named(context):
            if name in ONLY_HERE:
                raise UserError(f"`{_option(name)}` is for models from scratch: name one with --arch, or leave it out.")
        return False
    from recurrify.train.scratch_settings import ScratchSettings

    settings = {entry.name for entry in fields(ScratchSettings)}
    for name in _named(context):
        if name not in settings:
            way_out = f"use {INSTEAD[name]}" if name in INSTEAD else "leave it out"
            raise UserError(f"`{_option(name)}` is for fine-tuning, not for `--arch` {arch}: {way_out}.")
    return True


def train_architecture(context: typer.Context) -> None:
    given = _named(context)
    arch = given["arch"]
    if arch not in ARCHITECTURES:
        raise UserError(f"`--arch` must be one of {', '.join(ARCHITECTURES)}: got {arch!r}.")
    from recurrify.jobs.scratch import train_scratch
    from recurrify.jobs.side_by_side import held_alone
    from recurrify.models.language import parse_settings
    from recurrify.train.scratch_settings import ScratchSettings

    for name in ("settings", "eval_settings"):
        given[name] = parse_settings(arch, given.get(name) or [])
    out = Path(given["out"])
    settings = ScratchSettings.from_options(given, out=str(out))
    with held_alone(out):
        result = train_scratch(settings, say)
    if not result["finished"]:
        raise typer.Exit(130 if result["interrupted"] else 0)
    for part in ("validation", "test"):
        typer.echo(f"{part}: {_scored(result[part], result['unit'])}")
    typer.echo(f"model: {out / 'model'}")


def is_evaluated_from_scratch(context: typer.Context) -> bool:
    """Whether `evaluate` was given models from scratch; others beside them, and options for others, are refused."""
    from recurrify.jobs.scratch import is_scratch

    models = context.params["models"]
    for name in models:
        check_has_model(name)
    own = [name for name in models if is_scratch(name)]
    if not own:
        if "eval_length" in _named(context):
            raise UserError("`--eval-length` is for models from scratch: leave it out, or use --window.")
        return False
    if len(own) < len(models):
        other = next(name for name in models if name not in own)
        raise UserError(
            f"{own[0]!r} was trained from scratch and {other!r} was not, so that they cannot score the same tokens: "
            "evaluate each kind by itself, and compare bits per character."
        )
    for name in ("window", "overlap"):
        if name in _named(context):
            raise UserError(f"`{_option(name)}` is not for models from scratch, such as {own[0]!r}: leave it out.")
    return True


def evaluate_architectures(context: typer.Context) -> None:
    from recurrify.jobs.scratch import score_run

    asked = context.params
    data, split = asked["data"], asked["split"]
    found = [
        score_run(
            name,
            data,
            split,
            text_field=asked["text_field"],
            lanes=_named(context).get("rows"),
            length=asked["eval_length"],
            symbols=asked["tokens_per_document"],
            device=asked["device"],
        )
        for name in asked["models"]
    ]
    for one in found:
        typer.echo(f"{one['model']} ({one['arch']}): {_scored(one, one['unit'])}")
    if asked["out"] is not None:
        names = ("models", "data", "split", "rows", "eval_length", "tokens_per_document", "device")
        config = {name: asked[name] for name in names}
        save_result(asked["out"], {"kind": "scratch-evaluation", "rows": found, "provenance": provenance(config)})
        say(f"saved {asked['out']}")


def _scored(found: dict[str, Any], unit: str) -> str:
    own = f"{found['bits_per_symbol']:.4f}"
    others = {other: found[f"bits_per_{other}"] for other in SPELT_IN[unit]}
    told = [f"{bits:.4f} per {other}" for other, bits in others.items() if bits is not None and f"{bits:.4f}" != own]
    unknown = " and ".join(f"per {other}" for other, bits in others.items() if bits is None)
    if unknown:
        told.append(f"{unknown} not known, for only the beginning was scored")
    spelt = f" ({', '.join(told)})" if told else ""
    return f"{own} bits per {unit}{spelt}, perplexity {found['perplexity_per_symbol']:.3f}, {found['symbols']:,} scored"


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
    from recurrify.report.scratch_page import PAGE, TEXT, write_training_page

    shown, warnings = write_training_page(runs, out)
    for content in shown:
        show_table(content.caption, content.header, content.rows, content.text_columns)
    for warning in warnings:
        typer.echo(warning)
    typer.echo(f"page: {out / PAGE}, text: {out / TEXT}")
