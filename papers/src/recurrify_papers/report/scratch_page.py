"""`recurrify train-report`: runs of models from scratch as one page, HTML and Markdown."""

import os
from collections.abc import Sequence
from pathlib import Path
from urllib.parse import quote

from recurrify.errors import UserError
from recurrify.pages.html_parts import Link
from recurrify.pages.tables import Table
from recurrify.results import load_result, write_whole
from recurrify_papers.report.experiments_blocks import Block, Paragraph, Section, Terms
from recurrify_papers.report.experiments_html import html_page
from recurrify_papers.report.experiments_markdown import markdown_page
from recurrify_papers.report.scratch_blocks import apart, group_blocks, published_blocks, short_table
from recurrify_papers.report.scratch_published import CORPORA
from recurrify_papers.report.scratch_runs import Group, TrainingRun, grouped, twins

TITLE = "recurrify: models from scratch, side by side"
RESULT, RECORD = "result.json", "run.json"
PAGE, TEXT = "index.html", "report.md"
TERMS = [
    (
        "bits per symbol",
        "minus the binary logarithm of the probability of what came next, on average: what papers on enwik8 call bits "
        "per character. Lower is better.",
    ),
    (
        "test, validation",
        "every symbol of the part but its first, unless fewer are named, read once, the state carried along.",
    ),
    ("step", "one update of the weights."),
    ("ms per step", "of training alone, the first steps left out, in which things are compiled."),
]


def read_runs(paths: Sequence[Path], out: Path) -> tuple[list[TrainingRun], list[str]]:
    """The runs in folders, each a run's own or one that holds several, and the names of those without a result."""
    folders = list(dict.fromkeys(folder for path in paths for folder in _run_folders(path)))
    labels = _told_apart(folders)
    runs, unfinished = [], []
    for folder, label in zip(folders, labels, strict=True):
        file = folder / RESULT
        if not file.is_file():
            unfinished.append(label)
            continue
        content = load_result(file)
        if content.get("kind") != "scratch":
            raise UserError(
                f"{file} is not the result of `recurrify train --arch` (its kind is {content.get('kind')!r}): leave it "
                "out; other results have pages of their own."
            )
        target = quote(Path(os.path.relpath(file, out)).as_posix())
        runs.append(TrainingRun(label, content, Link(RESULT, str(file), target)))
    return runs, unfinished


def _run_folders(path: Path) -> list[Path]:
    if path.is_file() and path.name == RESULT:
        return [path.parent]
    if not path.is_dir():
        raise UserError(f"There is no run in {str(path)!r}: give the --out of `recurrify train --arch`.")
    if _is_run(path):
        return [path]
    inside = sorted(child for child in path.iterdir() if child.is_dir() and _is_run(child))
    if not inside:
        raise UserError(
            f"{str(path)!r} holds neither a run ({RECORD}, {RESULT}) nor folders with runs: give the --out of "
            "`recurrify train --arch`."
        )
    return inside


def _is_run(folder: Path) -> bool:
    return (folder / RESULT).is_file() or (folder / RECORD).is_file()


def _told_apart(folders: Sequence[Path]) -> list[str]:
    """A folder's own name, or its whole path where two have the same."""
    names = [folder.name for folder in folders]
    return [
        str(folder) if names.count(name) > 1 or not name else name for folder, name in zip(folders, names, strict=True)
    ]


def write_training_page(paths: Sequence[Path], out: Path) -> tuple[list[Table], list[str]]:
    """Write index.html and report.md into `out`; returns the final tables for a terminal, and what to warn of."""
    runs, unfinished = read_runs(paths, out)
    if not runs:
        raise UserError(
            f"None of these runs has finished ({', '.join(unfinished)}): give their commands again to go on with them."
        )
    groups = grouped(runs)
    warnings = [Paragraph(text, "warning") for text in _unfinished(unfinished)]
    blocks: list[Block] = [*apart(groups), *warnings, Terms(TERMS)]
    for number, group in enumerate(groups, start=1):
        blocks.append(Section(_title(group), f"runs-{number}", 2, group_blocks(group, f"runs-{number}")))
    corpora = [corpus for corpus in CORPORA if any(group.conditions.data == corpus for group in groups)]
    if corpora:
        blocks.append(
            Section("Published", "published", 2, [one for corpus in corpora for one in published_blocks(corpus)])
        )
    for name, text in ((PAGE, html_page(TITLE, blocks)), (TEXT, markdown_page(TITLE, blocks))):
        write_whole(out / name, text.encode("utf-8", errors="replace"))
    warned = [*_unfinished(unfinished), *(sentence for group in groups for sentence in twins(group))]
    return [short_table(group) for group in groups], warned


def _unfinished(names: Sequence[str]) -> list[str]:
    return [f"Not finished, and not shown: {', '.join(names)}. Their commands go on with them."] if names else []


def _title(group: Group) -> str:
    names = list(dict.fromkeys(variant.label for variant in group.variants))
    few = ", ".join(names) if len(names) < 4 else f"{len(names)} models"
    return f"{few} on {group.conditions.data}"
