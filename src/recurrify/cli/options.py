"""The command line's options: their types, their words, and the panel of `--help` that shows them."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from recurrify.errors import UserError
from recurrify.known_names import BEST, CORPORA, MECHANISMS, SHIPPED
from recurrify.mechanisms.registry import mechanism_names

DECODERS_ONLY = ("kv", "lookback", "rsa")
"""Mechanisms that no encoder can have."""
MODEL_HELP = f"A Hugging Face name, a folder, a run's folder, a .gguf file, or one of {', '.join(SHIPPED)}."
DATA_HELP = (
    "A text or JSONL file (also .gz, .xz), a folder, a Hugging Face data set (hf:owner/name[:config]), "
    f"or a corpus: {', '.join(CORPORA)}; enwik8:FILE and text8:FILE read a file of yours, the variable RECURRIFY_DATA "
    "names a folder that has them, and text8-from:FILE cleans a Wikipedia dump."
)


def _recurrence(text: str) -> Any:
    return typer.Option(help=text, rich_help_panel="Recurrence")


def _budget(text: str) -> Any:
    return typer.Option(help=text, rich_help_panel="Budget and validation")


def _training(text: str) -> Any:
    return typer.Option(help=text, rich_help_panel="Training")


def encoder_mechanisms() -> list[str]:
    return [name for name in MECHANISMS if name not in DECODERS_ONLY]


Model = Annotated[str, typer.Option(help=MODEL_HELP)]
BaseModel = Annotated[str | None, typer.Option("--model", help=f"What to fine-tune. {MODEL_HELP}")]
ModelArgument = Annotated[str, typer.Argument(help=MODEL_HELP)]
ModelArguments = Annotated[list[str], typer.Argument(help=MODEL_HELP + " Several are compared with the first.")]
Data = Annotated[str, typer.Option(help=DATA_HELP)]
TextField = Annotated[str, typer.Option(help="Which field of JSON lines or of a data set holds the text.")]
Device = Annotated[str, typer.Option(help="auto, cpu, cuda or cuda:N.")]
RunFolder = Annotated[Path, typer.Option(help="Folder of this run. The same command goes on with what is there.")]
Valid = Annotated[str | None, typer.Option(help="Validation text, all of it, instead of the data's own split.")]

Mechanism = Annotated[str, _recurrence(f"How to remember: {', '.join(MECHANISMS)} (none: plain windows).")]
CHOSEN = f"{BEST} (kv for rotary positions, else lookback where windows leave positions free, else carry)"
AddedMechanism = Annotated[
    str, _recurrence(f"How to remember: {CHOSEN}, {', '.join(name for name in MECHANISMS if name != 'none')}.")
]
TrainedMechanism = Annotated[
    str | None,
    _recurrence(
        f"How to remember: {CHOSEN}, {', '.join(MECHANISMS)} (carry: the paper's; none: plain windows); default: what "
        f"the model has, else {BEST}."
    ),
]
EncoderMechanism = Annotated[
    str, _recurrence(f"How to remember: {', '.join(encoder_mechanisms())} (none: plain windows).")
]
TaskWindow = Annotated[int | None, _recurrence("Tokens in a window; default: the model's positions, at most 512.")]
Window = Annotated[
    int | None,
    _recurrence("Tokens in a window; default: 300, or what the model's positions leave room for if they are fewer."),
]
Overlap = Annotated[int, _recurrence("Tokens shared by neighbouring windows.")]
Windows = Annotated[int, _recurrence("Windows in a training sequence.")]
BpttWindows = Annotated[int | None, _recurrence("Cut gradients after so many windows.")]
Checkpoint = Annotated[bool, _recurrence("Recompute windows in the backward pass: the memory of one window.")]
Pooling = Annotated[str | None, _recurrence("carry: how a window is summed up: mean (default), max or attention.")]
InsertLayer = Annotated[
    str | None, _recurrence("carry, tail: the receiving layer, counted from 1 (default 2), or all (carry).")
]
Slots = Annotated[int | None, _recurrence("carry: how many vectors are carried; default 1.")]
Standardize = Annotated[
    bool | None, _recurrence("carry: standardise what is carried; not in the paper, learns faster.")
]
NeutralStart = Annotated[
    bool | None, _recurrence("Start what is added as something the base makes little of (the default), or at random.")
]
Tail = Annotated[int | None, _recurrence("tail: how many of a window's last positions are handed on; default 16.")]
PooledSlots = Annotated[int | None, _recurrence("tail: pooled vectors besides, which reach further back; default 0.")]
UntilLayer = Annotated[str | None, _recurrence("tail: the last layer that sees what was handed on; default top.")]
Set = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        help="Any other setting of the mechanism (keep=64 of kv); may be repeated.",
        rich_help_panel="Recurrence",
    ),
]
MechanismSet = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        help="Any other setting of the mechanism (limit=8 of summary); may be repeated.",
        rich_help_panel="Recurrence",
    ),
]

Epochs = Annotated[float, _budget("Passes over the text.")]
QuestionEpochs = Annotated[float, _budget("Passes over the questions.")]
MaxTokens = Annotated[int | None, _budget("Stop after so many training tokens.")]
MaxMinutes = Annotated[float | None, _budget("Stop, saved and ready to go on, after so many minutes.")]
ValidEvery = Annotated[int, _budget("Training tokens between validations.")]
ValidTokens = Annotated[int, _budget("Validate on so many tokens of each document.")]
Patience = Annotated[int, _budget("Validations without a better one before stopping; 0 never stops early.")]

Batch = Annotated[int, _training("Sequences in a step, per device.")]
QuestionBatch = Annotated[int, _training("Questions in a step, per device.")]
Accumulate = Annotated[int, _training("Batches whose gradients make one update.")]
LearningRate = Annotated[float, _training("For the base model's weights.")]
AddedLearningRate = Annotated[float | None, _training("For the weights that were added; default: the same.")]
WarmupSteps = Annotated[int, _training("Steps of linear warm-up.")]
Schedule = Annotated[str, _training("constant_with_warmup, linear or cosine.")]
FreezeBase = Annotated[bool, _training("Train only the weights that were added.")]
Precision = Annotated[str, _training("auto (bf16 on GPUs that have it, else fp32), bf16 or fp32.")]
Compile = Annotated[
    str, _training("Compile training windows: on, off, graphs (captures whole steps); auto: graphs with one CUDA GPU.")
]
MemoryBudget = Annotated[
    float, _training("Share of activations that compiled windows keep at most; less saves memory and takes time.")
]
GroupByLength = Annotated[bool, _training("Batch sequences of similar length: less padding for short documents.")]
Seed = Annotated[int, _training("Seed of the shuffling and of the added weights.")]

Split = Annotated[str, typer.Option(help="train, valid (or validation, val, dev), test, or all for the whole source.")]
EvaluationWindow = Annotated[int | None, typer.Option(help="Tokens in a window; default: the models' own.")]
Overlaps = Annotated[list[int] | None, typer.Option("--overlap", help="Overlaps to evaluate; may be repeated.")]
TokensPerDocument = Annotated[
    int | None,
    typer.Option(min=2, help="Score only the first so many tokens of each document."),
]
Rows = Annotated[
    int, typer.Option(min=1, help="Documents, or pieces of them where there is no memory, read side by side.")
]
ResultFile = Annotated[Path | None, typer.Option(help="Save the result, with provenance, as this JSON file.")]

Prompt = Annotated[str | None, typer.Option(help="The text to go on from.")]
PromptFile = Annotated[Path | None, typer.Option(help="The same, from a file; - is standard input.")]
MaxNewTokens = Annotated[int, typer.Option(min=1, help="Any number: memory and time per token stay the same.")]
Greedy = Annotated[bool, typer.Option(help="Always the likeliest token, instead of sampling.")]
Temperature = Annotated[float, typer.Option(min=1e-6, help="Below 1 is more careful, above 1 more daring.")]
TopP = Annotated[float, typer.Option(min=1e-6, max=1.0, help="Sample from the likeliest tokens up to this mass.")]
Graphs = Annotated[
    bool,
    typer.Option(help="Generate by CUDA graphs: faster, the same tokens but for ties within rounding; experimental."),
]
Beams = Annotated[int, typer.Option(min=1, help="Beam search with so many beams (not streamed).")]
SamplingSeed = Annotated[int, typer.Option(min=0, max=2**32 - 1, help="Seed of the sampling.")]


def numbers(name: str, text: str, kind: type[int] | type[float] = int) -> tuple[Any, ...]:
    """The numbers of an option that takes several, with commas between; none where the text is empty."""
    try:
        return tuple(kind(part) for part in text.split(",")) if text.strip() else ()
    except ValueError:
        what = "whole numbers" if kind is int else "numbers"
        raise UserError(f"`{name}` must be {what} with commas between: got {text!r}.") from None


def check_mechanism(name: str, *also: str) -> None:
    """Whether it can be added, or is one of `also`."""
    known = [BEST, *(one for one in mechanism_names() if one != "none"), *also]
    if name not in known:
        raise UserError(f"Unknown recurrence mechanism {name!r}: known are {', '.join(known)}.")


def mechanism_settings(given: list[str] | None) -> dict[str, Any]:
    """All of `--set`, but for what has an option of its own, which would then say something else."""
    found = dict(map(setting, given or []))
    for name in ("mechanism", "window", "overlap"):
        if name in found:
            raise UserError(f"`--set {name}=…` is an option of its own: give --{name} {found[name]}.")
    return found


def setting(text: str) -> tuple[str, Any]:
    """`name=value` of a `--set`; what is no number, list, yes or no is a word."""
    name, equals, value = text.partition("=")
    if not (name and equals and value):
        raise UserError(f"A setting is name=value, such as tokens=16: got {text!r}.")
    try:
        return name, json.loads(value)
    except json.JSONDecodeError:
        return name, value


def check_given_once(app: typer.Typer, arguments: Sequence[str], option: str) -> None:
    """Where a command takes one value, of an option that is repeated the last would count, and the others be lost
    without a word."""
    times = sum(one == option or one.startswith(f"{option}=") for one in arguments)
    if times < 2:
        return
    command: Any = typer.main.get_command(app)
    for word in arguments:
        command = getattr(command, "commands", {}).get(word, command)
    if not any(parameter.multiple for parameter in command.params if option in parameter.opts):
        raise UserError(
            f"`{option}` was given {times} times, and takes one value here: put the files into one folder, or give "
            "them to commands of their own."
        )
