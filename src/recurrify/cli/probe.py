"""`recurrify probe`: what a model remembers, measured with tasks that have known answers."""

from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table
from typer.core import TyperGroup

from recurrify.cli import options
from recurrify.cli.names import formerly
from recurrify.cli.settings import examples, memory_settings
from recurrify.console import out_console, progress_bar, say, show_table
from recurrify.errors import UserError
from recurrify.records import RESULT_FILE, check_takes_results
from recurrify.results import load_result, save_result, set_earlier_aside

MODEL_COMMAND = "model"


class ModelFirst(TyperGroup):
    """Takes an unknown command for a model: `recurrify probe MODEL` is `recurrify probe model MODEL`."""

    unnamed = MODEL_COMMAND

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        if args and args[0] not in self.commands:
            if args[0] == "train":
                raise UserError("`recurrify probe train` comes with the package recurrify-papers: install it first.")
            args = [MODEL_COMMAND, *args]
        return super().resolve_command(ctx, args)


app = typer.Typer(
    cls=ModelFirst,
    help="Measure what a model remembers: facts in a text, and questions some windows later.\n\n"
    "`recurrify probe MODEL` is short for `recurrify probe model MODEL`; `recurrify probe tasks` lists the tasks.",
    no_args_is_help=True,
    rich_markup_mode="markdown",
    epilog=examples("recurrify probe runs/novels", "recurrify probe page runs/probe-carry runs/probe-compress"),
)


Distances = Annotated[str, typer.Option(help="Windows from the facts to the question, separated by commas.")]
Examples = Annotated[int, typer.Option(min=1, help="Texts at each distance.")]
OutFolder = Annotated[Path, typer.Option(help="Folder for the result, the picture and the page.")]


@app.command(
    name=MODEL_COMMAND,
    epilog=examples(
        "recurrify probe runs/novels --task passkey --distances 1,5,20",
        "recurrify probe shipped:recurrent --out runs/probe-carry",
        "recurrify probe smollm2 --mechanism kv --window 300 --set keep=256 --questions nq.jsonl",
    ),
)
@formerly(haystack="data", rows="batch")
def probe_a_model(
    model: options.ModelArgument,
    task: Annotated[
        list[str] | None, typer.Option(help="Task of `recurrify probe tasks`; may be repeated (default: all).")
    ] = None,
    distances: Distances = "1,2,5,10",
    examples: Examples = 50,
    data: Annotated[str, typer.Option(help="Text around the facts: file, folder, corpus name or hf:name.")] = "stdlib",
    split: options.Split = "test",
    questions: Annotated[
        str | None, typer.Option(help="Questions with their texts: also ask these. Formats: SQuAD, HotpotQA, `ctxs`.")
    ] = None,
    mechanism: Annotated[
        str | None, typer.Option(help=f"Give a base model this memory, untrained. {options.mechanism_help()}")
    ] = None,
    settings: options.MechanismSet = None,
    window: options.EvaluationWindow = None,
    batch: options.Batch = 8,
    seed: options.Seed = 0,
    device: options.Device = "auto",
    out: OutFolder = Path("runs/probe"),
) -> None:
    """Ask a model about facts that it read some windows before.

    The answer is one of several candidates, so the level of chance is known. "Full context" has facts and question in
    one window.
    """
    check_takes_results(out)
    from recurrify.data.probes_text import text_probe

    for name in task or ():
        text_probe(name)  # reports an unknown one before anything is loaded
    recurrence = None
    if mechanism is not None:
        sizes = {} if window is None else {"window": window}
        recurrence = {"mechanism": mechanism, **sizes, **memory_settings(settings)}
        options.check_memory(recurrence)
    elif settings:
        raise UserError(f"`--set {settings[0]}` is a setting of a memory: name the memory with --mechanism.")
    options.check_device(device)
    options.load_libraries(model, texts=[data, questions], split=split)
    options.check_charts()
    from recurrify.evaluate.probe_run import TextProbing, probe_model
    from recurrify.train.loop import uses_bf16

    probing = TextProbing(
        model=model,
        **({"tasks": tuple(dict.fromkeys(task))} if task else {}),
        distances=options.numbers("--distances", distances),
        examples=examples,
        haystack=data,
        split=split,
        window=window,
        recurrence=recurrence,
        questions=questions,
        seed=seed,
    )
    save_probe(probe_model(probing, say, progress_bar, device, batch, bf16=uses_bf16("auto")), out)


@app.command(
    epilog=examples(
        "recurrify probe page runs/probe-carry runs/probe-compress",
        "recurrify probe page runs/*/result.json --out runs/probes",
    )
)
def page(
    results: Annotated[list[Path], typer.Argument(help="Results of probes, or their folders.")],
    out: OutFolder = Path("runs/probes"),
) -> None:
    """Compare several results in one picture and one page."""
    found = [load_result(path / RESULT_FILE if path.is_dir() else path) for path in results]
    for path, result in zip(results, found, strict=True):
        if result.get("kind") != "probe":
            raise UserError(f"{path} is not the result of a probe: use a result of `recurrify probe`.")
        tasks = result.get("tasks")
        if not (tasks and isinstance(tasks, list) and all(isinstance(task, dict) for task in tasks)):
            raise UserError(f"{path} contains no tasks: use a result of `recurrify probe`.")
    _show(found, out)


@app.command(epilog=examples("recurrify probe tasks"))
def tasks() -> None:
    """List the tasks, what they ask, the level of chance, and that of a guess among the answers in the text."""
    from recurrify.data.probes_text import TEXT_PROBES, text_probe

    table = Table("task", "chance", "guess", "asks", box=None, pad_edge=False)
    for probe in map(text_probe, TEXT_PROBES):
        guess = "" if probe.guess_level == 1 else f"{probe.guess_level:.3f}"
        table.add_row(probe.name, f"{probe.chance_level:.3f}", guess, probe.asks)
    out_console.print(table)


def save_probe(result: dict[str, Any], out: Path) -> None:
    """Save the result of a probe with its picture and page, and show its tables."""
    if aside := set_earlier_aside(out / RESULT_FILE, result):
        typer.echo(f"{out / RESULT_FILE} had other settings and was renamed to {aside}")
    save_result(out / RESULT_FILE, result)
    _show([result], out)
    typer.echo(f"result: {out / RESULT_FILE}")


def _show(results: list[dict[str, Any]], out: Path) -> None:
    from recurrify.pages.probe import PAGE, PICTURE, probe_tables, write_probe_page

    for content in probe_tables(results):
        show_table(content.caption, content.header, content.texts, content.text_columns)
    write_probe_page(results, out)
    typer.echo(f"picture: {out / PICTURE}, page: {out / PAGE}")
