"""`recurrify bench`: speed and memory beside transformers, a naive loop and other packages."""

import time
from pathlib import Path
from typing import Annotated, Any

import typer

from recurrify import UserError
from recurrify.console import err_console, progress_bar, say, show_table

SIZES = "auto, tiny, small, gpt2, smollm2, llama-1b"
Names = Annotated[str | None, typer.Option(help="Comma-separated; default: plain, carry and the base's kept keys.")]
Modes = Annotated[str | None, typer.Option(help="eager, compiled, graphs; default: all on a GPU, eager on a CPU.")]


def bench_command(
    parts: Annotated[
        list[str] | None,
        typer.Argument(help="training, lengths, generation, reading, naive, peers; default: all of them."),
    ] = None,
    size: Annotated[str, typer.Option(help=f"Shape of the model: {SIZES}.")] = "auto",
    out: Annotated[Path, typer.Option(help="Folder of the results.")] = Path("runs/bench"),
    memories: Names = None,
    modes: Modes = None,
    batches: Annotated[str | None, typer.Option(help="Sequences of an update, comma-separated.")] = None,
    device: Annotated[str, typer.Option(help="auto, cpu, cuda or cuda:N.")] = "auto",
    again: Annotated[bool, typer.Option("--again", help="Measure again what is in the folder.")] = False,
    max_minutes: Annotated[float | None, typer.Option(help="Stop after so many minutes; run again to resume.")] = None,
    page: Annotated[bool, typer.Option("--page", help="Only write the page of what is in the folder.")] = False,
) -> None:
    """Measure training, generation and reading; every mode is checked against the eager one before it is timed.

    Ratios are medians over interleaved repeats of one run.
    """
    from recurrify_papers.bench.page import bench_tables, load_parts, write_bench_page

    failed: list[str] = []
    if not page:
        failed = _run(
            parts=parts or [],
            size=size,
            out=out,
            memories=_names(memories),
            modes=_names(modes),
            batches=_names(batches),
            device=device,
            again=again,
            max_minutes=max_minutes,
        )
    found = load_parts(out)
    for table in bench_tables(found):
        show_table(table.caption, table.header, table.texts, text_columns=1)
    typer.echo(f"page: {write_bench_page(found, out)}")
    if failed:
        err_console.print(f"Wrong results, not timed: {'; '.join(failed)}.", style="red", markup=False)
        raise typer.Exit(1)


def _run(
    *,
    parts: list[str],
    size: str,
    out: Path,
    memories: list[str],
    modes: list[str],
    batches: list[str],
    device: str,
    again: bool,
    max_minutes: float | None,
) -> list[str]:
    from recurrify.data import pick_device
    from recurrify_papers.bench.bench import PARTS, Bench, run_bench
    from recurrify_papers.bench.models import MODES
    from recurrify_papers.bench.models import memories as known_memories
    from recurrify_papers.bench.sizes import size_for

    where = pick_device(device)
    shape = size_for(size, where)
    known = list(known_memories(shape))
    for given, allowed, what in ((parts, PARTS, "part"), (memories, known, "memory"), (modes, MODES, "mode")):
        for name in given:
            if name not in allowed:
                raise UserError(f"Unknown {what} {name!r}: choose from {', '.join(allowed)}.")
    if where.type != "cuda" and "graphs" in modes:
        raise UserError("Mode 'graphs' needs a CUDA GPU: choose eager or compiled.")
    if any(not one.isdigit() or int(one) < 1 for one in batches):
        raise UserError(f"`--batches` must be positive whole numbers: got {', '.join(batches)!r}.")
    bench = Bench(
        size=shape,
        device=where,
        memories=tuple(dict.fromkeys(("plain", *memories))) if memories else ("plain", "carry", known[-1]),
        modes=tuple(modes) or (MODES if where.type == "cuda" else ("eager",)),
        batches=tuple(map(int, batches)) or shape.batches,
        say=say,
        progress=progress_bar,
        deadline=None if max_minutes is None else time.monotonic() + 60 * max_minutes,
    )
    return run_bench(bench, parts or list(PARTS), out, again)


def _names(given: str | None) -> list[Any]:
    return [part.strip() for part in (given or "").split(",") if part.strip()]
