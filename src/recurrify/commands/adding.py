"""`recurrify add`: a memory added to a model, and saved as it starts."""

from pathlib import Path
from typing import Annotated

import typer

from recurrify import options
from recurrify.console import say
from recurrify.errors import UserError


def add_command(
    model: options.Model,
    out: Annotated[Path, typer.Option(help="Folder of the new model: one that is empty, or not there yet.")],
    mechanism: options.Mechanism = "lookback",
    window: options.Window = None,
    overlap: options.Overlap = 0,
    settings: options.Set = None,
) -> None:
    """Add a memory to a model and save it, without any training.

    Of use by itself are `lookback`, for models with absolute positions such as GPT-2 and OPT, and `kv`, for those with
    rotary ones: what they remember, they remember from the start. The others must be trained: `recurrify train` adds
    and trains in one go, and goes on with what was saved here. What was saved is a model as any other for `evaluate`,
    `generate`, `inspect` and `probe`, and for transformers' Auto classes once recurrify is imported.
    """
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise UserError(f"{str(out)!r} is there already: choose another folder with --out, or empty this one.")
    asked = {"window": window, "overlap": overlap} | dict(map(options.setting, settings or []))
    recurrence = {"mechanism": mechanism} | {name: value for name, value in asked.items() if value is not None}
    from recurrify.evaluate import memory_cost
    from recurrify.recurrence import load_model, recurrence_config

    recurrence_config(recurrence)  # refuses what cannot be, before anything is loaded
    loaded, tokenizer = load_model(model, recurrence)
    loaded.save_pretrained(out)
    tokenizer.save_pretrained(out)
    if loaded.mechanism is not None:
        say(str(memory_cost(loaded)))
    typer.echo(f"model: {out}")
