"""The command line: parses, calls, prints."""

import os
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from rich.table import Table
from transformers import TextStreamer, logging, set_seed

from recurrify import __version__, options
from recurrify.commands import answer, classify, experiment, forecast, probe, scratch
from recurrify.commands.bench import bench_command
from recurrify.commands.inspecting import inspect_command
from recurrify.commands.pretrain import pretrain_command
from recurrify.commands.recurrence_options import asked_recurrence
from recurrify.console import err_console, is_first, out_console, progress_bar, say
from recurrify.demo import run_demo
from recurrify.errors import UserError
from recurrify.evaluate import Evaluation, memory_cost
from recurrify.jobs import evaluation_rows, gain_row, pick_device, read_text, train_run
from recurrify.jobs.side_by_side import held_alone
from recurrify.recurrence import RecurrentForCausalLM, load_model, own_windows, recurrence_config
from recurrify.recurrence.graphed_generation import graph_generation
from recurrify.report import summary
from recurrify.results import check_overwrites_nothing, provenance, save_result
from recurrify.train import TrainSettings, uses_bf16
from recurrify.train.scratch_settings import ScratchSettings
from recurrify.windows import check_window

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
    logging.set_verbosity_error()
    logging.disable_progress_bar()


@app.command()
def demo(
    out: Annotated[Path, typer.Option(help="Folder for the page and the live runs.")] = Path("runs/demo"),
    live_tokens: Annotated[int, typer.Option(min=10_000, help="Tokens of each live fine-tuning.")] = 700_000,
    seeds: Annotated[int, typer.Option(min=1, help="Live fine-tunings of each kind.")] = 2,
) -> None:
    """Add recurrence to the shipped tiny model, fine-tune it live, compare, report: minutes, offline, no GPU.

    Run again, it goes on where it stopped; a finished one only writes its page anew.
    """
    with held_alone(out):
        result = run_demo(out, say, live_tokens, tuple(range(seeds)), side_by_side=os.cpu_count() or 1)
    typer.echo(
        "\n".join(["", *summary(result), "", f"All tables: {out / 'tables.md'}", f"The page: {out / 'index.html'}"])
    )


@app.command(name="train")
def train_command(
    context: typer.Context,
    data: options.Data,
    out: options.RunFolder,
    model: options.BaseModel = None,
    arch: options.Arch = None,
    valid: options.Valid = None,
    text_field: options.TextField = "text",
    mechanism: options.Mechanism = "carry",
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
    symbols: options.Symbols = ScratchSettings.symbols,
    steps: options.Steps = ScratchSettings.steps,
    length: options.Length = ScratchSettings.length,
    clip: options.Clip = ScratchSettings.clip,
    weight_decay: options.WeightDecay = ScratchSettings.weight_decay,
    recurrence_learning_rate: options.RecurrenceLearningRate = None,
    eval_batch: options.EvalBatch = None,
    eval_length: options.EvalLength = None,
    eval_settings: options.EvalSet = None,
    speed: options.Speed = "auto",
) -> None:
    """Add recurrence to a model and fine-tune it on your text, or train an architecture from scratch.

    The plain model trains by the very same path with `--mechanism none`. One CPU, one GPU, or several under
    `torchrun` or `accelerate launch`. TensorBoard logs, checkpoints, `run.json` with every setting, `result.json`
    and the trained `model/` land in the output folder.

    With `--arch` a language model is trained from scratch on one stream of characters, bytes or tokens, its state
    carried from batch to batch. Defaults then are Transformer-XL's: --batch 22, --learning-rate 2.5e-4, a cosine
    without warm-up.
    """
    given = locals()
    if scratch.is_from_scratch(context):
        scratch.train_architecture(context)
        return
    recurrence = asked_recurrence(given)
    recurrence_config(recurrence)  # refuses what cannot be, before anything is loaded
    run = TrainSettings.from_options(given, out=str(out), recurrence=recurrence)
    _report_training(train_run(run, say), out)


def _report_training(result: dict[str, Any], out: Path) -> None:
    best = min((e for e in result["history"] if "eval_loss" in e), key=lambda e: e["eval_loss"], default=None)
    if best is not None and is_first():
        typer.echo(
            f"best validation: perplexity {best['eval_perplexity_per_word']:.2f} per word, "
            f"loss {best['eval_loss']:.4f} per token, at step {best['step']}"
        )
    if not result["finished"]:
        raise typer.Exit(130 if result["interrupted"] else 0)
    if is_first():
        typer.echo(f"model: {out / 'model'}")


app.command(name="pretrain")(pretrain_command)
app.command(name="bench")(bench_command)
app.command(name="inspect")(inspect_command)
app.command(name="train-report")(scratch.report_command)
app.add_typer(experiment.app, name="experiment")
app.add_typer(answer.app, name="qa")
app.add_typer(classify.app, name="classify")
app.add_typer(forecast.app, name="forecast")
app.add_typer(probe.app, name="probe")


@app.command()
def evaluate(
    context: typer.Context,
    models: options.ModelArguments,
    data: options.Data,
    split: options.Split = "test",
    text_field: options.TextField = "text",
    window: options.EvaluationWindow = None,
    overlap: options.Overlaps = None,
    tokens_per_document: options.TokensPerDocument = None,
    rows: options.Rows = 16,
    eval_length: options.ScoredLength = None,
    device: options.Device = "auto",
    out: options.ResultFile = None,
) -> None:
    """Perplexity per word and per token and bits per character, at any window and overlap.

    Every model and setting scores exactly the same tokens: all but the first of each document. A base model is run
    in plain windows. With several models, each is compared with the first, with an interval over documents. Models
    from scratch (`train --arch`) read the text as one stream, in --rows lanes (by default, as their run did).
    """
    check_overwrites_nothing(out, data, *models)
    if scratch.is_evaluated_from_scratch(context):
        scratch.evaluate_architectures(context)
        return
    where = pick_device(device)
    half = where.type == "cuda" and uses_bf16("auto")
    window, overlaps = _common_windows(models, window, overlap)
    table: list[dict[str, Any]] = []
    found: dict[str, list[Evaluation]] = {}
    checksum = ""
    for name in models:
        model, tokenizer = load_model(name)
        model.set_recurrence(window=window, overlap=overlaps[0])
        tokens, checksum = read_text(data, split, tokenizer, say, text_field, tokens_per_document)
        if model.mechanism is not None:
            say(f"{name}: {memory_cost(model)}")
        total = len(overlaps) * sum(len(document.ids) - 1 for document in tokens)
        with progress_bar(name, total) as advance:
            scores, found[name] = evaluation_rows(model.to(where), tokens, overlaps, advance, rows, half)
        table += [{"model": name, "mechanism": model.recurrence.mechanism, **row} for row in scores]
    gains = [
        {"model": name, "against": models[0], **gain_row([reference], [evaluation])}
        for name in models[1:]
        for reference, evaluation in zip(found[models[0]], found[name], strict=True)
    ]
    _print_evaluation(table, gains)
    if out is not None:
        config = {"models": models, "data": data, "split": split, "window": window, "overlap": overlap}
        config["tokens_per_document"] = tokens_per_document
        result = {
            "kind": "evaluation",
            "rows": table,
            "gains": gains,
            "documents": {name: [one.to_dict() for one in evaluations] for name, evaluations in found.items()},
            "provenance": provenance(config, data_checksum=checksum),
        }
        save_result(out, result)
        say(f"saved {out}")


def _common_windows(models: list[str], window: int | None, overlap: list[int] | None) -> tuple[int, list[int]]:
    """One window and the same overlaps for all models, or their perplexities could not be compared."""
    own = [windows for windows in map(own_windows, models) if windows is not None]
    if window is None and len({one for one, _ in own}) > 1:
        raise UserError(f"The models were made for windows of {_list(one for one, _ in own)}: choose with --window.")
    if overlap is None and len({one for _, one in own}) > 1:
        raise UserError(f"The models were made for overlaps of {_list(one for _, one in own)}: choose with --overlap.")
    if window is None:
        window = own[0][0] if own else load_model(models[0])[0].recurrence.window
    overlaps = overlap or [own[0][1] if own else 0]
    for one in overlaps:
        check_window(window, one)
    return window, overlaps


def _list(numbers: Iterable[int]) -> str:
    return " and ".join(str(number) for number in sorted(set(numbers)))


def _print_evaluation(rows: list[dict[str, Any]], gains: list[dict[str, Any]]) -> None:
    for name in dict.fromkeys(row["model"] for row in rows):
        own = [row for row in rows if row["model"] == name]
        out_console.print(
            f"{name} ({own[0]['mechanism']}), windows of {own[0]['window']}",
            markup=False,
            highlight=False,
            soft_wrap=True,
        )
        table = Table(box=None, pad_edge=False)
        for header in ("overlap", "ppl/word", "95 % interval", "ppl/token", "bits/char", "all FLOPs/token"):
            table.add_column(header, justify="right", no_wrap=True)
        for row in own:
            low_high = row["perplexity_per_word_interval"]
            table.add_row(
                str(row["overlap"]),
                _level(row["perplexity_per_word"], 2),
                f"{_level(low_high[0], 2)} to {_level(low_high[1], 2)}" if low_high else "one document",
                _level(row["perplexity_per_token"], 3),
                f"{row['bits_per_character']:.4f}",
                f"{row['full_flops_per_token']:.3g}",
            )
        out_console.print(table, soft_wrap=True)
    for gain in gains:
        span = gain["interval"]
        if span is None:
            text = "one document: no interval"
        else:
            text = f"95 % interval: {_change(span[0])} to {_change(span[1])}"
            text += ", within noise" if gain["within_noise"] else ""
        out_console.print(
            f"{gain['model']} against {gain['against']} at overlap {gain['overlap']}: perplexity per word "
            f"{_change(gain['relative_gain'])} ({text})",
            markup=False,
            highlight=False,
            soft_wrap=True,
        )


def _level(perplexity: float, digits: int) -> str:
    """Short enough for a line even where a model knows nothing of the text."""
    return f"{perplexity:,.{digits}f}" if perplexity < 1e5 else f"{perplexity:.4g}"


def _change(gain: float) -> str:
    return f"{100 * abs(gain):.2f} % {'lower' if gain >= 0 else 'higher'}"


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
    loaded, tokenizer = load_model(model)
    loaded = loaded.to(pick_device(device)).eval()
    if graphs:
        if loaded.device.type != "cuda":
            raise UserError(f"--graphs are for CUDA GPUs, but the model is on {loaded.device.type}: leave them out.")
        graph_generation(loaded)
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise UserError(f"The prompt is not valid text: {error}.") from error
    inputs = tokenizer(text, return_tensors="pt", add_special_tokens=_begins_specially(tokenizer, text))
    ids = inputs["input_ids"].to(loaded.device)
    if ids.shape[1] == 0:
        raise UserError("The prompt holds no token: give some text with --prompt or --prompt-file.")
    if int(ids.max()) >= int(loaded.get_input_embeddings().num_embeddings):
        raise UserError(f"The tokenizer of {model!r} gives token {int(ids.max())}, which the model does not know.")
    set_seed(seed)
    sampling = (
        {"do_sample": False} if greedy or beams > 1 else {"temperature": temperature, "top_p": top_p, "do_sample": True}
    )
    streamer = (
        TextStreamer(tokenizer, skip_special_tokens=True, clean_up_tokenization_spaces=False) if beams == 1 else None
    )
    with torch.inference_mode():
        output = loaded.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            max_new_tokens=max_new_tokens,
            num_beams=beams,
            streamer=streamer,
            pad_token_id=_pad(loaded, tokenizer),
            **sampling,
        )
    if streamer is None:
        typer.echo(tokenizer.decode(output[0], skip_special_tokens=True))


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


def _begins_specially(tokenizer: Any, text: str) -> bool:
    """Keep a begin-of-text token that the model was pretrained with, but never add an end to a prompt."""
    ids = tokenizer(text)["input_ids"]
    return bool(ids) and ids[0] == tokenizer.bos_token_id and ids[-1] != tokenizer.eos_token_id


def _pad(model: RecurrentForCausalLM, tokenizer: Any) -> int:
    end = model.generation_config.eos_token_id
    end = end[0] if isinstance(end, list) else end
    return tokenizer.pad_token_id if tokenizer.pad_token_id is not None else (end or 0)


def main() -> None:
    """Run the command line; bad input is one sentence and exit code 2."""
    try:
        app()
    except UserError as error:
        err_console.print(f"Error: {error}", style="red", markup=False, highlight=False, soft_wrap=True)
        sys.exit(2)
    except torch.OutOfMemoryError as error:
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


if __name__ == "__main__":
    main()
