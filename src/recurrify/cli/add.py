"""`recurrify add`: a memory added to a model, and saved as it starts."""

from pathlib import Path
from typing import Annotated

import typer

from recurrify.cli import options
from recurrify.console import say
from recurrify.errors import UserError
from recurrify.known_names import BEST


def add_command(
    model: options.Model,
    out: Annotated[Path, typer.Option(help="Folder of the new model: one that is empty, or not there yet.")],
    mechanism: options.AddedMechanism = BEST,
    window: options.Window = None,
    overlap: options.Overlap = 0,
    settings: options.MechanismSet = None,
    seed: options.Seed = 0,
) -> None:
    """Add a memory to a model and save it, without any training.

    Left to itself it takes what served best for models of this kind. Of use without training are `lookback`, for
    models with absolute positions such as GPT-2 and OPT whose windows leave some of them free, and `kv`, for those
    with rotary ones: what they remember, they remember from the start. The others must be trained: `recurrify train`
    adds and trains in one go, and goes on with what was saved here. What was saved is a model as any other for
    `evaluate`, `generate`, `inspect` and `probe`, and for transformers' Auto classes once recurrify is imported.
    """
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise UserError(f"{str(out)!r} is there already: choose another folder with --out, or empty this one.")
    given = options.mechanism_settings(settings)
    if mechanism == "none":
        raise UserError("`--mechanism none` is no memory: choose one that is, or use the model as it is.")
    options.check_mechanism(mechanism)
    asked = {"mechanism": mechanism, "window": window, "overlap": overlap, **given}
    recurrence = {name: value for name, value in asked.items() if value is not None}
    import torch

    from recurrify.data.texts import pick_device
    from recurrify.evaluate.flops import memory_cost
    from recurrify.mechanisms.base import recurrence_config
    from recurrify.mechanisms.carry import CarryConfig
    from recurrify.mechanisms.lookback import LookbackConfig, enough_room
    from recurrify.modeling.loading import load_model, own_memory

    if mechanism != BEST:
        recurrence_config(recurrence)  # refuses what cannot be, before anything is loaded
    already = own_memory(model)
    if already:
        raise UserError(
            f"{model!r} has a memory already, {already['mechanism']!r}: add one to its base instead, or train this one."
        )
    torch.manual_seed(seed)
    loaded, tokenizer = load_model(model, recurrence, device=pick_device())
    loaded.save_pretrained(out)
    tokenizer.save_pretrained(out)
    has = loaded.recurrence
    say(f"windows of {has.window}, overlap {has.overlap}; {memory_cost(loaded)}")
    if mechanism == BEST and isinstance(has, CarryConfig):
        say(
            f"'carry' was chosen, which has to be trained: windows of {has.window} leave the base no positions for "
            "kept keys and values. Shorter ones (--window) may."
        )
    if isinstance(has, LookbackConfig) and (has.room or 0) < enough_room(has.keep):
        say(
            f"Windows leave {has.room or 0} positions in front of them for the {has.keep} that are kept: this memory "
            "may do harm until it is trained. Shorter windows help."
        )
    typer.echo(f"model: {out}")
