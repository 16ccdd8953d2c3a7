"""`recurrify pretrain`: train a base model from scratch."""

from pathlib import Path
from typing import Any

import typer

from recurrify.cli import options, settings_command
from recurrify.console import is_first, say
from recurrify.run_lock import run_lock
from recurrify_papers.pretrain.settings import PretrainSettings


@settings_command(typer.Typer(), "pretrain", PretrainSettings)
def pretrain_command(given: dict[str, Any]) -> None:
    """Train a small model from scratch on your text: a GPT-2 or a BERT to add recurrence to, or a T5.

    The output folder gets the `model/` with its tokenizer, `run.json` with every setting and `result.json`. Each
    objective has its next step:

    - clm: `recurrify train --model OUT`, like any other causal language model;
    - mlm: `recurrify qa train --model OUT`, or `add_recurrence(AutoModelForMaskedLM…)` in Python;
    - span: transformers, like any T5; recurrify adds no recurrence to it.

    **Examples**

    `recurrify pretrain --data books/ --out runs/base`

    `recurrify pretrain --data books/ --objective mlm --layers 4 --width 256 --heads 4 --out runs/bert`
    """
    settings = PretrainSettings(**given)
    options.load_libraries(texts=[*settings.data, settings.valid])
    from recurrify_papers.pretrain.run import pretrain

    with run_lock(settings.out):
        result = pretrain(settings, say)
    loss = result["validation"]["loss_per_token"]
    if is_first() and loss is not None:
        typer.echo(f"validation: loss {loss:.4f} per predicted token")
    if not result["finished"]:
        raise typer.Exit(130 if result["interrupted"] else 0)
    if is_first():
        typer.echo(f"model: {Path(settings.out) / 'model'}")
