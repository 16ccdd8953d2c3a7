"""`recurrify probe`: what a model remembers, by tasks with known answers."""

from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table
from typer.core import TyperGroup

from recurrify.cli import options
from recurrify.console import out_console, progress_bar, say, show_table
from recurrify.errors import UserError
from recurrify.known_names import PROBED_REPETITIONS, PROBED_SIZES, PROBED_WINDOW, SYMBOL_PROBES, TEXT_PROBES
from recurrify.records import check_takes_results
from recurrify.results import load_result, save_result, set_earlier_aside

RESULT = "result.json"
MODEL_COMMAND = "model"


class ModelFirst(TyperGroup):
    """Takes what is no command of its own for a model: `recurrify probe MODEL` is `recurrify probe model MODEL`."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        if args and args[0] not in self.commands:
            args = [MODEL_COMMAND, *args]
        return super().resolve_command(ctx, args)


app = typer.Typer(
    cls=ModelFirst,
    help="Ask a model, so many windows later, for what it was told: `recurrify probe MODEL`, or one of the commands."
    "\n\nWhat `recurrify probe MODEL` takes, such as --task, --distances and --examples, is in `recurrify probe "
    "model --help`. Facts are hidden in sources of Python's standard library, unless --haystack names another text.",
    no_args_is_help=True,
    rich_markup_mode="markdown",
)


def _training(text: str, name: str | None = None) -> Any:
    return typer.Option(*(() if name is None else (name,)), help=text, rich_help_panel="Training")


def _of_scratch(what: str, name: str) -> Any:
    return _training(f"{what} of a model from scratch, not with --model; default: {PROBED_SIZES[name]}.")


Tasks = Annotated[
    list[str] | None, typer.Option("--task", help=f"{', '.join(TEXT_PROBES)}; may be repeated; default: all.")
]
Distances = Annotated[str, typer.Option(help="Windows from the facts to the question, with commas between.")]
Examples = Annotated[int, typer.Option(min=1, help="Texts at each distance.")]
OutFolder = Annotated[Path, typer.Option(help="Folder for the result, the picture and the page.")]


@app.command(name=MODEL_COMMAND)
def probe_a_model(
    model: options.ModelArgument,
    task: Tasks = None,
    distances: Distances = "1,2,5,10",
    examples: Examples = 50,
    haystack: Annotated[str, typer.Option(help=f"The text to hide facts in. {options.DATA_HELP}")] = "stdlib",
    split: options.Split = "test",
    window: options.EvaluationWindow = None,
    rows: Annotated[int, typer.Option(min=1, help="Texts read side by side.")] = 8,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the texts.")] = 0,
    device: options.Device = "auto",
    out: OutFolder = Path("runs/probe"),
) -> None:
    """Ask any model about facts in a text it read so many windows before.

    Each answer is one of several candidates; the likeliest counts, so chance is known. The text is read window by
    window with carried state. Full context is the same with facts and question in one window.
    """
    from recurrify.evaluate.probe_run import TextProbing, probe_model

    check_takes_results(out)
    settings = TextProbing(
        model=model,
        tasks=tuple(dict.fromkeys(task or TEXT_PROBES)),
        distances=options.numbers("--distances", distances),
        examples=examples,
        haystack=haystack,
        split=split,
        window=window,
        seed=seed,
    )
    _finish(probe_model(settings, say, progress_bar, device, rows), out)


@app.command()
def train(
    task: Annotated[str, typer.Option(help=f"One of {', '.join(SYMBOL_PROBES)}.")] = "recall",
    task_set: Annotated[
        list[str] | None, typer.Option(help="A setting of the task, such as pairs=8 of recall; may be repeated.")
    ] = None,
    mechanism: options.Mechanism = "compress",
    window: Annotated[int | None, typer.Option(help=f"Symbols in a window; default: {PROBED_WINDOW}.")] = None,
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", help="A setting of the mechanism, such as tokens=8 of memory_tokens; may be repeated."),
    ] = None,
    model: Annotated[
        str | None,
        typer.Option(help="A base to start from, whose first tokens serve as symbols; default: from scratch."),
    ] = None,
    windows: Annotated[int, _training("The farthest distance of training, in windows.")] = 10,
    distances: Distances = "1,2,5,10,20,50,100",
    examples: Examples = 200,
    layers: Annotated[int | None, _of_scratch("Layers", "layers")] = None,
    width: Annotated[int | None, _of_scratch("Width", "width")] = None,
    heads: Annotated[int | None, _of_scratch("Attention heads", "heads")] = None,
    steps: Annotated[int, _training("Updates of the weights.")] = 3000,
    batch: Annotated[int, _training("Sequences in a step.")] = 64,
    learning_rate: Annotated[float, _training("At its height.")] = 1e-3,
    growth: Annotated[float, _training("The farthest distance grows from 1 over this share of the steps.")] = 0.5,
    repetitions: Annotated[
        int | None,
        _training(
            "Steps before those on stretches said twice, from which a model learns to look things up; default: "
            f"{PROBED_REPETITIONS} from scratch, none from a base."
        ),
    ] = None,
    seed: options.Seed = 0,
    device: options.Device = "auto",
    out: OutFolder = Path("runs/probe-train"),
) -> None:
    """Train a small model on a task of symbols over a few windows, and test it over many more."""
    from recurrify.evaluate.probe_run import SymbolTraining, probe_training

    check_takes_results(out)
    given = {} if window is None else {"window": window}
    training = SymbolTraining(
        task=task,
        task_settings=dict(map(options.setting, task_set or [])),
        recurrence={"mechanism": mechanism} | given | dict(map(options.setting, settings or [])),
        model=model,
        windows=windows,
        distances=options.numbers("--distances", distances),
        examples=examples,
        layers=layers,
        width=width,
        heads=heads,
        steps=steps,
        batch=batch,
        learning_rate=learning_rate,
        growth=growth,
        repetitions=repetitions if repetitions is not None else PROBED_REPETITIONS if model is None else 0,
        seed=seed,
    )
    _finish(probe_training(training, say, progress_bar, device), out)


@app.command()
def page(
    results: Annotated[list[Path], typer.Argument(help="Results of probes, or the folders they are in.")],
    out: OutFolder = Path("runs/probes"),
) -> None:
    """Put several results side by side in one picture and one page."""
    found = [load_result(path / RESULT if path.is_dir() else path) for path in results]
    for path, result in zip(results, found, strict=True):
        if result.get("kind") != "probe":
            raise UserError(f"{path} is not the result of a probe: give what `recurrify probe` saved.")
        tasks = result.get("tasks")
        if not (tasks and isinstance(tasks, list) and all(isinstance(task, dict) for task in tasks)):
            raise UserError(f"{path} holds no tasks, so there is nothing to show: give what `recurrify probe` saved.")
    _show(found, out)


@app.command()
def tasks() -> None:
    """List the tasks, what they ask, the level of chance, and that of a guess among the answers that were said."""
    from recurrify.data.probes import symbol_probe
    from recurrify.data.probes_text import text_probe

    table = Table(box=None, pad_edge=False)
    for header in ("task", "kind", "chance", "guess", "asks"):
        table.add_column(header)
    kinds: dict[str, list[Any]] = {"text": [text_probe(name) for name in TEXT_PROBES]}
    kinds["symbols (train)"] = [symbol_probe(name) for name in SYMBOL_PROBES]
    for kind, probes in kinds.items():
        for probe in probes:
            guess = "" if probe.guess_level == 1 else f"{probe.guess_level:.3f}"
            table.add_row(probe.name, kind, f"{probe.chance_level:.3f}", guess, probe.asks)
    out_console.print(table)


def _finish(result: dict[str, Any], out: Path) -> None:
    if aside := set_earlier_aside(out / RESULT, result):
        typer.echo(f"{out / RESULT} was of other settings, and is {aside} now")
    save_result(out / RESULT, result)
    _show([result], out)
    typer.echo(f"result: {out / RESULT}")


def _show(results: list[dict[str, Any]], out: Path) -> None:
    from recurrify.pages.probe import PAGE, PICTURE, probe_tables, write_probe_page

    for content in probe_tables(results):
        show_table(content.caption, content.header, content.texts, content.text_columns)
    write_probe_page(results, out)
    typer.echo(f"picture: {out / PICTURE}, page: {out / PAGE}")
