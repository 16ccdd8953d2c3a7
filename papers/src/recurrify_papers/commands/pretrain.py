"""`recurrify pretrain`: a base model from scratch."""

from typing import Annotated, Any

import typer

from recurrify.cli import options
from recurrify.console import is_first, perplexity_level, say


def _model(text: str, **more: Any) -> Any:
    return typer.Option(help=text, rich_help_panel="Model", **more)


def _budget(text: str) -> Any:
    return typer.Option(help=text, rich_help_panel="Budget and validation")


def _training(text: str) -> Any:
    return typer.Option(help=text, rich_help_panel="Training")


Sources = Annotated[list[str], typer.Option("--data", help=f"{options.DATA_HELP} May be repeated: texts are pooled.")]
Tokenizer = Annotated[
    str | None, _model("A folder with a tokenizer or a name on the hub; default: made from the text.")
]
Vocabulary = Annotated[int, _model("Tokens of the tokenizer that is made.")]
Objective = Annotated[
    str, _model("clm: a GPT-2 predicts the next token; mlm: a BERT masked ones; span: a T5 writes what was cut out.")
]
Layers = Annotated[int, _model("Layers of the model; of a T5, in each half.")]
Width = Annotated[int, _model("Width of its hidden states.")]
Heads = Annotated[int, _model("Attention heads of a layer.")]
Positions = Annotated[int, _model("Tokens of a training sequence, and its longest window.")]
Epochs = Annotated[
    float | None, _budget("Passes over the text; default: as many as --max-tokens takes, or one without it.")
]
PeakRate = Annotated[float, _training("At its peak; a cosine takes it down to a tenth.")]
WeightDecay = Annotated[float, _training("Of the matrices; biases and LayerNorms keep theirs.")]
Dropout = Annotated[float, _training("Share of activations left out.")]
Compile = Annotated[str, _training("auto (on with CUDA), on or off.")]
Seed = Annotated[int, _training("Seed of the weights and of the shuffling.")]


def pretrain_command(
    data: Sources,
    out: options.RunFolder,
    objective: Objective = "clm",
    valid: options.Valid = None,
    text_field: options.TextField = "text",
    tokenizer: Tokenizer = None,
    vocabulary: Vocabulary = 16_384,
    layers: Layers = 8,
    width: Width = 512,
    heads: Heads = 8,
    positions: Positions = 1024,
    epochs: Epochs = None,
    max_tokens: options.MaxTokens = None,
    max_minutes: options.MaxMinutes = None,
    valid_every: options.ValidEvery = 20_000_000,
    batch: options.Batch = 32,
    accumulate: options.Accumulate = 1,
    learning_rate: PeakRate = 1e-3,
    warmup_steps: options.WarmupSteps = 200,
    weight_decay: WeightDecay = 0.1,
    dropout: Dropout = 0.0,
    precision: options.Precision = "auto",
    compile: Compile = "auto",
    seed: Seed = 0,
) -> None:
    """Train a small model from scratch on your text: a GPT-2 or a BERT to add recurrence to, or a T5.

    The output folder gets the `model/` with its tokenizer, `run.json` with every setting and `result.json`. What then
    takes it depends on the objective:

    - clm: `recurrify train --model OUT`, like any other causal language model;
    - mlm: `recurrify qa train --model OUT`, or `add_recurrence(AutoModelForMaskedLM…)` in Python;
    - span: transformers, as any T5; recurrify adds no recurrence to it.
    """
    given = locals()
    from recurrify.side_by_side import held_alone
    from recurrify_papers.pretrain.run import pretrain
    from recurrify_papers.pretrain.training import PretrainSettings

    settings = PretrainSettings.from_options(given, out=str(out))
    with held_alone(out):
        result = pretrain(settings, say)
    found = result["validation"]
    if is_first() and found["loss_per_token"] is not None:
        told = f"loss {found['loss_per_token']:.4f} per token"
        if objective == "clm":
            told = f"perplexity {perplexity_level(found['perplexity_per_word'], 2)} per word, {told}, "
            told += f"{found['bits_per_character']:.4f} bits per character"
        typer.echo(f"validation: {told}{'' if objective == 'clm' else ' to be restored'}")
    if not result["finished"]:
        raise typer.Exit(130 if result["interrupted"] else 0)
    if is_first():
        typer.echo(f"model: {out / 'model'}")
