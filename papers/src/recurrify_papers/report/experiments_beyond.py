"""What goes beyond the papers: every mechanism against all FLOPs, and whether its memory pays."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from recurrify.pages import numbers
from recurrify.pages.plots import svg
from recurrify.pages.tables import Table
from recurrify_papers.report.experiments_beyond_plots import describe_front, draw_front
from recurrify_papers.report.experiments_beyond_rows import (
    PLAIN,
    MemoryRow,
    corpora,
    front,
    memory_rows,
    rate_table,
    told_gain,
)
from recurrify_papers.report.experiments_beyond_training import frozen_blocks, start_blocks, token_blocks
from recurrify_papers.report.experiments_blocks import Block, Bullets, Fold, Paragraph, Plot, Plots, TableBlock
from recurrify_papers.report.experiments_data import SPLITS, Experiment, Gain, SizeResults
from recurrify_papers.report.experiments_statement import listed
from recurrify_papers.report.experiments_tables import Linker

PAPERS = "carry-1"
"""The paper's own mechanism, by its name in the rows."""
NOT_LEARNED = (PLAIN, "kv", "sliding kv")
"""Kinds of rows without a memory that is learned."""
NAMED = 3
"""More than so many memories are only counted."""


def beyond_makers(experiment: Experiment, linker: Linker) -> dict[str, Callable[[], list[Block]]]:
    """The layouts of this part, by name."""
    return {
        "mechanisms": lambda: mechanism_blocks(experiment, linker),
        "tokens": lambda: token_blocks(experiment, linker),
        "starts": lambda: start_blocks(experiment, linker),
        "frozen": lambda: frozen_blocks(experiment, linker),
    }


def _tuned(rows: Sequence[MemoryRow]) -> list[MemoryRow]:
    return [row for row in rows if row.content.get("trained") is not False]


def trained_fronts(results: SizeResults) -> list[tuple[str, list[MemoryRow]]]:
    """Each corpus and its rows, as `draw_front` takes them, of the comparisons of mechanisms."""
    compared = (one for one in results.experiments if one.layout == "mechanisms")
    return [pair for one in compared for pair in corpora(_tuned(memory_rows(one))).items()]


def mechanism_blocks(experiment: Experiment, linker: Linker) -> list[Block]:
    rows = memory_rows(experiment)
    tuned = _tuned(rows)
    if not tuned:
        return []
    caption = (
        "Lower and further left is better; both scales logarithmic. Grey step: the Pareto front. Named: its "
        "memories, and the best one that is learned. Numbers beside other points, where there is room: the overlap of "
        "plain windows, the size of a memory. Never numbered: plain windows at the largest overlap that costs no more "
        "than some memory. Everything is counted: head, module and slots." + _told_seeds(tuned, " Perplexities of {}.")
    )
    plots = [
        Plot(drawn, describe_front(own), caption)
        for number, (corpus, own) in enumerate(corpora(tuned).items())
        if (drawn := svg(draw_front, (corpus, own), f"{experiment.anchor}-{number}", 6.4, 8.6)) is not None
    ]
    table, files = size_table(tuned, linker)
    blocks: list[Block] = [*_model(rows), *_findings(tuned), TableBlock(table, files), Plots(plots, large=True)]
    rivals = rival_table(tuned)
    if rivals is not None:
        blocks.append(Fold("Intervals, and each beside the best rival that costs no more", [TableBlock(rivals)]))
    bare = [row for row in rows if row not in tuned]
    if bare:
        blocks.append(Fold("Without any fine-tuning", [TableBlock(*size_table(bare, linker))]))
    rates = rate_table(tuned, "the base")
    return [*blocks, *([Fold("Learning rates tried", [TableBlock(rates)])] if rates is not None else [])]


def _model(rows: Sequence[MemoryRow]) -> list[Block]:
    named = next((row.content["model"] for row in rows if row.content.get("model")), None)
    return [] if named is None else [Paragraph(f"The base: {named}, windows of {rows[0].row.window}.")]


def _told_seeds(rows: Sequence[MemoryRow], sentence: str) -> str:
    """On how many seeds rows are ranked, where all texts have as many."""
    counts = {row.shared_seeds for row in rows} - {None}
    if len(counts) != 1:
        return ""
    count = counts.pop()
    return sentence.format("the one seed that all rows have" if count == 1 else f"the {count} seeds that all rows have")


# ---- sentences -------------------------------------------------------------------------------------------


def _findings(rows: Sequence[MemoryRow]) -> list[Block]:
    several = len(corpora(rows)) > 1
    told: list[str] = []
    for corpus, own in corpora(rows).items():
        sentences = [sentence for sentence in (pays(own), compared(own), on_front(own)) if sentence]
        opening = f"{corpus.capitalize()}: " if several else ""
        told += [opening + (sentence if several else sentence[:1].upper() + sentence[1:]) for sentence in sentences]
    return [Bullets(told)]


def _learned(rows: Sequence[MemoryRow]) -> list[MemoryRow]:
    """The rows of a memory that was learned, best first."""
    found = [row for row in rows if row.row.kind not in NOT_LEARNED and row.perplexity is not None]
    return sorted(found, key=lambda row: row.perplexity or 0.0)


def _usual(rows: Sequence[MemoryRow]) -> str:
    """What the best is the best of, where there are memories in longer windows, too."""
    longer = any(row.is_longer for row in _learned(rows))
    usual = next((row.row.window for row in rows if not row.is_longer), None)
    return f" in windows of {usual}" if longer and usual is not None else ""


def pays(rows: Sequence[MemoryRow]) -> str:
    """Whether the learned memory that validates best beats, beyond noise, what needs none and costs no more. Longer
    windows are left out: no overlap of theirs was made to match it."""
    priced = [row for row in _learned(rows) if row.rival is not None and not row.is_longer]
    if not priced:
        return "whether recurrence pays cannot be said yet: it has not been compared."
    best = next((row for row in priced if row.chosen), priced[0])
    others = [row for row in priced if row is not best and is_ahead(row)]
    also = ""
    if others:
        each = [f"{row.row.label} against {_told_rival(row)}" for row in others]
        told = listed(each) if len(each) <= NAMED else f"{len(each)} of the {len(priced) - 1} others"
        also = f" {'Also ahead' if is_ahead(best) else 'Ahead'} of theirs: {told}."
    if is_ahead(best):
        verdict, beats = "recurrence pays", "beats"
    else:
        verdict, beats = "recurrence does not pay", "does not beat, beyond noise,"
    name, rival = f"{best.row.label}, the best memory that is learned{_usual(rows)},", _told_rival(best)
    return f"{verdict}: {name} {beats} the best rival that costs no more FLOPs, {rival}.{also}"


def is_ahead(row: MemoryRow) -> bool:
    return row.rival is not None and row.rival.gain.relative > 0 and not row.rival.gain.within_noise


def _told_rival(row: MemoryRow) -> str:
    rival = row.rival
    assert rival is not None
    noise = numbers.percent_range(rival.gain.interval, signed=True)
    if rival.gain.seeds is not None:
        noise += f", {rival.gain.seeds} seed{'' if rival.gain.seeds == 1 else 's'}"
    return f"{rival.name}: {numbers.percent(rival.gain.relative, signed=True)} ({noise})"


def compared(rows: Sequence[MemoryRow]) -> str | None:
    """The best beside the paper's mechanism, and which plain windows are better, whatever they cost."""
    learned = _learned(rows)
    best = next((row for row in learned if row.chosen), None)
    gain = None if best is None else best.row.gains.get(best.split)
    if best is None or gain is None:
        return None
    told = f"of learned memories{_usual(rows)} the best on validation is {best.row.label}, {told_gain(gain)} over "
    told += "plain windows without overlap"
    papers = next((row for row in learned if row.row.label == PAPERS), None)
    theirs = None if papers is best or papers is None else papers.row.gains.get(papers.split)
    if theirs is not None:
        told += f"; the paper's mechanism gains {told_gain(theirs)}{_doubled(best.beyond_papers)}"
    return f"{told}. {_beaten(best)}"


def _doubled(beyond: Gain | None) -> str:
    if beyond is None:
        return ""
    by = f"by {told_gain(beyond)} of the perplexity"
    if beyond.within_noise:
        return f", and whether that is doubled cannot be told ({by})"
    return f", which is more than doubled ({by})" if beyond.relative > 0 else f", which is not doubled ({by})"


def _beaten(best: MemoryRow) -> str:
    beaten = best.beaten_by
    if beaten is None:
        return ""
    if not beaten:
        return "No plain windows that take as many FLOPs or more are better."
    told = [
        f"{rival.name} ({told_gain(rival.gain)}, {rival.flops / best.flops:.2f} times its FLOPs)"
        for rival in sorted(beaten, key=lambda rival: rival.flops or 0.0)
        if rival.flops is not None and best.flops is not None
    ]
    return f"Of those that take as many FLOPs or more, better are {listed(told)}."


def on_front(rows: Sequence[MemoryRow]) -> str | None:
    found = [row.name for row in front(rows)]
    return f"on the Pareto front lie {listed(found)}." if found else None


# ---- tables ----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Setting:
    """A line of the table: a model at an overlap, with its row in each corpus."""

    name: str
    overlap: int | None
    rows: Mapping[str, MemoryRow]

    @property
    def first(self) -> MemoryRow:
        return next(iter(self.rows.values()))

    @property
    def told(self) -> str:
        matches = self.first.matches
        return f"{self.name}, as dear as {listed(matches)} at most" if matches else self.name


def _settings(rows: Sequence[MemoryRow]) -> list[Setting]:
    found: dict[tuple[str, int | None], dict[str, MemoryRow]] = {}
    for row in rows:
        found.setdefault((row.row.label, row.row.overlap), {})[row.corpus] = row
    return [Setting(name, overlap, own) for (name, overlap), own in found.items()]


def size_table(rows: Sequence[MemoryRow], linker: Linker) -> tuple[Table, list[list[Any]]]:
    """One table: what each memory takes, and what it gains on each text."""
    settings, texts = _settings(rows), list(corpora(rows))
    fronts = {text: front(own) for text, own in corpora(rows).items()}
    columns: list[tuple[str, list[str]]] = [
        ("model", [setting.told for setting in settings]),
        ("on the front", [_fronts(setting, fronts) for setting in settings]),
        ("overlap", [str(setting.overlap) for setting in settings]),
        ("numbers passed on", [numbers.count(one.first.content.get("state_floats")) for one in settings]),
        ("added weights", [numbers.count(one.first.content.get("added_parameters")) for one in settings]),
        ("FLOPs per token", [numbers.large(setting.first.flops) for setting in settings]),
        ("more than plain", [numbers.percent(setting.first.extra_share, signed=True) for setting in settings]),
    ]
    for text in texts:
        own = [setting.rows.get(text) for setting in settings]
        prefix = f"{text}: " if len(texts) > 1 else ""
        columns += [
            (f"{prefix}perplexity", [numbers.perplexity(row.perplexity if row else None) for row in own]),
            (f"{prefix}gain", [row.short_gain if row else numbers.MISSING for row in own]),
            (f"{prefix}± over its seeds", [_spread(row) for row in own]),
            (f"{prefix}own memory over another's", [row.by_memory if row else numbers.MISSING for row in own]),
        ]
    kept = [(name, cells) for name, cells in columns if set(cells) != {numbers.MISSING}]
    cells = [list(line) for line in zip(*(cells for _, cells in kept), strict=True)]
    files = [
        linker.files(
            [name for row in setting.rows.values() for name in row.row.runs],
            [name for row in setting.rows.values() for name in row.files],
        )
        for setting in settings
    ]
    split = SPLITS.get(rows[0].split, rows[0].split)
    caption = f"Perplexity per word, {split} split; gains over plain windows without overlap; all FLOPs counted"
    caption += _told_seeds(rows, "; perplexities and gains of {}")
    return Table(caption, [name for name, _ in kept], cells, text_columns=2), files


def _spread(row: MemoryRow | None) -> str:
    if row is None or row.spread is None:
        return numbers.MISSING
    return f"{numbers.perplexity(row.spread)} of {row.row.seeds}"


def _fronts(setting: Setting, fronts: Mapping[str, Sequence[MemoryRow]]) -> str:
    found = [text for text, row in setting.rows.items() if row in fronts[text]]
    if not found:
        return ""
    return "✓" if len(found) == len(fronts) else f"✓ {listed(found)}"


def rival_table(rows: Sequence[MemoryRow]) -> Table | None:
    cells = [
        [
            row.row.label,
            row.corpus,
            row.gain,
            row.rival.name,
            numbers.percent(row.rival.gain.relative, signed=True),
            numbers.percent_range(row.rival.gain.interval, signed=True),
            "within noise" if row.rival.gain.within_noise else "better" if row.rival.gain.relative > 0 else "worse",
            numbers.count(row.rival.gain.seeds),
            numbers.large(row.flops),
            numbers.large(row.rival.flops),
        ]
        for row in rows
        if row.rival is not None
    ]
    header = ["model", "text", "gain over plain windows without overlap", "best rival that costs no more"]
    header += ["gain over it", "95 % interval", "verdict", "seeds"]
    header += ["FLOPs per token", "the rival's"]
    caption = "Drop of perplexity per word with 95 % intervals, test split, of all seeds that both have"
    return Table(caption, header, cells, text_columns=4) if cells else None
