"""`recurrify add`: add a memory to a model and save it, untrained."""

from pathlib import Path
from typing import Annotated

import typer

from recurrify.cli import options
from recurrify.cli.settings import memory_settings
from recurrify.console import busy, say
from recurrify.errors import UserError
from recurrify.results import check_takes_files
from recurrify.train.memories import BEST, NO_MEMORY


def add_command(
    model: options.Model,
    out: Annotated[Path, typer.Option(help="New or empty folder for the model.")],
    mechanism: Annotated[str, typer.Option(help=options.mechanism_help(none=False))] = BEST,
    window: options.Window = None,
    overlap: Annotated[int, typer.Option(help="Tokens that neighbouring windows share.")] = 0,
    settings: options.MechanismSet = None,
    seed: options.Seed = 0,
) -> None:
    """Add a memory to a model and save it, without training.

    `lookback` (absolute positions, such as GPT-2 and OPT) and `kv` (rotary positions) work without training; the
    others must be trained with `recurrify train`. By default the memory that works best for the model is chosen.
    """
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise UserError(f"{str(out)!r} exists already: choose another --out, or empty the folder.")
    check_takes_files(out)
    if mechanism == NO_MEMORY:
        raise UserError("`--mechanism none` is no memory: choose another one, or use the model as it is.")
    asked = {"mechanism": mechanism, "window": window, "overlap": overlap, **memory_settings(settings)}
    recurrence = {name: value for name, value in asked.items() if value is not None}
    options.check_memory(recurrence, none=False)
    options.load_libraries(model)
    import torch

    from recurrify.data.texts import pick_device
    from recurrify.evaluate.flops import memory_cost
    from recurrify.modeling import recurrence_config
    from recurrify.modeling.loading import load_model, own_memory
    from recurrify.train.memories import learns

    if mechanism != BEST:
        recurrence_config(recurrence)  # reports invalid settings before anything is loaded
    already = own_memory(model)
    if already:
        raise UserError(
            f"{model!r} has a memory already, {already['mechanism']!r}: add one to its base instead, or train this one."
        )
    torch.manual_seed(seed)
    with busy(f"loading {model}"):
        loaded, tokenizer = load_model(model, recurrence, device=pick_device())
    loaded.save_pretrained(out)
    tokenizer.save_pretrained(out)
    has = loaded.recurrence
    say(f"windows of {has.window}, overlap {has.overlap}; {memory_cost(loaded)}")
    if concern := has.concern():
        say(concern)
    elif mechanism == BEST and learns(has.mechanism):
        say(
            f"{has.mechanism!r} was chosen, which must be trained: windows of {has.window} leave the base no positions "
            "for kept keys and values. Shorter windows (--window) may."
        )
    typer.echo(f"model: {out}")
