"""The report of the experiments: one HTML page that needs nothing beside it, and the same as Markdown."""

from pathlib import Path

from recurrify.errors import UserError
from recurrify.pages.plots import write_panels
from recurrify.results import write_whole
from recurrify_papers.report.experiments_beyond import trained_fronts
from recurrify_papers.report.experiments_beyond_plots import draw_front
from recurrify_papers.report.experiments_blocks import Block, Bullets, Paragraph, Section, Terms
from recurrify_papers.report.experiments_data import BEYOND, BOOKS, SizeResults, names, read_results, read_size
from recurrify_papers.report.experiments_html import html_page
from recurrify_papers.report.experiments_losses import draw_by_position
from recurrify_papers.report.experiments_markdown import markdown_page
from recurrify_papers.report.experiments_plots import draw_by_overlap
from recurrify_papers.report.experiments_sections import experiment_section
from recurrify_papers.report.experiments_statement import SIZE_SENTENCES, TINY_WARNING, further_statements, headline
from recurrify_papers.report.experiments_tables import Linker

TITLE = "recurrify: the published experiments, repeated"
BEYOND_TITLE = "recurrify: beyond the papers"

TERMS = [
    ("plain", "the pretrained model, fine-tuned and run in windows that know nothing of each other but their overlap."),
    ("recurrent", "with the paper's mechanism, as published: one pooled vector of each window enters the next."),
    ("best found", "recurrent too, but the best variant found here and not the paper's."),
    (
        "overlap",
        "how many tokens of the window before are read again, unscored, as context at each window's start. Recurrent "
        "models were trained with the overlap they are tested with, plain ones once, without.",
    ),
    ("perplexity per word", "exp of the summed loss over the number of words between blanks, as the paper counts."),
    (
        "gain",
        "the relative drop of perplexity per word against plain windows of the same size and overlap; its interval is "
        "paired, so it can be far narrower than those of the two perplexities.",
    ),
    (
        "FLOPs per token",
        "as the paper counts: matrix products of the body plus causal attention, times T / (T − o), window T and "
        "overlap o; output head and recurrence module left out.",
    ),
]

BEYOND_TERMS = [
    *(entry for entry in TERMS if entry[0] in ("plain", "recurrent", "best found", "perplexity per word")),
    (
        "names",
        "a mechanism and its size: carry-1 carries one vector, tail-16 hands on a window's last 16 positions, "
        "lookback-64 and kv-64 keep keys and values of 64, memory-tokens-4 and summary-4 have so many tokens, "
        "compress-32 keys and values of that width. With -w600, windows of 600 tokens instead of the usual ones.",
    ),
    ("overlap", "how many tokens of the window before are read again, unscored, as context at each window's start."),
    ("gain", "the relative drop of perplexity per word against plain windows; its interval is paired."),
    ("own memory over another's", "the gain over the same model whose windows read the memory of another document."),
    ("FLOPs per token", "all of them: layers, output head, what was added, and what overlapping windows do again."),
]

OF_THEIR_OWN = ("scratch", "lengths", "complexity")
"""Layouts of experiments whose models and budgets are not those of a size: their sections say how they differ."""


def write_experiments_page(root: Path, out: Path) -> list[str]:
    """Write index.html and report.md into `out` from the results below `root`; returns lines for the terminal."""
    sizes = read_results(Path(root))
    beyond = not any(_repeats_published(results) for results in sizes)
    title, terms = (BEYOND_TITLE, BEYOND_TERMS) if beyond else (TITLE, TERMS)
    blocks: list[Block] = [Paragraph(BEYOND_INTRODUCTION if beyond else INTRODUCTION), Terms(terms)]
    blocks += [_size_section(results, Path(out)) for results in sizes]
    for name, text in (("index.html", html_page(title, blocks)), ("report.md", markdown_page(title, blocks))):
        # A generated text may hold half of a surrogate pair, which no encoding can write.
        write_whole(Path(out) / name, text.encode("utf-8", errors="replace"))
    told = {results.size: f"{headline(results)} " if _repeats_published(results) else "" for results in sizes}
    return [f"{results.size}: {told[results.size]}On the page: {_listed(results)}." for results in sizes]


def _listed(results: SizeResults) -> str:
    return ", ".join(experiment.name for experiment in results.experiments)


INTRODUCTION = (
    "Each experiment stands beside what was published about it. Where ours are smaller, levels of perplexity are not "
    "comparable with the published ones; relative gains, and whether a finding holds, are what to compare."
)


BEYOND_INTRODUCTION = (
    "Ways to give a pretrained model a memory, each beside plain windows that overlap or are longer, at all they cost. "
    "Models are compared with each other, on the same tokens and after as many fine-tuning tokens."
)


def _repeats_published(results: SizeResults) -> bool:
    return any(experiment.layout not in BEYOND for experiment in results.experiments)


def _size_section(results: SizeResults, out: Path) -> Section:
    linker = Linker(results, out)
    opening: list[Block] = []
    if results.size == "tiny":
        opening.append(Paragraph(TINY_WARNING, "warning"))
    repeats = _repeats_published(results)
    if repeats and results.size in SIZE_SENTENCES:
        opening.append(Paragraph(SIZE_SENTENCES[results.size]))
    if repeats:
        opening.append(Paragraph(headline(results), "headline"))
    opening += [Paragraph(sentence) for sentence in further_statements(results)]
    differences = _differences(results)
    if differences:
        told = "How this size differs from what was published:" if repeats else "How its models are made and trained:"
        opening += [Paragraph(told), Bullets(differences)]
    sections = [experiment_section(results, experiment, linker) for experiment in results.experiments]
    return Section(f"Size: {results.size}", f"size-{results.size}", 2, [*opening, *sections])


def _differences(results: SizeResults) -> list[str]:
    """What the experiments say of themselves, each thing once, in the order it comes up."""
    of_this_size = (one for one in results.experiments if one.layout not in OF_THEIR_OWN)
    told = (name for experiment in of_this_size for name in names(experiment.content.get("differences")))
    return list(dict.fromkeys(told))


def write_experiments_picture(root: Path, size: str, path: Path) -> None:
    """A PNG for a README: on books, perplexity against overlap on the left and loss by position on the right.

    Of results beyond the papers alone: the Pareto front of their first corpus.
    """
    results = read_size(Path(root), size)
    books, fronts = results.books(), trained_fronts(results)
    if books is None and fronts:
        return write_panels([draw_front], fronts[0], path, height=6.4, width=8.6)
    if books is None:
        raise UserError(
            f"There is no comparison on books to draw: {Path(root) / size / BOOKS}.json is missing. "
            f"Run that experiment at size {size} first, or choose a size that has it."
        )
    write_panels([draw_by_overlap, draw_by_position], books, path)
