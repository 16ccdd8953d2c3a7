"""`recurrify bench`: speed and memory, side by side with what one would use instead."""

from pathlib import Path
from typing import Annotated

import typer

from recurrify.cli import options
from recurrify.console import err_console, progress_bar, say, show_table
from recurrify.known_names import BENCH_KINDS, BENCH_PARTS, BENCH_SIZES, BENCH_WAYS, USUAL_BENCH_KINDS

PARTS_HELP = "; ".join(f"**{name}**: {purpose}" for name, purpose in BENCH_PARTS.items())
SIZES_HELP = "; ".join(f"**{name}**: {purpose}" for name, purpose in BENCH_SIZES.items())


def bench_command(
    parts: Annotated[list[str] | None, typer.Argument(help=f"What to measure; default: all. {PARTS_HELP}.")] = None,
    size: Annotated[str, typer.Option(help=f"**auto**: what fits the machine; {SIZES_HELP}.")] = "auto",
    out: Annotated[Path, typer.Option(help="Folder of the results, the tables and the picture.")] = Path("runs/bench"),
    device: options.Device = "auto",
    batches: Annotated[
        str | None, typer.Option(help="Sequences in a training update, with commas between; default: the size's own.")
    ] = None,
    ways: Annotated[
        str | None,
        typer.Option(
            help=f"How training steps run, of {','.join(BENCH_WAYS)}; default: all on a CUDA GPU, eager on a CPU."
        ),
    ] = None,
    kinds: Annotated[
        str,
        typer.Option(
            help=f"Of ours, what trains and scores documents, of {','.join(BENCH_KINDS)}; plain is always among them."
        ),
    ] = ",".join(USUAL_BENCH_KINDS),
    budgets: Annotated[
        str,
        typer.Option(
            help="Memory budgets, such as 0.5, for compiled training steps of carry besides those that keep all of a "
            "window's activations."
        ),
    ] = "",
    again: Annotated[bool, typer.Option("--again", help="Measure anew what is there already.")] = False,
    only_checks: Annotated[
        bool,
        typer.Option("--only-checks", help="Check and time nothing; what it compiles is in the compiler's cache then."),
    ] = False,
    max_minutes: Annotated[float | None, typer.Option(min=0.1, help="Stop, saved, after so many minutes.")] = None,
    page: Annotated[bool, typer.Option("--page", help="Measure nothing: write tables and picture anew.")] = False,
) -> None:
    """Measure training, generation and evaluation beside transformers, naive code and the field's packages.

    Ours are checked before they are timed. Ratios are medians over interleaved repeats of one run. Checks and rounds
    are saved as soon as they are done; the same command goes on with what is missing.
    """
    if not page:
        from recurrify_papers.bench.running import Asked, run_bench

        asked = Asked(
            parts=parts or [],
            size=size,
            device=device,
            batches=None if batches is None else options.numbers("--batches", batches),
            ways=None if ways is None else tuple(way.strip() for way in ways.split(",")),
            kinds=tuple(kind.strip() for kind in kinds.split(",")),
            budgets=options.numbers("--budgets", budgets, float),
            again=again,
            only_checks=only_checks,
            max_minutes=max_minutes,
        )
        outcome = run_bench(asked, out, say, progress_bar)
    _show(out)
    if not page and outcome.unfinished:
        how = (
            "without --only-checks, the same command times them"
            if only_checks
            else "the same command goes on with them"
        )
        say(f"not finished: {', '.join(outcome.unfinished)}; {how}")
    if not page and outcome.wrong:
        err_console.print(f"Wrong results, not timed: {'; '.join(outcome.wrong)}.", style="red", markup=False)
        raise typer.Exit(1)


def _show(out: Path) -> None:
    from recurrify_papers.report.bench_page import PAGE, PICTURE, bench_tables, load_parts, write_bench_page

    found = load_parts(out)
    for content in bench_tables(found):
        show_table(content.caption, content.header, content.rows, content.text_columns)
    drawn = write_bench_page(found, out)
    typer.echo(f"tables: {out / PAGE}" + (f", picture: {out / PICTURE}" if drawn else ""))
