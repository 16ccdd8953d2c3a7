"""`recurrify probe train`: how far a memory that is trained on a few windows reaches."""

from pathlib import Path
from typing import Annotated, Any

import typer

from recurrify.cli import options, parse_settings, save_probe
from recurrify.console import progress_bar, say
from recurrify.records import check_takes_results


def _training(text: str) -> Any:
    return typer.Option(help=text, rich_help_panel="Training")


def train_command(
    task: Annotated[str, typer.Option(help="recall, variables, copying or reversal.")] = "recall",
    task_set: Annotated[
        list[str] | None, typer.Option(help="A setting of the task, such as pairs=8; may be repeated.")
    ] = None,
    mechanism: Annotated[str, typer.Option(help=options.mechanism_help())] = "compress",
    window: Annotated[int | None, typer.Option(help="Symbols per window (default: 32).")] = None,
    settings: options.MechanismSet = None,
    model: Annotated[str | None, typer.Option(help="Base to start from (default: from scratch).")] = None,
    windows: Annotated[int, _training("Largest training distance, in windows.")] = 10,
    distances: Annotated[
        str, typer.Option(help="Windows from the facts to the question, separated by commas.")
    ] = "1,2,5,10,20,50,100",
    examples: Annotated[int, typer.Option(min=1, help="Sequences at each distance.")] = 200,
    steps: Annotated[int, _training("Training steps.")] = 3000,
    batch: Annotated[int, _training("Sequences per step.")] = 64,
    learning_rate: Annotated[float, _training("Peak learning rate.")] = 1e-3,
    repetitions: Annotated[
        int | None, _training("First steps on repeated text (default: 600 from scratch, else 0).")
    ] = None,
    seed: options.Seed = 0,
    device: options.Device = "auto",
    out: Annotated[Path, typer.Option(help="Folder for the result, the picture and the page.")] = Path(
        "runs/probe-train"
    ),
) -> None:
    """Train a small model on a task of symbols over a few windows, and test it over many more.

    **Examples**

    `recurrify probe train --task recall --task-set pairs=8 --mechanism compress`

    `recurrify probe train --mechanism memory_tokens --set gated=true`
    """
    check_takes_results(out)
    from recurrify_papers.probes.symbols import symbol_probe

    task_settings = parse_settings(task_set)
    symbol_probe(task, **task_settings)  # reports an unknown one before anything is loaded
    given = {"mechanism": mechanism, **({} if window is None else {"window": window})}
    given |= parse_settings(settings)
    options.check_memory(given)
    options.check_device(device)
    options.load_libraries(model)
    from recurrify_papers.probes.training import SymbolTraining, probe_training

    if repetitions is None and model is not None:
        repetitions = 0
    training = SymbolTraining(
        task=task,
        task_settings=task_settings,
        recurrence=given,
        model=model,
        windows=windows,
        distances=options.numbers("--distances", distances),
        examples=examples,
        steps=steps,
        batch=batch,
        learning_rate=learning_rate,
        **({} if repetitions is None else {"repetitions": repetitions}),
        seed=seed,
    )
    save_probe(probe_training(training, say, progress_bar, device), out)
