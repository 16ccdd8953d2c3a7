"""The command line: parses, calls, prints.

Commands import what they run when they run: torch and transformers take seconds, which a page of help should not.
"""

import os
import sys
from importlib.metadata import entry_points
from pathlib import Path
from typing import Annotated, Any

import typer

from recurrify import __version__
from recurrify.after_import import after_import
from recurrify.cli import classify, options, probe
from recurrify.cli import qa as answer
from recurrify.cli.add import add_command
from recurrify.cli.inspect import inspect_command
from recurrify.cli.recurrence_options import asked_recurrence
from recurrify.console import err_console, is_first, perplexity_level, say
from recurrify.errors import UserError
from recurrify.known_names import BEST
from recurrify.results import check_overwrites_nothing

app = typer.Typer(
    help="Give pretrained transformers a memory: recurrence between windows of text for any Hugging Face model.",
    no_args_is_help=True,
    rich_markup_mode="markdown",
    pretty_exceptions_enable=False,
    add_completion=False,
)


def version(wanted: bool) -> None:
    if wanted:
        typer.echo(__version__)
        raise typer.Exit


@app.callback()
def common(
    version: Annotated[
        bool, typer.Option("--version", callback=version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Give pretrained transformers a memory: recurrence between windows of text for any Hugging Face model."""
    after_import("transformers", _quieten_transformers)


def _quieten_transformers() -> None:
    from transformers import logging

    logging.set_verbosity_error()
    logging.disable_progress_bar()


@app.command()
def demo(
    out: Annotated[Path, typer.Option(help="Folder for the page and the live runs.")] = Path("runs/demo"),
    live_tokens: Annotated[int, typer.Option(min=10_000, help="Tokens of each live fine-tuning.")] = 80_000,
    seeds: Annotated[int, typer.Option(min=1, help="Live fine-tunings of each kind.")] = 1,
) -> None:
    """A pretrained model reads a novel with and without memory, a tiny one is fine-tuned: minutes, no GPU.

    Run the same command again to resume.
    """
    from recurrify.demo import run_demo
    from recurrify.pages.markdown_text import summary
    from recurrify.side_by_side import held_alone

    with held_alone(out):
        result = run_demo(out, say, live_tokens, tuple(range(seeds)), side_by_side=os.cpu_count() or 1)
    typer.echo(
        "\n".join(["", *summary(result), "", f"All tables: {out / 'tables.md'}", f"The page: {out / 'index.html'}"])
    )


@app.command(name="train")
def train_command(
    data: options.Data,
    out: options.RunFolder,
    model: options.BaseModel,
    valid: options.Valid = None,
    text_field: options.TextField = "text",
    mechanism: options.TrainedMechanism = None,
    window: options.Window = None,
    overlap: options.Overlap = 0,
    windows: options.Windows = 20,
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
    settings: options.Set = None,
    epochs: options.Epochs = 2.0,
    max_tokens: options.MaxTokens = None,
    max_minutes: options.MaxMinutes = None,
    valid_every: options.ValidEvery = 2_000_000,
    valid_tokens: options.ValidTokens = 15_000,
    patience: options.Patience = 3,
    batch: options.Batch = 8,
    accumulate: options.Accumulate = 1,
    learning_rate: options.LearningRate = 5e-5,
    added_learning_rate: options.AddedLearningRate = None,
    warmup_steps: options.WarmupSteps = 100,
    schedule: options.Schedule = "constant_with_warmup",
    freeze_base: options.FreezeBase = False,
    precision: options.Precision = "auto",
    compile: options.Compile = "auto",
    memory_budget: options.MemoryBudget = 1.0,
    group_by_length: options.GroupByLength = False,
    seed: options.Seed = 0,
) -> None:
    """Add recurrence to a model and fine-tune it on your text.

    Left to itself it adds what served best for models of this kind; `--mechanism carry` is the paper's. The plain model
    trains by the very same path with `--mechanism none`. One CPU, one GPU, or several under
    `torchrun` or `accelerate launch`. TensorBoard logs, checkpoints, `run.json` with every setting, `result.json`
    and the trained `model/` land in the output folder.
    """
    given = locals()
    from recurrify.data.documents import check_source

    for source in filter(None, (given["data"], given["valid"])):
        check_source(source)
    from recurrify.mechanisms.base import recurrence_config
    from recurrify.modeling.loading import own_memory
    from recurrify.side_by_side import held_alone
    from recurrify.train.finetuning import train_run
    from recurrify.train.settings import TrainSettings

    out, own = given["out"], own_memory(given["model"])
    if given["mechanism"] is not None:
        options.check_mechanism(given["mechanism"], "none")
    recurrence = asked_recurrence({**given, "mechanism": given["mechanism"] or own.get("mechanism", BEST)})
    same = own.get("mechanism") == recurrence["mechanism"]
    if recurrence["mechanism"] != BEST:
        recurrence_config((own if same else {}) | recurrence)  # refuses what cannot be, before anything is loaded
    run = TrainSettings.from_options(given, out=str(out), recurrence=recurrence)
    with held_alone(out):
        result = train_run(run, say)
    _report_training(result, out)


def _report_training(result: dict[str, Any], out: Path) -> None:
    best = min((e for e in result["history"] if "eval_loss" in e), key=lambda e: e["eval_loss"], default=None)
    if best is not None and is_first():
        typer.echo(
            f"best validation: perplexity {perplexity_level(best['eval_perplexity_per_word'], 2)} per word, "
            f"loss {best['eval_loss']:.4f} per token, at step {best['step']}"
        )
    if not result["finished"]:
        raise typer.Exit(130 if result["interrupted"] else 0)
    if is_first():
        typer.echo(f"model: {out / 'model'}")


app.command(name="add")(add_command)
app.command(name="inspect")(inspect_command)
app.add_typer(answer.app, name="qa")
app.add_typer(classify.app, name="classify")
app.add_typer(probe.app, name="probe")


def add_installed_commands(app: typer.Typer) -> None:
    """Commands of other packages: each entry point of the group `recurrify.commands` is a function or a typer app."""
    for entry in sorted(entry_points(group="recurrify.commands"), key=lambda entry: entry.name):
        command = entry.load()
        if isinstance(command, typer.Typer):
            app.add_typer(command, name=entry.name)
        else:
            app.command(name=entry.name)(command)


add_installed_commands(app)


@app.command()
def evaluate(
    models: options.ModelArguments,
    data: options.Data,
    split: options.Split = "test",
    text_field: options.TextField = "text",
    window: options.EvaluationWindow = None,
    overlap: options.Overlaps = None,
    tokens_per_document: options.TokensPerDocument = None,
    rows: options.Rows = 16,
    device: options.Device = "auto",
    out: options.ResultFile = None,
) -> None:
    """Perplexity per word and per token and bits per character, at any window and overlap.

    Every model and setting scores exactly the same tokens: all but the first of each document. A base model is run
    in plain windows. With several models, each is compared with the first, with an interval over documents.
    """
    check_overwrites_nothing(out, data, *models)
    from recurrify.data.documents import check_source

    check_source(data)
    from recurrify.cli.evaluate import evaluate_models

    evaluate_models(
        models,
        data,
        split,
        text_field,
        window=window,
        overlap=overlap,
        tokens_per_document=tokens_per_document,
        rows=rows,
        device=device,
        out=out,
    )


@app.command()
def generate(
    model: options.ModelArgument,
    prompt: options.Prompt = None,
    prompt_file: options.PromptFile = None,
    max_new_tokens: options.MaxNewTokens = 200,
    greedy: options.Greedy = False,
    temperature: options.Temperature = 0.8,
    top_p: options.TopP = 0.95,
    beams: options.Beams = 1,
    seed: options.SamplingSeed = 0,
    graphs: options.Graphs = False,
    device: options.Device = "auto",
) -> None:
    """Continue a text, as far as you like, streamed as it is written."""
    text = _prompt_text(prompt, prompt_file)
    from recurrify.cli.generate import continue_text

    sampling = (
        {"do_sample": False} if greedy or beams > 1 else {"temperature": temperature, "top_p": top_p, "do_sample": True}
    )
    continue_text(model, text, max_new_tokens, sampling=sampling, beams=beams, seed=seed, graphs=graphs, device=device)


def _prompt_text(prompt: str | None, file: Path | None) -> str:
    if (prompt is None) == (file is None):
        raise UserError("Give the text to go on from with either --prompt or --prompt-file.")
    if prompt is not None:
        return prompt
    assert file is not None
    if str(file) == "-":
        return sys.stdin.read()
    try:
        return file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"Could not read the prompt from {str(file)!r}: {error}.") from error


def main() -> None:
    """Run the command line; bad input is one sentence and exit code 2."""
    try:
        options.check_given_once(app, sys.argv[1:], "--data")
        app()
    except UserError as error:
        err_console.print(f"Error: {error}", style="red", markup=False, highlight=False, soft_wrap=True)
        sys.exit(2)
    except _out_of_memory() as error:
        first = str(error).splitlines()[0]
        way_out = "use a smaller --batch (with --accumulate) or --rows, a smaller --window, or --checkpoint"
        err_console.print(f"Error: the GPU's memory ran out ({first}): {way_out}.", style="red", soft_wrap=True)
        sys.exit(2)
    except SystemExit as stop:
        if stop.code == 130:  # what typer makes of Ctrl-C
            err_console.print(
                "Stopped. What was saved is kept: a command that trains goes on from it when it is given again."
            )
        raise


def _out_of_memory() -> tuple[type[Exception], ...]:
    """The exception that torch has for it; as long as torch was not imported nothing has raised it."""
    torch = sys.modules.get("torch")
    return () if torch is None else (torch.OutOfMemoryError,)


if __name__ == "__main__":
    main()
