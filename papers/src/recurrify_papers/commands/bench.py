"""`recurrify bench`: speed and memory compared with transformers, a naive loop and other packages."""

from pathlib import Path
from typing import Annotated

import typer

from recurrify import UserError
from recurrify.cli import formerly, options
from recurrify.console import err_console, show_table
from recurrify.results import check_takes_files

PARTS = ("training", "start", "lengths", "generation", "batching", "reading", "naive", "peers")
SIZES = "auto, tiny, small, gpt2, smollm2, llama-1b"
Names = Annotated[str | None, typer.Option(help="Comma-separated; default: plain, carry, and kv or lookback.")]
Modes = Annotated[
    str | None, typer.Option(help="eager, compiled, graphs (or graphs-layers); default: these three on a GPU.")
]


@formerly(memories="mechanisms", page="only_page")
def bench_command(
    parts: Annotated[
        list[str] | None,
        typer.Argument(help=f"{', '.join(PARTS)}; default: all of them."),
    ] = None,
    size: Annotated[str, typer.Option(help=f"Shape of the model: {SIZES}.")] = "auto",
    out: Annotated[Path, typer.Option(help="Folder of the results; a part's earlier result is replaced.")] = Path(
        "runs/bench"
    ),
    mechanisms: Names = None,
    modes: Modes = None,
    batches: Annotated[str | None, typer.Option(help="Sequences of an update, comma-separated.")] = None,
    unchecked: Annotated[bool, typer.Option("--unchecked", help="Leave out checkpointed training steps.")] = False,
    device: Annotated[str, typer.Option(help="auto, cpu, cuda or cuda:N.")] = "auto",
    only_page: Annotated[
        bool, typer.Option("--only-page", help="Only write the page of what is in the folder.")
    ] = False,
) -> None:
    """Measure training, generation and reading; every mode is checked against the eager one before it is timed.

    Ratios are medians over interleaved repeats of one run.

    **Examples**

    `recurrify bench --size tiny`

    `recurrify bench training --size smollm2 --mechanisms carry,kv --modes graphs --batches 16`
    """
    for part in parts or ():
        if part not in PARTS:
            raise UserError(f"Unknown part {part!r}: choose from {', '.join(PARTS)}.")
    options.check_device(device)
    check_takes_files(out)
    if not only_page:
        options.load_libraries()
    from recurrify_papers.bench.results import bench_tables, load_parts

    asked = (_names(mechanisms), _names(modes), _names(batches))
    failed = [] if only_page else _run(parts or [], size, out, *asked, device, not unchecked)
    found = load_parts(out)
    for table in bench_tables(found):
        show_table(table.caption, table.header, table.rows, text_columns=1)
    _write_page(out, found)
    if failed:
        err_console.print(f"Wrong results, not timed: {'; '.join(failed)}.", style="red", markup=False)
        raise typer.Exit(1)


def _run(
    parts: list[str],
    size: str,
    out: Path,
    memories: list[str],
    modes: list[str],
    batches: list[str],
    device: str,
    checkpoints: bool,
) -> list[str]:
    """Measure; returns the names of failed checks."""
    from recurrify.data import pick_device
    from recurrify_papers.bench.bench import Bench, run_bench
    from recurrify_papers.bench.models import GRAPHS, KNOWN_MODES, MODES
    from recurrify_papers.bench.models import memories as known_memories
    from recurrify_papers.bench.sizes import size_for

    where = pick_device(device)
    shape = size_for(size, where)
    known = list(known_memories(shape))
    for given, allowed, what in ((memories, known, "memory"), (modes, KNOWN_MODES, "mode")):
        for name in given:
            if name not in allowed:
                raise UserError(f"Unknown {what} {name!r}: choose from {', '.join(allowed)}.")
    captured = [mode for mode in modes if mode in GRAPHS]
    if where.type != "cuda" and captured:
        raise UserError(f"Mode {captured[0]!r} needs a CUDA GPU: choose eager or compiled.")
    if any(not one.isdigit() or int(one) < 1 for one in batches):
        raise UserError(f"`--batches` must be positive whole numbers: got {', '.join(batches)!r}.")
    bench = Bench(
        size=shape,
        device=where,
        memories=tuple(dict.fromkeys(("plain", *memories))) if memories else ("plain", "carry", known[-1]),
        modes=tuple(modes) or (MODES if where.type == "cuda" else ("eager",)),
        batches=tuple(map(int, batches)) or shape.batches,
        checkpoints=checkpoints,
    )
    return run_bench(bench, parts or list(PARTS), out)


def _write_page(out: Path, found: dict[str, dict[str, object]]) -> None:
    """Where the packages for pages are missing, only the page is missing: the results are saved before."""
    try:
        from recurrify_papers.bench.page import write_bench_page
    except UserError as error:
        err_console.print(f"The results are in {out}, without a page. {error}", markup=False, soft_wrap=True)
    else:
        typer.echo(f"page: {write_bench_page(found, out)}")


def _names(given: str | None) -> list[str]:
    return [part.strip() for part in (given or "").split(",") if part.strip()]
