"""A benchmark's results as one Markdown page and one picture: throughput and memory against length."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

from recurrify.errors import UserError
from recurrify.pages import numbers
from recurrify.pages.plots import Palette, dress, legend, write_panels
from recurrify.results import load_result, write_whole
from recurrify_papers.report.bench_tables import bench_tables
from recurrify_papers.report.experiments_blocks import Block, Bullets, Paragraph, TableBlock
from recurrify_papers.report.experiments_markdown import markdown_page

__all__ = ["PAGE", "PICTURE", "bench_tables", "load_parts", "write_bench_page"]

PAGE, PICTURE = "bench.md", "bench.png"
DRAWN = ("tokens_per_second", "peak_bytes")
PARTS = ("ceilings", "training", "profile", "lengths", "generation", "evaluation", "naive", "peers")
STYLES = (("recurrent", "-", "o"), ("best", "--", "^"), ("plain", "-.", "s"))
NOTES = (
    "Ratios are medians over interleaved repeats in one run, with their range; above 1, the first is faster.",
    "The share of the ceiling is the operations of a training step (three forward passes; nothing that is computed a "
    "second time counts), times tokens per second, over the fastest measured matrix product.",
    "Memory is the most that a step takes, weights, gradients and optimiser included; of CUDA graphs, what they "
    "reserve; on a CPU, resident memory, where a step takes enough of it to be told.",
    "Training, and one sequence by its length: every way of ours was compared with the plainest one before it was "
    "timed, plain windows with transformers' own model, and the naive loop with ours: losses before and after updates, "
    "and gradients of the base and of the memory, each by itself.",
    "Side by side are processes of one thread each, as the demo trains its models: tokens/s are of all together, and "
    "memory is not measured.",
    "Generation: every step's logits along a given text were compared with those of a forward pass. Scoring: losses in "
    "lanes with those of documents read alone. The field's packages are other models, and were compared with nothing.",
    "Graphs of generation are captured anew in every text. The time for a token is without that; what it takes has a "
    "line of its own.",
)

Parts = Mapping[str, Mapping[str, Any]]


def load_parts(folder: Path) -> dict[str, dict[str, Any]]:
    """The results of a benchmark by part."""
    found = {name: load_result(folder / f"{name}.json") for name in PARTS if (folder / f"{name}.json").is_file()}
    for name, result in found.items():
        if result.get("kind") != "bench" or result.get("part") != name:
            raise UserError(f"{folder / name}.json is not a result of `recurrify bench`: choose another --out.")
    if not found:
        raise UserError(f"There are no results of a benchmark in {str(folder)!r}: run `recurrify bench` first.")
    return found


def write_bench_page(parts: Parts, folder: Path) -> bool:
    """Write the page, and the picture if there is something to draw; says whether there is."""
    rows = (parts.get("lengths") or {}).get("rows") or []
    drawn = any(numbers.finite(row.get(key)) is not None for row in rows for key in DRAWN)
    blocks: list[Block] = [Paragraph(_machine(parts)), Bullets(NOTES)]
    blocks += [TableBlock(table) for table in bench_tables(parts)]
    text = markdown_page("recurrify bench", blocks)
    if drawn:
        write_panels([draw_throughput, draw_memory], parts["lengths"], folder / PICTURE)
        text += f"\n![Throughput and memory of a training step against the length of its sequence.]({PICTURE})\n"
    write_whole(folder / PAGE, text.encode("utf-8"))
    return drawn


def _machine(parts: Parts) -> str:
    told = []
    for result in parts.values():
        origin = result.get("provenance") or {}
        machine, libraries, config = (origin.get(key) or {} for key in ("machine", "libraries", "config"))
        where = machine.get("gpu") if config.get("device") == "cuda" else None
        threads = f", threads: {config['threads']}" if "threads" in config else ""
        where = where or f"{machine.get('cpu')}, {machine.get('cores')} cores{threads}"
        told.append(
            f"Size {config.get('size')} on {where}; torch {libraries.get('torch')}, "
            f"transformers {libraries.get('transformers')}."
        )
    return " ".join(dict.fromkeys(told))


def draw_throughput(axes: Axes, result: Mapping[str, Any], palette: Palette) -> bool:
    return _draw(axes, result, palette, "Throughput of a training step", DRAWN[0], "tokens per second", 1)


def draw_memory(axes: Axes, result: Mapping[str, Any], palette: Palette) -> bool:
    return _draw(axes, result, palette, "Memory of a training step", DRAWN[1], "GiB", 2**30)


def _draw(
    axes: Axes, result: Mapping[str, Any], palette: Palette, title: str, key: str, unit_name: str, unit: float
) -> bool:
    rows: Sequence[Mapping[str, Any]] = result.get("rows") or []
    drawn = False
    for index, name in enumerate(dict.fromkeys(str(row.get("name")) for row in rows)):
        own = [row for row in rows if row.get("name") == name]
        known = [(row["tokens"], numbers.finite(row.get(key))) for row in own]
        points = [(tokens, value / unit) for tokens, value in known if value is not None]
        if not points:
            continue
        colour, line, marker = STYLES[index % len(STYLES)]
        # Where one cannot be compiled at all lengths, both ways are named.
        label = f"{name} ({', '.join(dict.fromkeys(str(row.get('way')) for row in own))})"
        axes.plot(*zip(*points, strict=True), line, color=palette.models[colour], marker=marker, label=label)
        drawn = True
    dress(axes, palette, title, "tokens in the sequence", unit_name)
    if drawn:
        axes.set_xscale("log")
        if unit == 1:
            axes.set_ylim(bottom=0)
        else:
            axes.set_yscale("log")
            axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        axes.set_xticks(sorted({row["tokens"] for row in rows}))
        axes.xaxis.set_minor_locator(NullLocator())
        for axis in (axes.xaxis, axes.yaxis):
            axis.set_major_formatter(FuncFormatter(lambda value, _: numbers.tick(value)))
            axis.set_minor_formatter(FuncFormatter(lambda value, _: ""))
    return drawn and legend(axes, palette)
