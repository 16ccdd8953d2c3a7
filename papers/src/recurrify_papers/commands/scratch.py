"""`recurrify scratch`: train, evaluate and report language models trained from scratch."""

from pathlib import Path
from typing import Annotated, Any

import typer

from recurrify.cli import options
from recurrify.console import say, show_table
from recurrify.errors import UserError
from recurrify.known_names import ALPHABETS, ARCHITECTURES
from recurrify.records import check_has_model
from recurrify.results import check_overwrites_nothing, provenance, save_result

SPELT_IN: dict[str, tuple[str, ...]] = {"byte": ("character",), "character": ("byte",), "token": ("character", "byte")}
"""What a score is given by besides, for each kind of symbol."""


app = typer.Typer(
    help="Language models trained from scratch: Transformer-XL, the Block-Recurrent Transformer, RSA, LSTM, GRU.",
    no_args_is_help=True,
    rich_markup_mode="markdown",
)
Arch = Annotated[str, typer.Option(help=f"What to train: {', '.join(ARCHITECTURES)}.")]
Symbols = Annotated[
    str, typer.Option(help=f"{', '.join(ALPHABETS)}, or a tokenizer's folder, shipped:base, or name on the hub.")
]
Steps = Annotated[int, typer.Option(help="Updates of the weights.")]
Length = Annotated[int, typer.Option(help="Symbols of each lane in a step; --batch is the number of lanes.")]
Clip = Annotated[float, typer.Option(help="The largest norm of the gradient; 0: as large as it is.")]
WeightDecay = Annotated[float, typer.Option(help="With any, Adam becomes AdamW.")]
RecurrenceLearningRate = Annotated[
    float | None,
    typer.Option(help="Of the recurrence's gates, decays and angles, with rsa-xl, rsa-brt or rsa; default: the same."),
]
EvalBatch = Annotated[
    int | None, typer.Option(help="Lanes in validation and test; default: --batch, or more where the text is long.")
]
EvalLength = Annotated[int | None, typer.Option(help="Symbols of a segment in validation and test; default: --length.")]
EvalSet = Annotated[
    list[str] | None, typer.Option("--eval-set", help="As --set, in validation and test only: memory_length=3800, say.")
]
TestTokens = Annotated[
    int | None,
    typer.Option(help="Symbols of validation and test that are scored at the end; default: all."),
]
Speed = Annotated[str, typer.Option(help="eager, compile, graph (captured), or auto: graph on CUDA, else eager.")]
Batch = Annotated[int, typer.Option(help="Lanes: stretches of the text that are read in parallel.")]
LearningRate = Annotated[float, typer.Option(help="Peak learning rate.")]
Settings = Annotated[list[str] | None, typer.Option("--set", help="A setting of the architecture: layers=6, say.")]
ValidEvery = Annotated[int, typer.Option(help="Training symbols between validations.")]
ValidTokens = Annotated[int, typer.Option(help="Validate on the first so many symbols.")]
Lanes = Annotated[int | None, typer.Option(min=1, help="Lanes of the text; default: as in training.")]
FirstSymbols = Annotated[int | None, typer.Option(min=2, help="Score only the first so many symbols.")]
SegmentLength = Annotated[int | None, typer.Option(min=1, help="Symbols of a segment; default: the run's own.")]


@app.command(name="train")
def train_command(
    arch: Arch,
    data: options.Data,
    out: options.RunFolder,
    valid: options.Valid = None,
    text_field: options.TextField = "text",
    symbols: Symbols = "bytes",
    settings: Settings = None,
    eval_settings: EvalSet = None,
    steps: Steps = 20_000,
    batch: Batch = 22,
    length: Length = 512,
    learning_rate: LearningRate = 2.5e-4,
    recurrence_learning_rate: RecurrenceLearningRate = None,
    schedule: options.Schedule = "cosine",
    warmup_steps: options.WarmupSteps = 0,
    weight_decay: WeightDecay = 0.0,
    clip: Clip = 0.25,
    eval_batch: EvalBatch = None,
    eval_length: EvalLength = None,
    valid_every: ValidEvery = 22_528_000,
    valid_tokens: ValidTokens = 500_000,
    test_tokens: TestTokens = None,
    max_minutes: options.MaxMinutes = None,
    precision: options.Precision = "auto",
    speed: Speed = "auto",
    seed: options.Seed = 0,
) -> None:
    """Train a language model from scratch on one stream of characters, bytes or tokens.

    Its state is carried from batch to batch. The defaults are Transformer-XL's. A checkpoint is saved every five
    minutes; run the same command to resume. Curves are in `result.json`; `recurrify scratch report` draws them.
    """
    given = dict(locals())
    if arch not in ARCHITECTURES:
        raise UserError(f"`--arch` must be one of {', '.join(ARCHITECTURES)}: got {arch!r}.")
    from recurrify.data import check_source

    for source in filter(None, (data, valid)):
        check_source(source)
    from recurrify.side_by_side import held_alone
    from recurrify_papers.models.language import parse_settings
    from recurrify_papers.scratch.run import train_scratch
    from recurrify_papers.scratch.settings import ScratchSettings

    for name in ("settings", "eval_settings"):
        given[name] = parse_settings(arch, given[name] or [])
    with held_alone(out):
        result = train_scratch(ScratchSettings.from_options(given, out=str(out)), say)
    if not result["finished"]:
        raise typer.Exit(130 if result["interrupted"] else 0)
    for part in ("validation", "test"):
        typer.echo(f"{part}: {_scored(result[part], result['unit'])}")
    typer.echo(f"model: {out / 'model'}")


@app.command(name="evaluate")
def evaluate_command(
    runs: Annotated[list[str], typer.Argument(help="Folders of `scratch train`.")],
    data: options.Data,
    split: options.Split = "test",
    text_field: options.TextField = "text",
    lanes: Lanes = None,
    eval_length: SegmentLength = None,
    symbols: FirstSymbols = None,
    device: options.Device = "auto",
    out: options.ResultFile = None,
) -> None:
    """Bits per symbol of models from scratch, which read the text as one stream in several lanes."""
    config = dict(locals()) | {"out": None}
    check_overwrites_nothing(out, data, *runs)
    from recurrify.data import check_source

    check_source(data)
    from recurrify_papers.scratch.run import is_scratch, score_run

    for name in runs:
        check_has_model(name)
        if not is_scratch(name):
            raise UserError(f"{name!r} was not trained from scratch: `recurrify evaluate` scores it.")
    found = [
        score_run(
            name,
            data,
            split,
            text_field=text_field,
            lanes=lanes,
            length=eval_length,
            symbols=symbols,
            device=device,
        )
        for name in runs
    ]
    for one in found:
        typer.echo(f"{one['model']} ({one['arch']}): {_scored(one, one['unit'])}")
    if out is not None:
        save_result(out, {"kind": "scratch-evaluation", "rows": found, "provenance": provenance(config)})
        say(f"saved {out}")


def _scored(found: dict[str, Any], unit: str) -> str:
    own = f"{found['bits_per_symbol']:.4f}"
    others = {other: found[f"bits_per_{other}"] for other in SPELT_IN[unit]}
    told = [f"{bits:.4f} per {other}" for other, bits in others.items() if bits is not None and f"{bits:.4f}" != own]
    unknown = " and ".join(f"per {other}" for other, bits in others.items() if bits is None)
    if unknown:
        told.append(f"{unknown} not known, for only the beginning was scored")
    spelt = f" ({', '.join(told)})" if told else ""
    return f"{own} bits per {unit}{spelt}, perplexity {found['perplexity_per_symbol']:.3f}, {found['symbols']:,} scored"


@app.command(name="report")
def report_command(
    runs: Annotated[
        list[Path], typer.Argument(help="Folders of `scratch train` (their --out), or folders that hold several.")
    ],
    out: Annotated[Path, typer.Option(help="Folder of the page.")] = Path("runs/scratch-report"),
) -> None:
    """Runs from scratch on one page: curves against steps and time, the final scores beside the published.

    Runs with other data, symbols or budgets are kept apart; those that differ in their seed become one row.
    """
    from recurrify_papers.report.scratch_page import PAGE, TEXT, write_training_page

    shown, warnings = write_training_page(runs, out)
    for content in shown:
        show_table(content.caption, content.header, content.rows, content.text_columns)
    for warning in warnings:
        typer.echo(warning)
    typer.echo(f"page: {out / PAGE}, text: {out / TEXT}")
